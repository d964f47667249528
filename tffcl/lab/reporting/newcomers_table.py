"""The newcomers of all runs of a comparison in one table (PACFL Table 3, FLIS Table IV)."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence

from tffcl import files
from tffcl.errors import UserError
from tffcl.files import read_json, telling_damage, write_text
from tffcl.lab.reporting import batch_index, comparison_table
from tffcl.lab.reporting.comparison_table import Row
from tffcl.lab.reporting.number_format import MISSING
from tffcl.lab.reporting.table import Cell, Column, Table, percent
from tffcl.runs.metrics import BY_KEY
from tffcl.runs.run_files import RunFiles, RunNumbers

NEWCOMERS, NEWCOMERS_CSV = "newcomers.json", "newcomers.csv"

_KEYS = ("cluster_accuracy", "local_accuracy", "cluster_worst_decile", "local_worst_decile")
COLUMNS = (
    *(Column.of(BY_KEY[key]) for key in _KEYS),
    Column.of(BY_KEY["newcomers"], "newcomers", "joined"),
    Column.of(BY_KEY["clusters_founded"], "clusters", "founded"),
    Column.of(BY_KEY["ari"]),
)
_GROUPS = ("accuracy %", "worst 10 %", "newcomers", "clusters")
LEGEND = (
    "cluster: the model that a newcomer is given; local: after its own epochs with it. ARI: of all clients, newcomers "
    "included."
)


def newcomer_rows(path: str | pathlib.Path) -> list[Row]:
    """Returns a row for each method of the comparison in a directory, over the seeds whose newcomers have joined.

    Raises:
      UserError: If no run has newcomers that joined, or a file is damaged.
    """
    rows = _rows(batch_index.find_runs(path))
    if not rows:
        raise UserError(f"no newcomers have joined a run in {path}")
    return rows


def _rows(runs: Sequence[RunFiles]) -> list[Row]:
    """A row for each method that has a run whose newcomers have joined."""
    joined = [dataclasses.replace(run, summary=found) for run in runs if (found := read_newcomers(run))]
    return comparison_table.comparison_rows(joined, columns=COLUMNS)


def read_newcomers(run: RunFiles | RunNumbers) -> dict | None:
    """Reads the newcomers of a run; None if none have joined.

    Raises:
      UserError: If the file is damaged, or of another run.
    """
    path = run.path / NEWCOMERS
    if not path.exists():
        return None
    found = read_json(path)
    for key in ("task", "algorithm", "seed"):
        if found.get(key) != run.summary[key]:
            raise files.damaged(path, f"its {key} is {found.get(key)!r:.100}, the run's is {run.summary[key]!r}")
    return found


def to_page(runs: Sequence[RunFiles]) -> Table | None:
    """Returns the table for the page; None if no newcomers have joined."""
    rows = _rows(runs)
    return comparison_table.page_table(rows, _GROUPS, columns=COLUMNS) if rows else None


def clients_table(run: RunFiles) -> Table | None:
    """Returns the newcomers of one run for the page; None if none have joined."""
    contents = read_newcomers(run)
    with telling_damage(run.path / NEWCOMERS):
        return contents and table_of(contents)


def table_of(contents: Mapping, most: int | None = None) -> Table:
    """Returns a table with a row for each newcomer of a newcomers.json, at most the first `most`."""
    measured, clients = _measured(contents), contents["clients"]
    heads = ("newcomer", "true group", "cluster", "examples", "test examples", *measured.values())
    rows = [
        [
            each["client_id"],
            MISSING if each["true_cluster"] is None else each["true_cluster"],
            f"{each['cluster']}{' (founded)' if each['founded'] else ''}",
            each["examples"],
            each["test_examples"],
            *(_shown(each, column) for column in measured),
        ]
        for each in clients[:most]
    ]
    left = len(clients) - len(rows)
    return Table.of(heads, rows, notes=[f"... and {left} more in {NEWCOMERS_CSV}"] if left else [])


def _measured(contents: Mapping) -> dict[str, str]:
    """Maps the columns of a newcomers.json that have measured values to their heads."""
    names = [
        *(["accuracy"] if contents["accuracy"]["cluster"]["mean"] is not None else []),
        *contents.get("metrics", {}),
    ]
    return {
        f"{kind}_{name}": f"{kind} {'%' if name == 'accuracy' else name}"
        for name in names
        for kind in ("cluster", "local")
    }


def _shown(client: Mapping, column: str) -> Cell | str:
    """A measured value of a newcomer for a table; accuracies are in percent."""
    value = math.nan if client[column] is None else client[column]
    return percent(value) if column.endswith("_accuracy") else MISSING if math.isnan(value) else f"{value:.4g}"


def write_table(path: str | pathlib.Path) -> str:
    """Writes `newcomers.csv` of a comparison; returns the table for a terminal."""
    rows = newcomer_rows(path)
    write_text(pathlib.Path(path) / NEWCOMERS_CSV, comparison_table.plain_table(rows, columns=COLUMNS).to_csv())
    return f"{comparison_table.to_table(rows, _GROUPS, columns=COLUMNS).to_text()}\n\n{LEGEND}"
