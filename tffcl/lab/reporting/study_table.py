"""The tables of a study: each published number, the number here, and their difference; or those of a league. Also the
table of published numbers for the settings of a run, beside the run's numbers."""

from collections.abc import Mapping, Sequence

from tffcl import files
from tffcl.files import read_json, telling_damage
from tffcl.lab.reporting import league_table, study_results
from tffcl.lab.reporting.number_format import MISSING, Stat, decimals_of, show_number, show_of_seeds, show_reached
from tffcl.lab.reporting.study_results import EPSILONS, Result, StudyResults, difference_of
from tffcl.lab.reporting.table import Cell, Column, Table
from tffcl.runs.metrics import BY_MEASURE
from tffcl.runs.run_files import RunFiles

_COMPARED = {
    "unseen_cluster": "unseen, cluster", "unseen_local": "unseen, local", "benign_worst": "benign, worst cluster",
}  # fmt: skip
PICTURE = "privacy.png"  # the picture of a study with epsilons
LEAGUE_PICTURE = "league.svg"
_KINDS = ("cluster", "took part", "local", "global")
HEADS = ("", "compared", "here", "paper", "difference", *_KINDS)
_LAST_HEADS = ("ARI", "seeds", "rounds")


def compared_cells(
    noted: Mapping, here: Stat, missed: int, published: tuple[float | None, float | None], cut: bool
) -> tuple[str, str, str, str]:
    """Returns the name of the compared measure, the number here, the published number and the difference, as text.

    Args:
      noted: The cell as in `batch.json`.
      here: The number over the runs.
      missed: How many runs never reached the target; if any, there is no difference.
      published: Mean and spread; each is None if the paper does not have it.
      cut: Whether the runs had fewer rounds, or other settings, than those of the published number; if so, there is no
        difference.
    """
    measure, (mean, spread) = noted["measure"], published
    metric = BY_MEASURE.get(measure)
    digits = decimals_of(here, metric.digits) if metric else 0 if measure == "rounds_to" else 2
    compared = metric.compared or measure if metric else _COMPARED.get(measure)
    if measure.endswith("_to"):
        counted = "rounds" if measure == "rounds_to" else "Mb"
        counted += f" from {noted['since']} on" if noted.get("since") else ""
        compared = f"{counted} to {noted['accuracy']} {noted['target']:g} %"
    shown = show_reached(show_number(here, digits), here.count, missed)
    paper = MISSING if mean is None else f"{mean:.{digits}f}{'' if spread is None else f' ± {spread:.{digits}f}'}"
    apart = difference_of(here, missed, published, cut)
    if apart is None:
        return compared, shown, paper, MISSING
    # A difference of 0 has no sign.
    difference = f"{round(apart, digits) or 0:+.{digits}f}"
    return compared, shown, paper, difference.lstrip("+") if not difference.strip("+0.") else difference


def _row(result: Result, further: Sequence[str]) -> list[str]:
    """The cells of a line under `HEADS`, the column's further metrics, and `_LAST_HEADS`."""
    noted = result.noted
    compared, here, paper, difference = compared_cells(noted, result.here, result.missed, result.published, result.cut)
    here = here if result.missed else show_of_seeds(here, result.here.count, result.seeds)
    here = "diverged" if result.diverged else here
    rounds = MISSING if result.rounds is None else f"{result.rounds} of {noted['paper_rounds']}"
    accuracies = [result.shown(result.accuracies[kind], 2) for kind in _KINDS]
    beside = [result.shown(result.further.get(key, Stat.of(())), BY_MEASURE[key].digits) for key in further]
    ari, seeds = result.shown(result.ari, 3), str(result.seeds)
    return [noted["row"], compared, here, paper, difference, *accuracies, *beside, ari, seeds, rounds]


def _tables(study: StudyResults):
    """Yields the heading and the table of each column."""
    if study.league:
        for column, table in league_table.to_tables(study).items():
            yield league_table.heading(study, column), table
        return
    for column in study.columns:
        own = [result for result in study.results if result.noted["column"] == column]
        tasks = ", ".join(dict.fromkeys(result.noted["task"] for result in own if result.noted["task"]))
        further = list(dict.fromkeys(key for result in own for key in result.further))
        heads = (*HEADS, *(BY_MEASURE[key].compared for key in further), *_LAST_HEADS)
        lines = [_row(result, further) for result in own if not result.noted["missing"]]
        # If labels are numbers to predict, there are no accuracies. Without lines, all columns stay.
        there = [place for place, cells in enumerate(zip(*lines)) if place < 3 or set(cells) != {MISSING}]
        heads, lines = [heads[each] for each in there] or heads, [[line[each] for each in there] for line in lines]
        yield (f"{column} ({tasks})" if tasks else column), Table.of(heads, lines, notes=study.notes(column))


