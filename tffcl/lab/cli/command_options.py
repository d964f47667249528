"""Options that several commands share, and the conversion of their values. Imports nothing heavy."""

import pathlib

from tffcl.errors import UserError, unknown
from tffcl.validation import check_label, each_once


def add_data_dir(parser):
    """Adds the option for the directory of data sets."""
    where = "directory of the data sets (default: $TFFCL_DATA_DIR, else TFDS's)"
    parser.add_argument("--data-dir", metavar="D", help=where)


def add_task_options(parser):
    """Adds the options of every command on a task."""
    parser.add_argument("task", metavar="TASK", help="a task file (.toml), or a name from `tffcl list tasks`")
    other = "change a value of the task, e.g. train.momentum=0.9"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=other)
    add_data_dir(parser)


def add_run_options(parser):
    """Adds the options of a command that makes runs of a task."""
    add_task_options(parser)
    parser.add_argument("--rounds", type=int, metavar="N", help="number of communication rounds (default: the task's)")


def add_algorithm(parser):
    """Adds the option for the method that runs."""
    which = "the method: a label of the task's [algorithms], or a name from `tffcl list algorithms`"
    parser.add_argument("--algorithm", required=True, metavar="A", help=which)


def add_out_options(parser):
    """Adds the options for the directory of results, and for existing results in it."""
    parser.add_argument("--out", metavar="OUT", help="directory of the results (default: below runs/)")
    there = parser.add_mutually_exclusive_group()
    resume = "continue from the newest checkpoint; `tffcl run` may also have more --rounds"
    there.add_argument("--resume", action="store_true", help=resume)
    there.add_argument("--overwrite", action="store_true", help="delete the results in OUT first")
    add_format(parser)


def add_trust(parser):
    """Adds the option that allows to import functions which a run's files name."""
    trust = "import and call the builder functions that the directory's config.toml names; only if you trust its author"
    parser.add_argument("--trust-builders", action="store_true", help=trust)


def add_format(parser):
    """Adds the option for further formats of tables and figures."""
    further = "also write tables and figures in these formats, beside CSV and PNG"
    parser.add_argument("--format", default="", metavar="csv,md,latex,svg,pdf", help=further)


def add_worker_options(parser):
    """Adds the options for the workers on which TFF computes."""
    most = "memory that the clients of a round may use at a time (default: up to half of the free memory)"
    shards = "put the clients of a round into N shards that compute together; 0: none (default: if many and small)"
    among = "distribute each round's clients among these running workers (see tffcl worker)"
    silence = "with --workers: seconds of silence after which a worker counts as lost (default: 30)"
    parser.add_argument("--memory", metavar="4GB", help=most)
    parser.add_argument("--shards", type=int, metavar="N", help=shards)
    parser.add_argument("--workers", metavar="H:P,...", help=among)
    parser.add_argument("--worker-timeout", type=float, metavar="S", help=silence)


def overrides(options) -> dict:
    """Returns the values of `--set` and `--rounds` as nested tables."""
    pairs = [_with_section(pair, options) for pair in options.set]
    if getattr(options, "rounds", None) is not None:
        pairs.append(f"train.rounds={options.rounds}")
    return overrides_of(pairs)


def _with_section(pair: str, options) -> str:
    """Puts the section before a key of [train] or of the method that runs, as for --over."""
    key, equals, value = pair.partition("=")
    if not equals or "." in key or not key.strip():
        return pair
    from tffcl.lab.tasks import resolve

    return f"{resolve.full_key(options.task, getattr(options, 'algorithm', None), key.strip())}={value}"


def overrides_of(pairs: list[str]) -> dict:
    """Returns pairs SECTION.KEY=VALUE as nested tables."""
    from tffcl.lab.tasks import resolve

    return resolve.parse_overrides(pairs) if pairs else {}


def workers(options):
    """Returns the requested workers; None for this machine's own."""
    how = {} if options.worker_timeout is None else {"silence": options.worker_timeout}
    if options.workers:
        from tffcl.runtime import RemoteWorkers

        return RemoteWorkers.parse(options.workers, **how)
    if how:
        raise UserError("--worker-timeout needs --workers, whose silence it is about")
    return None


def parse_seeds(text: str) -> list[int]:
    """Turns "0,1,2" into numbers.

    Raises:
      UserError: If `text` has another form, or names a number twice.
    """
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text[:100]!r} must be whole numbers with commas between, e.g. 0,1,2") from None
    return each_once("--seeds", seeds)


def task_name(task: str) -> str:
    """Returns a task's name for directories; UserError if the name of its file is not allowed for one."""
    name = pathlib.Path(task).stem
    check_label(name, "the name of a task")
    return name


def print_report(out, options=None):
    """Writes tables, figures and the page of a directory, and prints the table."""
    from tffcl.lab.reporting.report import print_report

    print_report(out, parse_formats(getattr(options, "format", "")))


def parse_formats(text: str) -> list[str]:
    """Turns "csv,md,latex,svg" into formats.

    Raises:
      UserError: If a format is unknown.
    """
    if not text:
        return []
    from tffcl.lab.reporting.table import FORMATS

    formats = [each.strip() for each in text.split(",")]
    for each in formats:
        if each not in FORMATS:
            raise unknown("format", each, FORMATS)
    return formats
