"""What changed in the middle of a run, in sentences for its report."""

from collections.abc import Sequence

import numpy as np

from tffcl.algorithms.contracts import State
from tffcl.clients import sampling
from tffcl.experiments.config import RunConfig

_MOST_NAMED = 20


def notes(config: RunConfig, drifting: Sequence[int], state: State) -> list[str]:
    """Says who joined and whose data changed when, and for methods that form their clusters anew who moved when.

    Args:
      config: Of the run.
      drifting: Clients whose data changed.
      state: The method's last state.
    """
    found = []
    if 0 < config.newcomers.round <= config.train.rounds and config.newcomers.clients:
        found.append(f"{config.newcomers.clients} newcomers joined in round {config.newcomers.round}")
    drifted = len(drifting) and config.drift.round <= config.train.rounds
    if drifted:
        found.append(f"from round {config.drift.round} on these clients held other data: {_listed(sorted(drifting))}")
    if "moved_in" not in state.extra:
        return found
    moved, flagged = state.extra["moved_in"], state.extra["flagged_in"]
    for number in np.unique(moved[moved > 0]):
        clients = state.client_ids[moved == number]
        found.append(f"clusters formed anew after round {number}; into another cluster moved: {_listed(clients)}")
    if (flagged > 0).any():
        raised = [f"{client} (round {number})" for client, number in zip(state.client_ids, flagged, strict=True) if number]
        found.append(f"flags of change: {_listed(raised)}")
    if drifted:
        silent = np.setdiff1d(drifting, [*state.client_ids[flagged > 0], *_joined_with_new_data(config, state)])
        if silent.size:
            found.append(
                f"no flag of {_listed(silent)}: they did not train on the new data before clusters were formed anew, or at all"
            )
    return found


def _joined_with_new_data(config: RunConfig, state: State) -> np.ndarray:
    """Newcomers who joined when the data had changed already: they have nothing to tell."""
    if not config.drift.round <= config.newcomers.round:
        return state.client_ids[:0]
    return sampling.hold_out(len(state.client_ids), config.newcomers.clients, config.seed)[1]


def _listed(items: Sequence) -> str:
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return ", ".join(str(item) for item in list(items)[:_MOST_NAMED]) + more
