"""The contract of a signature: what a client sends to the server once about its data or its model."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.client_work import arrays_type, sequence_type, stack, stacked_type, visiting_order
from tffcl.errors import UserError
from tffcl.trace_cache import KeptBuilds, built_once


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """What a client computes from its examples and from the server's broadcast, and sends to the server once.

    Attributes:
      name: The name of the kind of signature.
      context_type: C, the type of what the server broadcasts (an encoder, an anchor model, server data).
      value_type: V, tensors of fixed shape; a mask marks padding.
      computation: `(<context=C,examples=E*> -> V)`, runs on the client.
      context: The value to broadcast.
      stacked: `() -> (<context=C,examples=<x[?,...],y[?,...]>> -> V)`, the same for stacked examples, for simulations;
        None: simulations use `computation`.
      noise_multiplier: z of the Gaussian mechanism of a client's signature, where the client is left out; 0: not
        private.
      unseeded: `() -> Signature`, the same signature with noise that is drawn anew; None if this one's is, or if there
        is no noise.
      least_examples: The number of examples below which a signature is incomplete, with fewer vectors or centres than
        asked for.
      model: The field of the context that is the model with which clients describe their data; "": the whole context;
        None: the signature depends on no model.
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
    model: str | None = None

    def context_with(self, model: np.ndarray | None, round_number: int):
        """Returns what the server broadcasts when it asks in the middle of a run.

        Args:
          model: `float32 [P]`, the model to use; None: that of `context`.
          round_number: The number of rounds so far, 0 before the first; a noise seed gives other noise in each.
        """
        context = self.context
        if model is not None and self.model is not None:
            context = collections.OrderedDict({**context, self.model: model}) if self.model else model
        seed = own_noise(context)
        if seed is None or not round_number:
            return context
        return collections.OrderedDict({**context, OWN_NOISE: seed + np.array([0, round_number], np.int32)})

    @property
    def deployed(self) -> "Signature":
        """The signature as it is exported, without the seed of its noise, which only simulations have."""
        return self if self.unseeded is None else self.unseeded()


NO_CONTEXT = np.int32(0)
NO_CONTEXT_TYPE = tff.TensorType(np.int32)  # TFF's deployment forms have no empty server state


# The field of a context for a client's own seed, into which its ID is folded before it computes. A seed that must be
# the same for all, e.g. of a projection, has another name.
OWN_SEED = "own_seed"


def own_seed(seed: int, name: str = OWN_SEED) -> dict[str, np.ndarray]:
    """The field of a context for each client's own seed; a field of another name is the same for all clients."""
    return {name: np.array([seed % 2**31, 0], np.int32)}


# The field for the seed of each client's noise in simulations of private signatures. It is not traffic.
OWN_NOISE = "own_noise"


def own_noise(context):
    """Returns the seed `int32 [2]` of a client's noise, from its context; None where the noise is drawn anew."""
    return context[OWN_NOISE] if isinstance(context, Mapping) and OWN_NOISE in context else None


def deployed_context(context_type: tff.Type, context) -> tuple[tff.Type, object]:
    """Returns the context of a signature in its deployed form, with its type; other values of the server unchanged."""
    if not isinstance(context_type, tff.StructType) or OWN_NOISE not in tff.structure.name_list(context_type):
        return context_type, context
    kind = without_noise_seed(context_type)
    if kind is None:
        return NO_CONTEXT_TYPE, NO_CONTEXT
    return kind, collections.OrderedDict((name, context[name]) for name in tff.structure.name_list(kind))


