"""Brings every client's value to the server, with its client ID, in no promised order."""

import collections
import functools
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.contract import FactoryTraits
from tffcl.aggregators.per_cluster import aggregation_process


def stacked(value_type: tff.Type, rows: int | None = None) -> tff.Type:
    """Returns the type with a leading dimension in every tensor, by default an unknown one: `T[s]` becomes `T[?,s]`."""

    def leading(leaf):
        return tff.TensorType(leaf.dtype, [rows, *leaf.shape])

    return tff.types.structure_from_tensor_type_tree(leading, value_type)


def leaves_of(value_type: tff.Type) -> list[tff.TensorType]:
    """Returns the types of the tensors in a type."""
    return tf.nest.flatten(tff.types.structure_from_tensor_type_tree(lambda leaf: leaf, value_type))


def specs_of(value_type: tff.Type):
    """Returns the type's structure of `tf.TensorSpec`."""
    return tff.types.structure_from_tensor_type_tree(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), value_type)


def fields_of(value_type: tff.Type) -> list[tuple[str, tff.Type]]:
    """Returns the names and types of a structure's fields; none for a type that is not a structure."""
    return list(tff.structure.iter_elements(value_type)) if isinstance(value_type, tff.StructType) else []


def first_value(value, value_type: tff.Type):
    """Returns a value as tensors with the shapes of the type, because later rounds may have other numbers of rows."""

    def placed(leaf, spec):
        return tf.compat.v1.placeholder_with_default(np.asarray(leaf, spec.dtype.as_numpy_dtype), spec.shape)

    return tf.nest.map_structure(placed, plain_containers(value), plain_containers(specs_of(value_type)))


def plain_containers(value):
    """Returns a TFF value with mappings in place of named tuples and attrs objects, as checkpoints hold it."""
    names = [each.name for each in getattr(type(value), "__attrs_attrs__", ())] or getattr(value, "_fields", None)
    if names:
        return collections.OrderedDict((name, plain_containers(getattr(value, name))) for name in names)
    if isinstance(value, Mapping):
        return collections.OrderedDict((name, plain_containers(each)) for name, each in value.items())
    return type(value)(map(plain_containers, value)) if isinstance(value, (list, tuple)) else value


def empty(value_type: tff.Type):
    """Returns zero rows of `value_type`, as the structure of tensors that a TFF TensorFlow computation returns.

    The type does not fix the number of rows, so that a state that starts without rows may have some later.
    """

    def none(leaf):
        return tf.compat.v1.placeholder_with_default(np.zeros([0, *leaf.shape], leaf.dtype), [None, *leaf.shape])

    return tff.types.structure_from_tensor_type_tree(none, value_type)


def collect(client_id, value):
    """Collects `(client_id, value)` of all clients; to be called in a `tff.federated_computation`.

    Clients' rows are in the order in which the runtime adds them, which differs between runtimes, so read them by ID.
    Nothing is hidden from the server: this is not a secure aggregation.

    Args:
      client_id: `{int32}@CLIENTS`.
      value: `{T}@CLIENTS` of fixed shapes.

    Returns:
      `<client_id=int32[?], value=T[?,...]>@SERVER`, one row for each client.
    """
    return collect_rows(tff.federated_zip(collections.OrderedDict(client_id=client_id, value=value)))


# The number of blocks of 1, 2, 4, ... rows in an accumulator; the last is of any size.
_BLOCKS = 10
# The most numbers in a tensor that is packed with others.
_FEW = 256


def collect_rows(row):
    """Collects a value of every client in rows, in no promised order; to be called in a `tff.federated_computation`.

    The runtime keeps every state of an accumulator until the aggregation ends. An accumulator that grew by a row at a
    time would take memory in proportion to the square of the number of clients. Here rows are held in blocks that
    double in size, like the digits of a binary number, and states share the blocks that a client does not touch, so
    that there are m log(m) / 2 rows in all.

    Args:
      row: `{T}@CLIENTS` of fixed shapes.

    Returns:
      `T[?,...]@SERVER`, one row for each client.
    """
    zero, accumulate, merge, report = _row_aggregation(row.type_signature.member)
    return tff.federated_aggregate(row, zero(), accumulate, merge, report)


@functools.lru_cache(maxsize=32)  # building takes a second, and most methods collect the same in their rounds
def _row_aggregation(row_type: tff.Type):
    packing = _Packing(row_type)
    packed_type = packing.packed_type
    blocks_type = tff.to_type([stacked(packed_type)] * _BLOCKS)
    shapes = [[None, *leaf.shape] for leaf in packed_type]
    # Rows of other lengths have the same graph, so it is traced once.
    any_rows = [tf.TensorSpec([None] * len(shape), leaf.dtype) for shape, leaf in zip(shapes, packed_type)]
    add_row = _add_row.get_concrete_function([any_rows] * _BLOCKS, any_rows)

    @tff.tensorflow.computation
    def zero():
        return [empty(packed_type)] * _BLOCKS

    @tff.tensorflow.computation(blocks_type, row_type)
    def accumulate(blocks, new):
        row = [tf.expand_dims(leaf, 0) for leaf in packing.pack(new)]
        added = add_row([list(block) for block in blocks], row)
        return [[tf.ensure_shape(*each) for each in zip(block, shapes)] for block in added]

    @tff.tensorflow.computation(blocks_type, blocks_type)
    def merge(first, second):
        return [empty(packed_type)] * (_BLOCKS - 1) + [_joined([list(block) for block in (*first, *second)])]

    @tff.tensorflow.computation(blocks_type)
    def report(blocks):
        return packing.unpack(_joined([list(block) for block in blocks]))

    return zero, accumulate, merge, report


