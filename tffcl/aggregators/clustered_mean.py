"""A weighted mean per cluster: a client uploads a value and its cluster's ID; the server gets one mean per cluster."""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import empty, stacked
from tffcl.aggregators.contract import FactoryTraits, key_by_attributes, traits
from tffcl.aggregators.per_cluster import aggregation_process, by_row, counting_alike
from tffcl.errors import UserError, one_line
from tffcl.models.graph_function import traced_once
from tffcl.validation import tell_once


class ClusteredMeanFactory(FactoryTraits, tff.aggregators.WeightedAggregationFactory):
    """`tff.aggregators.WeightedAggregationFactory` for means keyed by cluster ID.

    The created `tff.templates.AggregationProcess` takes `value = <key=int32, value=T>` and a scalar weight, and has
        `next`: `(<state=S@SERVER, value={<key=int32,value=T>}@CLIENTS, weight={W}@CLIENTS> ->
                  <state=S@SERVER, result=T[?,...]@SERVER, measurements=<weight=float32[?],clients=int32[?]>@SERVER>)`
    where row k of every tensor of the result is `sum(weight * value) / sum(weight)` over the clients whose key is k.
    The row of a cluster without clients in the cohort (or whose weights sum to 0) is zero. So aggregate *updates*, and
    an empty cluster keeps its model.

    Without an inner factory a client uploads its value once and the server learns its key. The result has
    `num_clusters` rows, or, if that is None, as many as the largest key asks for, so that K may change between rounds.
    A key outside its range makes the round fail.

    With `inner_factory` (secure sums, differential privacy, compression, robust means: any weighted or unweighted
    factory over T) one inner process runs per cluster, and each client takes part in all of them, with zero value and
    zero weight where it is not a member. This hides the key from the server if the inner process hides the summands,
    and it costs `num_clusters` uploads instead of one. Differential privacy: an inner DP factory's `clients_per_round`
    is the expected number of clients **per cluster**. Adaptive clipping and zeroing see the zeros of non-members and
    drift to 0, of which a message warns once, so give a fixed clip. An unweighted inner factory ignores the weights.
    With more than one cluster it may not count the clients, as `tff.aggregators.UnweightedMeanFactory` does, since it
    would count those of the other clusters, too.

    The `state` is the tuple of the inner states (empty without an inner factory). `measurements` holds the weight sum
    and the number of clients per cluster; with an inner factory it is the tuple of the inner measurements instead, as
    the others would reveal what the inner process hides.

    Attributes:
      num_clusters: K, or None where the keys of a round decide it.
      inner_factory: The factory that aggregates inside one cluster, or None for a plain mean.
    """

    is_keyed = True
    key = property(key_by_attributes)

    def __init__(
        self, num_clusters: int | None = None, inner_factory: tff.aggregators.AggregationFactory | None = None
    ):
        """Makes the factory.

        Args:
          num_clusters: K, or None for "as many as the keys ask for".
          inner_factory: Aggregates inside one cluster. Without `num_clusters` the method that it is given to says K
            when it knows it, see `with_clusters`.

        Raises:
          UserError: If `num_clusters` is below 1.
        """
        if num_clusters is not None and num_clusters < 1:
            raise UserError(f"num_clusters is {num_clusters}; it must be 1 or more, or None")
        self.num_clusters, self.inner_factory = num_clusters, inner_factory

    @property
    def is_plain(self) -> bool:
        """Whether it takes a plain mean per cluster, without an inner factory."""
        return self.inner_factory is None

    @property
    def members_needed(self) -> int | None:
        """The value of the inner factory, see `FactoryTraits`."""
        return None if self.inner_factory is None else traits(self.inner_factory).members_needed

    @property
    def waits_for_clusters(self) -> bool:
        """Whether it needs the number of clusters before it can be created."""
        return self.inner_factory is not None and self.num_clusters is None

    def with_clusters(self, num_clusters: int) -> "ClusteredMeanFactory":
        """Returns the factory for this number of clusters."""
        return type(self)(num_clusters, self.inner_factory)

    def deployed(self) -> "ClusteredMeanFactory":
        """Returns the factory with the deployed form of its inner factory."""
        inner = None if self.inner_factory is None else traits(self.inner_factory).deployed()
        return self if inner is self.inner_factory else type(self)(self.num_clusters, inner)

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process for values of type `<key=int32, value=T>`.

        Raises:
          TypeError: If `value_type` is no such struct, T has tensors that are not floating, or the weight is not a
            scalar.
          UserError: If there is an inner factory, which runs once per cluster, but no number of clusters; or if the
            inner factory is unweighted, there is more than one cluster, and it may count the clients of all.
        """
        check_types(value_type, weight_type)
        if self.waits_for_clusters:
            raise UserError("an inner factory runs once per cluster, so it needs num_clusters")
        if self.inner_factory is None:
            return segment_process(value_type, weight_type, self.num_clusters)
        return _inner_process(value_type, weight_type, self.num_clusters, self.inner_factory)


class UniformClusteredMeanFactory(FactoryTraits, tff.aggregators.WeightedAggregationFactory):
    """The unweighted mean per cluster: every client with a weight above 0 counts the same.

    The result and the measurements are those of `ClusteredMeanFactory` for these clients alone, with weights of 1.
    Clients with a weight of 0, such as those whose training was not finite, do not count at all.
    """

    is_keyed = is_uniform = True
    key = property(key_by_attributes)

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process for values of type `<key=int32, value=T>`; errors as in `ClusteredMeanFactory.create`."""
        check_types(value_type, weight_type)
        return segment_process(value_type, weight_type, None, uniform=True)

    def beside(self, plain: tff.aggregators.AggregationFactory, bound: float | None = None):
        """Returns this factory, so that the same clients count the same in the other upload, too."""
        del plain, bound
        return self