def _notes(study: StudyResults) -> list[str]:
    """Notes for readers about the whole study, beside the tables."""
    private = any(result.noted["measure"] in EPSILONS for result in study.results)
    added = "Each run's epsilon is its own, of each seed, too: for a client of several runs they add up."
    return [*filter(None, [study.noted["note"]]), *([added] if private else [])]


def to_text(study: StudyResults) -> str:
    """Returns the tables for a terminal, one for each column of the paper."""
    parts = [study.heading, study.setting, *_notes(study)]
    for heading, table in _tables(study):
        parts += ["", heading, table.to_text()]
    return "\n".join(parts)


def to_markdown(study: StudyResults, place: str = "") -> str:
    """Returns the study as a section of a Markdown page.

    Args:
      study: The study.
      place: The path from the page to the study's files.
    """
    parts = [f"## {study.heading}", "", f"`tffcl study {study.noted['study']}`. {study.setting}"]
    parts += [line for note in _notes(study) for line in ("", note)]
    if study.league:
        parts += ["", f"![accuracies of every method on every setting]({place}{LEAGUE_PICTURE})"]
    parts += [line for each in study.findings for line in ("", each)]
    if study.league:
        parts += ["", league_table.LEGEND]
    if (study.path / PICTURE).is_file():
        parts += ["", f"![accuracy and clusters against epsilon]({place}{PICTURE})"]
    for heading, table in _tables(study):
        parts += ["", f"**{heading}**", "", table.to_markdown().rstrip("\n")]
    return "\n".join(parts) + "\n"


def to_csv(study: StudyResults) -> str:
    """Returns the study for programs: a line for each cell, with plain numbers, and empty entries for missing ones."""
    plain = ("column", "row", "task", "method", "measure")
    kinds = [f"{kind.replace(' ', '_')}_percent" for kind in _KINDS]
    heads = [*map(Column, (*plain, "accuracy", "target")), Column("here", digits=2)]
    heads += map(Column, ("paper", "paper_spread", "difference", *kinds, "ari", "seeds", "rounds", "missing", "failed"))
    heads.append(Column("not_reached"))
    lines = []
    for result in study.results:
        noted = result.noted
        target = [noted["accuracy"], noted["target"]] if noted["measure"].endswith("_to") else ["", ""]
        means = [*(result.accuracies[kind].mean for kind in _KINDS), result.ari.mean]
        failed = "; ".join(f"seed {each.seed}: {each.reason}" for each in result.failures)
        compared = [*(noted[key] for key in plain), *target, result.here, *result.published, result.difference]
        lines.append([*compared, *means, result.seeds, result.rounds, noted["missing"], failed, result.missed])
    return Table(heads, lines).to_csv()


PUBLISHED = "published.json"
PUBLISHED_HEADS = ("method", "compared", "here", "published", "difference", "published in")
_PUBLISHED_KEYS = {
    "study", "where", "column", "row", "measure", "accuracy", "target", "megabits_a_round", "published", "rounds",
    "differs",
}  # fmt: skip


def published_to_page(runs: Sequence[RunFiles]) -> Table | None:
    """Returns a row for each published number of a method with the settings of its runs; None if no run has one."""
    found: dict[tuple, list[tuple[RunFiles, Mapping]]] = {}
    for run in runs:
        for noted in read_published(run):
            if noted["differs"]:
                continue  # numbers of other settings are not comparable
            key = (run.method, noted["study"], noted["column"], noted["row"], noted["measure"])
            found.setdefault(key, []).append((run, noted))
    rows = []
    for own in found.values():
        with telling_damage(own[0][0].path / PUBLISHED):
            rows.append(_published_row(own))
    return Table.of(PUBLISHED_HEADS, rows, stacked=True) if rows else None


def read_published(run: RunFiles) -> list[dict]:
    """Reads `published.json` of a run: the cells of studies with its task and method.

    Raises:
      UserError: If the file is damaged.
    """
    file = run.path / PUBLISHED
    if not file.exists():
        return []
    noted = read_json(file)
    with telling_damage(file):
        found = noted["cells"]
        missing = [name for each in found for name in sorted(_PUBLISHED_KEYS - set(each))]
    if missing:
        raise files.damaged(file, f"there is no {missing[0]}")
    return found


def _published_row(own: Sequence[tuple[RunFiles, Mapping]]) -> list[str | Cell]:
    """The row of a published number, over the seeds of the method."""
    noted = own[0][1]
    values = [study_results.measured(run, each) for run, each in own]
    here = Stat.of(values)
    missed = len(values) - here.count if noted["measure"].endswith("_to") else 0
    cut = study_results.is_cut(noted["measure"], min(int(run.number("rounds")) for run, _ in own), noted["rounds"])
    cells = compared_cells(noted, here, missed, tuple(noted["published"]), cut)
    return [own[0][0].method, *cells, Cell(f"{noted['where']}: {noted['column']}, {noted['row']}", words=True)]
