"""What a reader should know of how the results of runs came about."""

from collections.abc import Sequence

from tffcl.reporting.files import RunFiles


def notes_of(runs: Sequence[RunFiles]) -> list[str]:
    """What the runs note; where not all have a note, with the methods that have it."""
    notes: dict[str, dict[str, None]] = {}
    for run in runs:
        for note in run.summary.get("notes", []):
            notes.setdefault(note, {})[run.method] = None
    methods = {run.method for run in runs}
    return [note if set(own) == methods else f"{', '.join(own)}: {note}" for note, own in notes.items()]