class _Packing:
    """Packs a row into few tensors: all tensors of few numbers become one tensor of bytes.

    A round reports some numbers beside each upload, and the accumulator would have each of its operations once for each
    of them, which makes it slow to build and to run.
    """

    def __init__(self, row_type: tff.Type):
        self._structure = tff.types.structure_from_tensor_type_tree(lambda leaf: leaf, row_type)
        self._leaves = tf.nest.flatten(self._structure)
        # A large tensor would be copied once more, and text has no fixed size.
        self._small = [tf.as_dtype(leaf.dtype) != tf.string and _count(leaf) <= _FEW for leaf in self._leaves]
        sizes = [_count(leaf) * tf.as_dtype(leaf.dtype).size for leaf, small in zip(self._leaves, self._small) if small]
        self._ends = np.cumsum([0, *sizes])
        large = [leaf for leaf, small in zip(self._leaves, self._small) if not small]
        self.packed_type = tff.to_type([*([tff.TensorType(np.uint8, [sum(sizes)])] if sizes else []), *large])

    def pack(self, row) -> list[tf.Tensor]:
        """Returns the tensors of `packed_type`."""
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(row)]
        small = [_bytes(leaf) for leaf, packed in zip(leaves, self._small) if packed]
        return [
            *([tf.concat(small, 0)] if small else []),
            *(leaf for leaf, packed in zip(leaves, self._small) if not packed),
        ]

    def unpack(self, rows: list[tf.Tensor]):
        """Returns rows of `packed_type` as rows of the row type."""
        rows, leaves, place = iter(rows), [], 0
        packed = next(rows) if any(self._small) else None
        for leaf, small in zip(self._leaves, self._small):
            if small:
                leaves.append(_from_bytes(packed[:, self._ends[place] : self._ends[place + 1]], leaf))
                place += 1
            else:
                leaves.append(next(rows))
        return tf.nest.pack_sequence_as(self._structure, leaves)


def _count(leaf: tff.TensorType) -> int:
    return int(np.prod(leaf.shape, dtype=np.int64))


def _bytes(value: tf.Tensor) -> tf.Tensor:
    value = tf.cast(value, tf.uint8) if value.dtype == tf.bool else tf.bitcast(value, tf.uint8)
    return tf.reshape(value, [-1])


def _from_bytes(rows: tf.Tensor, leaf: tff.TensorType) -> tf.Tensor:
    """`uint8[n, bytes]` as `n` values of the type `leaf`."""
    kind = tf.as_dtype(leaf.dtype)
    shaped = tf.reshape(rows, [tf.shape(rows)[0], *leaf.shape, *([kind.size] if kind.size > 1 else [])])
    return tf.cast(shaped, tf.bool) if kind == tf.bool else tf.bitcast(shaped, kind)


@tf.function(autograph=False)
def _add_row(blocks: list, row):
    """Moves one row and the rows of all blocks before it to the first empty block."""
    nothing = [leaf[:0] for leaf in row]

    def carry(place):
        touched = [row, *blocks[:place]] + ([blocks[place]] if place == _BLOCKS - 1 else [])
        return lambda: [nothing] * place + [_joined(touched)] + blocks[place + 1 :]

    held = tf.stack([tf.shape(tf.nest.flatten(block)[0])[0] for block in blocks[:-1]] + [0])
    first_empty = tf.argmin(held, output_type=tf.int32)  # the first zero
    return tf.switch_case(first_empty, [carry(place) for place in range(_BLOCKS)])


def _joined(parts: list):
    return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), *parts)


class CollectFactory(FactoryTraits, tff.aggregators.UnweightedAggregationFactory):
    """`tff.aggregators.UnweightedAggregationFactory` that brings every client's value to the server.

    The created `tff.templates.AggregationProcess` has
        `next`: `(<state=<>@SERVER, value={T}@CLIENTS> -> <state=<>@SERVER, result=T[?,...]@SERVER,
        measurements=<>@SERVER>)`,
    one row for each client, in no promised order. Nothing is hidden from the server: this is not a secure aggregation.
    In a round that is composed by `rounds.composer.compose` the rows come with the clients' reports, whose IDs order
    them.

    Attributes:
      noise_multiplier: z of the Gaussian mechanism of a client's value, if clients noise it themselves; 0: no noise.
      noise_seed: The seed of that noise; None if clients draw it anew.
    """

    def __init__(self, noise_multiplier: float = 0.0, noise_seed: int | None = None):
        """Makes the factory; the noise multiplier and its seed are for the ledger of privacy, and add no noise."""
        self.noise_multiplier, self.noise_seed = noise_multiplier, noise_seed

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process for values of fixed shapes."""

        def step(state, value):
            nothing = tff.federated_value((), tff.SERVER)
            return tff.templates.MeasuredProcessOutput(state, collect_rows(value), nothing)

        return aggregation_process(None, step, value_type)


def by_client(collected, client_ids):
    """Puts collected rows into the order of the given client IDs.

    Args:
      collected: The result of a computation that ends in `collect`.
      client_ids: `[n]`, the clients that took part, in the wanted order.

    Returns:
      The `value` structure with NumPy rows in the order of `client_ids`.

    Raises:
      ValueError: If the collected IDs are not exactly the given ones.
    """
    found = np.asarray(collected["client_id"])
    order = np.argsort(found, kind="stable")
    wanted = np.asarray(client_ids)
    if not np.array_equal(found[order], np.sort(wanted)):
        raise ValueError(f"clients {np.sort(wanted).tolist()} were asked, {found[order].tolist()} answered")
    rows = order[np.searchsorted(found[order], wanted)]
    return tf.nest.map_structure(lambda leaf: np.asarray(leaf)[rows], collected["value"])
