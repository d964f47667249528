"""A mix of the cohort's values for each client: every row of a relatedness matrix is one weighted mean."""

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import check_mean
from tffcl.aggregators.collect import collect_rows, fields_of, first_value, specs_of, stacked
from tffcl.aggregators.contract import FactoryTraits
from tffcl.aggregators.per_cluster import aggregation_process
from tffcl.clients.large_rows import joined, slices

RELATEDNESS_TYPE = tff.TensorType(np.float32, [None, None])


def by_matrix(matrix, uploads):
    """Relates clients by a matrix that the server holds (FLT): a row for each mix, with client j's share in column
    `key_j`."""
    return tf.gather(matrix, uploads["key"], axis=1)


class RelatednessMeanFactory(FactoryTraits, tff.aggregators.WeightedAggregationFactory):
    """`tff.aggregators.WeightedAggregationFactory` for one mix of the cohort's values per client.

    The created `tff.templates.AggregationProcess` takes `value = <key=int32, value=T>`, or
    `<key=int32, descriptor=S, value=T>`, with keys that differ between the clients of a cohort, and a scalar weight,
    and has `next`: `(<state=C@SERVER, value={<key=int32,...,value=T>}@CLIENTS, weight={W}@CLIENTS> ->
                  <state=C@SERVER, result=T[?,...]@SERVER,
                   measurements=<key=int32[?],relatedness=float32[?,?],weight=float32[?]>@SERVER>)`.
    With m clients in ascending order of their keys, whatever order they came in, and relatedness R `[r, m]`, row i of
    the result is `sum_j R_ij w_j v_j / sum_j R_ij w_j`, always of the uploaded values (never of a row mixed earlier). A
    row whose weights sum to 0 is zero. Most often r = m, with one mix for each client; clients with the same relations
    can share one.

    FLT Alg. 3 (case I) is `by_matrix`, the default, with the relatedness matrix in the state, a column for each key.
    FLIS (DC) Alg. 1 lines 11 and 12 relate the clients by descriptors that they upload beside their models. If R is all
    ones, all clients receive the mean of all.

    The sum cannot be taken before all clients of the cohort have answered, since R may depend on all of them. So the
    aggregator holds the cohort's values, m times the size of T, and sees each of them; therefore there is no inner
    factory. It is one `federated_aggregate`, which TFF's MapReduceForm accepts.
    """

    def __init__(self, relate: Callable = by_matrix, *, context_type: tff.Type = RELATEDNESS_TYPE, context=None):
        """Makes the factory.

        Args:
          relate: `(context, uploads) -> float32 [r, m]`, in TensorFlow; `uploads` is the structure of the clients'
            values `[m, ...]` in ascending order of their keys, with their `weight`.
          context_type: C, what the server holds for `relate`.
          context: Initial value of the state, of type C; default an empty matrix.
        """
        self._relate = relate
        self._context_type = context_type
        self._context = np.zeros([0, 0], np.float32) if context is None else context

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process.

        Raises:
          TypeError: If `value_type` is not `<key=int32,[descriptor=S,]value=T>`, T has tensors that are not floating,
            or the weight is not a scalar.
        """
        _check_types(value_type, weight_type)
        upload_type = tff.to_type(collections.OrderedDict([*fields_of(value_type), ("weight", np.float32)]))
        rows_type = stacked(upload_type)
        relate, context_type = self._relate, self._context_type
        context_value = self._context

        @tff.tensorflow.computation(value_type, weight_type)
        def pack(value, weight):
            # A weight of 0 silences a client, also one whose value is not finite.
            valid = tf.nest.map_structure(
                lambda tensor: tf.where(weight > 0, tensor, tf.zeros_like(tensor)), value["value"]
            )
            return collections.OrderedDict([*value.items(), ("value", valid), ("weight", tf.cast(weight, tf.float32))])

        @tff.tensorflow.computation(context_type, rows_type)
        def mix(context, rows):
            order = tf.argsort(rows["key"], stable=True)
            rows = tf.nest.map_structure(lambda tensor: tf.gather(tensor, order), rows)
            relatedness = tf.ensure_shape(tf.cast(relate(context, rows), tf.float32), [None, None])
            result = tf.nest.map_structure(lambda tensor: _mix_rows(relatedness, rows["weight"], tensor), rows["value"])
            measured = collections.OrderedDict(key=rows["key"], relatedness=relatedness, weight=rows["weight"])
            return collections.OrderedDict(result=result, measurements=measured)

        @tff.tensorflow.computation
        def initial_context():
            return first_value(context_value, context_type)

        def step(state, value, weight):
            uploads = tff.federated_map(pack, (value, weight))
            rows = collect_rows(uploads)
            mixed = tff.federated_map(mix, (state, rows))
            return tff.templates.MeasuredProcessOutput(state, mixed["result"], mixed["measurements"])

        return aggregation_process(initial_context, step, value_type, weight_type)

    def by_parts(self, state) -> "Mixing":
        """Returns an object that takes the cohort's uploads part by part, see `FactoryTraits`."""
        specs = specs_of(self._context_type)
        held = tf.nest.map_structure(lambda value, spec: tf.convert_to_tensor(value, spec.dtype), state, specs)
        return Mixing(self._relate, held)


