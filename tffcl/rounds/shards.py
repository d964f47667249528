"""Shards: groups of small clients of a round, each of which the runtime takes for a single client.

The runtime spends about a millisecond on every client, whatever it computes. The graph of a shard goes through its
clients, so that this is paid once for each shard. Each client computes what it always does. The aggregations' own
`accumulate` adds its uploads to the shard's sums, and its report is returned as a row. Shards are made from types, for
the round of any method. Exports have no shards.

The numbers are those of separate clients up to rounding: sums are taken client by client within a shard, largest first,
then shard by shard; and a kernel may add up a client's rows in another order if they begin inside a tensor.

Inside a loop values are lists of tensors, in the order of their types.
"""

import collections
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.clients.simulation_context import current
from tffcl.models.graph_function import drawing_nodes

# Clients with so few examples, on average, are put into shards, because most of their time is the runtime's. The number
# of clients in a shard does not depend on the machine, since it decides the order of sums.
_FEW_EXAMPLES, _SHARD_CLIENTS = 100, 16
AS_IT_IS = tf.compat.v1.ConfigProto()  # TFF compiles it without optimizing the graph
AS_IT_IS.graph_options.rewrite_options.disable_meta_optimizer = True


def wanted(clients: int, sizes: Callable[[], np.ndarray], many: int) -> int:
    """Returns the number of shards for a number of clients, 0 for none; see `Simulation.shards`.

    Args:
      clients: The number of clients.
      sizes: Returns the number of examples of each client; the examples may have to be read for this.
      many: The number of small clients from which shards are worth another trace.
    """
    given = current().shards
    if given is None:
        return -(-clients // _SHARD_CLIENTS) if clients >= many and np.mean(sizes()) <= _FEW_EXAMPLES else 0
    return min(given, clients)


def shard_type(client_type: tff.Type) -> tff.Type:
    """Returns the type of several clients' inputs: `<..., int32[?,C]>`, with few tensors, since each costs time.

    Values with an unknown number of rows, such as examples, become one tensor with the rows of all clients in sequence;
    other values are stacked. The last tensor has a row for each client: where its rows end in each of these tensors,
    then the whole numbers that it brings.

    Raises:
      TypeError: If clients bring anything but tensors whose shape is known except for the number of rows.
    """

    def together(leaf):
        return leaf if _has_rows(leaf) else tff.TensorType(leaf.dtype, [None, *leaf.shape])

    leaves = _leaves(client_type)
    for leaf in leaves:
        if leaf.shape is None or None in leaf.shape[1:]:
            raise TypeError(f"a shard has no place for {leaf}")
    width = sum(math.prod(leaf.shape) if _is_numbers(leaf) else _has_rows(leaf) for leaf in leaves)
    columns = [together(leaf) for leaf in leaves if not _is_numbers(leaf)]
    return tff.to_type((*columns, tff.TensorType(np.int32, [None, width])))


def _has_rows(leaf: tff.TensorType) -> bool:
    return bool(leaf.shape) and leaf.shape[0] is None


def _is_numbers(leaf: tff.TensorType) -> bool:
    return leaf.dtype == np.int32 and not _has_rows(leaf)


def _leaves(kind: tff.Type) -> list[tff.TensorType]:
    leaves = tff.structure.flatten(kind)
    for leaf in leaves:
        if not isinstance(leaf, tff.TensorType):
            raise TypeError(f"a shard has no place for {leaf}")
    return leaves


def _flat(value) -> list:
    """The leaves of a value in the order of its type."""
    return tff.structure.flatten(tff.structure.from_container([value], recursive=True))


def pack(clients: Sequence, client_type: tff.Type, shards: int) -> list:
    """Distributes clients over shards.

    Args:
      clients: Their inputs of `client_type`, largest first, so that shards take the same time.
      client_type: See `shard_type`.
      shards: The number of shards, none of them empty.

    Returns:
      A structure of `shard_type` for each shard.
    """
    leaves = _leaves(client_type)
    columns = list(_columns(clients))

    def packed(shard):
        parts, ends, numbers = [], [], []
        for leaf, values in zip(leaves, (column[shard::shards] for column in columns), strict=True):
            if _is_numbers(leaf):
                numbers.append(np.reshape(values, [len(values), -1]))
            elif _has_rows(leaf):
                ends.append(np.cumsum([[len(each)] for each in values], axis=0))
                parts.append(np.concatenate(values))
            else:
                parts.append(np.stack(values))
        return (*parts, np.concatenate([*ends, *numbers], axis=1, dtype=np.int32))

    return [packed(shard) for shard in range(shards)]


def _columns(values: list) -> Iterator[list]:
    """Yields for each leaf of the clients' inputs the list of its values; `_flat` would take 0.1 ms for each client."""
    first = values[0]
    if not isinstance(first, (Mapping, list, tuple)):
        yield values
        return
    for key in first if isinstance(first, Mapping) else range(len(first)):
        yield from _columns([each[key] for each in values])


def _client_of(shard, client_type: tff.Type, place) -> list:
    """The input of one of a shard's clients, in TensorFlow."""
    *columns, table = shard
    leaves, columns = _leaves(client_type), iter(columns)
    in_rows = sum(map(_has_rows, leaves))
    sizes = [math.prod(leaf.shape) for leaf in leaves if _is_numbers(leaf)]
    row, before = tf.gather(table, place), tf.gather(table, tf.maximum(place - 1, 0))
    ends, *numbers = tf.split(row, [in_rows, *sizes])
    begins = tf.where(place > 0, before[:in_rows], 0)
    begins, ends, numbers = iter(tf.unstack(begins, in_rows)), iter(tf.unstack(ends)), iter(numbers)

    def own(leaf):
        if _is_numbers(leaf):
            return tf.reshape(next(numbers), leaf.shape)
        value = next(columns)
        return value[next(begins) : next(ends)] if _has_rows(leaf) else value[place]

    return [own(leaf) for leaf in leaves]


def as_function(computation: tff.Computation) -> Callable[..., list]:
    """Returns a TensorFlow computation of TFF as `(*tensors) -> tensors`, to be called inside a loop.

    TFF can call one in the graph of another one, but not in the graph of a loop.

    Raises:
      TypeError: If it takes or returns anything but tensors, or has variables.
    """
    proto, definition = _graph_of(computation)
    if proto.initialize_op:
        raise TypeError("a shard has no place for variables")
    given, taken = list(_names(proto.parameter)), list(_names(proto.result))

    def call(*tensors):
        # Copies are needed: a graph can be imported onto tensors of the loop's graph, not onto those outside it.
        inputs = {name: tf.identity(tensor) for name, tensor in zip(given, tensors, strict=True)}
        return tf.graph_util.import_graph_def(definition, input_map=inputs, return_elements=taken, name="")

    return call


def _graph_of(computation: tff.Computation):
    proto, definition = tff.framework.serialize_computation(computation).tensorflow, tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(definition)
    return proto, definition


def _pruned(proto, definition):
    """The part of a computation's graph on which its result depends, as a TensorFlow function."""
    whole = tf.compat.v1.wrap_function(functools.partial(tf.graph_util.import_graph_def, definition, name=""), [])
    given, taken = ([*map(whole.graph.get_tensor_by_name, _names(each))] for each in (proto.parameter, proto.result))
    return whole.prune(given, taken)


def draws(computation: tff.Computation) -> bool:
    """Whether the result of a TensorFlow computation of TFF depends on random numbers that each call draws anew."""
    return bool(drawing_nodes(_pruned(*_graph_of(computation)).graph.as_graph_def()))


def in_process(computation: tff.Computation) -> Callable:
    """Returns a TensorFlow computation of TFF as one that runs in this process, so that its arguments and results need
    not be sent in messages. A computation with variables is returned unchanged, for the runtime."""
    kind, (proto, definition) = computation.type_signature, _graph_of(computation)
    if proto.initialize_op:
        return computation
    call, leaves = _pruned(proto, definition), _leaves(kind.parameter)

    def compute(*arguments):
        if len(arguments) > 1:
            arguments = [tff.structure.Struct(zip(tff.structure.name_list_with_nones(kind.parameter), arguments))]
        given = tff.structure.from_container(arguments[0], recursive=True)
        if not tff.structure.is_same_structure(given, kind.parameter):
            raise TypeError(f"expected a value of type {kind.parameter}, found the structure {given}")
        given = zip(tff.structure.flatten(given), leaves, strict=True)
        found = [leaf.numpy() for leaf in call(*(tf.convert_to_tensor(value, leaf.dtype) for value, leaf in given))]
        return tff.types.type_to_py_container(tff.structure.pack_sequence_as(kind.result, found), kind.result)

    return compute


def _names(binding):
    """The names of a binding's tensors."""
    kind = binding.WhichOneof("binding")
    if kind == "struct":
        for element in binding.struct.element:
            yield from _names(element)
    elif kind == "tensor":
        yield binding.tensor.tensor_name
    elif kind is not None:
        raise TypeError(f"a shard has no place for a {kind}")


def build_update(
    client_update: tff.Computation,
    rows: Callable[[Mapping], Mapping],
    sums: tff.backends.mapreduce.MapReduceForm | None = None,
) -> tff.Computation:
    """Builds what a shard computes.

    Args:
      client_update: `(<values, client> -> updated)`, see `Round.client_update`.
      rows: `(updated) -> {name: value}`: the part of a client's results that is returned unchanged.
      sums: The sums of the aggregations of `<uploads, weight>`; None if nothing is summed.

    Returns:
      `(<values, prepared, shard> -> <rows, totals>)`: the rows of the shard's clients in order, as `joined` takes them
      (`uint8[m, bytes of a row]`, then `string[m, ...]` for each text), and the totals after `sums.accumulate` has
      added their uploads one by one.

    Raises:
      TypeError: If a shard cannot hold a part of it.
    """
    values_type, client_type = client_update.type_signature.parameter
    updated_type = client_update.type_signature.result
    update = as_function(client_update)
    places = itertools.count()
    numbered = tff.types.structure_from_tensor_type_tree(lambda leaf: next(places), updated_type)
    columns = _flat(rows(numbered))
    specs = [_row_spec(_leaves(updated_type)[place]) for place in columns]
    totals_type = prepared_type = tff.StructType([])
    if sums is not None:
        summed = _flat((numbered["uploads"], numbered["weight"]))
        prepared_type, totals_type = sums.prepare.type_signature.result, sums.merge.type_signature.result
        work, zero, accumulate = map(as_function, (sums.work, sums.zero, sums.accumulate))
        given = len(_leaves(sums.accumulate.type_signature.parameter[1]))  # the others are for secure sums
    totals_leaves = _leaves(totals_type)

    def of_type(totals):
        # The loop must know only the shapes in the type, because the next client adds rows.
        return [tf.compat.v1.placeholder_with_default(leaf, kind.shape) for leaf, kind in zip(totals, totals_leaves)]

    @tf.function(autograph=False)
    def through_clients(values, prepared, shard):
        clients = tf.shape(shard[-1])[0]

        def one(place, totals, arrays):
            updated = update(*values, *_client_of(shard, client_type, place))
            if sums is not None:
                uploaded = work(*(updated[place] for place in summed), *prepared)
                totals = of_type(accumulate(*totals, *uploaded[:given]))
            return place + 1, totals, [array.write(place, updated[each]) for array, each in zip(arrays, columns)]

        arrays = [tf.TensorArray(spec.dtype, clients, element_shape=spec.shape) for spec in specs]
        first = [] if sums is None else of_type(zero())
        _, totals, arrays = tf.while_loop(
            lambda place, *_: place < clients, one, (0, first, arrays), parallel_iterations=1
        )
        found = [array.stack() for array in arrays]
        texts = [rows for rows in found if rows.dtype == tf.string]
        return [tf.concat([_bytes(rows) for rows in found if rows.dtype != tf.string], 1), *texts], totals

    @tff.tensorflow.computation(values_type, prepared_type, shard_type(client_type))
    def shard_update(values, prepared, shard):
        found, totals = through_clients(_flat(values), _flat(prepared), _flat(shard))
        return collections.OrderedDict(rows=found, totals=tff.structure.pack_sequence_as(totals_type, totals))

    return shard_update


def _row_spec(leaf: tff.TensorType) -> tf.TensorSpec:
    if leaf.shape is None or None in leaf.shape:
        raise TypeError(f"a shard has no place for rows of {leaf}")
    return tf.TensorSpec(leaf.shape, leaf.dtype)


def _bytes(rows: tf.Tensor) -> tf.Tensor:
    """Turns `[m, ...]` into `uint8[m, bytes of a row]`, since each tensor that is returned costs time."""
    rows = tf.cast(rows, tf.uint8) if rows.dtype == tf.bool else tf.bitcast(rows, tf.uint8)
    return tf.reshape(rows, [tf.shape(rows)[0], -1])


def joined(shards: Sequence[Sequence[np.ndarray]], row_type: tff.Type):
    """Returns the rows of several shards as one structure of arrays `[m, ...]`; `row_type` is that of one row."""
    leaves = _leaves(row_type)
    fields = [(str(place), leaf.dtype, leaf.shape) for place, leaf in enumerate(leaves) if leaf.dtype != np.str_]
    table, *texts = map(np.concatenate, zip(*shards, strict=True))
    table, texts = table.view(np.dtype(fields))[:, 0], iter(texts)
    found = [next(texts) if leaf.dtype == np.str_ else table[str(place)] for place, leaf in enumerate(leaves)]
    return tff.types.type_to_py_container(tff.structure.pack_sequence_as(row_type, found), row_type)
