"""What a paper prints for the settings of a run, beside what the run gave."""

from collections.abc import Mapping, Sequence

from tffcl import files
from tffcl.files import read_json, telling_damage
from tffcl.lab.reporting import study_results, study_table
from tffcl.lab.reporting.number_format import Stat
from tffcl.lab.reporting.table import Cell, Table
from tffcl.runs.run_files import RunFiles

PUBLISHED = "published.json"
HEADS = ("method", "compared", "here", "published", "difference", "published in")
_KEYS = {
    "study", "where", "column", "row", "measure", "accuracy", "target", "megabits_a_round", "published", "rounds",
    "differs",
}  # fmt: skip


def to_page(runs: Sequence[RunFiles]) -> Table | None:
    """Returns a row for each published number of a method that is of the settings of its runs; None where no run has
    one."""
    found: dict[tuple, list[tuple[RunFiles, Mapping]]] = {}
    for run in runs:
        for noted in read_published(run):
            if noted["differs"]:
                continue  # a number of other settings says nothing of these
            key = (run.method, noted["study"], noted["column"], noted["row"], noted["measure"])
            found.setdefault(key, []).append((run, noted))
    rows = []
    for own in found.values():
        with telling_damage(own[0][0].path / PUBLISHED):
            rows.append(_row(own))
    return Table.of(HEADS, rows, stacked=True) if rows else None


def read_published(run: RunFiles) -> list[dict]:
    """Reads `published.json` of a run: cells of studies on its task and method.

    Raises:
      UserError: If it is damaged.
    """
    file = run.path / PUBLISHED
    if not file.is_file():
        return []
    noted = read_json(file)
    with telling_damage(file):
        found = noted["cells"]
        missing = [name for each in found for name in sorted(_KEYS - set(each))]
    if missing:
        raise files.damaged(file, f"there is no {missing[0]}")
    return found


def _row(own: Sequence[tuple[RunFiles, Mapping]]) -> list[str | Cell]:
    """The row of a published number, over the seeds of the method."""
    noted = own[0][1]
    values = [study_results.measured(run, each) for run, each in own]
    here = Stat.of(values)
    missed = len(values) - here.count if noted["measure"].endswith("_to") else 0
    cut = study_results.is_cut(noted["measure"], max(int(run.number("rounds")) for run, _ in own), noted["rounds"])
    told = study_table.compared_cells(noted, here, missed, tuple(noted["published"]), cut)
    return [own[0][0].method, *told, Cell(f"{noted['where']}: {noted['column']}, {noted['row']}", words=True)]
