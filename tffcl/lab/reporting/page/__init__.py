"""The HTML page of a report: panels made of its figures, its tables, its style and its one script.

A panel (`panels.Panel`) is as wide as a phone, so that panels stand beside each other on a large screen and below each
other on a small one. The files beside: `report.html.j2` is the page, `parts.html.j2` what a panel and a table look
like in it, `report.css` its style, `report.js` what it does when something is pointed at or clicked. Without scripts
the page shows the same, and browsers show the titles of marks. `league.html.j2` is the page of a league.
"""

import jinja2


def templates() -> jinja2.Environment:
    """Returns what finds and fills the templates here."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("tffcl.lab.reporting", "page"),
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
