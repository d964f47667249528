"""The results of a study so far, read from its small files: each cell's numbers over the seeds, and the published
number."""

import collections
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from tffcl import files
from tffcl.errors import UserError
from tffcl.files import inside, telling_damage
from tffcl.lab.reporting.batch_index import INDEX, Failure, check_seed, read_failure, read_index
from tffcl.lab.reporting.newcomers_table import NEWCOMERS, read_newcomers
from tffcl.lab.reporting.number_format import Stat, human_time, show_number, show_of_seeds, show_settings
from tffcl.runs.metrics import ACCURACIES, BY_MEASURE, ROUND, find, rows_of
from tffcl.runs.run_directory import SUMMARY, RunDirectory, State
from tffcl.runs.run_files import RunFiles, RunNumbers

FINDINGS = "FINDINGS.md"
EPSILONS = ("epsilon", "noised_epsilon")  # measures
# The measures that a cell may compare with a published number.
MEASURES = (*BY_MEASURE, "unseen_cluster", "unseen_local", "benign_worst", "rounds_to", "megabits_to")


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """A cell of a study with the results of its runs.

    Attributes:
      noted: The cell as in `batch.json`.
      runs: The finished runs, by seed.
      here: The number over the seeds, in the unit of the published number.
      missed: How many seeds never reached the target.
      published: `(mean, spread)`; each is None if the paper does not have it.
      accuracies: The cluster, local and global accuracies, and as "took part" the cluster accuracy of clients that took
        part, in percent, over the seeds.
      further: Further metrics of the models' answers (AUC, F1, ...), by measure, over the seeds.
      ari: The adjusted Rand index over the seeds.
      rounds: The number of rounds that were run.
      seconds: The seconds of training, evaluation and clustering, by run.
      failures: The seeds that failed, and why.
    """

    noted: Mapping
    runs: Mapping[int, RunNumbers]
    here: Stat
    missed: int
    published: tuple[float | None, float | None]
    accuracies: Mapping[str, Stat]
    further: Mapping[str, Stat]
    ari: Stat
    rounds: int | None
    seconds: Mapping[str, float]
    failures: tuple[Failure, ...]

    @property
    def seeds(self) -> int:
        """The number of seeds that have finished."""
        return len(self.runs)

    @property
    def diverged(self) -> bool:
        """Whether no seed has finished, and at least one diverged."""
        return not self.runs and any(each.diverged for each in self.failures)

    def shown(self, stat: Stat, digits: int | str) -> str:
        """Returns a number of the runs in the form of tables; if some runs lack it, says how many have it."""
        return show_of_seeds(show_number(stat, digits), stat.count, self.seeds)

    @property
    def cut(self) -> bool:
        """Whether fewer rounds were run than for the paper's number, see `is_cut`, or the command changed a setting."""
        return bool(self.noted.get("changed")) or is_cut(
            self.noted["measure"], self.rounds, self.noted.get("paper_rounds")
        )

    @property
    def difference(self) -> float | None:
        """The difference to the published number, see `difference_of`."""
        return difference_of(self.here, self.missed, self.published, self.cut)


def difference_of(here: Stat, missed: int, published: tuple[float | None, float | None], cut: bool) -> float | None:
    """Returns here minus paper; None if either is missing, or if the runs had fewer rounds or other settings. Also None
    if a seed never reached the target, because the mean of only the other seeds would be too small.

    Args:
      here: The number over the runs.
      missed: How many runs never reached the target.
      published: Mean and spread; each is None if the paper does not have it.
      cut: Whether the runs had fewer rounds, or other settings, than those of the published number.
    """
    mean, _ = published
    return None if mean is None or not here.count or cut or missed else here.mean - mean


