"""The contract of a signature: what a client tells the server about its data or its model, once."""

import dataclasses
import functools
from collections.abc import Callable, Hashable

import numpy as np
import tensorflow_federated as tff

from tffcl.client_work.examples import sequence_type, stacked_type
from tffcl.errors import UserError
from tffcl.kept_builds import KeptBuilds


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """What a client computes from its examples, and from what the server broadcast, and sends to the server once.

    Attributes:
      name: Of the kind.
      context_type: C, what the server broadcasts (an encoder, an anchor model, server data).
      value_type: V, tensors of fixed shape; a mask says what is padding.
      computation: `(<context=C,examples=E*> -> V)`, runs on the client.
      context: The value to broadcast.
      stacked: `() -> (<context=C,examples=<x[?,...],y[?,...]>> -> V)`, the same of stacked examples, for simulations; None: they take
        `computation`.
      noise_multiplier: z of the Gaussian mechanism that a client's signature is, when the client is left out; 0: not private.
    """

    name: str
    context_type: tff.Type
    value_type: tff.Type
    computation: tff.Computation
    context: object
    stacked: Callable[[], tff.Computation] | None = None
    noise_multiplier: float = 0.0


NO_CONTEXT = np.int32(0)
NO_CONTEXT_TYPE = tff.TensorType(np.int32)  # TFF's deployment forms have no empty server state


# The field of a context that is each client's own: before it computes, its ID is folded in. What must be one for all, as a
# projection, has another name.
OWN_SEED = "own_seed"


def own_seed_type() -> tuple[str, tff.Type]:
    """Name and type of the field of a context that is each client's own seed."""
    return OWN_SEED, tff.TensorType(np.int32, [2])


def own_seed(seed: int) -> dict[str, np.ndarray]:
    """The value of that field, by its name."""
    return {OWN_SEED: np.array([seed % 2**31, 0], np.int32)}


_TRACED = KeptBuilds()


def build_signature(
    name,
    example_spec,
    compute,
    *,
    context_type=NO_CONTEXT_TYPE,
    context=NO_CONTEXT,
    key: Hashable = None,
    noise_multiplier: float = 0.0,
) -> Signature:
    """Makes a `Signature` from a tf.function.

    Args:
      name: Of the kind.
      example_spec: `tf.TensorSpec` structure of one example.
      compute: `(context, examples: tf.data.Dataset) -> value`.
      context_type: C.
      context: The value that the server broadcasts.
      key: All that `compute` depends on beside the types: signatures of one name and key are traced once. None: it is like no
        other.
      noise_multiplier: See `Signature`.
    """

    def traced(examples_type):
        def trace():
            @tff.tensorflow.computation(context_type, examples_type)
            def computation(context, examples):
                return compute(context, examples)

            return computation

        known = (name, str(context_type), str(examples_type), key)
        return trace() if key is None else _TRACED.find(known, trace)

    deployed = sequence_type(example_spec)
    computation = traced(deployed)
    value_type = computation.type_signature.result
    if not tff.types.contains_only(value_type, _is_fixed):
        raise UserError(f"signature {name} gives {value_type}; every dimension must be known: tf.ensure_shape(value, [...])")
    stacked = functools.cache(lambda: traced(stacked_type(deployed)))
    return Signature(name, context_type, value_type, computation, context, stacked, noise_multiplier)


def _is_fixed(kind: tff.Type) -> bool:
    """Whether a type is a tensor of known shape, or a structure."""
    return isinstance(kind, tff.StructType) or (
        isinstance(kind, tff.TensorType) and tff.types.is_shape_fully_defined(kind.shape)
    )