def keyed_factory(aggregation: tff.aggregators.AggregationFactory | None, num_clusters: int | None = None):
    """Turns a user's choice of aggregation into a factory over keyed uploads.

    Args:
      aggregation: None for the plain mean. A factory that `is_keyed`, see `FactoryTraits`, is taken as it is. Any other
        factory of `tff.aggregators` or `tff.learning` aggregates inside each cluster.
      num_clusters: K, where the method knows it beforehand.

    Raises:
      UserError: If it is not an aggregation factory, or has another number of clusters.
    """
    if aggregation is None:
        return ClusteredMeanFactory(num_clusters)
    kinds = tff.aggregators.WeightedAggregationFactory, tff.aggregators.UnweightedAggregationFactory
    if not isinstance(aggregation, kinds):
        given = f"{aggregation!r}" if isinstance(aggregation, str) else f"of {type(aggregation).__name__}"
        raise UserError(
            f"aggregation is {given}; it must be an aggregation factory, e.g. tff.aggregators.MeanFactory(), or one by "
            'its name, tffcl.aggregation("dp")'
        )
    given = traits(aggregation)
    if given is not aggregation and hasattr(aggregation, "is_keyed"):
        raise UserError(
            f"aggregation {type(aggregation).__name__} takes keyed uploads; it must derive from "
            f"tffcl.parts.FactoryTraits"
        )
    if not given.is_keyed:
        return ClusteredMeanFactory(num_clusters, aggregation)
    if num_clusters is None:
        return aggregation
    if given.num_clusters not in (None, num_clusters):
        raise UserError(
            f"aggregation {type(aggregation).__name__} has num_clusters {given.num_clusters}; here it must be "
            f"{num_clusters}, or left out"
        )
    return given.with_clusters(num_clusters) if given.waits_for_clusters else aggregation


def aggregated_beside(aggregation, plain: tff.aggregators.AggregationFactory, bound: float | None = None):
    """Returns the factory for a second keyed upload of the clients, which protects it as their updates are protected:
    by secure sums, a robust rule or equal weights; otherwise the plain factory.

    Args:
      aggregation: The aggregation of the updates, see `keyed_factory`.
      plain: The factory of the second upload where nothing protects the updates.
      bound: The largest coordinate of the second upload, for secure sums; None: the bound of the updates.
    """
    return traits(keyed_factory(aggregation)).beside(plain, bound)


