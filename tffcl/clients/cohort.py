"""The clients of one round: which are drawn, and the inputs of their computations. Imports no TensorFlow.

The cohort of a round is a pure function of the seed and the round, so that a resumed run repeats it.
"""

import collections
import dataclasses
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tffcl.display import counted
from tffcl.errors import Option, UserError

if TYPE_CHECKING:  # at run time it would import TensorFlow
    from tffcl.clients.population import Population

SAMPLINGS = ("fixed", "poisson")  # how cohorts are drawn


def stream(seed: int, purpose: str) -> int:
    """Returns a separate seed for one purpose, so that no two parts of a run draw the same numbers."""
    return int(np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(1)[0] >> 1)


def hold_out(num_clients: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits the clients into the participants of a run and the newcomers that join afterwards.

    Args:
      num_clients: The number of clients, which are 0 to num_clients - 1.
      count: How many join afterwards.
      seed: Seed of the run.

    Returns:
      `(participants, newcomers)`, both ascending client IDs.

    Raises:
      UserError: If no participant would be left.
    """
    if count >= num_clients:
        raise UserError(f"newcomers.clients is {count}; of {counted(num_clients, 'client')} at least 1 must take part")
    rng = np.random.default_rng(stream(seed, "newcomers"))
    newcomers = np.sort(rng.choice(num_clients, count, replace=False))
    return np.setdiff1d(np.arange(num_clients), newcomers), newcomers


def sample_cohort(client_ids: np.ndarray, size: int, seed: int, round_number: int, how: str = "fixed") -> np.ndarray:
    """Draws a cohort uniformly without replacement, or each client independently.

    Args:
      client_ids: The clients that can be drawn.
      size: The size of the cohort; with Poisson sampling its expected size.
      seed: Seed of the run.
      round_number: The round, from 1.
      how: "fixed" or "poisson".

    Returns:
      `int32 [size]`, ascending; with Poisson sampling the length varies, and may be 0.

    Raises:
      UserError: If there are fewer clients than `size`.
    """
    if size > len(client_ids):
        option = Option("train.clients_per_round", "clients_per_round")
        there = "is" if len(client_ids) == 1 else "are"
        raise UserError(f"{option} is {size}, but there {there} only {counted(len(client_ids), 'client')}")
    rng = np.random.default_rng([stream(seed, "sampling"), round_number])
    if how == "poisson":
        return np.sort(client_ids[rng.random(len(client_ids)) < size / len(client_ids)]).astype(np.int32)
    return np.sort(rng.choice(client_ids, size, replace=False)).astype(np.int32)


def is_evaluation(round_number: int, rounds: int, every: int) -> bool:
    """Whether accuracies are measured after this round."""
    return round_number == rounds or round_number % every == 0


def needs_local_test(
    clients: Callable, size: int, seed: int, round_number: int, rounds: int, every: int, how: str = "fixed"
) -> np.ndarray:
    """Returns which clients of a round's cohort will not train again before the next evaluation.

    The `local` accuracy of that evaluation needs the models of these clients only; testing the others would be wasted.

    Args:
      clients: Maps a round to the IDs of its population.
      size: The size of a cohort.
      seed: The seed of the run.
      round_number: The round.
      rounds: The number of rounds of the run.
      every: The number of rounds from one evaluation to the next.
      how: See `sample_cohort`.

    Returns:
      `bool [m]`, in the order of the round's cohort.
    """
    cohort = sample_cohort(clients(round_number), size, seed, round_number, how)
    again = np.zeros(len(cohort), bool)
    while not is_evaluation(round_number, rounds, every):
        round_number += 1
        again |= np.isin(cohort, sample_cohort(clients(round_number), size, seed, round_number, how))
    return ~again


@dataclasses.dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of one round.

    Attributes:
      population: All clients.
      client_ids: `int32 [m]`, distinct.
      seed: `(run seed, round)`; decides each client's shuffling.
      local_test: `bool [m]` or None, the clients that test their model right after local training (`local` accuracy).
      rate: The probability with which each client of the population was drawn, independently; None for a fixed size.
      seen: Whether the server sees some of the clients' IDs, because these clients send it something under their IDs
        before they train, each in one round of a run.
    """

    population: "Population"
    client_ids: np.ndarray
    seed: tuple[int, int]
    local_test: np.ndarray | None = None
    rate: float | None = None
    seen: bool = False

    @property
    def sizes(self) -> np.ndarray:
        """`int32 [m]`, the number of training examples of each client."""
        return self.population.sizes_of(self.client_ids)

    def client_seed(self, client_id: int) -> np.ndarray:
        """Returns `int32 [2]`, decided by run seed, round and client."""
        words = np.random.SeedSequence([*self.seed, int(client_id)]).generate_state(2)
        return (words >> 1).astype(np.int32)

    def chosen(self, places) -> "Cohort":
        """Returns the cohort of the clients at some places of this one, in the order of the places."""
        tested = None if self.local_test is None else self.local_test[places]
        return dataclasses.replace(self, client_ids=self.client_ids[places], local_test=tested)

    def parts(self, at_a_time: int):
        """Yields `(slice, Cohort)` with a limited number of clients each, in order."""
        for start in range(0, len(self.client_ids), at_a_time):
            part = slice(start, start + at_a_time)
            yield part, self.chosen(part)

    def inputs(self, **fields: Sequence) -> list[collections.OrderedDict]:
        """Makes the clients' inputs of a round, largest client first, so that no core waits at the end for a large one.

        Args:
          **fields: Further inputs of the clients by name: a value for each client, in the cohort's order.

        Returns:
          A structure `<examples, test_examples, client_id, seed, ...fields>` for each client, with stacked examples.
        """
        order = np.argsort(-self.sizes, kind="stable")
        tested = self.local_test if self.local_test is not None else np.zeros(len(self.client_ids), bool)
        inputs = []
        untested = self.population.test(self.client_ids[0]).nothing.stacked if len(order) else None
        for i in order:
            client = int(self.client_ids[i])
            given = collections.OrderedDict(
                examples=self.population.train(client).stacked,
                test_examples=self.population.test(client).stacked if tested[i] else untested,
                client_id=np.int32(client),
                seed=self.client_seed(client),
            )
            given.update((name, values[i]) for name, values in fields.items())
            inputs.append(given)
        return inputs
