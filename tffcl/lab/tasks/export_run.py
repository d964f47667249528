"""A finished run of a task as files for a TFF deployment; `export_check` proves that they run."""

import pathlib

from tffcl.export.writer import check_free, write_export
from tffcl.lab.tasks.load_run import load_run


def export_run(
    out: str | pathlib.Path, to: str | pathlib.Path, *, data_dir: str | None = None, trust_builders: bool = False
) -> dict:
    """Writes a run's method and what it learned as files.

    The files are those of `export.writer.export_result`.

    Args:
      out: The directory of one run, with a checkpoint.
      to: The directory to write; it must not exist, or be empty.
      data_dir: Where data sets are; default as in `datasets`.
      trust_builders: As of `load_run.load_run`.

    Returns:
      The contents of manifest.json.

    Raises:
      UserError: If there is no run, or `to` holds something, or `<to>.partial` exists.
    """
    to = pathlib.Path(to)
    check_free(to)
    trained = load_run(out, data_dir=data_dir, trust_builders=trust_builders)
    return write_export(trained, trained.config.as_dict(), to, trained.ledger.summary())
