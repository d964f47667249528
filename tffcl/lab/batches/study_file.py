"""Study files: a paper's table or figure as data, which is read and checked without running anything."""

import dataclasses
import fnmatch
import functools
import pathlib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from tffcl.errors import UserError, unknown
from tffcl.files import MOST_TOML, read_text
from tffcl.lab.reporting.batch_index import read_failure, read_index
from tffcl.lab.reporting.study_results import MEASURES, heading
from tffcl.lab.reporting.targets import parse_target
from tffcl.lab.tasks import task_file
from tffcl.registry import Row, add
from tffcl.runs.metrics import ACCURACIES, BY_MEASURE, on_validation
from tffcl.validation import Whole, check_value, types_of

RUNS, RESULTS = "runs", "results"  # directories of a study: its runs; their small files and the study's tables
LAYOUTS = ("published", "league")
_LONGEST_SLUG = 80  # file systems allow 255 bytes
_Tables = dict[str, dict]
_OfAll = {
    "measure": str,
    "accuracy": str,
    "target": float,
    "since": Whole,
    "set": dict,
    "parameters": float,
    "transfers": float,
    "tune": dict,
    "tuning": dict,
}
_TOP = {
    **_OfAll,
    **{key: str for key in ("title", "paper", "table", "note", "published_is", "layout")},
    **{key: _Tables for key in ("columns", "rows", "cells")},
    "page": Whole,
    "seeds": Annotated[list[Whole], msgspec.Meta(min_length=1)],
}
# "published" has its own check, see `_number`.
_OF_CELLS = {**_OfAll, "task": str, "method": str, "missing": str | dict, "published": object}
_OF_COLUMNS = {**_OF_CELLS, "about": str}


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How the settings of a cell are chosen, if it lists values to choose from.

    Attributes:
      rounds: The share of a run's rounds that a trial has.
      seed: The seed of the trials, which should be none of the runs' seeds.
      select: The metric on validation examples that decides, see `runs.metrics.on_validation`.
    """

    rounds: float = 1.0
    seed: int = 1000
    select: str = "cluster"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number of a published table.

    Attributes:
      column: The heading of its column, as in the paper.
      row: The name of its row, as in the paper.
      task: The task that gives the number; "" if there is none.
      method: The label of the method in that task.
      measure: One of `study_results.MEASURES`; by default the accuracy.
      accuracy: With "rounds_to" and "megabits_to", the accuracy that must reach the target.
      target: With the same measures, the target in percent.
      megabits_a_round: With "megabits_to", by the authors' formula: a tenth of the clients, 32 bit for each of
        `parameters`, `transfers` times.
      published: `(mean, spread)`; each is None if the paper does not have it.
      missing: The reason why the cell cannot be run; "" if it can.
      overrides: Nested tables that replace the task's values.
      tune: The values of each setting that is chosen by validation before the cell is run; {} for none.
      tuning: How these settings are chosen.
      since: The round from which rounds are counted, and in which the target can first be reached, e.g. to measure
        recovery after data have changed. 0: from the first round.
      tuned: The chosen value of each setting, by key.
    """

    column: str
    row: str
    task: str
    method: str
    measure: str
    accuracy: str
    target: float | None
    megabits_a_round: float | None
    published: tuple[float | None, float | None]
    missing: str
    overrides: Mapping
    tune: Mapping[str, tuple]
    tuning: Tuning = Tuning()
    since: int = 0
    tuned: Mapping = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name as in `--only`: COLUMN/ROW."""
        return f"{self.column}/{self.row}"

    def compared_with(self) -> dict:
        """The entries of a study's index about the published number."""
        return {
            "measure": self.measure,
            "accuracy": self.accuracy,
            "target": self.target,
            **({"since": self.since} if self.since else {}),
            "megabits_a_round": self.megabits_a_round,
            "published": list(self.published),
        }


@dataclasses.dataclass(frozen=True)
class Study:
    """A paper's table or figure.

    Attributes:
      name: The name of the study: the file's name without its ending.
      title: What the study shows.
      paper: The paper; "" for a study of no paper. Reports then do not show numbers as published.
      table: The table or figure of the paper.
      page: The page of the table; 0 if the available text has no pages.
      note: What a reader must know to compare the numbers.
      published_is: The meaning of the number after ± in the paper; empty if there is none, or the paper does not say.
      seeds: The seeds of the runs, unless the command names others.
      cells: The cells, column by column.
      layout: How its tables look: "published", beside a paper's numbers; or "league", all methods by all measures.
      about: A description of each column, by its heading.
    """

    name: str
    title: str
    paper: str
    table: str
    page: int
    note: str
    published_is: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    layout: str
    about: Mapping[str, str]


