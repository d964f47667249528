"""The aggregations that a task file can name: each function builds a factory from the keys of its table [aggregation]."""


def build_mean() -> None:
    """Builds nothing: a method's own mean, weighted by examples, is what it takes without a factory."""
    return None


def build_uniform_mean():
    """Builds the mean in which every client counts the same, whatever its number of examples (IFCA's and CFL's code)."""
    from tffcl.aggregators.clustered_mean import UniformClusteredMeanFactory

    return UniformClusteredMeanFactory()