def check_types(value_type: tff.Type, weight_type: tff.Type):
    """Raises TypeError if values are not `<key=int32, value=T>` of floating tensors, or weights are not scalars."""
    keyed = isinstance(value_type, tff.StructType) and tff.structure.name_list(value_type) == ["key", "value"]
    if not keyed or value_type["key"] != tff.TensorType(np.int32):
        raise TypeError(f"expected a value of type <key=int32,value=T>, found {value_type}")
    check_mean(value_type["value"], weight_type)


def check_mean(member_type: tff.Type, weight_type: tff.Type):
    """Raises TypeError if values have no mean: if they are not floating tensors, or weights are not scalars."""
    if not tff.types.is_structure_of_floats(member_type):
        raise TypeError(f"a mean needs floating tensors, found {member_type}; cast them at the clients")
    if not (isinstance(weight_type, tff.TensorType) and not weight_type.shape):
        raise TypeError(f"expected a scalar weight, found {weight_type}")


# How many tensors hold the sums of all clusters. The runtime keeps every state of an accumulator until the aggregation
# ends. For each client one tensor is copied; the others are shared with the state before.
_SLOTS = 8


@functools.lru_cache(maxsize=16)  # building takes half a second, and a sweep builds the same process many times
def segment_process(
    value_type: tff.Type, weight_type: tff.Type | None, num_clusters: int | None, *, uniform: bool = False
):
    """Builds the process of plain means: each client's upload is added to the row of its cluster.

    Cluster k has row k // slots of slot k % slots. Without a type of weights every client has weight 1. If the mean is
    uniform, every client with a weight above 0 has weight 1, and the others have none.
    """
    zero, accumulate, merge, report, divide, measure = _segment_computations(
        value_type, weight_type, num_clusters, uniform
    )

    def step(state, value, *weight):
        uploads = tff.federated_zip(collections.OrderedDict(zip(("upload", "weight"), (value, *weight))))
        totals = tff.federated_aggregate(uploads, zero(), accumulate, merge, report)
        return tff.templates.MeasuredProcessOutput(
            state, tff.federated_map(divide, totals), tff.federated_map(measure, totals)
        )

    return aggregation_process(None, step, value_type, weight_type)


def _segment_computations(value_type: tff.Type, weight_type: tff.Type | None, num_clusters: int | None, uniform: bool):
    """Builds the arguments of `tff.federated_aggregate`, from zero to report, and the computations of the means and the
    measurements from its totals."""
    slots = _SLOTS if num_clusters is None else min(_SLOTS, num_clusters)
    totals_type = tff.to_type(
        collections.OrderedDict(
            sums=[stacked(value_type["value"])] * slots,
            weight=tff.TensorType(np.float32, [None]),
            clients=tff.TensorType(np.int32, [None]),
        )
    )

    @tff.tensorflow.computation
    def zero():
        rows = num_clusters or 0
        sums = [empty(value_type["value"])] * slots
        return collections.OrderedDict(sums=sums, weight=tf.zeros([rows]), clients=tf.zeros([rows], tf.int32))

    weights = {} if weight_type is None else {"weight": weight_type}

    @tff.tensorflow.computation(totals_type, collections.OrderedDict(upload=value_type, **weights))
    def accumulate(totals, client):
        key, weight = client["upload"]["key"], tf.cast(client["weight"], tf.float32) if weights else tf.constant(1.0)
        weight = tf.cast(weight > 0, tf.float32) if uniform else weight
        counts = collections.OrderedDict(weight=totals["weight"], clients=totals["clients"])
        if num_clusters is None:
            counts = pad_rows(counts, key + 1)

        def weigh(value):
            # A weight of 0 silences a client, also one whose value is not finite.
            return tf.math.multiply_no_nan(value, tf.cast(weight, value.dtype))

        weighted = tf.nest.map_structure(weigh, client["upload"]["value"])
        return collections.OrderedDict(
            sums=_add_to_slot(list(totals["sums"]), key, weighted),
            weight=_add_to_row(counts["weight"], key, weight),
            clients=_add_to_row(counts["clients"], key, tf.cast(weight, tf.int32) if uniform else 1),
        )

    @tff.tensorflow.computation(totals_type, totals_type)
    def merge(first, second):
        return tf.nest.map_structure(_add_all_rows, first, second)

    @tff.tensorflow.computation(totals_type)
    def report(totals):
        return totals

    @tff.tensorflow.computation(totals_type)
    def divide(totals):
        clusters = tf.size(totals["weight"])

        def mean(*slots_of_leaf):
            total = _in_order(slots_of_leaf, clusters)
            return tf.math.divide_no_nan(total, by_row(totals["weight"], total))

        return tf.nest.map_structure(mean, *totals["sums"])

    @tff.tensorflow.computation(totals_type)
    def measure(totals):
        return collections.OrderedDict(weight=totals["weight"], clients=totals["clients"])

    return zero, accumulate, merge, report, divide, measure


