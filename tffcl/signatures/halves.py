"""Any signature three times: of all of a client's examples and of two random halves, see `clustering.self_distance`."""

import collections
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.client_work import stack, stacked_type, visiting_order
from tffcl.signatures.signature import NO_CONTEXT, NO_CONTEXT_TYPE, OWN_SEED, Signature, own_seed, own_seed_type
from tffcl.trace_cache import built_once

WHOLE, FIRST, SECOND, EXAMPLES = "whole", "first", "second", "examples"
_STREAM = 3  # folded into the seed, so that the split does not draw the numbers of the signature's own shuffling
_OF = "of"  # of a context that is no structure


def with_halves(signature: Signature) -> Signature:
    """Makes the signature `V' = <whole=V,first=V,second=V,examples=int32>` of a signature V.

    The client computes V three times: of n examples, and of two disjoint halves of n // 2, drawn at random; one that has a
    single example tells it twice. A signature that trains a model trains twice as much for it, and all is sent three times.

    Args:
      signature: Any, without noise: halves of a private one would be two releases more.

    Returns:
      The signature; its context is that of V with each client's own seed, `own_seed=int32[2]`.
    """
    context_type, context = _with_seed(signature)
    stacked = None
    if signature.stacked is not None:
        examples = stacked_type(signature.computation.type_signature.parameter[1])

        def stacked():
            return _told_thrice(signature.stacked(), context_type, examples)

    computation = _told_thrice(signature.computation, context_type, signature.computation.type_signature.parameter[1])
    value_type = computation.type_signature.result
    return Signature(signature.name, context_type, value_type, computation, context, stacked)


def _with_seed(signature: Signature) -> tuple[tff.Type, Mapping]:
    """The signature's context and its type with the field of each client's own seed."""
    kind = signature.context_type
    if kind == NO_CONTEXT_TYPE:
        fields, values = [], {}
    elif isinstance(kind, tff.StructType):
        fields, values = list(tff.structure.iter_elements(kind)), dict(signature.context)
    else:
        fields, values = [(_OF, kind)], {_OF: signature.context}
    if OWN_SEED not in values:
        fields, values = [*fields, own_seed_type()], {**values, **own_seed(0)}
    return tff.to_type(collections.OrderedDict(fields)), collections.OrderedDict(values)


@built_once
def _told_thrice(computation: tff.Computation, context_type: tff.Type, examples_type: tff.Type) -> tff.Computation:
    inner = computation.type_signature.parameter[0]

    @tff.tensorflow.computation(context_type, examples_type)
    def told(context, examples):
        local = stack(examples)
        count = tf.shape(tf.nest.flatten(local)[0])[0]
        order = visiting_order(count, tf.random.experimental.stateless_fold_in(context[OWN_SEED], _STREAM))
        half = tf.maximum(count // 2, 1)
        own = _own_context(context, inner)

        def of(rows):
            part = tf.nest.map_structure(lambda values: tf.gather(values, rows), local)
            return computation(own, tf.data.Dataset.from_tensor_slices(part) if isinstance(examples, tf.data.Dataset) else part)

        values = {WHOLE: computation(own, examples), FIRST: of(order[:half]), SECOND: of(order[count - half :])}
        return collections.OrderedDict(**values, **{EXAMPLES: count})

    return told


def _own_context(context: Mapping, kind: tff.Type):
    """What the signature itself takes of the context."""
    if isinstance(kind, tff.StructType):
        return collections.OrderedDict((name, context[name]) for name in tff.structure.name_list(kind))
    return context[_OF] if _OF in context else NO_CONTEXT


def by_name(value) -> dict[str, np.ndarray]:
    """Returns the arrays of signatures by name; those that are one array are called `value`."""
    return dict(value) if isinstance(value, Mapping) else {"value": value}
