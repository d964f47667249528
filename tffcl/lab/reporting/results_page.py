"""The pages of kept studies: RESULTS.md with their tables and notes, and a page for each league."""

import base64
import html
import pathlib
import re
from collections.abc import Mapping, Sequence

from tffcl import files
from tffcl.errors import UserError
from tffcl.files import entries, write_bytes, write_text
from tffcl.lab.reporting import league_table, study_results, study_table, style
from tffcl.lab.reporting.batch_index import INDEX, PAGE, check_begins
from tffcl.lab.reporting.number_format import MISSING, human_time
from tffcl.lab.reporting.page import templates
from tffcl.lab.reporting.study_results import StudyResults
from tffcl.lab.reporting.table import Table

NOTES = "NOTES.md"
_HEAD = """# What the studies give, next to the papers

Made by `tffcl results {directory}` from the small files that `tffcl study NAME` writes; do not edit this page, but
`{directory}/NOTES.md`, which follows the tables. `here` is what tffcl gives, `paper` what is printed there,
`compared` which of the accuracies the paper's number is; cluster, local and global are the README's, in percent,
`took part` is cluster over the clients that trained in at least one round. StoCFL's paper tests the clusters of
clients that were sampled, which is `took part`: a client that never was has the global model here
(`evaluation.place_unseen = true`: that of the closest cluster). FLT tests all clients, which is `cluster`. PACFL
and FLIS test each client's own model, untrained where it never trained: at 200 rounds of a tenth of the clients
nobody is left who never did, and for rounds to a target it is counted so. `unseen` are newcomers after the last
round; the columns beside it are of the clients before them. `(2 of 3)` stands behind a mean over two of three
seeds: the third has no such number, as no `global` where clients chose several models. A cell that was run `without
a number` diverged, or never reached its target.
"""
_NO_STUDIES = """What else the four papers number is no study: PACFL's Table 5 is `python tasks/pacfl_table_5.py`;
its table beside Fig. 1, its Fig. 3 and StoCFL's Fig. 2 are drawn by `tffcl similarity`; StoCFL's Fig. 4 is the curves
of its Table 2, its Fig. 5 a picture of Table 3's StoCFL; FLT's Table VI is held by a test, its Fig. 2 and 3 are
pictures of a report; PACFL's Fig. 7 needs CelebA, which is not here; its Tables 10 to 13 are settings, and Fig. 1 of
all four are drawings.
"""


def read_studies(directory: str | pathlib.Path) -> list[StudyResults]:
    """Reads the results of all studies in a directory, which has a directory for each study.

    Raises:
      UserError: If a file is damaged.
    """
    found = [each for each in entries(pathlib.Path(directory)) if any(file.name == INDEX for file in entries(each))]
    return [study_results.read_study(each) for each in found]


def results_page(
    directory: str | pathlib.Path, studies: Sequence[StudyResults], planned: Mapping[str, tuple[str, int]] | None = None
) -> str:
    """Makes the page of kept studies.

    Args:
      directory: The directory of results. If it has `NOTES.md`, this is put at the end.
      studies: The studies that `read_studies` finds there.
      planned: From `study_file.planned_cells`, for the studies with kept results, and for those without any yet; None
        for only the kept ones.

    Returns:
      Markdown.

    Raises:
      UserError: If there is neither a study nor notes.
    """
    directory = pathlib.Path(directory)
    notes = directory / NOTES
    if not studies and not notes.exists():
        raise UserError(f"{directory} holds no results: neither NAME/{INDEX} nor {NOTES}")
    shown = f"{directory.parent.name}/{directory.name}" if directory.is_absolute() else directory.as_posix()
    parts = [_HEAD.format(directory=shown), *([_contents(studies, planned or {})] if studies else [])]
    parts += [_NO_STUDIES] if planned else []
    for each in studies:
        name = each.path.name
        section = study_table.to_markdown(each, place=f"{directory.name}/{name}/")
        parts.append(f'<a id="{name}"></a>\n\n{section}')
    if notes.exists():
        parts.append(files.text_of_file(notes))
    return "\n".join(parts)


def _contents(studies: Sequence[StudyResults], planned: Mapping[str, tuple[str, int]]) -> str:
    """A table with a line for each study: how much of it has been run, and how long that took."""
    heads = ("study", "finished runs", "cells run, of those that can be", "seeds", "rounds", "took")
    lines = {
        name: (f"`{name}`: {heading}", 0, f"0 of {able}", *(3 * [MISSING])) for name, (heading, able) in planned.items()
    }
    for study in studies:
        name, ran = study.path.name, [result for result in study.results if result.runs or result.diverged]
        _, able = planned.get(name, ("", study.available))
        without = sum(not result.here.count for result in ran)
        cells = f"{len(ran)} of {able}" + f", {without} without a number" * bool(without)
        took = human_time(sum(study.seconds.values()))
        heading = f"[`{name}`](#{name}): {study.heading}"
        lines[name] = (heading, len(study.seconds), cells, study.seeds, study.share, took)
    return Table.of(heads, [lines[name] for name in sorted(lines)]).to_markdown()


def write_leagues(directory: str | pathlib.Path, studies: Sequence[StudyResults]) -> list[pathlib.Path]:
    """Writes a page, `NAME.html`, and its picture, `NAME/league.svg`, for each league among the studies.

    Args:
      directory: The directory for the pages.
      studies: The studies that `read_studies` finds there.

    Returns:
      The files that were written.
    """
    written = []
    for study in (each for each in studies if each.league):
        page, picture = pathlib.Path(directory, f"{study.path.name}.html"), study.path / study_table.LEAGUE_PICTURE
        check_begins(page, PAGE)
        write_text(page, league_page(study))
        write_bytes(picture, style.to_bytes(league_table.league_figure(study), "svg"))
        written += [page, picture]
    return written


def league_page(study: StudyResults) -> str:
    """Returns the page of a league.

    Args:
      study: A league, with the runs that have ended so far.
    """
    environment = templates()
    environment.filters["as_html"] = _as_html
    tables = [
        (league_table.heading(study, column), study.about(column), table)
        for column, table in league_table.to_tables(study).items()
    ]
    return environment.get_template("league.html.j2").render(
        study=study,
        pictures=_pictures(study),
        findings=study.findings,
        tables=[each for each in tables if each[2].rows],
        legend=league_table.LEGEND,
    )


def _pictures(study: StudyResults) -> dict[str, str]:
    """The pictures of the page, each as wide as the page: the league's panels, and the leading methods over rounds and
    bytes. Maps titles to SVG in base64."""
    figures = {title: league_table.league_figure(study, [panel]) for panel, title in league_table.PANELS.items()}
    figures |= {f"who leads over {over}": league_table.leaders_figure(study, over) for over in league_table.OVER}
    drawn = {title: style.to_bytes(figure, "svg") for title, figure in figures.items() if figure.axes}
    return {title: base64.b64encode(picture).decode("ascii") for title, picture in drawn.items()}


def _as_html(text: str) -> str:
    """Converts text to HTML, with Markdown's code in backticks and strong text in double asterisks."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
