"""What the papers print for a run's task and method, found in the studies that come with tffcl and noted
beside the run.
"""

from collections.abc import Iterator, Mapping

from tffcl.lab.batches.study_file import Cell, Study, load_study, study_directory
from tffcl.lab.reporting.published_table import PUBLISHED
from tffcl.lab.reporting.settings import flatten
from tffcl.lab.tasks import resolve as configs
from tffcl.lab.tasks.resolve import RunConfig
from tffcl.runs.run_directory import RunDirectory

_NO_SETTINGS = {"task", "algorithm", "seed", "description", "source", "versions"}


def write_published(config: RunConfig, directory: RunDirectory) -> None:
    """Writes `published.json` into the directory of a run: the numbers to expect, with what was set otherwise; no file
    without any.
    """
    cells = list(_cells(config))
    if cells:
        directory.write_result(PUBLISHED, {"cells": cells})


def _cells(config: RunConfig) -> Iterator[dict]:
    for path in sorted(study_directory().glob("*.toml")):
        if f'"{config.task}"' in path.read_text(encoding="utf-8"):
            study = load_study(path.stem)
            for cell in study.cells if study.paper else ():
                if (
                    (cell.task, cell.method) == (config.task, config.algorithm)
                    and not cell.missing
                    and cell.published[0] is not None
                ):
                    yield _noted(study, cell, config)


def _noted(study: Study, cell: Cell, config: RunConfig) -> dict:
    """A published number as `lab.reporting.published_table` reads it."""
    wanted = configs.resolve(cell.task, cell.method, seed=config.seed, overrides=cell.overrides)
    return {
        "study": study.name,
        "where": ", ".join(filter(None, [study.paper, study.table])),
        "column": cell.column,
        "row": cell.row,
        "measure": cell.measure,
        "accuracy": cell.accuracy,
        "target": cell.target,
        "megabits_a_round": cell.megabits_a_round,
        "published": cell.published,
        "published_is": study.published_is,
        "rounds": wanted.train.rounds,
        "differs": _differences(wanted.as_dict(), config.as_dict()),
    }


def _differences(wanted: Mapping, found: Mapping) -> list[str]:
    """The names of the settings that are not the same, such as "train.rounds"."""
    first, second = (
        flatten({name: value for name, value in each.items() if name not in _NO_SETTINGS}) for each in (wanted, found)
    )
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
