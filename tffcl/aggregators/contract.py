"""The traits of an aggregation factory: what the library must know about it beyond TFF's own contract, with defaults
for TFF's factories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tffcl.trace_cache import key_of

if TYPE_CHECKING:  # commands that only read settings must not load TensorFlow
    import tensorflow_federated as tff


class FactoryTraits:
    """Base of factories over keyed uploads, and of others that declare more than TFF asks; each overrides what differs.

    Read the traits with `traits`; a factory that derives from TFF's classes alone has the defaults.

    Attributes:
      is_keyed: Whether it takes uploads `<key=int32, value=T>`, where the key is the ID of the client's cluster; in
        StoCFL the place of the cluster among those of the round. A state with something for each cluster needs
        `PerClusterFactory`: only its states follow clusters that are founded, merged or renumbered.
      is_uniform: Whether all clients count the same.
      is_mean: Whether a result is the mean of the clients' uploads, as `clipped`, up to rounding; False with noise or a
        robust rule.
      members_needed: A cluster with fewer clients in a round than this waits: a coordinator that knows the clusters
        does not ask them. None is 2 for secure sums, where the sum of one member is its upload, and else 1.
      hides_uploads: Whether it hides single uploads from the server; then clients may send nothing else in the open.
      by_length: Whether it clips or compares updates by their length, so that statistics of data among the weights
        would dominate.
      noise_multiplier: z of the Gaussian mechanism of one aggregation, where a client is added or removed; None or 0
        without noise. A client is in one cluster, so the sums of all clusters together are one Gaussian mechanism.
      noise_seed: The seed of the noise, in simulations that are to be repeated; None where it is drawn anew.
      num_clusters: K; None where the keys of a round decide it, or where it is not known yet.
      waits_for_clusters: Whether it needs the number of clusters before it can be created.
      sends_weight: Whether clients send their weight separately; otherwise it is a part of `uploaded_type`.
      takes_client_ids: Whether an upload comes as `<client_id=int32, upload=T>`, as only simulations allow.
      by_parts: `(state) -> mixing`, which takes a cohort's uploads part by part outside of TFF and gives the results of
        the process, up to the order of sums. It is for simulations of cohorts whose values together are too large for a
        message or a worker's memory. None where TFF merges the sums of parts.
      key: Equal for factories that create the same processes, so that a round is traced once for them (see
        `key_by_attributes`); None where only the same object does.
    """

    is_keyed: bool = False
    is_uniform: bool = False
    is_mean: bool = True
    members_needed: int | None = None
    hides_uploads: bool = False
    by_length: bool = False
    noise_multiplier: float | None = None
    noise_seed: int | None = None
    num_clusters: int | None = None
    waits_for_clusters: bool = False
    sends_weight: bool = True
    takes_client_ids: bool = False
    by_parts: Callable | None = None
    key: tuple | None = None

    def with_clusters(self, num_clusters: int) -> tff.aggregators.AggregationFactory:
        """Returns the factory for this number of clusters."""
        del num_clusters
        return self._factory

    def with_equal_weights(self) -> tff.aggregators.AggregationFactory:
        """Returns the factory for uploads whose weights are all 1, or 0."""
        return self._factory

    def with_layers(self, layers: Sequence[int]) -> tff.aggregators.AggregationFactory:
        """Returns the factory for flat values whose parts, of these lengths, are layers of a model."""
        del layers
        return self._factory

    def numbered(self, number: int) -> tff.aggregators.AggregationFactory:
        """Returns the factory for one of several uploads of the same clients. With a seed it draws other numbers than
        for the other uploads; for number 0 it draws the same as without this call."""
        del number
        return self._factory

    def clipped(self, value):
        """Returns a client's value (a tensor) as it counts, within the bounds that the client knows."""
        return value

    @property
    def _factory(self) -> tff.aggregators.AggregationFactory:
        return self

    def beside(
        self, plain: tff.aggregators.AggregationFactory, bound: float | None = None
    ) -> tff.aggregators.AggregationFactory:
        """Returns the factory for a second keyed upload of the same clients, with the protection of the first.

        Args:
          plain: The factory where nothing is to be hidden; one that `is_uniform` if all clients count the same.
          bound: The largest coordinate of that upload; None: that of the updates.
        """
        del bound
        return plain

    def uploaded_type(self, value_type: tff.Type) -> tff.Type:
        """Returns the type of what a client sends for a value of a type."""
        return value_type

    def deployed(self) -> tff.aggregators.AggregationFactory:
        """Returns the factory as it is exported, without what only a simulation may have: a seed of its noise, or an
        attack. The state of its process has the same type.
        """
        return self._factory


def key_by_attributes(factory: FactoryTraits) -> tuple:
    """Returns the key of a factory whose processes follow from its class and its attributes, with seeds of noise."""
    return type(factory), key_of(vars(factory))


class _Plain(FactoryTraits):
    """The traits of one of TFF's factories."""

    def __init__(self, factory: tff.aggregators.AggregationFactory):
        self._given = factory

    @property
    def _factory(self) -> tff.aggregators.AggregationFactory:
        return self._given


def traits(factory: tff.aggregators.AggregationFactory) -> FactoryTraits:
    """Returns the traits of any aggregation factory; one that derives from `FactoryTraits` is returned itself."""
    return factory if isinstance(factory, FactoryTraits) else _Plain(factory)
