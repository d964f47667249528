"""TensorFlow functions that are traced in a graph of their own, as TFF traces its computations."""

import functools
import inspect
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.types import trace

# Operations that draw from a state of their own; the names of those that a seed decides begin with Stateless.
_DRAWING = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")


class _Traced(type):
    def __instancecheck__(cls, value):
        return hasattr(value, "__tf_tracing_type__")


# Since 4.6, typing_extensions looks up the names of a protocol by inspect.getattr_static and no longer by hasattr. This
# raises a TypeError for the dicts that TensorFlow 2.14 wraps, for example when tff.program saves a state.
trace.SupportsTracingProtocol = _Traced("SupportsTracingProtocol", (), {})


def drawing_nodes(definition: tf.compat.v1.GraphDef) -> list:
    """Returns the operations of a graph and its functions that draw random numbers which no given seed decides."""
    nodes = [*definition.node, *(node for each in definition.library.function for node in each.node_def)]
    return [node for node in nodes if node.op.startswith(_DRAWING)]


def graph_function(function: Callable, *specs: tf.TensorSpec) -> Callable:
    """Traces a function in a graph and returns one that runs it, even eagerly.

    TFF's functional models of Keras models refuse to be traced if TensorFlow executes eagerly around them.

    Args:
      function: `(*structures of tensors) -> structure of tensors`.
      *specs: The specs of the tensors, or structures of specs.
    """
    with tf.Graph().as_default() as graph:
        inputs = tf.nest.map_structure(lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), list(specs))
        outputs = tf.nest.map_structure(tf.identity, function(*inputs))
    definition = graph.as_graph_def()
    given, taken = ([each.name for each in tf.nest.flatten(held)] for held in (inputs, outputs))

    @tf.function(autograph=False)
    def run(*tensors):
        found = tf.graph_util.import_graph_def(
            definition,
            input_map=dict(zip(given, tf.nest.flatten(list(tensors)), strict=True)),
            return_elements=taken,
            name="",
        )
        return tf.nest.pack_sequence_as(outputs, found)

    traced = run.get_concrete_function(*specs)  # once, whatever the number of examples
    # The definition names tf.functions that were traced in the graph. Eager TensorFlow forgets them when their last
    # Python object is gone.
    traced.kept_alive = graph
    return traced


def session_function(function: Callable, *specs) -> Callable:
    """Traces a function in a graph and returns one that runs it on arrays in this process.

    It has a session of its own, since TFF's Keras models refuse to run without a graph, and since eager TensorFlow
    drops functions that a graph was imported with. The graph is not optimized, because the optimizer of sessions breaks
    loops inside branches.

    Args:
      function: `(*structures of tensors) -> structure of tensors`.
      *specs: Structures of `tf.TensorSpec`, one for each argument.

    Returns:
      `(*structures of arrays) -> structure of arrays`.
    """
    with tf.Graph().as_default() as graph:
        inputs = tf.nest.map_structure(lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), list(specs))
        outputs = function(*inputs)
    settings = tf.compat.v1.ConfigProto()
    settings.graph_options.rewrite_options.disable_meta_optimizer = True
    session = tf.compat.v1.Session(graph=graph, config=settings)
    given = tf.nest.flatten(inputs)
    return lambda *values: session.run(outputs, dict(zip(given, tf.nest.flatten(values), strict=True)))


def traced_once(function: Callable, input_signature=None) -> Callable:
    """Makes a `tf.function` whose trace serves all graphs that call it.

    TensorFlow traces a tf.function again in each of TFF's computations, since each has a graph. This one is traced in a
    graph of its own, once for each structure of tensors that it is called with.

    Args:
      function: `(*structures of tensors or Python values) -> structure of tensors`. It captures no tensors, and has no
        Python `if` or `for` on them.
      input_signature: As in `tf.function`.
    """
    traced = tf.function(function, autograph=False, input_signature=input_signature)
    graph, signature, known = tf.Graph(), inspect.signature(function), {}

    def spec(leaf):
        return tf.TensorSpec(leaf.shape, leaf.dtype) if tf.is_tensor(leaf) else leaf

    @functools.wraps(function)
    def call(*args, **kwargs):
        if tf.executing_eagerly():
            return traced(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        args, kwargs = tf.nest.map_structure(spec, (given.args, given.kwargs))
        # The key has exact shapes: TensorFlow would use a trace for any number of rows for one row, too.
        key = repr((args, kwargs))
        if key not in known:
            anew = tf.function(function, autograph=False, input_signature=input_signature)
            with graph.as_default():
                known[key] = anew.get_concrete_function(*args, **kwargs)
        return known[key](*given.args, **given.kwargs)

    return call


def converted(function: Callable) -> Callable:
    """Returns a function whose Python `if` and `for` on tensors are turned into TensorFlow's by AutoGraph.

    This package's tf.functions have none, and are traced without AutoGraph, since it costs a fifth of the tracing. A
    user's functions that they call go through this. Functions of this package and tf.functions are returned unchanged.
    """
    return function if is_ours(function) or hasattr(function, "get_concrete_function") else tf.function(function)


def is_ours(function: Callable) -> bool:
    """Returns whether a function is of this package."""
    return (getattr(function, "__module__", None) or "").split(".")[0] == __name__.split(".")[0]
