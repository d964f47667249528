"""Clustered federated learning for users of `tff.learning`: processes that its loops and programs run like its own.

process = tffcl.learning.build_clustered_fed_avg(model, num_clusters, training)
"""

from tffcl.public_names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