@tf.function(autograph=False)
def _add_to_slot(slots: list, key, value):
    """Adds a value to the row of its key; the other slots are passed on unchanged."""
    row = key // len(slots)

    def add(slot):
        return lambda: slots[:slot] + [_add_one_row(slots[slot], row, value)] + slots[slot + 1 :]

    return tf.switch_case(key % len(slots), [add(slot) for slot in range(len(slots))])


@traced_once
def _add_one_row(rows, row, value):
    return tf.nest.map_structure(lambda old, new: _add_to_row(old, row, new), pad_rows(rows, row + 1), value)


def _add_to_row(total, row, new):
    return tf.tensor_scatter_nd_add(total, [[row]], tf.expand_dims(new, 0))


@traced_once
def _add_all_rows(first, second):
    rows = tf.maximum(tf.shape(first)[0], tf.shape(second)[0])
    return pad_rows(first, rows) + pad_rows(second, rows)


def _in_order(slots, clusters):
    """The rows `[clusters, ...]` of all slots in order of the clusters; a cluster without a row gets zero."""
    keys = [slot + len(slots) * tf.range(tf.shape(rows)[0]) for slot, rows in enumerate(slots)]
    rows = tf.concat(slots, 0)
    shape = tf.concat([[clusters], tf.shape(rows)[1:]], 0)
    return tf.ensure_shape(tf.scatter_nd(tf.concat(keys, 0)[:, tf.newaxis], rows, shape), [None, *rows.shape[1:]])


def pad_rows(structure, rows):
    """Appends zero rows to every tensor of the structure until it has at least `rows`."""

    def pad(tensor):
        missing = tf.maximum(rows - tf.shape(tensor)[0], 0)
        padded = tf.pad(tensor, [[0, missing]] + [[0, 0]] * (len(tensor.shape) - 1))
        return tf.ensure_shape(padded, [None, *tensor.shape[1:]])

    return tf.nest.map_structure(pad, structure)


def _check_counts_nobody(factory: tff.aggregators.UnweightedAggregationFactory, process, num_clusters: int):
    """Raises UserError if an unweighted factory may count the clients, and so those of other clusters, too.

    TFF's sums and private means do not; its means do, by a value that each client is given.
    """
    of_tff = type(factory).__module__.startswith("tensorflow_federated.")
    if (
        of_tff
        and b"federated_value_at_clients" not in tff.framework.serialize_computation(process.next).SerializeToString()
    ):
        return
    raise UserError(
        f"aggregation {type(factory).__name__} is unweighted, so that in each of {num_clusters} clusters it would "
        "count the clients of all; it must be a weighted one, e.g. tff.aggregators.MeanFactory(), or have "
        "weighted=True"
    )


