"""Who takes part in which round: a pure function of the seed and the round, so that a resumed run repeats it."""

import zlib
from collections.abc import Callable

import numpy as np

from tffcl.errors import Option, UserError

KINDS = ("fixed", "poisson")  # how cohorts are drawn


def stream(seed: int, purpose: str) -> int:
    """A seed of its own for one purpose, so that no two parts of a run draw the same numbers."""
    return int(np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(1)[0] >> 1)


def hold_out(num_clients: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Parts the clients into those that take part in a run and those that join afterwards.

    Args:
      num_clients: There are the clients 0 to num_clients - 1.
      count: How many join afterwards.
      seed: Of the run.

    Returns:
      `(participants, newcomers)`, both ascending client IDs.

    Raises:
      UserError: If nobody would take part.
    """
    if count >= num_clients:
        raise UserError(f"newcomers.clients is {count}; there are {num_clients} clients, and at least 1 must take part")
    rng = np.random.default_rng(stream(seed, "newcomers"))
    newcomers = np.sort(rng.choice(num_clients, count, replace=False))
    return np.setdiff1d(np.arange(num_clients), newcomers), newcomers


def sample_cohort(client_ids: np.ndarray, size: int, seed: int, round_number: int, how: str = "fixed") -> np.ndarray:
    """Draws a cohort uniformly without replacement, or each client independently.

    Args:
      client_ids: Who can be drawn.
      size: How many; with Poisson sampling, how many are expected.
      seed: Of the run.
      round_number: From 1.
      how: "fixed" or "poisson".

    Returns:
      `int32 [size]`, ascending; with Poisson sampling of another length every time, also 0.

    Raises:
      UserError: If there are fewer clients than `size`.
    """
    if size > len(client_ids):
        option = Option("train.clients_per_round", "clients_per_round")
        raise UserError(f"{option} is {size}, but there are only {len(client_ids)} clients")
    rng = np.random.default_rng([stream(seed, "sampling"), round_number])
    if how == "poisson":
        return np.sort(client_ids[rng.random(len(client_ids)) < size / len(client_ids)]).astype(np.int32)
    return np.sort(rng.choice(client_ids, size, replace=False)).astype(np.int32)


def is_evaluation(round_number: int, rounds: int, every: int) -> bool:
    """Whether accuracies are taken after this round."""
    return round_number == rounds or round_number % every == 0


def needs_local_test(
    clients: Callable, size: int, seed: int, round_number: int, rounds: int, every: int, how: str = "fixed"
) -> np.ndarray:
    """Which clients of a round's cohort will not train again before the next evaluation.

    Only their models can be what `local` accuracy asks for then; testing the others would be wasted.

    Args:
      clients: Round to the IDs of the population in it.
      size: Cohort size.
      seed: Of the run.
      round_number: The round.
      rounds: Number of rounds of the run.
      every: Rounds between evaluations.
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
