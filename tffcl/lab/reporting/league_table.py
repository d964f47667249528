"""The table of a league: every method on one setting, with all that a reader compares methods by."""

import dataclasses
import math
from collections.abc import Mapping

import scipy.stats

from tffcl.lab.reporting import targets
from tffcl.lab.reporting.number_format import (
    MISSING,
    Stat,
    show_bytes,
    show_count,
    show_number,
    show_seconds,
    show_settings,
)
from tffcl.lab.reporting.study_results import Result, StudyResults
from tffcl.lab.reporting.table import Table
from tffcl.registry import PLAIN
from tffcl.runs.metrics import BY_KEY, BY_MEASURE
from tffcl.runs.run_directory import RunDirectory, State
from tffcl.runs.run_files import RunNumbers

BASELINE = PLAIN
_CHANCE = 0.05  # of those that are marked are so by chance
_METRICS = (
    "cluster_accuracy", "cluster_worst_decile", "participation_gap", "clusters", "seconds", "down_bytes", "up_bytes",
)  # fmt: skip
HEADS = (
    "", "cluster %", "cluster − FedAvg's", "local %", "global %", "worst decile, cluster %", "took part − others",
    "ARI", "clusters", "rounds to target", "bytes to target", "bytes", "seconds", "seeds", "chosen",
)  # fmt: skip
LEGEND = (
    "cluster: the model that a method assigns to a client, before local training. cluster − FedAvg's: the same in "
    "points above FedAvg, seed by seed; * where it is beyond chance by a paired t test over the seeds, corrected for "
    "how many are tested: of all that are marked, on all settings together, one in twenty is expected to be by chance "
    "(Benjamini and Hochberg 1995). local: the client's own model after its last local training. global: one model "
    "on all test data. worst decile: the mean of the worst tenth of the clients. took part − others: by how much the "
    "cluster accuracy of the clients that trained is above that of those that never did. ARI: adjusted Rand index, 1 "
    "where the clusters are the true groups and 0 where they are as by chance. bytes: down and up, signatures "
    "included. seconds: of training, evaluation and clustering, the least of the seeds, as other work on the machine "
    "only adds to them. ± is the sample standard deviation over the seeds."
)


@dataclasses.dataclass(frozen=True, eq=False)
class LeagueRow:
    """One method on one setting, over the seeds.

    Attributes:
      result: The cell of the study.
      above_baseline: Cluster accuracy less that of FedAvg with the same seed, in points, over the seeds that both have.
      stats: The metrics "cluster_worst_decile", "participation_gap" and "clusters"; "rounds_to_target" and
        "bytes_to_target" of the seeds that reached it; "total_bytes", down and up, of all rounds; "seconds", the least
        of the seeds, as other work on the machine only adds to it.
      seeds: How many have been run.
      is_beyond_chance: Whether `above_baseline` is, by a paired t test over the seeds, where among those of the league
        that are the expected share of false ones is a twentieth (Benjamini and Hochberg 1995).
    """

    result: Result
    above_baseline: Stat
    stats: Mapping[str, Stat]
    seeds: int
    is_beyond_chance: bool = False


def league_rows(study: StudyResults) -> dict[str, list[LeagueRow]]:
    """Returns the rows of each column, those that have been run, the best cluster accuracy first."""
    found = {column: _of_column(study, column) for column in study.columns}
    tested = [row for rows in found.values() for row in rows if row.above_baseline.count > 1 and row.above_baseline.std]
    chances = {row: _chance(row.above_baseline) for row in tested}
    ordered = sorted(tested, key=chances.__getitem__)
    passed = [place for place, row in enumerate(ordered, 1) if chances[row] < _CHANCE * place / len(ordered)]
    marked = set(ordered[: max(passed, default=0)])
    return {
        column: [dataclasses.replace(row, is_beyond_chance=row in marked) for row in rows]
        for column, rows in found.items()
    }


def _chance(above: Stat) -> float:
    """How often chance alone would give such a mean difference or a larger one, by a paired t test over the seeds."""
    return 2 * float(scipy.stats.t.sf(abs(above.mean) / above.stderr, above.count - 1))


def _of_column(study: StudyResults, column: str) -> list[LeagueRow]:
    own = [result for result in study.results if result.noted["column"] == column]
    baseline = next((_accuracies(study, result) for result in own if result.noted["method"] == BASELINE), {})
    rows = [_row(study, result, baseline) for result in own]
    return sorted((row for row in rows if row.seeds), key=lambda row: -row.result.accuracies["cluster"].mean)