def study_directory() -> pathlib.Path:
    """The directory of the studies that come with tffcl."""
    return task_file.task_directory() / "studies"


def study_names() -> list[str]:
    """The names of the studies that come with tffcl."""
    return sorted(path.stem for path in study_directory().glob("*.toml"))


def _rows() -> dict[str, Row]:
    """For each study, its title, and how many of its cells can be run and have kept results."""
    found = {}
    for name in study_names():
        study = load_study(name)
        able = sum(not cell.missing for cell in study.cells)
        kept = _kept_cells(task_file.results_directory() / name) & {(cell.column, cell.row) for cell in study.cells}
        able = f"{able} can be run, results of {len(kept) or 'none'} are kept"
        found[name] = Row(f"{study.title} ({len(study.cells)} cells: {able})")
    return found


add("studies", _rows)


def planned_cells() -> dict[str, tuple[str, int]]:
    """Returns, for each study that comes with tffcl, its heading and the number of its cells that can be run."""
    studies = map(load_study, study_names())
    return {
        each.name: (
            heading(each.title, each.paper, each.table, each.page),
            sum(not cell.missing for cell in each.cells),
        )
        for each in studies
    }


def _kept_cells(results: pathlib.Path) -> set[tuple[str, str]]:
    """The columns and rows for which a study's kept results have a run that finished or diverged; none if the results
    are damaged."""
    try:
        ended = {place.parent.parent for place in results.glob("*/*/seed-*/summary.json")}
        failed = [place.parent for place in results.glob("*/*/seed-*/failed.json")]
        ended |= {place.parent for place in failed if (each := read_failure(place, "")) and each.diverged}
        cells = (read_index(results, "study") or {"cells": []})["cells"] if ended else []
        return {
            (cell["column"], cell["row"])
            for cell in cells
            if cell["directory"] and results / cell["directory"] in ended
        }
    except UserError:
        return set()


def load_study(name: str | pathlib.Path) -> Study:
    """Reads a study.

    Args:
      name: A name in `tasks/studies/`, or a path that ends in .toml.

    Raises:
      UserError: If there is no such study, or its file has wrong keys or values; the message names them.
    """
    path = pathlib.Path(name)
    if path.suffix != ".toml":
        path = study_directory() / f"{name}.toml"
        if not task_file.is_file(path):
            if name and task_file.is_file(pathlib.Path(f"{name}.toml")):
                raise UserError(f"unknown study {str(name)!r}; did you mean the file {name}.toml?")
            raise unknown("study", str(name), study_names(), listed="studies")
    try:
        contents = task_file.read_toml(read_text(path, MOST_TOML), path.name)
    except FileNotFoundError:
        hint = f"; did you mean {path.stem}, which comes with tffcl?" if path.stem in study_names() else ""
        raise UserError(f"there is no study file {path}{hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path.name} is no TOML: {error}") from None
    return _study(path, contents)


