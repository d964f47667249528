"""Brings every client's value to the server, with its client ID, in no promised order."""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def stacked(value_type: tff.Type) -> tff.Type:
    """Returns the type with an unknown leading dimension in every tensor: `T[s]` becomes `T[?,s]`."""

    def leading(leaf):
        tensor = tff.TensorType(leaf.dtype, [None, *leaf.shape])
        return tensor

    return tff.types.structure_from_tensor_type_tree(leading, value_type)


def empty(value_type: tff.Type):
    """Returns zero rows of `value_type`, as the structure of tensors that a TFF TensorFlow computation returns.

    Their number is unknown to the type, so that a state that starts with none may have some later.
    """

    def none(leaf):
        return tf.compat.v1.placeholder_with_default(np.zeros([0, *leaf.shape], leaf.dtype), [None, *leaf.shape])

    return tff.types.structure_from_tensor_type_tree(none, value_type)


def collect(client_id, value):
    """Collects `(client_id, value)` of all clients; to be called in a `tff.federated_computation`.

    Clients' rows stand in the order in which the runtime adds them, which differs between runtimes: read them by ID.
    Nothing is hidden from the server: this is no secure aggregation.

    Args:
      client_id: `{int32}@CLIENTS`.
      value: `{T}@CLIENTS` of fixed shapes.

    Returns:
      `<client_id=int32[?], value=T[?,...]>@SERVER`, one row a client.
    """
    return collect_rows(tff.federated_zip(collections.OrderedDict(client_id=client_id, value=value)))


# Blocks of 1, 2, 4, ... rows that an accumulator holds, the last of any size.
_BLOCKS = 10


def collect_rows(row):
    """Collects a value of every client in rows, in no promised order; to be called in a `tff.federated_computation`.

    The runtime keeps every state of an accumulator until the aggregation ends. One that grew by a row at a time would take
    memory by the square of the number of clients; here rows are held in blocks that double, as the digits of a binary
    number, and the blocks that a client does not touch are shared with the state before: m log(m) / 2 rows in all.

    Args:
      row: `{T}@CLIENTS` of fixed shapes.

    Returns:
      `T[?,...]@SERVER`, one row a client.
    """
    zero, accumulate, merge, report = _row_aggregation(row.type_signature.member)
    return tff.federated_aggregate(row, zero(), accumulate, merge, report)


@functools.lru_cache(maxsize=32)  # building takes a second, and the rounds of most methods collect the same
def _row_aggregation(row_type: tff.Type):
    rows_type = stacked(row_type)
    blocks_type = tff.to_type([rows_type] * _BLOCKS)

    @tff.tensorflow.computation
    def zero():
        return [empty(row_type)] * _BLOCKS

    @tff.tensorflow.computation(blocks_type, row_type)
    def accumulate(blocks, new):
        row = tf.nest.map_structure(lambda leaf: tf.expand_dims(leaf, 0), new)
        return _add_row(list(blocks), row, empty(row_type))

    @tff.tensorflow.computation(blocks_type, blocks_type)
    def merge(first, second):
        return [empty(row_type)] * (_BLOCKS - 1) + [_joined([*first, *second])]

    @tff.tensorflow.computation(blocks_type)
    def report(blocks):
        return _joined(list(blocks))

    return zero, accumulate, merge, report


@tf.function(autograph=False)
def _add_row(blocks: list, row, nothing):
    """Adds one row to the first empty block, with the rows of all blocks before it."""

    def carry(place):
        touched = [row, *blocks[:place]] + ([blocks[place]] if place == _BLOCKS - 1 else [])
        return lambda: [nothing] * place + [_joined(touched)] + blocks[place + 1 :]

    held = tf.stack([tf.shape(tf.nest.flatten(block)[0])[0] for block in blocks[:-1]] + [0])
    first_empty = tf.argmin(held, output_type=tf.int32)  # the first zero
    return tf.switch_case(first_empty, [carry(place) for place in range(_BLOCKS)])


def _joined(parts: list):
    return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), *parts)


class CollectFactory(tff.aggregators.UnweightedAggregationFactory):
    """`tff.aggregators.UnweightedAggregationFactory` that brings every client's value to the server.

    The created `tff.templates.AggregationProcess` has
        `next`: `(<state=<>@SERVER, value={T}@CLIENTS> -> <state=<>@SERVER, result=T[?,...]@SERVER, measurements=<>@SERVER>)`,
    one row for each client, in no promised order. Nothing is hidden from the server: this is no secure aggregation. In a round that is
    composed by `rounds.composer.compose` the rows stand beside the clients' reports, whose IDs order them.

    Attributes:
      noise_multiplier: z of the Gaussian mechanism that a client's value is, where clients noise it themselves; 0: it is as it is.
    """

    def __init__(self, noise_multiplier: float = 0.0):
        """Makes the factory; the noise multiplier is for the ledger of privacy, and adds no noise."""
        self.noise_multiplier = noise_multiplier

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process for values of fixed shapes."""

        @tff.federated_computation
        def initialize():
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS))
        def next_fn(state, value):
            nothing = tff.federated_value((), tff.SERVER)
            return tff.templates.MeasuredProcessOutput(state, collect_rows(value), nothing)

        return tff.templates.AggregationProcess(initialize, next_fn)


def by_client(collected, client_ids):
    """Puts collected rows into the order of the given client IDs.

    Args:
      collected: What a computation that ends in `collect` returned.
      client_ids: `[n]`, the clients that took part, in the wished order.

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