def tell_of_sums(factory: tff.aggregators.AggregationFactory | None):
    """Warns once of a factory that sums, as `EncodedSumFactory`, since only a mean makes steps of the updates' size."""
    if (kind := type(factory).__name__).endswith("SumFactory"):
        tell_once(
            f"aggregation {kind} sums: a model moves by the sum of its clients' updates; "
            "tff.aggregators.MeanFactory with it takes their mean"
        )


def _inner_process(value_type, weight_type, num_clusters, inner_factory):
    """One inner process per cluster; in those of other clusters a client counts as zero with weight zero."""
    weighted = isinstance(inner_factory, tff.aggregators.WeightedAggregationFactory)
    member_type = value_type["value"]
    kinds = (member_type, weight_type) if weighted else (member_type,)
    try:
        inner = inner_factory.create(*kinds)
    except (TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        kind = type(inner_factory).__name__
        raise UserError(f"aggregation {kind} cannot aggregate {member_type}: {one_line(error)}") from error
    if not weighted and num_clusters > 1:
        _check_counts_nobody(inner_factory, inner, num_clusters)
    tell_of_sums(inner_factory)
    if num_clusters > 1 and "float" in str(inner.initialize.type_signature.result):
        tell_once(
            f"aggregation {type(inner_factory).__name__} keeps numbers from round to round: if one is a clip or a "
            "bound that adapts, give a fixed one, since it sinks where clients of other clusters are zeros to it"
        )

    def build_mask(cluster):
        @tff.tensorflow.computation(value_type, weight_type)
        def mask(upload, weight):
            member = tf.equal(upload["key"], cluster)
            value = tf.nest.map_structure(lambda leaf: tf.where(member, leaf, tf.zeros_like(leaf)), upload["value"])
            return value, tf.where(member, weight, tf.zeros_like(weight))

        return mask

    masks = [build_mask(cluster) for cluster in range(num_clusters)]
    result_type = inner.next.type_signature.result.result.member

    @tff.tensorflow.computation(tff.to_type((result_type,) * num_clusters))
    def stack(results):
        def rows(*members):
            found = tf.stack(members)
            # TFF's means divide by the sum of the weights, which is 0 / 0 if no client of the cohort is a member.
            return tf.where(tf.math.is_nan(found), tf.zeros_like(found), found) if found.dtype.is_floating else found

        return tf.nest.map_structure(rows, *results)

    @tff.federated_computation
    def initialize():
        return tff.federated_zip(tuple(inner.initialize() for _ in masks))

    def step(states, upload, weight):
        outputs = []
        for cluster, mask in enumerate(masks):
            value, member_weight = tff.federated_map(mask, (upload, weight))
            state = tff.federated_map(build_pick(states.type_signature.member, cluster), states)
            outputs.append(inner.next(state, value, member_weight) if weighted else inner.next(state, value))
        return tff.templates.MeasuredProcessOutput(
            tff.federated_zip(tuple(output.state for output in outputs)),
            tff.federated_map(stack, tff.federated_zip(tuple(output.result for output in outputs))),
            tff.federated_zip(tuple(output.measurements for output in outputs)),
        )

    return aggregation_process(initialize, step, value_type, weight_type)


def build_pick(states_type: tff.Type, place: int) -> tff.Computation:
    """Builds `(states) -> state`, which returns the entry at one place of a tuple."""

    @tff.federated_computation(states_type)
    def pick(states):
        return states[place]

    return pick


class UniformMeanFactory(tff.aggregators.WeightedAggregationFactory):
    """TFF's mean with a weight of 1 for every client whose weight is above 0, and of 0 for the others.

    `tff.aggregators.UnweightedMeanFactory` also counts clients whose training was not finite, which they report by a
    weight of 0. If no client has a weight, the mean is zero.
    """

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process; types and errors as in `tff.aggregators.MeanFactory`."""
        return counting_alike(tff.aggregators.MeanFactory(no_nan_division=True), value_type, weight_type)