def without_noise_seed(context_type: tff.Type) -> tff.Type | None:
    """Returns the type of what the server really broadcasts; None if that is nothing."""
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
    context=NO_CONTEXT,
    key: Hashable = None,
    noise_multiplier: float = 0.0,
    noise_seed: int | None = None,
    least_examples: int = 1,
    model: str | None = None,
) -> Signature:
    """Makes a `Signature` from a tf.function.

    Args:
      name: The name of the kind of signature.
      example_spec: `tf.TensorSpec` structure of one example.
      compute: `(context, examples: tf.data.Dataset) -> value`.
      context: The value that the server broadcasts: an array, or arrays by name in an `OrderedDict`; with `noise_seed`
        the latter.
      key: All that `compute` depends on besides the types, so that signatures of one name and key are traced once.
        None: it is traced by itself.
      noise_multiplier: See `Signature`.
      noise_seed: A seed to repeat simulations; `own_noise(context)` is then the seed of each client's noise. None: it
        is None, and noise is drawn anew.
      least_examples: See `Signature`.
      model: See `Signature`.
    """
    unseeded = None
    if noise_multiplier and noise_seed is not None:
        if context is not NO_CONTEXT and not isinstance(context, Mapping):
            raise UserError(f"signature {name}: the seed of its noise is in its context, which must be an OrderedDict")
        given = {"context": context, "key": key, "noise_multiplier": noise_multiplier}
        unseeded = functools.partial(
            build_signature, name, example_spec, compute, **given, least_examples=least_examples, model=model
        )
        seed = np.array([noise_seed % 2**31, 1], np.int32)
        context = collections.OrderedDict({**({} if context is NO_CONTEXT else context), OWN_NOISE: seed})
    context_type = arrays_type(tf.nest.map_structure(np.asarray, context))

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
        raise UserError(
            f"signature {name} gives {value_type}; every dimension must be known: tf.ensure_shape(value, [...])"
        )
    if not tff.types.contains_only(value_type, _has_no_text):
        raise UserError(f"signature {name} gives {value_type}; it must be of numbers")
    stacked = functools.cache(lambda: traced(stacked_type(deployed)))
    return Signature(
        name, context_type, value_type, computation, context, stacked, noise_multiplier, unseeded,
        least_examples=least_examples, model=model,
    )  # fmt: skip


def _has_no_text(kind: tff.Type) -> bool:
    return not isinstance(kind, tff.TensorType) or kind.dtype.kind not in "OSU"


def _is_fixed(kind: tff.Type) -> bool:
    """Whether a type is a tensor of known shape, or a structure."""
    return isinstance(kind, tff.StructType) or (
        isinstance(kind, tff.TensorType) and tff.types.is_shape_fully_defined(kind.shape)
    )


def noised(value: tf.Tensor, noise_multiplier: float, seed: tf.Tensor | None) -> tf.Tensor:
    """Adds Gaussian noise of standard deviation z to every coordinate of a value of L2 norm 1 at most.

    If the client is left out, the value is zero, at a distance of 1 at most, so z is the noise multiplier of the
    release.

    Args:
      value: `float [...]`.
      noise_multiplier: z.
      seed: `int32 [2]`, the client's seed, to repeat simulations: the noise then follows from it and the value, and
        hides nothing from anyone who knows the seed. None draws new noise.
    """
    if seed is None:
        return value + noise_multiplier * tf.random.normal(tf.shape(value), dtype=value.dtype)
    weights = tf.range(1, tf.size(value) + 1)
    digest = tf.reduce_sum(tf.reshape(tf.cast(value, tf.float32), [-1]) * tf.sin(tf.cast(weights, tf.float32)))
    # The value, too, decides the seed: other data with the same noise would show the difference of the two.
    seed = tf.random.experimental.stateless_fold_in(seed, tf.bitcast(digest, tf.int32))
    return value + noise_multiplier * tf.random.stateless_normal(tf.shape(value), seed, dtype=value.dtype)


def clipped(value: tf.Tensor, bound: float) -> tf.Tensor:
    """Scales a vector to an L2 norm of at most `bound`, in units of `bound`: the result has norm 1 at most."""
    return value / tf.maximum(tf.norm(value), tf.cast(bound, value.dtype))