@dataclasses.dataclass(frozen=True, eq=False)
class StudyResults:
    """The results of a study so far.

    Attributes:
      path: The directory of the study's results.
      noted: The contents of `batch.json`.
      results: One result for each cell, column by column.
      beside: Results of a league that are not shown, but with which the others are compared.
    """

    path: pathlib.Path
    noted: Mapping
    results: Sequence[Result]
    beside: Sequence[Result] = ()

    @property
    def columns(self) -> list[str]:
        """The headings of the paper's columns."""
        return list(dict.fromkeys(result.noted["column"] for result in self.results))

    @property
    def heading(self) -> str:
        """The heading of the study: its title, paper and table."""
        return heading(*(self.noted[key] for key in ("title", "paper", "table")), self.noted.get("page", 0))

    @property
    def league(self) -> bool:
        """Whether the study is a league, whose tables are those of `league_table`."""
        return self.noted.get("layout") == "league"

    def about(self, column: str) -> str:
        """The description of a column; "" if the study has none."""
        return self.noted.get("about", {}).get(column, "")

    def notes(self, column: str) -> list[str]:
        """The rows of a column that failed, diverged and were run again, or cannot be run: a line for each reason."""
        notes: dict[str, list[str]] = {}
        for result in self.results:
            if result.noted["column"] == column:
                if result.noted["missing"]:
                    notes.setdefault(f"not available: {result.noted['missing']}", []).append(result.noted["row"])
                for each in self.noted["tuned"].get(f"{column}/{result.noted['row']}", {}).get("points", ()):
                    if each.get("diverged"):
                        again = f"diverged with {show_settings(each['values'])}, and was run again with all seeds"
                        notes.setdefault(again, []).append(result.noted["row"])
                for each in result.failures:
                    notes.setdefault(f"seed {each.seed} failed: {each.reason}", []).append(result.noted["row"])
        return [f"{', '.join(rows)}: {reason}" for reason, rows in notes.items()]

    @property
    def findings(self) -> list[str]:
        """The paragraphs of `FINDINGS.md`, which a person wrote about the results, each on one line."""
        file = self.path / FINDINGS
        if not file.exists():
            return []
        return [" ".join(each.split()) for each in files.text_of_file(file).split("\n\n") if each.strip()]

    @property
    def seeds(self) -> str:
        """The seeds that were run, or, if none was, the study's seeds."""
        ran = {seed for result in self.results for seed in result.runs}
        return ", ".join(map(str, sorted(ran) or self.noted["seeds"]))

    @property
    def share(self) -> str:
        """The number of rounds that were run, in words."""
        rounds = self.noted["rounds"]
        ran = [(each.rounds, each.noted.get("paper_rounds")) for each in self.results if each.rounds is not None]
        fewer = sum(whole is not None and done < whole for done, whole in ran)
        if rounds == 1:
            return f"all rounds, {fewer} of {len(ran)} numbers with fewer" if fewer else "all rounds"
        return f"{rounds:g} of each task's rounds" if rounds < 1 else f"{rounds:g} rounds"

    @property
    def seconds(self) -> Mapping[str, float]:
        """The seconds of training, evaluation and clustering, by run; cells may share a run."""
        return collections.ChainMap(*(result.seconds for result in self.results))

    @property
    def available(self) -> int:
        """The number of cells that can be run."""
        return sum(not result.noted["missing"] for result in self.results)

    @property
    def setting(self) -> str:
        """A line with the rounds and seeds that were run, the time that they took, and the meaning of ±."""
        spent = sum(self.seconds.values())
        took = f"; {human_time(spent)} of training, evaluation and clustering" if spent else ""
        changed = sorted({key for result in self.results for key in result.noted.get("changed", ())})
        took += f"; set otherwise than in the tasks: {', '.join(changed)}" if changed else ""
        run = f"Run with {self.share}; seed{'s' * (', ' in self.seeds)} {self.seeds}{took}."
        theirs = self.noted["published_is"]
        here = f"Here ± is the sample standard deviation over seeds{', in the paper ' * bool(theirs)}{theirs}."
        return run if self.league else f"{run} {here}"


def heading(title: str, paper: str, table: str, page: int) -> str:
    """Returns the heading of a study, in one line."""
    where = ", ".join(filter(None, [paper, table, f"page {page}" if page else ""]))
    return f"{title} ({where})" if where else title


def read_study(
    path: str | pathlib.Path, *, cells: Sequence[tuple[str, str]] | None = None, seeds: Sequence[int] = ()
) -> StudyResults:
    """Reads the results of a study's runs that have ended so far.

    Args:
      path: `OUT/results` of a study, or a copy of it.
      cells: The columns and rows of the cells to show; default all.
      seeds: The seeds to read; default all.

    Raises:
      UserError: If there is no `batch.json`, none of the cells, not all of the seeds, or a file is damaged.
    """
    path = pathlib.Path(path)
    file, noted = path / INDEX, read_index(path, "study")
    if noted is None:
        raise UserError(f"{path} holds no results of a study: there is no {INDEX} of one in it")
    chosen, others = [], []
    for cell in noted["cells"]:
        (chosen if cells is None or (cell["column"], cell["row"]) in cells else others).append(cell)
    absent = sorted({*seeds} - {*noted["seeds"]})
    noted = {**noted, "cells": chosen, "seeds": [seed for seed in noted["seeds"] if not seeds or seed in seeds]}
    if absent or not noted["cells"]:
        wanted = f"seed {', '.join(map(str, absent))}" if absent else "these cells"
        raise UserError(f"{path} holds no results of {wanted}; the study has to be run with them first")
    with telling_damage(file):
        results = [_read_cell(path, cell, noted["seeds"]) for cell in chosen]
        beside = [_read_cell(path, cell, noted["seeds"]) for cell in others if noted.get("layout") == "league"]
    return StudyResults(path, noted, results, beside)


