"""What changed in the middle of a run, in sentences for its report."""

from collections.abc import Sequence

import numpy as np

from tffcl.algorithms.method import Views
from tffcl.runs.population_changes import Stages

_MOST_NAMED = 20


def notes(stages: Stages, rounds: int, views: Views) -> list[str]:
    """Says who joined and whose data changed when, and for methods that form their clusters anew who moved when.

    Args:
      stages: Of the run.
      rounds: How many the run had.
      views: Of the method's last state.
    """
    found, drifted, arrived_changed = [], np.zeros(0, np.int32), np.zeros(0, np.int32)
    name_of, changed_in = stages.at(rounds).population.name_of, {}
    for start in (each for each in stages.starts[1:] if each <= rounds):
        stage = stages.at(start)
        if stage.changed.size:
            changed_in[start] = stage.changed
            drifted = np.union1d(drifted, stage.changed)
        if stage.arrivals is not None:
            found.append(f"{len(stage.arrivals)} newcomers joined in round {start}")
            changed = stage.arrivals.client_ids[stage.arrivals.versions > 0]
            arrived_changed = np.union1d(arrived_changed, changed)
            if changed_in:  # they held the other data before they joined
                changed_in[max(changed_in)] = np.union1d(changed_in[max(changed_in)], changed)
    for start, changed in changed_in.items():
        found.append(f"from round {start} on these clients held other data: {_listed(list(map(name_of, changed)))}")
    if views.moves is None:
        return found
    moved, flagged = views.moves.moved_in, views.moves.flagged_in
    for number in np.unique(moved[moved > 0]):
        clients = views.client_ids[moved == number]
        found.append(
            f"clusters formed anew after round {number}; into another cluster moved: {_listed(list(map(name_of, clients)))}"
        )
    if (flagged > 0).any():
        raised = [
            f"{name_of(client)} (round {number})" for client, number in zip(views.client_ids, flagged, strict=True) if number
        ]
        found.append(f"flags of change: {_listed(raised)}")
    silent = np.setdiff1d(drifted, [*views.client_ids[flagged > 0], *arrived_changed])
    if silent.size:
        found.append(
            f"no flag of {_listed(list(map(name_of, silent)))}: they did not train on the new data before clusters were formed anew, or at all"
        )
    return found


def _listed(items: Sequence) -> str:
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return ", ".join(str(item) for item in list(items)[:_MOST_NAMED]) + more
