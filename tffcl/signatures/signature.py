"""The contract of a signature, and the federated computation that brings all of them to the server."""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import collect


def sequence_type(example_spec) -> tff.SequenceType:
    """The TFF type of a client's example store, `<x=...,y=...>*`, from the specs of one example."""
    return tff.SequenceType(tff.types.tensorflow_to_type(example_spec))


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """What a client computes from its examples, and from what the server broadcast, and sends to the server once.

    Attributes:
      name: Of the kind.
      context_type: C, what the server broadcasts (an encoder, an anchor model, server data).
      value_type: V, tensors of fixed shape; a mask says what is padding.
      computation: `(<context=C,examples=E*> -> V)`, runs on the client.
      context: The value to broadcast.
    """

    name: str
    context_type: tff.Type
    value_type: tff.Type
    computation: tff.Computation
    context: object


NO_CONTEXT = np.int32(0)
NO_CONTEXT_TYPE = tff.TensorType(np.int32)  # TFF's deployment forms have no empty server state


def build_signature(name, example_spec, compute, *, context_type=NO_CONTEXT_TYPE, context=NO_CONTEXT) -> Signature:
    """Makes a `Signature` from a tf.function.

    Args:
      name: Of the kind.
      example_spec: `tf.TensorSpec` structure of one example.
      compute: `(context, examples: tf.data.Dataset) -> value`.
      context_type: C.
      context: The value that the server broadcasts.
    """

    @tff.tensorflow.computation(context_type, sequence_type(example_spec))
    def computation(context, examples):
        return compute(context, examples)

    return Signature(name, context_type, computation.type_signature.result, computation, context)


def build_collection(signature: Signature) -> tff.Computation:
    """Builds the federated computation that collects the signatures of a cohort.

    It has the shape of a round, so that it can be exported as one; the context comes back unchanged.

    Returns:
      `(<C@SERVER, {<examples=E*,client_id=int32>}@CLIENTS> ->
        <C@SERVER, <client_id=int32[?],value=V[?,...]>@SERVER>)`.
    """
    examples_type = signature.computation.type_signature.parameter[1]
    client_type = tff.to_type(collections.OrderedDict(examples=examples_type, client_id=np.int32))

    @tff.tensorflow.computation(signature.context_type, client_type)
    def sign(context, client):
        return collections.OrderedDict(client_id=client["client_id"], value=signature.computation(context, client["examples"]))

    @tff.tensorflow.computation(signature.context_type)
    def keep(context):
        return tf.nest.map_structure(tf.identity, context)

    @tff.federated_computation(
        tff.FederatedType(signature.context_type, tff.SERVER), tff.FederatedType(client_type, tff.CLIENTS)
    )
    def collect_signatures(context, clients):
        signed = tff.federated_map(sign, (tff.federated_broadcast(context), clients))
        return tff.federated_map(keep, context), collect(signed["client_id"], signed["value"])

    return collect_signatures
