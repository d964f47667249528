"""The report of a directory, written and printed."""

import pathlib
import sys

from tffcl.errors import printable
from tffcl.lab.reporting import comparison_table, report, search_table, sweeps, targets
from tffcl.lab.reporting.comparison_table import cost_together, notes_of
from tffcl.lab.reporting.files import find_runs, unfinished_runs
from tffcl.lab.reporting.formats import parse_formats


def print_report(out: str | pathlib.Path, formats: str = ""):
    """Writes the report of a run, a comparison, a sweep or a search, and prints its table and where the page is.

    Args:
      out: Its directory.
      formats: Further ones as `formats.parse_formats` takes them.
    """
    asked = parse_formats(formats)
    if search_table.is_search(out):
        print(printable(search_table.to_text(search_table.read_search(out)), keep="\n"))
        return
    if sweeps.is_sweep(out):
        found = sweeps.read_sweep(out)
        text, runs, notes = sweeps.to_table(found).to_text(), len(found.runs), cost_together(found.runs)
    else:
        rows = comparison_table.directory_rows(out)
        text, runs = comparison_table.to_table(rows).to_text(), sum(len(row.seeds) for row in rows)
        notes = notes_of(find_runs(out)) if runs else []
    text += "".join(f"\n\nnote: {note}" for note in notes)
    page = report.write_report(out, asked) if runs else None  # of runs that all failed there are no pictures
    print(printable(text, keep="\n"))
    wanted = targets.read_targets(out)
    if wanted and runs:
        print(f"\n{targets.to_table(targets.reached(find_runs(out), wanted)).to_text(left=2)}")
    for each in unfinished_runs(out):
        print(f"\nnot finished, and left out: {printable(str(each))}", file=sys.stderr)
    if page:
        print(f"\nreport: {printable(str(page))}")
