"""A league as one HTML page for readers: its picture, what it shows, and a table for each setting."""

import base64
import html
import importlib.resources
import re

import jinja2

from tffcl.lab.reporting import league_figure, league_table, style
from tffcl.lab.reporting.study_results import StudyResults


def league_picture(study: StudyResults) -> bytes:
    """Returns the picture of a league as SVG."""
    return style.to_bytes(league_figure.league_figure(study), "svg")


def league_page(study: StudyResults) -> str:
    """Returns the page.

    Args:
      study: A league, as far as its runs have ended.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["as_html"] = _as_html
    source = importlib.resources.files("tffcl.lab.reporting").joinpath("league.html.j2").read_text(encoding="utf-8")
    tables = [
        (league_table.heading(study, column), study.about(column), league_table.to_table(study, column))
        for column in study.columns
    ]
    return environment.from_string(source).render(
        study=study,
        pictures=_pictures(study),
        findings=study.findings,
        tables=[each for each in tables if each[2].rows],
        legend=league_table.LEGEND,
    )


def _pictures(study: StudyResults) -> dict[str, str]:
    """A picture for each panel of the league's, as base64 of its SVG, by title: each as wide as a page."""
    figures = {title: league_figure.league_figure(study, [panel]) for panel, title in league_figure.PANELS.items()}
    drawn = {title: style.to_bytes(figure, "svg") for title, figure in figures.items() if figure.axes}
    return {title: base64.b64encode(picture).decode("ascii") for title, picture in drawn.items()}


def _as_html(text: str) -> str:
    """Text as HTML; what Markdown has between backticks is code, between two asterisks each strong."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