def _study(path: pathlib.Path, contents: Mapping) -> Study:
    _check_keys(contents, _TOP, path.name)
    columns, rows = contents.get("columns", {}), contents.get("rows", {})
    if not columns or not rows:
        raise UserError(f"{path.name} needs [columns.NAME] and [rows.NAME], at least one of each")
    base = {key: contents[key] for key in _OfAll if key in contents}
    for kind, tables, known in (("columns", columns, _OF_COLUMNS), ("rows", rows, _OF_CELLS)):
        for name, table in tables.items():
            _check_keys(table, known, f"{path.name}, [{kind}.{name}]")
            for key in (each for each in ("published", "missing") if isinstance(table.get(each), Mapping)):
                others = set(table.get(key, {})) - set(rows if kind == "columns" else columns)
                if others:
                    raise UserError(
                        f"{path.name}, [{kind}.{name}]: {key} names {min(others)!r}, which the study does not have"
                    )
    own = contents.get("cells", {})
    for name, table in own.items():
        _check_keys(table, _OF_CELLS, f"{path.name}, [cells.{name!r}]")
        if name not in (names := [f"{column}/{row}" for column in columns for row in rows]):
            raise unknown(f"cell of {path.name}:", name, names)
    cells = []
    for column in columns:
        for row in rows:
            tables = (columns[column], rows[row], own.get(f"{column}/{row}", {}))
            cells.append(_cell(f"{path.name}, {column}/{row}", path.parent, base, (column, row), tables))
    if (layout := contents.get("layout", LAYOUTS[0])) not in LAYOUTS:
        raise unknown(f"layout of {path.name}:", layout, LAYOUTS)
    of_columns: dict[str, tuple] = {}
    for cell, _ in cells if layout == "league" else ():
        if cell.measure not in BY_MEASURE:
            raise unknown(f"measure of {path.name}, {cell.name}, a league's:", cell.measure, BY_MEASURE)
        if (cell.measure, cell.target) != (ranked := of_columns.setdefault(cell.column, (cell.measure, cell.target))):
            raise UserError(
                f"{path.name}, {cell.name} has measure {cell.measure} and target {cell.target}, others of its column "
                f"{ranked[0]} and {ranked[1]}; a league ranks a column by one"
            )
    return Study(
        name=path.stem,
        title=str(contents.get("title", path.stem)),
        paper=str(contents.get("paper", "")),
        table=str(contents.get("table", "")),
        page=int(contents.get("page", 0)),
        note=" ".join(str(contents.get("note", "")).split()),
        published_is=str(contents.get("published_is", "")),
        seeds=tuple(contents.get("seeds", [0])),
        cells=tuple([cell for cell, printed in cells if printed] or [cell for cell, _ in cells]),
        layout=layout,
        about={name: " ".join(table["about"].split()) for name, table in columns.items() if "about" in table},
    )


def _tuning(where: str, table: Mapping) -> Tuning:
    _check_keys(table, types_of(Tuning), f"{where}, [tuning]")
    found = Tuning(**table)
    if on_validation(found.select) is None:
        accuracies = ("cluster", "global")
        raise unknown(f"select of {where}, [tuning]:", found.select, accuracies, besides="a metric's, e.g. cluster_auc")
    if not (isinstance(found.rounds, int | float) and 0 < found.rounds <= 1):
        raise UserError(
            f"{where}, [tuning]: rounds is {found.rounds!r}; it must be a share of a run's rounds, above 0 to 1"
        )
    return found


def _check_keys(table: Mapping, known: Mapping[str, Any], where: str):
    """Raises UserError if a key is unknown, or its value has a wrong type."""
    for key, value in table.items():
        if key not in known:
            raise unknown(f"key of {where}", key, known)
        try:
            check_value(key, value, known[key])
        except UserError as error:
            raise UserError(f"{where}: {error}") from None


def _cell(
    where: str, directory: pathlib.Path, base: Mapping, names: tuple[str, str], tables: Sequence[Mapping]
) -> tuple[Cell, bool]:
    """The cell of a column and a row, from the tables of the column, the row and the cell; later tables win.

    Also returns whether the paper's table has this cell. Other cells are left out, except in a study without published
    cells: it has all cells.
    """
    (column, row), (of_column, of_row, own) = names, tables

    def first(key: str):
        values = own.get(key), _of_cell(of_row.get(key), column), _of_cell(of_column.get(key), row)
        return next((value for value in values if value is not None), None)

    missing, published = first("missing") or "", first("published")
    kept = [{key: value for key, value in each.items() if key != "set"} for each in (base, *tables)]
    both = functools.reduce(task_file.merged, kept)
    overrides = functools.reduce(task_file.overridden, (each.get("set", {}) for each in (base, *tables)), {})
    accuracy = both.get("accuracy", "local")
    measure = both.get("measure", accuracy)
    if measure not in MEASURES:
        raise unknown(f"measure of {where}:", measure, MEASURES)
    if accuracy not in ACCURACIES:
        raise unknown(f"accuracy of {where}:", accuracy, ACCURACIES)
    if measure.endswith("_to") and "target" not in both:
        raise UserError(f"{where}: {measure} needs a target, the accuracy in percent")
    if measure.endswith("_to"):
        try:
            parse_target(f"{accuracy}={both['target']}")
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    in_megabits = measure == "megabits_to" and published != "none"
    if in_megabits and not {"parameters", "transfers"} <= set(both):
        raise UserError(
            f"{where}: megabits_to needs parameters and transfers, how many there are and how often they travel"
        )
    if not missing:
        for key in ("task", "method"):
            if not both.get(key):
                raise UserError(f"{where} has no {key}; name it in the column or the row, or say why it is missing")
    task = str(both.get("task", ""))
    if task.endswith(".toml"):
        task = str(directory / task)
    elif task and task not in task_file.task_names():
        raise unknown(f"task of {where}:", task, task_file.task_names())
    cell = Cell(
        column=column,
        row=row,
        task=task,
        method=str(both.get("method", "")),
        measure=measure,
        accuracy=accuracy,
        target=both.get("target"),
        since=both.get("since", 0),
        megabits_a_round=0.1 * 32e-6 * both["parameters"] * both["transfers"] if in_megabits else None,
        published=_number(published, where),
        missing=str(missing),
        overrides=overrides,
        tune=_tuned(both.get("tune", {}), where),
        tuning=_tuning(where, both.get("tuning", {})),
    )
    return cell, published != "none"


