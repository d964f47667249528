"""The contract of a signature: what a client tells the server about its data or its model, once."""

import dataclasses

import numpy as np
import tensorflow_federated as tff

from tffcl.client_work.examples import sequence_type


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