def noised_centres(centres: tf.Tensor, mask: tf.Tensor, noise_multiplier: float, clip: float, seed: tf.Tensor | None):
    """Makes the centres of a client private: scales each to a norm of at most `clip`, and noises all of them together.

    The k centres, divided by clip √k, have norm 1 at most. A missing centre counts as zero and is sent as its noise,
    since the number of a client's different examples is private, too.

    Args:
      centres: `float32 [k, e]`.
      mask: `bool [k]`, the centres that exist.
      noise_multiplier: z; a coordinate of a centre gets noise of the standard deviation z · clip · √k. With 0 the
        centres stay as they are.
      clip: The largest norm of a centre.
      seed: See `noised`.

    Returns:
      `<centres=float32[k,e],mask=bool[k]>` in the unit of the given centres; with noise, all of them exist.
    """
    if not noise_multiplier:
        return collections.OrderedDict(centres=centres, mask=mask)
    count = centres.shape[0]
    bound = tf.cast(clip, centres.dtype)
    norms = tf.norm(centres, axis=1, keepdims=True)
    kept = tf.where(mask[:, tf.newaxis], centres / tf.maximum(norms, bound), tf.zeros_like(centres))
    noisy = noised(kept / count**0.5, noise_multiplier, seed) * count**0.5 * bound
    return collections.OrderedDict(centres=noisy, mask=tf.ones_like(mask))


WHOLE, FIRST, SECOND, EXAMPLES = "whole", "first", "second", "examples"
_STREAM = 3  # folded into the seed, so that the split draws other numbers than the signature's shuffling
_OF = "of"  # the name of a context that is not a structure


def with_halves(signature: Signature) -> Signature:
    """Makes the signature `V' = <whole=V,first=V,second=V,examples=int32>` of a signature V.

    The client computes V three times: of n examples, and of two disjoint random halves of n // 2. A client with a
    single example uses it for both halves. A signature that trains a model trains twice as much, and three times as
    much is sent.

    Args:
      signature: Any signature without noise; halves of a private one would be two more releases.

    Returns:
      The signature; its context is that of V with each client's own seed, `own_seed=int32[2]`.
    """
    context_type, context = _with_seed(signature)
    stacked = None
    if signature.stacked is not None:
        examples = stacked_type(signature.computation.type_signature.parameter[1])

        def stacked():
            return _of_halves(signature.stacked(), context_type, examples)

    computation = _of_halves(signature.computation, context_type, signature.computation.type_signature.parameter[1])
    value_type = computation.type_signature.result
    model = _OF if signature.model == "" else signature.model
    return Signature(signature.name, context_type, value_type, computation, context, stacked, model=model)


def _with_seed(signature: Signature) -> tuple[tff.Type, Mapping]:
    """The signature's context and its type with the field of each client's own seed."""
    kind = signature.context_type
    if kind == NO_CONTEXT_TYPE:
        values = {}
    else:
        values = signature.context if isinstance(kind, tff.StructType) else {_OF: signature.context}
    values = collections.OrderedDict(values if OWN_SEED in values else {**values, **own_seed(0)})
    return arrays_type(tf.nest.map_structure(np.asarray, values)), values


@built_once
def _of_halves(computation: tff.Computation, context_type: tff.Type, examples_type: tff.Type) -> tff.Computation:
    inner = computation.type_signature.parameter[0]

    @tff.tensorflow.computation(context_type, examples_type)
    def all_three(context, examples):
        local = stack(examples)
        count = tf.shape(tf.nest.flatten(local)[0])[0]
        order = visiting_order(count, tf.random.experimental.stateless_fold_in(context[OWN_SEED], _STREAM))
        half = tf.maximum(count // 2, 1)
        own = context.get(_OF, NO_CONTEXT)  # the part that the signature itself takes
        if isinstance(inner, tff.StructType):
            own = collections.OrderedDict((name, context[name]) for name in tff.structure.name_list(inner))

        def of(rows):
            part = tf.nest.map_structure(lambda values: tf.gather(values, rows), local)
            return computation(
                own, tf.data.Dataset.from_tensor_slices(part) if isinstance(examples, tf.data.Dataset) else part
            )

        values = {WHOLE: computation(own, examples), FIRST: of(order[:half]), SECOND: of(order[count - half :])}
        return collections.OrderedDict(**values, **{EXAMPLES: count})

    return all_three


def by_name(value) -> dict[str, np.ndarray]:
    """Returns the arrays of signatures by name; a single array is called `value`."""
    return dict(value) if isinstance(value, Mapping) else {"value": value}
