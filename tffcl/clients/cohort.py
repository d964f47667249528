"""The clients of one round, and what their computations are given."""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from tffcl.clients.population import Population


@dataclasses.dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of one round.

    Attributes:
      population: The clients that there are.
      client_ids: `int32 [m]`, distinct.
      seed: `(run seed, round)`; decides each client's shuffling.
      local_test: `bool [m]` or None: whose model is tested right after its local training (the `local` accuracy).
      rate: The probability with which each client of the population was drawn, independently; None for a fixed size.
      seen: Whether the server sees that some of them take part, each of them in one round of a run: they tell it
        something under their IDs before they train.
    """

    population: Population
    client_ids: np.ndarray
    seed: tuple[int, int]
    local_test: np.ndarray | None = None
    rate: float | None = None
    seen: bool = False

    @property
    def sizes(self) -> np.ndarray:
        """`int32 [m]`, training examples of each client."""
        return self.population.sizes_of(self.client_ids)

    def client_seed(self, client_id: int) -> np.ndarray:
        """Returns `int32 [2]`, decided by run seed, round and client."""
        words = np.random.SeedSequence([*self.seed, int(client_id)]).generate_state(2)
        return (words >> 1).astype(np.int32)

    def chosen(self, places) -> "Cohort":
        """Returns the cohort of the clients at some places of this one, in the order of these."""
        tested = None if self.local_test is None else self.local_test[places]
        return dataclasses.replace(self, client_ids=self.client_ids[places], local_test=tested)

    def parts(self, at_a_time: int):
        """Yields `(slice, Cohort)` of at most so many clients, in order."""
        for start in range(0, len(self.client_ids), at_a_time):
            part = slice(start, start + at_a_time)
            yield part, self.chosen(part)

    def inputs(self, **fields: Sequence) -> list[collections.OrderedDict]:
        """Makes the clients' inputs of a round, largest client first, so that no core waits at the end for a large one.

        Args:
          **fields: What a client knows of itself beside its examples: name to a value for each client, in the cohort's
            order.

        Returns:
          A structure `<examples, test_examples, client_id, seed, ...fields>` for each client, whose examples are
          stacked.
        """
        order = np.argsort(-self.sizes, kind="stable")
        tested = self.local_test if self.local_test is not None else np.zeros(len(self.client_ids), bool)
        inputs = []
        for i in order:
            client = int(self.client_ids[i])
            tests = self.population.test(client)
            given = collections.OrderedDict(
                examples=self.population.train(client).stacked,
                test_examples=(tests if tested[i] else tests.nothing).stacked,
                client_id=np.int32(client),
                seed=self.client_seed(client),
            )
            given.update((name, values[i]) for name, values in fields.items())
            inputs.append(given)
        return inputs