def _runs(study: StudyResults, result: Result) -> dict[int, RunNumbers]:
    """The finished runs of a cell, by seed."""
    if not result.noted["directory"]:
        return {}
    places = {seed: study.path / result.noted["directory"] / f"seed-{seed}" for seed in study.noted["seeds"]}
    return {seed: RunNumbers(place) for seed, place in places.items() if RunDirectory(place).state is State.FINISHED}


def _accuracies(study: StudyResults, result: Result) -> dict[int, float]:
    """Mean cluster accuracies in percent, by seed."""
    return {seed: BY_MEASURE["cluster"].of_run(run) for seed, run in _runs(study, result).items()}


def _row(study: StudyResults, result: Result, baseline: Mapping[int, float]) -> LeagueRow:
    noted, runs = result.noted, _runs(study, result)
    found = [_numbers(run, noted.get("target")) for run in runs.values()]
    compared = zip(runs, found) if noted["method"] != BASELINE else ()
    above = Stat.of(each["cluster_accuracy"] - baseline[seed] for seed, each in compared if seed in baseline)
    stats = {name: Stat.of(each[name] for each in found) for name in (found[0] if found else ())}
    stats["seconds"] = Stat.of(sorted(each["seconds"] for each in found)[:1])
    return LeagueRow(result, above, stats, len(runs))


def _numbers(run: RunNumbers, target: float | None) -> dict[str, float]:
    """What one run gives, by the names of `LeagueRow.stats`."""
    found = {key: BY_KEY[key].of_run(run) for key in _METRICS}
    nowhere = (math.nan, math.nan, math.nan)
    number, in_rounds, beside = nowhere if target is None else targets.needed(run, BY_MEASURE["cluster"], target)
    total = found.pop("down_bytes") + found.pop("up_bytes")
    return {**found, "rounds_to_target": number, "bytes_to_target": in_rounds + beside, "total_bytes": total}


def cells(row: LeagueRow) -> list[str]:
    """A line under `HEADS`."""
    result, stats, target = row.result, row.stats, row.result.noted.get("target")
    accuracies = [show_number(result.accuracies[kind], 2) for kind in ("cluster", "local", "global")]
    missed = row.seeds - stats["rounds_to_target"].count
    rounds = "not reached" if target else MISSING
    if stats["rounds_to_target"].count:
        rounds = show_count(stats["rounds_to_target"])
    if missed and stats["rounds_to_target"].count:
        rounds = f"{rounds} ({missed} not reached)"
    return [
        result.noted["row"], accuracies[0], _show_difference(row), *accuracies[1:],
        show_number(stats["cluster_worst_decile"], 1), _with_minus(show_number(stats["participation_gap"], 1)),
        _with_minus(show_number(result.ari, 2)), show_count(stats["clusters"]), rounds,
        show_bytes(stats["bytes_to_target"]), show_bytes(stats["total_bytes"]), show_seconds(stats["seconds"]),
        str(row.seeds), show_settings(result.noted.get("tuned", {})) or MISSING,
    ]  # fmt: skip


def _show_difference(row: LeagueRow) -> str:
    """A difference with its sign, and a mark where it is hardly by chance."""
    above = row.above_baseline
    if not above.count:
        return MISSING
    return f"{'+' * (above.mean > 0)}{_with_minus(show_number(above, 1))}{'*' * row.is_beyond_chance}"


def _with_minus(shown: str) -> str:
    """A number as it is printed: with a minus sign, and none before a zero."""
    negative, digits = shown.startswith("-"), shown.removeprefix("-")
    is_zero = not digits.split(" ")[0].strip("0.")
    return f"−{digits}" if negative and not is_zero else digits


def heading(study: StudyResults, column: str) -> str:
    """What a column is: its name, task and target."""
    own = [result.noted for result in study.results if result.noted["column"] == column]
    targets = sorted({each["target"] for each in own if each.get("target")})
    target = f"; target: cluster {targets[0]:g} %" if targets else ""
    return f"{column} ({', '.join(dict.fromkeys(each['task'] for each in own if each['task']))}{target})"


def to_tables(study: StudyResults) -> dict[str, Table]:
    """Makes the table of each column of the league, with what failed below it."""
    return {
        column: Table.of(HEADS, [cells(row) for row in rows], notes=study.notes(column))
        for column, rows in league_rows(study).items()
    }
