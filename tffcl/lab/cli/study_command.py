"""`tffcl study` and `tffcl results`: their options and what they print."""

import pathlib
from collections.abc import Mapping

from tffcl.errors import UserError, printable
from tffcl.files import write_text
from tffcl.lab.cli import command_options as shared


def add_study(parser):
    """Adds the options of `tffcl study`."""
    parser.add_argument("name", metavar="NAME", help="a study from `tffcl list studies`, or a study file (.toml)")
    some = "run only these cells, e.g. FMNIST, */PACFL"
    parser.add_argument("--only", action="append", default=[], metavar="COLUMN/ROW", help=some)
    parser.add_argument("--seeds", metavar="0,1,2", help="seeds (default: the study's)")
    share = "rounds of each task: up to 1 a share of them (default: 1, all), from 2 on their number"
    parser.add_argument("--rounds", type=float, default=1.0, metavar="R", help=share)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of all tasks")
    parser.add_argument("--out", metavar="OUT", help="directory of the results (default: below runs/studies/)")
    shared.add_data_dir(parser)
    parser.add_argument("--overwrite", action="store_true", help="repeat finished runs (default: keep them)")
    check = "repeat all kept runs in a separate directory, and say whether their numbers come back"
    parser.add_argument("--check", action="store_true", help=check)
    keep = "keep the checkpoints of finished runs, for `tffcl export`"
    parser.add_argument("--keep-checkpoints", action="store_true", help=keep)
    only = "run nothing; print the table of finished runs, of --only and --seeds if given"
    parser.add_argument("--table-only", action="store_true", help=only)
    shared.add_worker_options(parser)


def add_results(parser):
    """Adds the options of `tffcl results`."""
    kept = "directory with results of studies (default: tasks/results)"
    parser.add_argument("directory", nargs="?", metavar="DIR", help=kept)
    parser.add_argument("--to", metavar="FILE", help="file to write (default: RESULTS.md beside DIR)")


def study(options) -> int:
    """Runs a study, or makes its table again. Returns 1 if a run failed, or a kept number was not reproduced."""
    from tffcl.lab.batches import study_file
    from tffcl.lab.reporting.batch_index import read_index, write_index

    overrides, workers = shared.overrides_of(options.set), shared.workers(options)
    found = study_file.load_study(options.name)
    if options.check and (options.table_only or options.rounds != 1 or overrides):
        raise UserError("--check runs kept results as they were: without --table-only, --rounds and --set")
    of_runs = ("set", "data_dir", "overwrite", "keep_checkpoints", "memory", "workers")
    given = [name for name in of_runs if getattr(options, name)] + ["shards"] * (options.shards is not None)
    if options.table_only and given:
        raise UserError(f"--table-only runs nothing: leave out --{given[0].replace('_', '-')}")
    out = pathlib.Path(options.out or _default_out(found.name, options.rounds) + ("-check" if options.check else ""))
    seeds = () if options.seeds is None else shared.parse_seeds(options.seeds)
    if options.table_only:
        names = [(cell.column, cell.row) for cell in study_file.chosen(found, options.only)] if options.only else None
        if (noted := read_index(out / study_file.RESULTS, "study")) and noted["study"] == found.name:
            study_file.compare_with(found, noted["cells"])
            write_index(out / study_file.RESULTS, "study", noted)
        _show_table(found.name, out, options, {"cells": names, "seeds": seeds})
        return 0
    from tffcl.lab.tasks import resolve, task_file

    cells = [cell for cell in study_file.chosen(found, options.only) if not cell.missing]
    for cell in cells:
        resolve.resolve(cell.task, cell.method, overrides=task_file.overridden(cell.overrides, overrides, cell.task))
    from tffcl.lab.batches import study as studies  # this imports TensorFlow; mistakes are reported before

    planned = studies.plan(found, only=options.only, seeds=seeds, rounds=options.rounds, overrides=overrides)
    how = {"data_dir": options.data_dir, "overwrite": options.overwrite, "all_here": options.check}
    how |= {"keep_checkpoints": options.keep_checkpoints, "workers": workers}
    failed = studies.run_study(planned, out, **how)
    if options.check:
        table, differ = studies.compared_with_kept(planned, out)
        print(table.to_text())
        return 1 if differ else 0
    write_tables(out)
    return 1 if failed else 0


def _show_table(name: str, out: pathlib.Path, options, which: Mapping):
    """Prints the table of what has been run; if nothing has been run here, the table of the kept results.

    Args:
      name: The name of the study.
      out: The directory of the study, which need not exist.
      options: The options of the command.
      which: The cells and seeds to show, as in `read_study`.
    """
    from tffcl.lab.reporting import study_results, study_table
    from tffcl.lab.reporting.batch_index import read_index
    from tffcl.lab.tasks.task_file import results_directory

    if options.out is not None or out.exists():
        write_tables(out, which)
        return
    ran = ", ".join(map(str, sorted([*out.parent.glob(name), *out.parent.glob(f"{name}-rounds-*")])))
    directory = results_directory() / name
    if options.rounds == 1 and read_index(directory, "study"):
        print(f"{study_table.to_text(study_results.read_study(directory, **which))}\n\nkept results: {directory}")
        if ran:
            print(f"run here, with other rounds: {ran}; --out DIR shows the table of one")
    else:
        raise UserError(f"{out} holds no results of a study{f'; there is {ran}: name it with --out' if ran else ''}")


def _default_out(name: str, rounds: float) -> str:
    return f"runs/studies/{name}" + ("" if rounds == 1 else f"-rounds-{rounds:g}")


def write_tables(out: pathlib.Path, which: Mapping | None = None):
    """Writes the table of a study as CSV and Markdown, and prints it, or the requested part of it (see
    `read_study`)."""
    from tffcl.lab.batches.study_file import RESULTS
    from tffcl.lab.reporting import study_results, study_table
    from tffcl.lab.reporting.batch_index import STUDY_TABLE, TABLE, read_index

    results = out if read_index(out, "study") else out / RESULTS
    read = study_results.read_study(results)
    if any(each.noted["measure"] in study_results.EPSILONS and each.here.count for each in read.results):
        from tffcl.lab.reporting import figures

        figures.save(figures.privacy_figure(read), results / study_table.PICTURE)
    write_text(results / TABLE, study_table.to_csv(read))
    write_text(results / STUDY_TABLE, study_table.to_markdown(read))
    print(printable(study_table.to_text(study_results.read_study(results, **which) if which else read), keep="\n"))
    print(f"\nresults: {results}")


def results(options):
    """Writes the page of all kept studies; for the studies that come with tffcl, also lists those without results."""
    from tffcl.lab.batches.study_file import planned_cells
    from tffcl.lab.reporting.batch_index import check_begins
    from tffcl.lab.reporting.results_page import read_studies, results_page, write_leagues
    from tffcl.lab.tasks.task_file import results_directory

    directory = pathlib.Path(options.directory) if options.directory else results_directory()
    target = pathlib.Path(options.to) if options.to else directory.parent / "RESULTS.md"
    of_tffcl = directory.resolve() == results_directory().resolve()
    check_begins(target, b"# What the studies give")
    studies = read_studies(directory)
    write_text(target, results_page(directory, studies, planned_cells() if of_tffcl else None))
    for written in (target, *write_leagues(directory, studies)):
        print(f"written: {written}")
