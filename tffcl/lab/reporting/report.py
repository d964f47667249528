"""Makes the report of a run, a comparison or a sweep from its files."""

import io
import pathlib
import struct
import sys
from collections.abc import Sequence

from tffcl.errors import UserError, printable
from tffcl.files import check_no_link, check_replaceable, make_directory, write_bytes, write_text
from tffcl.lab.reporting import batch_index, comparison_table, html, report_figures, sweeps, targets, verdict
from tffcl.lab.reporting.batch_index import INDEX, SWEEP_TABLE, TABLE, TARGETS
from tffcl.lab.reporting.report_figures import Picture
from tffcl.lab.reporting.table import FORMATS, Table
from tffcl.runs.run_directory import FIGURES, REPORT, SAMPLES, RunDirectory
from tffcl.runs.run_files import RunFiles

_EVENTS = "events.out.tfevents.pictures"  # the report's pictures for TensorBoard


def write_report(path: str | pathlib.Path, formats: Sequence[str] = ()) -> pathlib.Path:
    """Writes `figures/*.png`, a file of them for TensorBoard, and `report.html`; also `table.csv` for a comparison, and
    `sweep.csv` for a sweep.

    Existing files with these names are replaced; the same run files give the same report.

    Args:
      path: The output directory of a run, a comparison or a sweep.
      formats: Further formats: "md" (`table.md`) and "latex" (`table.tex`) for tables, "svg" and "pdf" for figures.

    Returns:
      The path of the page.

    Raises:
      UserError: If a file of a run is missing or damaged, or if the directory is that of a search, which has no page,
        or cannot be written to.
    """
    path = RunDirectory(path).path
    if sweeps.read_search(path) is not None:  # points are compared only by validation examples
        raise UserError(f"{path} is a search, which has no page; `tffcl report {path}` prints what it has found")
    if isinstance(formats, str) or not set(formats).issubset(FORMATS):
        raise UserError(f"formats is {formats!r:.80}; it must be a list of some of {', '.join(sorted(FORMATS))}")
    check_no_link(path / FIGURES)  # before anything is drawn
    check_replaceable(path / REPORT)
    if not RunDirectory(path).is_run and not (path / INDEX).is_file():
        batch_index.check_ours(path)
    pictures, texts = _of_sweep(path, formats) if sweeps.is_sweep(path) else _of_runs(path, formats)
    try:
        drawn = {}
        for picture in pictures:
            for ending, data in picture.files.items():
                drawn[f"{FIGURES}/{picture.name}.{ending}"] = data
        drawn[f"{FIGURES}/{_EVENTS}"] = _events(pictures)
        RunDirectory(path).list_files([*drawn, *texts])
        make_directory(path / FIGURES)
        for name, data in drawn.items():
            write_bytes(path / name, data)
        # A page that shows examples of clients is as private as the file that contains them.
        private = any(path.glob(f"**/{SAMPLES}"))
        for name, text in texts.items():
            write_text(path / name, text, private=private and name == REPORT)
    except OSError as error:
        raise UserError(f"{error.filename or path} cannot be written: {error.strerror}") from error
    return path / REPORT


