"""Clustered federated learning for users of `tff.learning`: processes that its loops and programs run like its own.

process = tffcl.learning.build_clustered_fed_avg(model, num_clusters, training)
"""

from tffcl.public_names import lazily

_PLACES = {
    "build_clustered_fed_avg": "tffcl.learning.clustered_fed_avg",
    "build_choose": "tffcl.learning.clustered_fed_avg",
    "ClusteredMeanFactory": "tffcl.aggregators.clustered_mean",
}

__getattr__, __dir__, __all__ = lazily(__name__, _PLACES)
