"""What a reader should know of how the results of runs came about."""

from collections.abc import Mapping, Sequence

from tffcl.runs.run_files import RunFiles


def notes_of(runs: Sequence[RunFiles]) -> list[str]:
    """What the runs note; where not all have a note, with the methods that have it; and what private ones cost together."""
    notes: dict[str, dict[str, None]] = {}
    for run in runs:
        for note in run.summary.get("notes", []):
            notes.setdefault(note, {})[run.method] = None
    methods = {run.method for run in runs}
    own_notes = [note if set(own) == methods else f"{', '.join(own)}: {note}" for note, own in notes.items()]
    return own_notes + cost_together(runs)


def cost_together(runs: Sequence[RunFiles]) -> list[str]:
    """What several private runs cost whoever is a client of all of them, by basic composition; nothing of one run."""
    private = [told for run in runs if isinstance(told := run.summary.get("privacy"), Mapping)]
    if len(private) < 2:
        return []
    said = f"each run's epsilon is its own: a client of all {len(private)} private runs is told of by each of them"
    costs = [[each.get(name) for name in ("epsilon", "delta")] for each in private]
    if not all(isinstance(number, float | int) for cost in costs for number in cost):  # not private after all
        return [said]
    if len({str(each.get("neighbours")) for each in private}) > 1:
        return [said]
    epsilon, delta = map(sum, zip(*costs))
    return [f"{said}, which cost together epsilon {epsilon:.4g} at delta {delta:.3g} at most"]
