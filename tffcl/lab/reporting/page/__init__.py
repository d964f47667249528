"""The HTML page of a report: panels made of its figures, its tables, its style and its one script.

A panel (`panels.Panel`) is as wide as a phone, so panels are side by side on a large screen, and below each other on a
small one. In this directory, `report.html.j2` is the template of the page, `parts.html.j2` that of panels and tables,
`report.css` the style, and `report.js` reacts to the pointer and to clicks. Without scripts, the page shows the same,
and browsers show the titles of marks. `league.html.j2` is the template for the page of a league.
"""

import jinja2


def templates() -> jinja2.Environment:
    """Returns the environment that finds and fills the templates of this directory."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("tffcl.lab.reporting", "page"),
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