def _tuned(table: Mapping, where: str) -> Mapping[str, tuple]:
    """The values to choose from, by key; an empty list removes a key of an earlier table."""
    for key, values in table.items():
        different = isinstance(values, list) and not any(value in values[:i] for i, value in enumerate(values))
        if not different or len(values) == 1:
            raise UserError(
                f"{where}: tune.{key} is {values!r}; it must be a list of two or more different values, or empty"
            )
    return {key: tuple(values) for key, values in table.items() if values}


def _of_cell(value, key: str):
    return value.get(key) if isinstance(value, Mapping) else value


def _number(value, where: str) -> tuple[float | None, float | None]:
    """A published number: 95.2, [95.2, 0.1], "-" for a target that the paper did not reach, or "none" for a cell that
    the paper does not have.
    """
    if value in (None, "-", "none"):
        return None, None
    listed = value if isinstance(value, list) else [value]
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in listed)
    if not numbers or len(listed) not in (1, 2):
        raise UserError(f'{where}: published is {value!r}; it must be a number, [mean, spread], "-" or "none"')
    return float(listed[0]), float(listed[1]) if len(listed) == 2 else None


def chosen(study: Study, only: Sequence[str]) -> list[Cell]:
    """Returns the cells that `--only` selects; all cells if it is empty.

    Args:
      study: The study.
      only: Patterns COLUMN/ROW, COLUMN or */ROW with * and ?, in upper or lower case; one text may have several
        patterns, separated by commas.

    Raises:
      UserError: If a pattern fits no cell.
    """
    if not only:
        return list(study.cells)
    found: set[str] = set()
    with_commas = any("," in cell.name for cell in study.cells)
    for given in only:
        rest = given.split(",")
        while rest:
            # Commas separate patterns, but names may also contain commas.
            for length in range(len(rest) if with_commas else 1, 0, -1):
                pattern = ",".join(rest[:length]).strip()
                if own := {cell.name for cell in study.cells if _fits(cell, pattern)}:
                    break
            else:
                pattern = given if with_commas else rest[0].strip()
                raise unknown(f"cell of {study.name}", pattern, [cell.name for cell in study.cells])
            found, rest = found | own, rest[length:]
    return [cell for cell in study.cells if cell.name in found]


def _fits(cell: Cell, pattern: str) -> bool:
    pattern = (pattern if "/" in pattern else f"{pattern}/*").lower()
    names = (cell.name.lower(), f"{slug(cell.column)}/{slug(cell.row)}")
    # Brackets, as in "FLIS (DC)" or "FLT [C = 2]", are plain characters.
    return any(name == pattern or fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")) for name in names)


def compare_with(study: Study, noted: Iterable[dict]):
    """Updates the cells of an index, so that they are compared with the current numbers of the study's file."""
    cells = {(cell.column, cell.row): cell for cell in study.cells}
    for each in noted:
        if cell := cells.get((each["column"], each["row"])):
            each |= cell.compared_with()


def slug(name: str) -> str:
    """Returns a name in the form that directories have."""
    found = re.sub(r"[^a-z0-9.+-]+", "_", name.lower()).strip("_")
    return (f"_{found}" if found.startswith(".") else found)[:_LONGEST_SLUG] or "_"
