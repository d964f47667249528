"""A league as one HTML page for readers: its picture, what it shows, and a table for each setting."""

import base64
import html
import importlib.resources
import re

import jinja2

from tffcl.reporting import league_figure, league_table, style
from tffcl.reporting.study_results import StudyResults


def league_picture(study: StudyResults) -> bytes:
    """Returns the picture of a league as SVG."""
    return style.to_bytes(league_figure.league_figure(study), "svg")


def league_page(study: StudyResults) -> str:
    """Returns the page.

    Args:
      study: A league, as far as its runs have ended.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["with_code"] = _with_code
    source = importlib.resources.files("tffcl.reporting").joinpath("league.html.j2").read_text(encoding="utf-8")
    tables = [
        (league_table.heading(study, column), league_table.lines(study, column), study.notes(column))
        for column in study.columns
    ]
    return environment.from_string(source).render(
        study=study,
        picture=base64.b64encode(league_picture(study)).decode("ascii"),
        findings=study.findings,
        head=league_table.HEADS,
        tables=[each for each in tables if each[1]],
        legend=league_table.LEGEND,
    )


def _with_code(text: str) -> str:
    """Text as HTML; what stands between backticks, as in Markdown, is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
