"""The aggregations that a task file can name, and their keys; imports nothing heavy before one is built.

Each has a dataclass of the keys of its table [aggregation], and a function that builds a factory over keyed uploads of them.
"""

from collections.abc import Callable

from tffcl.aggregators.parameters import (
    CompressionParameters,
    DPParameters,
    MeanParameters,
    RobustParameters,
    SecureSumParameters,
    UniformMeanParameters,
)
from tffcl.errors import unknown
from tffcl.validation import from_table

PARAMETERS = {
    "mean": MeanParameters,
    "uniform_mean": UniformMeanParameters,
    "secure_sum": SecureSumParameters,
    "dp": DPParameters,
    "compression": CompressionParameters,
    "robust": RobustParameters,
}


def aggregation(name: str, **options):
    """Builds an aggregation by its name, for `aggregation=` of the methods' builders.

    Args:
      name: "mean", "uniform_mean", "secure_sum", "dp", "compression" or "robust".
      **options: The keys of its table in a task file, see `tffcl list aggregations NAME`. With "dp" and "compression" also
        `seed`: then their randomness repeats, as simulations need it and deployments must not have it. With "compression" also
        `layers`, the number of parameters in each part that has a range of its own.

    Returns:
      A weighted aggregation factory over keyed uploads; None for the mean, which methods take by themselves.

    Raises:
      UserError: For an unknown name or key, or a wrong value.
    """
    if name not in PARAMETERS:
        raise unknown("aggregation", name, PARAMETERS, table="aggregation", key="name")
    extras = {"dp": ("seed",), "compression": ("seed", "layers")}.get(name, ())
    given = {key: options.pop(key) for key in extras if key in options}
    build = _BUILDERS[name]
    return build(from_table(PARAMETERS[name], options, "aggregation"), **given)


def build_mean(how: MeanParameters = MeanParameters()) -> None:
    """Builds nothing: a method's own mean, weighted by examples, is what it takes without a factory."""
    del how


def build_uniform_mean(how: UniformMeanParameters = UniformMeanParameters()):
    """Builds the mean in which every client counts the same, whatever its number of examples (IFCA's and CFL's code)."""
    from tffcl.aggregators.clustered_mean import UniformClusteredMeanFactory

    del how
    return UniformClusteredMeanFactory()


def build_secure_sum(how: SecureSumParameters = SecureSumParameters()):
    """Builds a `SecureClusteredMeanFactory`."""
    from tffcl.aggregators.secure_mean import SecureClusteredMeanFactory

    return SecureClusteredMeanFactory(how)


def build_dp(how: DPParameters = DPParameters(), *, seed: int | None = None):
    """Builds a `PrivateClusteredMeanFactory`."""
    from tffcl.aggregators.private_mean import PrivateClusteredMeanFactory

    return PrivateClusteredMeanFactory(how, seed=seed)


def build_compression(how: CompressionParameters = CompressionParameters(), *, layers=None, seed: int | None = None):
    """Builds a `CompressedClusteredMeanFactory`; `layers` are the lengths of the parts that have a range of their own."""
    from tffcl.aggregators.compressed_mean import CompressedClusteredMeanFactory

    return CompressedClusteredMeanFactory(how, layers=layers, seed=seed)


def build_robust(how: RobustParameters = RobustParameters()):
    """Builds a `ClippedClusteredMeanFactory` or a `RobustClusteredMeanFactory`."""
    from tffcl.aggregators.robust_means import ClippedClusteredMeanFactory, RobustClusteredMeanFactory

    return ClippedClusteredMeanFactory(how) if how.rule == "clipping" else RobustClusteredMeanFactory(how)


_BUILDERS: dict[str, Callable] = {
    "mean": build_mean,
    "uniform_mean": build_uniform_mean,
    "secure_sum": build_secure_sum,
    "dp": build_dp,
    "compression": build_compression,
    "robust": build_robust,
}
