"""What a paper prints for the settings of a run, beside what the run gave."""

import json
from collections.abc import Mapping, Sequence

from tffcl.reporting import columns, study_table
from tffcl.reporting.files import RunFiles
from tffcl.reporting.page.page_table import PageTable, plain
from tffcl.reporting.units import Stat

PUBLISHED = "published.json"
HEADS = ("method", "compared", "here", "paper", "difference", "rounds", "the paper's setting", "where")


def to_page(runs: Sequence[RunFiles]) -> PageTable | None:
    """Returns a row for each published number of a method; None where no run has one."""
    found: dict[tuple, list[tuple[RunFiles, Mapping]]] = {}
    for run in runs:
        for noted in read_published(run):
            key = (run.method, noted["study"], noted["column"], noted["row"], noted["measure"])
            found.setdefault(key, []).append((run, noted))
    return plain(HEADS, [_row(own) for own in found.values()], numbers=True) if found else None


def read_published(run: RunFiles) -> list[dict]:
    """Reads `published.json` of a run: cells of studies on its task and method.

    Raises:
      UserError: If it is damaged.
    """
    file = run.path / PUBLISHED
    if not file.is_file():
        return []
    try:
        found = json.loads(columns.read_text(file))["cells"]
        return [
            each for each in found if each["measure"] and each["published"][0] is not None and each["where"] and each["row"]
        ]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise columns.damaged(file, error) from error


def _row(own: Sequence[tuple[RunFiles, Mapping]]) -> list[str]:
    """The row of a published number, over the seeds of the method."""
    noted = own[0][1]
    values = [study_table.measured(run.path, run.summary, each) for run, each in own]
    here = Stat.of(values)
    missed = len(values) - here.count if noted["measure"].endswith("_to") else 0
    told = study_table.compared_cells(noted, here, missed, tuple(noted["published"]))
    rounds = max(int(run.number("rounds")) for run, _ in own)
    differs = list(dict.fromkeys(each for _, cell in own for each in cell["differs"]))
    setting = f"differs in {', '.join(differs)}" if differs else "the same"
    return [
        own[0][0].method,
        *told,
        f"{rounds} of {noted['rounds']}",
        setting,
        f"{noted['where']}: {noted['column']}, {noted['row']}",
    ]
