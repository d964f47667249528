"""`tffcl run`, `tffcl compare` and `tffcl demo`: their options, and the runs by them."""

import pathlib
import sys

from tffcl.errors import UserError
from tffcl.lab.cli import command_options as shared

_DEMO = "demo_digits"


def add_demo(parser):
    """Adds the options of `tffcl demo`."""
    parser.add_argument("--out", default="runs/demo", metavar="OUT", help="of the results (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint; default: anew")


def add_run(parser):
    """Adds the options of `tffcl run`."""
    shared.add_run_options(parser)
    shared.add_algorithm(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides all that is random (default: 0)")
    shared.add_out_options(parser)
    shared.add_worker_options(parser)


def add_compare(parser):
    """Adds the options of `tffcl compare`."""
    shared.add_run_options(parser)
    parser.add_argument("--algorithms", metavar="A,B,C", help="default: those that the task names")
    seeds = "default: 0; others are added to those that OUT has already"
    parser.add_argument("--seeds", default="0", metavar="0,1,2", help=seeds)
    target = "rounds and bytes to an accuracy, or to another metric (cluster_auc=0.9); evaluates every round"
    parser.add_argument("--target", action="append", default=[], metavar="local=75", help=target)
    shared.add_out_options(parser)
    shared.add_worker_options(parser)


def demo(options):
    """Compares three methods on the embedded default."""
    from tffcl.lab.batches import compare
    from tffcl.lab.tasks import resolve, task_file

    names = task_file.named_algorithms(_DEMO)
    configs = [resolve.resolve(_DEMO, name, seed=options.seed) for name in names]
    compare.compare_runs(configs, options.out, resume=options.resume, overwrite=not options.resume)
    shared.print_report(options.out)


def run(options):
    """Runs one method."""
    from tffcl.lab.tasks import resolve, task_file

    if "," in options.algorithm and options.algorithm not in task_file.load_task(options.task).contents.get(
        "algorithms", {}
    ):
        names = options.algorithm[:100]
        raise UserError(f"--algorithm {names!r} is not one method; tffcl compare --algorithms {names} runs several")
    resolved = resolve.resolve(options.task, options.algorithm, seed=options.seed, overrides=shared.overrides(options))
    from tffcl.lab.batches import batch  # which imports TensorFlow: a mistake is told before
    from tffcl.lab.batches.run import run

    out = options.out or f"runs/{shared.task_name(options.task)}/{options.algorithm}/seed-{options.seed}"
    how = {"resume": options.resume, "overwrite": options.overwrite}
    workers = shared.workers(options)
    if not options.resume:
        job = batch.Job(resolved, pathlib.Path(out), options.algorithm)
        about = batch.Estimate({job: resolved.train.rounds}, batch.earlier_places([job])).in_words
        if about:
            print(f"1 run{about}", file=sys.stderr, flush=True)
    run(resolved, out, data_dir=options.data_dir, **how, workers=workers)
    shared.print_report(out, options)


def compare(options) -> int:
    """Runs methods side by side; returns 1 if a run failed."""
    from tffcl.lab.reporting import targets
    from tffcl.lab.tasks import resolve, task_file

    wanted = [targets.parse_target(text) for text in options.target]
    overrides = shared.overrides(options)
    if wanted:
        overrides = task_file.merged({"evaluation": {"every": 1}}, overrides)
    asked = options.algorithms.split(",") if options.algorithms else task_file.named_algorithms(options.task)
    names = shared.each_once("--algorithms", [name.strip() for name in asked])
    seeds = shared.parse_seeds(options.seeds)
    configs = [resolve.resolve(options.task, name, seed=seed, overrides=overrides) for seed in seeds for name in names]
    from tffcl.lab.batches import compare  # which imports TensorFlow: a mistake is told before

    out = options.out or f"runs/{shared.task_name(options.task)}"
    how = {"data_dir": options.data_dir, "resume": options.resume, "overwrite": options.overwrite, "targets": wanted}
    how |= {"others": lambda name: resolve.resolve(options.task, name, overrides=overrides)}
    summaries = compare.compare_runs(configs, out, **how, workers=shared.workers(options))
    shared.print_report(out, options)
    return 1 if None in summaries else 0
