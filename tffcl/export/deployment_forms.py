"""Computations, TFF values and deployment forms as files, and back."""

import collections
import ctypes
import functools
import pathlib
import re

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2, executor_pb2

from tffcl.aggregators.secure_mean import simulated
from tffcl.errors import UserError
from tffcl.rounds.shards import draws

_MAP_REDUCE = (
    "prepare", "work", "zero", "accumulate", "merge", "report", "secure_sum_bitwidth", "secure_sum_max_input",
    "secure_modular_sum_modulus", "update",
)  # fmt: skip
_DISTRIBUTE_AGGREGATE = (
    "server_prepare", "server_to_client_broadcast", "client_work", "client_to_server_aggregation", "server_result",
)  # fmt: skip
# the operations of noise and rounding without a seed
_DRAWN_ANEW = re.compile(rb"(?<!Stateless)Random(StandardNormal|Uniform)")
PARTS = {"map_reduce": _MAP_REDUCE, "distribute_aggregate": _DISTRIBUTE_AGGREGATE}


def write_computation(path: pathlib.Path, computation: tff.Computation):
    """Writes a serialised computation (TFF's `computation.proto`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tff.framework.serialize_computation(computation).SerializeToString(deterministic=True))


def read_computation(path: pathlib.Path) -> tff.Computation:
    """Reads what `write_computation` wrote; raises UserError if the file is something else."""
    try:
        return tff.framework.deserialize_computation(computation_pb2.Computation.FromString(path.read_bytes()))
    except Exception as error:
        raise UserError(f"{path} holds no computation of this TFF ({type(error).__name__})") from None


def write_value(path: pathlib.Path, value, type_spec: tff.Type):
    """Writes a value of a TFF type (TFF's `executor.proto`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    proto, _ = tff.framework.serialize_value(value, type_spec)
    path.write_bytes(proto.SerializeToString(deterministic=True))


def read_value(path: pathlib.Path, type_spec: tff.Type):
    """Reads what `write_value` wrote; raises UserError if the file is something else."""
    try:
        return tff.framework.deserialize_value(executor_pb2.Value.FromString(path.read_bytes()), type_spec)[0]
    except Exception as error:
        raise UserError(f"{path} holds no value of type {type_spec} ({type(error).__name__})") from None


def as_argument(values: tuple, parameter: tff.Type):
    """The arguments of a computation as one value of its parameter's type."""
    return tff.structure.Struct.unnamed(*values) if isinstance(parameter, tff.StructType) else values[0]


def from_argument(value, parameter: tff.Type) -> tuple:
    """The inverse of `as_argument`."""
    return tuple(value) if isinstance(parameter, tff.StructType) else (value,)


def hands_out_kept(computation: tff.Computation) -> bool:
    """Whether the computation hands out what clients keep, as a value at CLIENTS."""
    result = computation.type_signature.result
    parts = list(result) if isinstance(result, tff.StructType) else []
    return any(isinstance(part, tff.FederatedType) and part.placement is tff.CLIENTS for part in parts)


def run(computation: tff.Computation, *arguments):
    """Runs a computation on this machine, with secure sums in the open (see `aggregators.secure_mean`)."""
    return simulated(computation)(*arguments)


def draws_noise(computation: tff.Computation) -> bool:
    """Whether the computation has operations that draw anew in each run, which change nothing if the noise is 0."""
    return _DRAWN_ANEW.search(tff.framework.serialize_computation(computation).SerializeToString()) is not None


def build_form(kind: str, computation: tff.Computation):
    """Returns the deployment form of a computation, by a name in `PARTS`; raises what TFF raises if there is none."""
    mapreduce = tff.backends.mapreduce
    if kind == "map_reduce":
        form = mapreduce.get_map_reduce_form_for_computation(computation)
        if draws(form.prepare):  # e.g. for a rotation by clients that update undoes
            raise ValueError("prepare draws numbers that update would draw anew")
        return form
    return mapreduce.get_distribute_aggregate_form_for_computation(computation)


def write_form(directory: pathlib.Path, kind: str, computation: tff.Computation):
    """Writes a deployment form of a computation, a file for each of its parts, which are computations themselves.

    Args:
      directory: Gets `<part>.pb`.
      kind: A name in `PARTS`.
      computation: A round: `(<S@SERVER, {T}@CLIENTS> -> <S@SERVER, U@SERVER>)`.

    Returns:
      The form, or None and TFF's reason if the computation has none: `(form, None)` or `(None, reason)`.
    """
    try:
        form = build_form(kind, computation)
    except Exception as error:  # TFF raises whatever error happens inside it
        return None, _reason(kind, computation, error)
    for part in PARTS[kind]:
        write_computation(directory / f"{part}.pb", getattr(form, part))
    return form, None


def _reason(kind: str, computation: tff.Computation, error: Exception) -> str:
    message = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if hands_out_kept(computation):
        return f"TFF's forms have no place for what clients keep: a device keeps it itself ({message})"
    if kind == "distribute_aggregate" and "FunctionType" in message:
        return f"TFF 0.87 makes none of a computation with a tff.federated_aggregate, only with sums ({message})"
    return message


def read_form(directory: pathlib.Path, kind: str) -> dict[str, tff.Computation]:
    """Reads the parts that `write_form` wrote, by name."""
    return {part: read_computation(directory / f"{part}.pb") for part in PARTS[kind]}


def run_map_reduce(parts, state, clients: list):
    """Runs a round by the parts of its MapReduceForm as a deployment does, with two accumulators that are merged.

    Args:
      parts: The parts from `read_form`; secure sums are taken in the open.
      state: The server's.
      clients: The clients' inputs.

    Returns:
      What the computation returns.
    """
    prepared = parts["prepare"](state)
    worked = [parts["work"](client, prepared) for client in clients]
    updates = [each[0] for each in worked]
    totals = []
    for share in (updates[::2], updates[1::2]):
        total = parts["zero"]()
        for update in share:
            total = parts["accumulate"](total, update)
        totals.append(total)
    secure = [_summed([each[kind] for each in worked]) for kind in (1, 2, 3)]  # by bit width, by bounds, modular
    return parts["update"](state, (parts["report"](parts["merge"](*totals)), *secure))


def _summed(values: list):
    """The sum of structures of numbers."""
    return tf.nest.map_structure(lambda *leaves: np.sum(leaves, axis=0, dtype=np.asarray(leaves[0]).dtype), *values)


def run_distribute_aggregate(parts, type_signature: tff.FunctionType, state, clients: list):
    """Runs a round rebuilt from the parts of its DistributeAggregateForm.

    Args:
      parts: From `read_form`.
      type_signature: Of the computation.
      state: The server's.
      clients: The clients' inputs.

    Returns:
      What the computation returns.
    """
    mapreduce = tff.backends.mapreduce
    form = mapreduce.DistributeAggregateForm(type_signature, *(parts[name] for name in _DISTRIBUTE_AGGREGATE))
    return run(mapreduce.get_computation_for_distribute_aggregate_form(form), state, clients)


# Control flow is in no list, because TFLite's converter turns it into operations of its own.
_CONVERTED = {"While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"}

# The library's own test `bool tflite::flex::IsAllowlistedFlexOp(const std::string&)`: TFLite's "select TensorFlow ops".
_IS_ALLOWED = "_ZN6tflite4flex19IsAllowlistedFlexOpERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def operations_of(computation: tff.Computation) -> dict[str, int]:
    """Counts the TensorFlow operations of a computation, those in its functions too, by name in alphabetical order.

    Args:
      computation: A `tff.tensorflow.computation`, as the parts of a MapReduceForm are.

    Raises:
      TypeError: If it is not a TensorFlow computation.
    """
    proto = tff.framework.serialize_computation(computation)
    if proto.WhichOneof("computation") != "tensorflow":
        raise TypeError(f"expected a TensorFlow computation, found one of {proto.WhichOneof('computation')}")
    graph = tf.compat.v1.GraphDef()
    proto.tensorflow.graph_def.Unpack(graph)
    functions = {function.signature.name for function in graph.library.function}
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    counts = collections.Counter(node.op for node in nodes if node.op not in functions)
    return dict(sorted(counts.items()))


def missing_on_devices(operations) -> list[str] | None:
    """Returns those of the operations that are not among TFLite's select TensorFlow operations (its "flex" allowlist).

    The list is that of the installed TensorFlow, which has no Python function for it; None if its library does not show
    the list.

    Args:
      operations: Names of TensorFlow operations.
    """
    allowed = _allowlist()
    return (
        None if allowed is None else sorted(name for name in operations if name not in _CONVERTED and not allowed(name))
    )


class _String(ctypes.Structure):
    # libstdc++'s std::string.
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("local", ctypes.c_char * 16)]


@functools.cache
def _allowlist():
    try:
        library = ctypes.CDLL(str(next(pathlib.Path(tf.sysconfig.get_lib()).glob("libtensorflow_cc.so*"))))
        is_allowed = getattr(library, _IS_ALLOWED)
    except (StopIteration, OSError, AttributeError):
        return None
    is_allowed.restype, is_allowed.argtypes = ctypes.c_bool, [ctypes.POINTER(_String)]

    def allowed(name: str) -> bool:
        text = ctypes.create_string_buffer(name.encode())
        return is_allowed(_String(ctypes.addressof(text), len(text) - 1))

    # With another memory layout than this the answers would be arbitrary.
    return allowed if allowed("MatMul") and not allowed("NoSuchOperation") else None