class Mixing:
    """The mixes of a cohort whose uploads come in parts, in NumPy.

    If the server's matrix relates the clients and has no more rows than columns, the mixes are summed up as uploads
    arrive, and no upload is held. Otherwise uploads are held until all have arrived, and a few mixes are made at a
    time.
    """

    def __init__(self, relate: Callable, state):
        self._relate, self._state = relate, state
        self._beside, self._values, self._totals = [], [], None
        self._sums = relate is by_matrix and state.shape[0] <= state.shape[1]

    def add(self, uploads, weights: np.ndarray):
        """Takes the uploads of some clients: the structure of values `[b, ...]`, and `float32 [b]`."""
        values = uploads["value"]
        if not (weights > 0).all():
            values = tf.nest.map_structure(lambda rows: np.where(_beside(weights > 0, rows), rows, 0), values)
        beside = {name: upload for name, upload in uploads.items() if name != "value"} | {
            "weight": weights.astype(np.float32)
        }
        self._beside.append(beside)
        if not self._sums:
            self._values.append(values)
            return
        shares = np.asarray(self._state, np.float32)[:, beside["key"]] * beside["weight"]
        if self._totals is None:
            self._totals = tf.nest.map_structure(
                lambda rows: np.zeros((len(shares), *rows.shape[1:]), rows.dtype), values
            )
        tf.nest.map_structure(lambda total, rows: _add_mixes(total, shares, rows), self._totals, values)

    def finish(self) -> tuple:
        """Returns the process' next state, its result and its measurements."""
        beside = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *self._beside)
        order = np.argsort(beside["key"], kind="stable")
        beside = tf.nest.map_structure(lambda leaf: leaf[order], beside)
        relatedness = self._related(beside, order)
        measured = collections.OrderedDict(key=beside["key"], relatedness=relatedness, weight=beside["weight"])
        shares = relatedness * beside["weight"]
        weight = shares.sum(axis=1)
        weight = np.where(weight > 0, weight, 1.0).astype(np.float32)
        if self._sums:
            result = tf.nest.map_structure(lambda total: _divided(total, weight), self._totals)
        else:
            shares = shares[:, np.argsort(order)]  # in the order in which the uploads arrived
            result = tf.nest.map_structure(lambda *parts: _mixes(shares, weight, parts), *self._values)
        return tf.nest.map_structure(np.asarray, self._state), result, measured

    def _related(self, beside, order: np.ndarray) -> np.ndarray:
        uploads = dict(beside)
        if self._relate is not by_matrix:  # another relation may use the values
            uploads["value"] = tf.nest.map_structure(lambda *parts: np.concatenate(parts)[order], *self._values)
        return np.asarray(self._relate(self._state, tf.nest.map_structure(tf.convert_to_tensor, uploads)), np.float32)


def _beside(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    return rows.reshape([-1] + [1] * (np.ndim(values) - 1))


def _add_mixes(total: np.ndarray, shares: np.ndarray, rows: np.ndarray):
    """Adds to the sums in place, a few rows at a time, because there may be a model for each client."""
    sums, flat, shares = total.reshape(len(total), -1), rows.reshape(len(rows), -1), shares.astype(rows.dtype)
    for few in slices(len(sums), sums[:1].nbytes):
        sums[few] += shares[few] @ flat


def _mixes(shares: np.ndarray, weight: np.ndarray, parts) -> np.ndarray:
    """The means `[r, ...]` of values that come in parts, by `shares [r, m]`, which sum to `weight [r]`."""
    shape, dtype = (len(shares), *parts[0].shape[1:]), parts[0].dtype
    ends = np.cumsum([len(part) for part in parts])
    of_parts = np.split(shares.astype(dtype), ends[:-1], axis=1)
    flat = [part.reshape(len(part), -1) for part in parts]

    def made():
        for few in slices(len(shares), flat[0][:1].nbytes):
            total = sum(share[few] @ rows for share, rows in zip(of_parts, flat))
            yield _divided(total, weight[few]).reshape(-1, *shape[1:])

    return joined(made(), shape, dtype)


def _divided(total: np.ndarray, weight: np.ndarray) -> np.ndarray:
    total /= _beside(weight, total).astype(total.dtype)
    return total


def _mix_rows(relatedness, weight, values):
    """Row i: the mean of `values [m, ...]` with weights `relatedness[i] * weight`."""
    shares = relatedness * weight[tf.newaxis, :]
    flat = tf.reshape(values, [tf.shape(values)[0], -1])
    mixed = tf.math.divide_no_nan(
        tf.cast(shares, flat.dtype) @ flat, tf.cast(tf.reduce_sum(shares, 1, keepdims=True), flat.dtype)
    )
    return tf.reshape(mixed, [-1, *values.shape[1:]])


def _check_types(value_type, weight_type):
    names = tff.structure.name_list(value_type) if isinstance(value_type, tff.StructType) else []
    if names not in (["key", "value"], ["key", "descriptor", "value"]) or value_type["key"] != tff.TensorType(np.int32):
        raise TypeError(f"expected a value of type <key=int32,[descriptor=S,]value=T>, found {value_type}")
    check_mean(value_type["value"], weight_type)
