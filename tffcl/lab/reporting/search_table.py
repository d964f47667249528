"""What a search has found, as text: the points by their validation accuracy, and the test accuracy of the picked one."""

import math
import pathlib
from collections.abc import Mapping

from tffcl.json_files import read_json, telling_damage
from tffcl.lab.reporting.number_format import MISSING, Stat, show_number, show_value
from tffcl.lab.reporting.table import Table

CONTENTS = "search.json"


def is_search(path: str | pathlib.Path) -> bool:
    """Says whether a directory is that of a search that has finished."""
    return (pathlib.Path(path) / CONTENTS).is_file()


def read_search(path: str | pathlib.Path) -> dict:
    """Reads what a search has found.

    Raises:
      UserError: If the file is damaged.
    """
    file = pathlib.Path(path) / CONTENTS
    found = read_json(file)
    with telling_damage(file):  # whoever reads it relies on all of it
        to_text(found)
    return found


def to_text(found: Mapping) -> str:
    """Returns the points, each with the rounds that it was given, best first, and below them the picked one."""
    title = ", ".join(found["labels"])
    heads = [title, "rounds", f"validation {found['select']} %"]
    lines, seen = [], set()
    for rung in reversed(found["rungs"]):
        for point in rung["points"]:
            name = _name(point["values"])
            if name not in seen:
                score = MISSING if point["score"] is None else f"{100 * point['score']:.2f}"
                lines.append([name, str(rung["rounds"]), score])
                seen.add(name)
    text = [Table.of(heads, lines).to_text()]
    picked = found["picked"]
    seeds = ", ".join(map(str, picked["seeds"]))
    text += ["", f"picked: {title} {_name(picked['values'])}, on test data over the fresh seeds {seeds}:"]
    for kind, values in picked["test"].items():
        stat = Stat.of(math.nan if value is None else 100 * value for value in values)
        if stat.count:
            failed = f" ({len(values) - stat.count} diverged)" if kind == "cluster" and stat.count < len(values) else ""
            text.append(f"  {kind} {show_number(stat, 2)} %{failed}")
    return "\n".join(text)


def _name(values) -> str:
    return ", ".join(map(show_value, values))
