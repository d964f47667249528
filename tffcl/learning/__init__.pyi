# Made from the names in __init__.py; tests/test_public_names.py holds them together.
from tffcl.aggregators.clustered_mean import ClusteredMeanFactory as ClusteredMeanFactory
from tffcl.learning.clustered_fed_avg import build_choose as build_choose
from tffcl.learning.clustered_fed_avg import build_clustered_fed_avg as build_clustered_fed_avg
