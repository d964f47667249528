"""What a client does in a round: the half of a method that runs on devices, as one value."""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow_federated as tff

LOCAL_TEST = ("test_correct", "test_examples")  # what a report has of the local test, in simulations only


class ClientResult(NamedTuple):
    """What comes out of a client's computation, TensorFlow values.

    Attributes:
      uploads: What goes to the server's aggregators, by name.
      report: What it tells of the round: at least `examples=int32`, training examples; `loss=float32`; and `finite=bool`,
        whether all that it trained is finite. The fields `LOCAL_TEST`, and no others, come where the client brings test
        examples.
      kept: What the client keeps for its next round; None where it keeps nothing.
    """

    uploads: Mapping[str, object]
    report: Mapping[str, object]
    kept: object = None


@dataclasses.dataclass(frozen=True, eq=False)
class ClientWork:
    """A client's part of a round.

    Attributes:
      example_spec: `tf.TensorSpec` structure of a single example.
      compute: `(received, client) -> ClientResult` in TensorFlow. `received` has by name what the server sends to this client.
        `client` has `examples` (deployed, a data set of single examples; in simulation the same as stacked tensors:
        `examples.stack` makes tensors of either), `client_id`, `seed int32 [2]`, `test_examples` if the
        client is to test its own model, the `fields`, and `kept` if the client keeps something.
      fields: What else a client knows of itself, or is told by the coordinator: name to TFF type.
      kept: TFF type of what a client keeps between rounds; None for nothing.
    """

    example_spec: Mapping
    compute: Callable[[Mapping, Mapping], ClientResult]
    fields: Mapping[str, object] = dataclasses.field(default_factory=dict)
    kept: tff.Type | None = None


def keyed(key, value) -> collections.OrderedDict:
    """Returns an upload for an aggregation by key: `<key=int32, value=T>`."""
    return collections.OrderedDict(key=key, value=value)
