"""The contract of a signature: what a client tells the server about its data or its model, once."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping

import numpy as np
import tensorflow_federated as tff

from tffcl.client_work.client_work import sequence_type, stacked_type
from tffcl.errors import UserError
from tffcl.trace_cache import KeptBuilds


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """What a client computes from its examples, and from what the server broadcast, and sends to the server once.

    Attributes:
      name: Of the kind.
      context_type: C, what the server broadcasts (an encoder, an anchor model, server data).
      value_type: V, tensors of fixed shape; a mask says what is padding.
      computation: `(<context=C,examples=E*> -> V)`, runs on the client.
      context: The value to broadcast.
      stacked: `() -> (<context=C,examples=<x[?,...],y[?,...]>> -> V)`, the same of stacked examples, for simulations; None:
        they take `computation`.
      noise_multiplier: z of the Gaussian mechanism that a client's signature is, when the client is left out; 0: not private.
      unseeded: `() -> Signature`, the same whose noise is drawn anew; None where this one's is, or where there is none.
      least_examples: Of fewer examples it is not what it is of more, as there are fewer vectors or centres than asked for.
    """

    name: str
    context_type: tff.Type
    value_type: tff.Type
    computation: tff.Computation
    context: object
    stacked: Callable[[], tff.Computation] | None = None
    noise_multiplier: float = 0.0
    unseeded: Callable[[], "Signature"] | None = None
    least_examples: int = 1

    @property
    def deployed(self) -> "Signature":
        """The signature as it is exported: without the seed of its noise, which only simulations have."""
        return self if self.unseeded is None else self.unseeded()


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


# The same of private signatures in simulations: what the noise of each client is drawn from. It is no traffic.
OWN_NOISE = "own_noise"


def own_noise(context):
    """Returns the seed `int32 [2]` of a client's noise, from its context; None where the noise is drawn anew."""
    return context[OWN_NOISE] if isinstance(context, Mapping) and OWN_NOISE in context else None


def deployed_context(context_type: tff.Type, context) -> tuple[tff.Type, object]:
    """Returns the context of a signature as its deployed form has it, with its type; any other server's value as it is."""
    if not isinstance(context_type, tff.StructType) or OWN_NOISE not in tff.structure.name_list(context_type):
        return context_type, context
    kind = without_noise_seed(context_type)
    if kind is None:
        return NO_CONTEXT_TYPE, NO_CONTEXT
    return kind, collections.OrderedDict((name, context[name]) for name in tff.structure.name_list(kind))


def without_noise_seed(context_type: tff.Type) -> tff.Type | None:
    """Returns the type of what the server really broadcasts; None for nothing."""
    if isinstance(context_type, tff.TensorType):
        return context_type if context_type.shape else None
    fields = [(name, kind) for name, kind in tff.structure.iter_elements(context_type) if name != OWN_NOISE]
    return tff.StructType(fields) if fields else None


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
    noise_seed: int | None = None,
    least_examples: int = 1,
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
      noise_seed: For simulations that are to be repeated: `own_noise(context)` then is the seed of each client's noise. None:
        it is None, and noise is drawn anew.
      least_examples: See `Signature`.
    """
    unseeded = None
    if noise_multiplier and noise_seed is not None:
        given = {"context_type": context_type, "context": context, "key": key, "noise_multiplier": noise_multiplier}
        unseeded = functools.partial(build_signature, name, example_spec, compute, **given, least_examples=least_examples)
        there = [] if context is NO_CONTEXT else list(tff.structure.iter_elements(context_type))
        context_type = tff.to_type(collections.OrderedDict([*there, (OWN_NOISE, tff.TensorType(np.int32, [2]))]))
        seed = np.array([noise_seed % 2**31, 1], np.int32)
        context = collections.OrderedDict([*({} if context is NO_CONTEXT else context).items(), (OWN_NOISE, seed)])

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
    return Signature(
        name, context_type, value_type, computation, context, stacked, noise_multiplier, unseeded, least_examples=least_examples
    )


def _is_fixed(kind: tff.Type) -> bool:
    """Whether a type is a tensor of known shape, or a structure."""
    return isinstance(kind, tff.StructType) or (
        isinstance(kind, tff.TensorType) and tff.types.is_shape_fully_defined(kind.shape)
    )
