"""What a search has found, as text: the points by their validation accuracy, and the test accuracy of the
picked one.
"""

import math
import pathlib
from collections.abc import Mapping

from tffcl.errors import RESUME
from tffcl.json_files import telling_damage
from tffcl.lab.reporting.batch_index import INDEX, read_index
from tffcl.lab.reporting.number_format import MISSING, Stat, show_number, show_value
from tffcl.lab.reporting.table import Table


def read_search(path: str | pathlib.Path) -> dict | None:
    """Reads what a search has found so far; None if a directory is not that of a search.

    Raises:
      UserError: If its index is damaged.
    """
    found = read_index(path, "search")
    with telling_damage(pathlib.Path(path) / INDEX):  # whoever reads it relies on all of it
        if found is not None:
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
    if picked is None:
        return "\n".join([*text, "", f"not finished; {RESUME} goes on"])
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
