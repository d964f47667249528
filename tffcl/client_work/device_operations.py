"""Which operations a client's graph has, and which of them a device's runtime lacks."""

import collections
import ctypes
import functools
import pathlib

import tensorflow as tf
import tensorflow_federated as tff

# Control flow is in no list: TFLite's converter makes its own operations of it.
_CONVERTED = {"While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"}

# The library's own test `bool tflite::flex::IsAllowlistedFlexOp(const std::string&)`: TFLite's "select TensorFlow ops".
_IS_ALLOWED = "_ZN6tflite4flex19IsAllowlistedFlexOpERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def operations_of(computation: tff.Computation) -> dict[str, int]:
    """Counts the TensorFlow operations of a computation, those in its functions too, by name in alphabetical order.

    Args:
      computation: A `tff.tensorflow.computation`, as the parts of a MapReduceForm are.

    Raises:
      TypeError: If it is no TensorFlow computation.
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

    The list is that of the installed TensorFlow, which has no Python function for it; None where its library does not say.

    Args:
      operations: Names of TensorFlow operations.
    """
    allowed = _allowlist()
    return None if allowed is None else sorted(name for name in operations if name not in _CONVERTED and not allowed(name))


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

    # A layout that is another than this would say anything.
    return allowed if allowed("MatMul") and not allowed("NoSuchOperation") else None
