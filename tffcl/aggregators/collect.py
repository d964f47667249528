"""Brings every client's value to the server, with its client ID, in no promised order."""

import collections

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
    """Returns zero rows of `value_type`, as the structure of tensors that a TFF TensorFlow computation returns."""

    def none(leaf):
        return tf.zeros([0, *leaf.shape], leaf.dtype)

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


def collect_rows(row):
    """Collects a value of every client in rows, in no promised order; to be called in a `tff.federated_computation`.

    Args:
      row: `{T}@CLIENTS` of fixed shapes.

    Returns:
      `T[?,...]@SERVER`, one row a client.
    """
    row_type = row.type_signature.member
    rows_type = stacked(row_type)

    @tff.tensorflow.computation
    def zero():
        return empty(row_type)

    @tff.tensorflow.computation(rows_type, row_type)
    def accumulate(rows, new):
        return tf.nest.map_structure(lambda r, n: tf.concat([r, tf.expand_dims(n, 0)], 0), rows, new)

    @tff.tensorflow.computation(rows_type, rows_type)
    def merge(first, second):
        return tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), first, second)

    @tff.tensorflow.computation(rows_type)
    def report(rows):
        return rows

    return tff.federated_aggregate(row, zero(), accumulate, merge, report)


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
