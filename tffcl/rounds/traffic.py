"""What clients receive and send, from TFF type signatures; and the metrics of a round's clients."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow_federated as tff


def type_bytes(transferred: tff.Type | None, rows: int | None = None) -> int:
    """Returns the bytes of a value of a TFF type of tensors.

    Args:
      transferred: The type; None if nothing is transferred.
      rows: The size of an unknown leading dimension: the number of models, which may change between rounds.

    Raises:
      ValueError: If another dimension is unknown, or the leading one and `rows` is None.
    """
    if transferred is None:
        return 0
    total = 0

    def add(leaf):
        nonlocal total
        shape = [rows if place == 0 and size is None else size for place, size in enumerate(leaf.shape)]
        if None in shape:
            raise ValueError(f"{leaf} has no fixed size")
        total += int(np.prod(shape, dtype=np.int64)) * np.dtype(leaf.dtype).itemsize

    tff.types.structure_from_tensor_type_tree(add, transferred)
    return total


@dataclasses.dataclass(frozen=True)
class Transfer:
    """What one client receives and sends when it takes part.

    Attributes:
      down: TFF type of what the server sends to it, or None.
      up: TFF type of what it sends, or None.
    """

    down: tff.Type | None = None
    up: tff.Type | None = None

    def down_bytes(self, rows: int | None = None) -> int:
        """Returns the bytes that the client receives; `rows` as in `type_bytes`."""
        return type_bytes(self.down, rows)

    def up_bytes(self) -> int:
        """Returns the bytes that the client sends."""
        return type_bytes(self.up)


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that were sent.

    Attributes:
      down: From the server to clients.
      up: From clients to the server.
    """

    down: int = 0
    up: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.down + other.down, self.up + other.up)

    def __mul__(self, clients: int) -> "Traffic":
        return Traffic(self.down * int(clients), self.up * int(clients))

    @classmethod
    def of(cls, *transfers: Transfer) -> "Traffic":
        """Returns the traffic of one client over all the transfers."""
        return cls(sum(each.down_bytes() for each in transfers), sum(each.up_bytes() for each in transfers))


@dataclasses.dataclass(frozen=True, eq=False)
class RoundMetrics:
    """The metrics of a round, for each client of its cohort; row i of every array is `client_ids[i]`.

    Attributes:
      client_ids: `int32 [m]`.
      clusters: `int32 [m]`, the cluster whose model the client trained.
      examples: `int32 [m]`, the number of training examples.
      losses: `float32 [m]`, mean training loss over the client's last epoch.
      test_correct: `int32 [m]`, labels of test examples that the client's own model got right after its training.
      test_examples: `int32 [m]`, labels tried, one for an example or several for a sequence, without padding; 0 where
        there was no local test.
      test_outputs: `object [m]`, the outputs of the own models on the test examples, each a serialized tensor
        `float32 [n, ...]`; None where no metric needs them.
      traffic: All bytes of this round.
      signatures: The part of these bytes that clients exchanged before they trained.
      relatedness: `float32 [m, m]` for methods that relate the clients of a cohort, row i the mix of client i; else
        None.
      scalars: Further numbers of the method, by name; the same names in every round.
      changed: `bool [m]`, the clients that reported a change of their data; None for methods that do not ask.
    """

    client_ids: np.ndarray
    clusters: np.ndarray
    examples: np.ndarray
    losses: np.ndarray
    test_correct: np.ndarray
    test_examples: np.ndarray
    traffic: Traffic = Traffic()
    signatures: Traffic = Traffic()
    relatedness: np.ndarray | None = None
    scalars: Mapping[str, float] = dataclasses.field(default_factory=dict)
    changed: np.ndarray | None = None
    test_outputs: np.ndarray | None = None

    @classmethod
    def of_nobody(cls) -> "RoundMetrics":
        """Returns the metrics of a round in which no client is asked for anything."""
        nothing = np.zeros(0, np.int32)
        return cls(nothing, nothing, nothing, np.zeros(0, np.float32), nothing, nothing)

    def with_signatures(self, exchanged: Traffic) -> "RoundMetrics":
        """Adds the traffic of clients before they trained."""
        return dataclasses.replace(self, traffic=self.traffic + exchanged, signatures=self.signatures + exchanged)
