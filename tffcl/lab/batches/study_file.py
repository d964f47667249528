"""Study files: a paper's table or figure as data, read and checked without running anything."""

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

RUNS, RESULTS = "runs", "results"  # the directories of a study's runs, and of their small files and its tables
LAYOUTS = ("published", "league")
_LONGEST_SLUG = 80  # file systems end at 255 bytes
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
    """How the settings of a cell are chosen, where it says over which values.

    Attributes:
      rounds: Share of a run's rounds that a trial has.
      seed: Of the trials; none of the runs' own.
      select: Which metric on validation examples decides, see `runs.metrics.on_validation`.
    """

    rounds: float = 1.0
    seed: int = 1000
    select: str = "cluster"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number of a published table.

    Attributes:
      column: Its heading, as the paper has it.
      row: Its row, as the paper has it.
      task: The task that gives it; "" if there is none.
      method: The label of the method in that task.
      measure: One of `study_results.MEASURES`; the accuracy where the study names none.
      accuracy: With "rounds_to" and "megabits_to", which accuracy must reach the target.
      target: And what it must reach, in percent.
      megabits_a_round: With "megabits_to", by the authors' formula: a tenth of the clients, 32 bit for each of
        `parameters`, `transfers` times.
      published: `(mean, spread)`, each None where the paper has none.
      missing: Why it cannot be run; "" if it can.
      overrides: Nested tables over those of the task.
      tune: The values of each setting that is chosen by validation before the cell is run; {} if none is.
      tuning: How they are chosen.
      since: In which round at the earliest, from which on rounds are counted: those to recovery after data have
        changed. 0: from the first.
      tuned: What was chosen, by key.
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
        """As `--only` takes it: COLUMN/ROW."""
        return f"{self.column}/{self.row}"

    def compared_with(self) -> dict:
        """What the index of a study says of the published number."""
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
      name: Of the study: the file's name without its ending.
      title: What it shows.
      paper: Whose it is; "" for what no paper has, whose published numbers no report shows as such.
      table: Which table or figure.
      page: Where it stands; 0 where the text at hand has no pages.
      note: What a reader must know to compare.
      published_is: What the number behind ± is in the paper; empty where it prints none, or does not say.
      seeds: Of the runs, where the command names none.
      cells: Column by column.
      layout: How its tables look: "published" beside a paper's numbers, or "league", all methods by all that they are
        compared by.
      about: What a column is, in words, by its heading.
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
    """Where the studies that come with tffcl are."""
    return task_file.task_directory() / "studies"


def study_names() -> list[str]:
    """Names of the studies that come with tffcl."""
    return sorted(path.stem for path in study_directory().glob("*.toml"))


def _rows() -> dict[str, Row]:
    """The title of every study, with how many of its cells can be run and how many have kept results, by name."""
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
    """Returns the heading of every study that comes with tffcl, and how many of its cells can be run, by its name."""
    studies = map(load_study, study_names())
    return {
        each.name: (
            heading(each.title, each.paper, each.table, each.page),
            sum(not cell.missing for cell in each.cells),
        )
        for each in studies
    }


def _kept_cells(results: pathlib.Path) -> set[tuple[str, str]]:
    """The columns and rows of which a study's kept results have a run that finished or diverged; what is damaged counts
    as none."""
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
      UserError: If there is no such study, or its file has wrong keys or values, by name.
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
    """Raises UserError if a key is not known, or its value not of its type."""
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
    """The cell of a column and a row by the tables of the column, the row and the cell, of which later ones win.

    With it, whether the paper's table has such a cell at all. The others are left out, but for a study in which nothing
    is published: it has all of its cells.
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
    """The values to choose from, by key; a later table's key without values takes it away."""
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
    """A published number: 95.2, [95.2, 0.1], "-" for what the paper did not reach, or "none" for a cell that
    it has not.
    """
    if value in (None, "-", "none"):
        return None, None
    listed = value if isinstance(value, list) else [value]
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in listed)
    if not numbers or len(listed) not in (1, 2):
        raise UserError(f'{where}: published is {value!r}; it must be a number, [mean, spread], "-" or "none"')
    return float(listed[0]), float(listed[1]) if len(listed) == 2 else None


def chosen(study: Study, only: Sequence[str]) -> list[Cell]:
    """Returns the cells that `--only` means, all if it is empty.

    Args:
      study: The study.
      only: Patterns COLUMN/ROW, COLUMN or */ROW with * and ?, in any case; one text may have several with commas
        between.

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
            # Names may have commas in them; between patterns they part.
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
    # Brackets, as in "FLIS (DC)" or "FLT [C = 2]", mean themselves.
    return any(name == pattern or fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")) for name in names)


def compare_with(study: Study, noted: Iterable[dict]):
    """Lets cells that an index has noted be compared with what the study's file says now."""
    cells = {(cell.column, cell.row): cell for cell in study.cells}
    for each in noted:
        if cell := cells.get((each["column"], each["row"])):
            each |= cell.compared_with()


def slug(name: str) -> str:
    """Returns a name as directories have it."""
    found = re.sub(r"[^a-z0-9.+-]+", "_", name.lower()).strip("_")
    return (f"_{found}" if found.startswith(".") else found)[:_LONGEST_SLUG] or "_"
