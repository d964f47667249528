"""How a method's state changes when clients join."""

from typing import Any

import numpy as np

from tffcl.clients.population import Population
from tffcl.errors import UserError


def check_newcomers(state, newcomers: Population):
    """Raises UserError if a newcomer is already known."""
    both = np.intersect1d(state.client_ids, newcomers.client_ids)
    if both.size:
        hint = "" if newcomers.names is None else "; build newcomers with known=, the population of all clients so far"
        raise UserError(f"client {newcomers.name_of(both[0])} is no newcomer: it has an assignment already{hint}")


def joined_order(state, newcomers: Population) -> np.ndarray:
    """Returns places `int [N + B]` that put rows of the old clients, then of newcomers, in ascending order of ID."""
    return np.argsort(np.concatenate([state.client_ids, newcomers.client_ids]))


def extended(state, newcomers: Population, assignment, **further) -> dict[str, Any]:
    """Puts old and new clients with their clusters in ascending order of ID.

    Args:
      state: The state before they join.
      newcomers: The newcomers.
      assignment: `int32 [B]`, the newcomers' clusters.
      **further: `[B, ...]`, the newcomers' rows of other fields of the state that have a row for each client.

    Returns:
      `client_ids`, `assignment` and the further fields of the next state.
    """
    order = joined_order(state, newcomers)
    theirs = {"client_ids": newcomers.client_ids, "assignment": assignment}
    known = {name: np.concatenate([getattr(state, name), own]).astype(np.int32) for name, own in theirs.items()}
    known |= {name: np.concatenate([getattr(state, name), own]) for name, own in further.items()}
    return {name: rows[order] for name, rows in known.items()}
