"""Newcomers among the clients that a server knows: who they are, and where their rows go."""

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
    """Returns places `int [N + B]` that put rows of the old clients, then of the newcomers, into ascending order of ID."""
    return np.argsort(np.concatenate([state.client_ids, newcomers.client_ids]))


def extended(state, newcomers: Population, assignment) -> dict[str, Any]:
    """Puts old and new clients with their clusters in ascending order of ID.

    Args:
      state: Before.
      newcomers: Their IDs.
      assignment: `int32 [B]`, the newcomers' clusters.

    Returns:
      `client_ids` and `assignment` of the next state.
    """
    ids = np.concatenate([state.client_ids, newcomers.client_ids]).astype(np.int32)
    order = joined_order(state, newcomers)
    keys = np.concatenate([state.assignment, assignment]).astype(np.int32)
    return {"client_ids": ids[order], "assignment": keys[order]}
