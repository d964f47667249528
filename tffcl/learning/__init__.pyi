# The public names: `tffcl.public_names` reads them here, as type checkers do.
from tffcl.aggregators.clustered_mean import ClusteredMeanFactory as ClusteredMeanFactory
from tffcl.learning.clustered_fed_avg import build_choose as build_choose
from tffcl.learning.clustered_fed_avg import build_clustered_fed_avg as build_clustered_fed_avg