def _read_cell(path: pathlib.Path, cell: Mapping, seeds: Sequence[int]) -> Result:
    found = {seed: path / inside(cell["directory"]) / f"seed-{seed}" for seed in seeds} if cell["directory"] else {}
    failures = tuple(each for each in (read_failure(place, cell["row"]) for place in found.values()) if each)
    kept = {seed: RunNumbers(place) for seed, place in found.items() if RunDirectory(place).state is State.FINISHED}
    runs = [_read_run(run, cell) for run in kept.values()]
    values = [each["here"] for each in runs]
    further = dict.fromkeys(key for each in runs for key in each["further"])
    return Result(
        noted=cell,
        runs=kept,
        here=Stat.of(values),
        missed=sum(map(math.isnan, values)) if cell["measure"].endswith("_to") else 0,
        published=tuple(cell["published"]),
        accuracies={kind: Stat.of(each[kind] for each in runs) for kind in (*ACCURACIES, "took part")},
        further={key: Stat.of(each["further"].get(key) for each in runs) for key in further},
        ari=Stat.of(each["ari"] for each in runs),
        rounds=min((each["rounds"] for each in runs), default=None),  # early stopping may end some seeds
        seconds={str(run.path): each["seconds"] for run, each in zip(kept.values(), runs, strict=True)},
        failures=failures,
    )


def _read_run(run: RunNumbers, cell: Mapping) -> dict:
    """The numbers of one run, by name; "here" is the number that the cell compares."""
    check_seed(run)
    with telling_damage(run.path / SUMMARY):
        return {
            **{kind: BY_MEASURE[kind].of_run(run) for kind in ACCURACIES},
            "took part": BY_MEASURE["participants"].of_run(run),
            "further": _further(run),
            "ari": BY_MEASURE["ari"].of_run(run),
            "rounds": int(run.summary["rounds"]),
            "seconds": float(run.summary.get("seconds", {}).get("total", 0.0)),
            "here": measured(run, cell),
        }


def _further(run: RunNumbers) -> dict[str, float]:
    """The cluster and local values of a run's metrics beside accuracies, by measure."""
    rows = [each for name in run.summary.get("metrics", {}) if name != "accuracy" for each in rows_of(name)]
    return {each.measure: each.of_run(run) for each in rows if each.measure and each.header != "global"}


def measured(run: RunNumbers | RunFiles, cell: Mapping) -> float:
    """Returns the number of one run that a cell compares; NaN if the run has none."""
    measure = cell["measure"]
    if measure in EPSILONS:
        return _epsilon(run.summary.get("privacy", {}), measure)
    if measure in BY_MEASURE:
        return BY_MEASURE[measure].of_run(run)
    if measure.startswith("unseen_"):
        newcomers = read_newcomers(run)
        with telling_damage(run.path / NEWCOMERS):
            found = newcomers and newcomers["accuracy"][measure.removeprefix("unseen_")]["mean"]
        return math.nan if found is None else 100 * found
    if measure == "benign_worst":
        clusters = run.summary.get("attack", {}).get("benign_accuracy", {}).get("clusters", {})
        return 100 * min((each for each in clusters.values() if each is not None), default=math.nan)
    rounds = _rounds_to(run.rounds, cell["accuracy"], cell["target"], cell.get("since", 0))
    return rounds * cell["megabits_a_round"] if measure == "megabits_to" else rounds


def is_cut(measure: str, rounds: int | None, whole: int | None) -> bool:
    """Whether a number after `rounds` rounds is not comparable with one after the whole training; rounds to a target
    always are."""
    return not measure.endswith("_to") and rounds is not None and whole is not None and rounds < whole


def _epsilon(cost: Mapping, measure: str) -> float:
    """The ε of a run; infinite if there were releases without noise, unless the measure counts only noised ones."""
    found = cost.get("epsilon") if measure == "epsilon" else cost.get("noised_epsilon", cost.get("epsilon"))
    return math.inf if found is None else float(found)


def _rounds_to(rounds: Mapping[str, np.ndarray], accuracy: str, target: float, since: int = 0) -> float:
    """The first evaluated round from `since` on with at least this accuracy in percent, counted from `since`; NaN if
    there is none.

    For local accuracy, clients that never trained count with their untrained model, as in the papers' tables.
    """
    counted = accuracy == "local" and "local_accuracy_all" in rounds
    rounds = {name: column[rounds[ROUND] >= since] for name, column in rounds.items()}
    row = (find("local_accuracy_all") if counted else BY_MEASURE[accuracy]).first_reached(rounds, target)
    return math.nan if row is None else float(rounds[ROUND][row]) - max(since - 1, 0)
