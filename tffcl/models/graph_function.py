"""TensorFlow functions that are traced in a graph of their own, as TFF traces its computations."""

import functools
import inspect
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.types import trace

# Operations that draw by a state of their own; those that a seed decides are called Stateless....
_DRAWING = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")


class _Traced(type):
    def __instancecheck__(cls, value):
        return hasattr(value, "__tf_tracing_type__")


# From 4.6 on typing_extensions asks for the names of a protocol by inspect.getattr_static, which raises a TypeError for
# the dicts that TensorFlow 2.14 wraps, as where tff.program saves a state; before, it asked by hasattr.
trace.SupportsTracingProtocol = _Traced("SupportsTracingProtocol", (), {})


def drawing_nodes(definition: tf.compat.v1.GraphDef) -> list:
    """Returns the operations of a graph, with the functions in it, that draw numbers which no given seed decides."""
    nodes = [*definition.node, *(node for each in definition.library.function for node in each.node_def)]
    return [node for node in nodes if node.op.startswith(_DRAWING)]


def graph_function(function: Callable, *specs: tf.TensorSpec) -> Callable:
    """Traces a function in a graph and returns one that runs it, also eagerly.

    TFF's functional models of Keras models refuse to be traced where TensorFlow executes eagerly around them.

    Args:
      function: `(*structures of tensors) -> structure of tensors`.
      *specs: Of the tensors, or structures of them.
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
    # The definition names tf.functions that were traced in the graph. Eager TensorFlow forgets them with the last
    # Python object of theirs.
    traced.kept_alive = graph
    return traced


def session_function(function: Callable, *specs) -> Callable:
    """Traces a function in a graph and returns one that runs it on arrays in this process.

    It has a session of its own, since TFF's Keras models refuse to run without a graph, and since eager TensorFlow
    drops functions that a graph was imported with. The graph is left as it is traced: the optimizer of sessions breaks
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
    """Makes a `tf.function` of which one trace serves all graphs that call it.

    TensorFlow traces a tf.function anew in each of TFF's computations, which have a graph each; this one is traced in a
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
        # By exact shapes: TensorFlow would take a trace of any number of rows for one row, too.
        key = repr((args, kwargs))
        if key not in known:
            anew = tf.function(function, autograph=False, input_signature=input_signature)
            with graph.as_default():
                known[key] = anew.get_concrete_function(*args, **kwargs)
        return known[key](*given.args, **given.kwargs)

    return call


def converted(function: Callable) -> Callable:
    """Returns a function with its Python `if` and `for` on tensors made TensorFlow's, by AutoGraph.

    Our own tf.functions have none, and are traced without AutoGraph, which costs a fifth of the tracing; what others
    hand in for them to call goes through this. Functions of this package and tf.functions come back as they are.
    """
    return function if is_ours(function) or hasattr(function, "get_concrete_function") else tf.function(function)


def is_ours(function: Callable) -> bool:
    """Returns whether a function is of this package."""
    return (getattr(function, "__module__", None) or "").split(".")[0] == __name__.split(".")[0]