def _events(pictures: Sequence[Picture]) -> bytes:
    """The pictures in a file format that TensorBoard reads, the same bytes each time; made without TensorFlow."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    file = io.BytesIO()
    writer = RecordWriter(file)
    writer.write(Event(file_version="brain.Event:2").SerializeToString())
    for picture in pictures:
        width, height = struct.unpack(">II", picture.files["png"][16:24])
        image = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=picture.files["png"])
        value = Summary.Value(tag=f"{picture.section}/{picture.name}", image=image)
        writer.write(Event(step=0, summary=Summary(value=[value])).SerializeToString())
    return file.getvalue()


def say_drawing(runs: int):
    """Says on standard error that the page is being made, because for several runs this takes a while."""
    if runs > 1:
        print(f"making the page of {runs} runs", file=sys.stderr, flush=True)


def print_report(out: str | pathlib.Path, formats: Sequence[str] = ()):
    """Writes the report of a run, a comparison or a sweep, and prints its table and the path of the page; for a search,
    only prints its table.

    Args:
      out: The directory of the run, comparison, sweep or search.
      formats: Further formats, as in `write_report`.
    """
    search = sweeps.read_search(out)
    if search is not None:
        print(printable(sweeps.search_text(search), keep="\n"))
        return
    table, notes, runs = read_tables(out)
    text = "\n\n".join([table.to_text(), *notes])
    say_drawing(len(runs))
    page = write_report(out, formats) if runs else None  # if all runs failed, there are no pictures
    print(printable(text, keep="\n"))
    wanted = targets.read_targets(out)
    if wanted and runs:
        print(f"\n{targets.to_table(targets.reached(runs, wanted)).to_text(left=2)}")
    for each in batch_index.unfinished_runs(out):
        print(f"\nnot finished, and left out: {printable(str(each))}", file=sys.stderr)
    if page:
        print(f"\nreport: {printable(str(page))}")


def read_tables(path: str | pathlib.Path) -> tuple[Table, list[str], Sequence[RunFiles]]:
    """Reads the finished runs of a run's, a comparison's or a sweep's directory.

    Returns:
      The table for people; the sentences under it, which are the verdict on a run or a comparison, and the notes of the
      runs; and the runs in the table.

    Raises:
      UserError: If a file of a run is missing or damaged.
    """
    if sweeps.is_sweep(path):
        found = sweeps.read_sweep(path)
        notes = comparison_table.cost_together(found.runs)
        return sweeps.to_table(found), [f"note: {each}" for each in notes], found.runs
    runs = batch_index.finished_runs(path)
    rows = comparison_table.directory_rows(path, runs)
    notes = [f"note: {each}" for each in comparison_table.notes_of(runs)]
    return comparison_table.to_table(rows), [*verdict.verdict(runs), *notes], runs


def plain_table(path: str | pathlib.Path) -> Table:
    """Makes the table of a comparison or a sweep for programs; errors as in `read_tables`."""
    if sweeps.is_sweep(path):
        return sweeps.plain_table(sweeps.read_sweep(path))
    return comparison_table.plain_table(comparison_table.directory_rows(path, batch_index.finished_runs(path)))


def write_table(path: str | pathlib.Path):
    """Writes only the table of a comparison or a sweep, with the runs that are finished.

    Raises:
      UserError: If a file of a run is missing or damaged.
    """
    path = pathlib.Path(path)
    name = SWEEP_TABLE if sweeps.is_sweep(path) else TABLE
    write_text(path / name, plain_table(path).to_csv())


def _of_runs(path: pathlib.Path, formats: Sequence[str]) -> tuple[list[Picture], dict[str, str]]:
    runs = batch_index.find_runs(path)
    alone = RunDirectory(path).is_run
    draw = report_figures.run_pictures if alone else report_figures.comparison_pictures
    pictures = draw(runs[0] if alone else runs, formats)
    rows = comparison_table.directory_rows(path, runs)
    table = {} if alone else {TABLE: comparison_table.plain_table(rows).to_csv()}
    table |= _further("table", formats, comparison_table.to_table(rows))
    wanted = [] if alone else targets.read_targets(path)
    if wanted:
        table[TARGETS] = targets.to_csv(targets.reached(runs, wanted))
    return pictures, {**table, REPORT: html.render(runs, pictures, path)}


def _further(name: str, formats: Sequence[str], table: Table) -> dict[str, str]:
    """A table in the requested formats beside CSV."""
    writers = {"md": ("md", table.to_markdown), "latex": ("tex", table.to_latex)}
    return {f"{name}.{ending}": make() for key, (ending, make) in writers.items() if key in formats}


def _of_sweep(path: pathlib.Path, formats: Sequence[str]) -> tuple[list[Picture], dict[str, str]]:
    sweep = sweeps.read_sweep(path)
    if not sweep.runs:
        raise UserError(f"no run in {path} is finished: {next(each for row in sweep.rows for each in row.failures)}")
    pictures = report_figures.sweep_pictures(sweep, formats)
    return pictures, {
        SWEEP_TABLE: sweeps.plain_table(sweep).to_csv(),
        **_further("sweep", formats, sweeps.to_table(sweep)),
        REPORT: html.render(sweep.runs, pictures, path, sweep),
    }
