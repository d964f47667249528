"""The commands that run methods on a task (`run`, `compare`, `demo`, `sweep`) or show its data without training
(`similarity`, `show`), with their options."""

import pathlib
import sys
from collections.abc import Mapping

from tffcl.errors import UserError
from tffcl.lab.cli import command_options as shared
from tffcl.validation import each_once

_DEMO = "demo_digits"


def add_demo(parser):
    """Adds the options of `tffcl demo`."""
    parser.add_argument("--out", default="runs/demo", metavar="OUT", help="results directory (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint")


def add_run(parser):
    """Adds the options of `tffcl run`."""
    shared.add_run_options(parser)
    shared.add_algorithm(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of everything random (default: 0)")
    shared.add_out_options(parser)
    shared.add_worker_options(parser)


def add_compare(parser):
    """Adds the options of `tffcl compare`."""
    shared.add_run_options(parser)
    parser.add_argument("--algorithms", metavar="A,B,C", help="methods to compare (default: those that the task names)")
    seeds = "seeds (default: 0); new ones are added to those that OUT already has"
    parser.add_argument("--seeds", default="0", metavar="0,1,2", help=seeds)
    target = "count rounds and bytes to this accuracy, or other metric (cluster_auc=0.9); evaluates every round"
    parser.add_argument("--target", action="append", default=[], metavar="local=75", help=target)
    shared.add_out_options(parser)
    shared.add_worker_options(parser)


def demo(options):
    """Compares three methods on the embedded demo task."""
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
    workers = shared.workers(options)
    from tffcl.lab.batches import batch  # this imports TensorFlow; mistakes are reported before
    from tffcl.lab.batches.run import run

    out = options.out or f"runs/{shared.task_name(options.task)}/{options.algorithm}/seed-{options.seed}"
    if not options.resume:
        job = batch.Job(resolved, pathlib.Path(out), options.algorithm)
        about = batch.Estimate({job: resolved.train.rounds}, batch.earlier_places([job])).of()
        if about:
            print(f"1 run{about}, going by earlier runs", file=sys.stderr, flush=True)
    run(resolved, out, **_how(options), workers=workers)
    shared.print_report(out, options)


def compare(options) -> int:
    """Runs methods side by side; returns 1 if a run failed."""
    from tffcl.lab.reporting import targets
    from tffcl.lab.tasks import resolve, task_file

    wanted = [targets.parse_target(text) for text in options.target]
    overrides = shared.overrides(options)
    if wanted:
        overrides = task_file.merged({"evaluation": {"every": 1}}, overrides)
    given = options.algorithms.split(",") if options.algorithms else task_file.named_algorithms(options.task)
    names = each_once("--algorithms", [name.strip() for name in given])
    seeds = shared.parse_seeds(options.seeds)
    configs = [resolve.resolve(options.task, name, seed=seed, overrides=overrides) for seed in seeds for name in names]
    workers = shared.workers(options)
    from tffcl.lab.batches import compare  # this imports TensorFlow; mistakes are reported before

    out = options.out or f"runs/{shared.task_name(options.task)}"
    summaries = compare.compare_runs(
        configs, out, targets=wanted, workers=workers, **_how(options),
        others=lambda name: resolve.resolve(options.task, name, overrides=overrides),
    )  # fmt: skip
    shared.print_report(out, options)
    return 1 if None in summaries else 0


def add_sweep(parser):
    """Adds the options of `tffcl sweep`."""
    shared.add_run_options(parser)
    shared.add_algorithm(parser)
    over = "a key, as for --set, and its values; keys of A and of [train] need no section"
    parser.add_argument("--over", required=True, action="append", metavar="KEY=V1,V2,V3", help=over)
    line = "a second setting; the figure has a line for each of its values"
    parser.add_argument("--and", dest="second", metavar="KEY=W1,W2", help=line)
    parser.add_argument("--seeds", default="0", metavar="0,1,2", help="seeds of each run (default: 0)")
    select = "pick the best point by validation accuracy, or by another metric; only this point is tested"
    parser.add_argument("--select", metavar="cluster|global|cluster_auc|...", help=select)
    samples = "with --select: try N random points; values may be LOW..HIGH"
    parser.add_argument("--samples", type=int, metavar="N", help=samples)
    halving = "with --select: stop bad points early; the best 1/H continue at each stage"
    parser.add_argument("--halving", type=int, metavar="H", help=halving)
    fresh = "with --select: number of fresh seeds for the test (default: 3)"
    parser.add_argument("--fresh-seeds", type=int, metavar="N", help=fresh)
    shared.add_out_options(parser)
    shared.add_worker_options(parser)


def sweep(options) -> int:
    """Runs a sweep, or with `--select` a search; returns 1 if a run failed."""
    from tffcl.lab.batches import sweep
    from tffcl.lab.tasks import resolve

    overrides, workers = shared.overrides(options), shared.workers(options)
    source = resolve.find_source(options.task, options.algorithm, overrides)
    if len(options.over) > 1:
        raise UserError("--over is given twice; a second setting is --and KEY=W1,W2")
    texts = [("--over", *options.over), *([("--and", options.second)] if options.second else [])]
    if options.select:
        return _search(options, overrides, source, texts, workers)
    if {options.samples, options.halving, options.fresh_seeds} != {None}:
        raise UserError(
            "--samples, --halving and --fresh-seeds choose among points; say by which accuracy with --select cluster"
        )
    axes = [sweep.parse_axis(text, source, option) for option, text in texts]
    planned = sweep.plan(
        options.task, options.algorithm, axes, seeds=shared.parse_seeds(options.seeds), overrides=overrides
    )
    out = options.out or _default_out("sweep", options, axes)
    summaries = sweep.run_plan(planned, out, workers=workers, **_how(options))
    shared.print_report(out, options)
    return 1 if None in summaries else 0


def _how(options) -> dict:
    """The options of a batch, for `batch.Options`."""
    return {name: getattr(options, name) for name in ("data_dir", "resume", "overwrite")}


def _default_out(kind: str, options, axes) -> str:
    return f"runs/{shared.task_name(options.task)}/{kind}-{options.algorithm}-{'-'.join(axis.name for axis in axes)}"


def _search(options, overrides: Mapping, source, texts, workers) -> int:
    from tffcl.lab.batches import search, sweep

    given = {name: getattr(options, name) for name in ("halving", "fresh_seeds")}
    chosen = search.SearchOptions(options.select, **{name: each for name, each in given.items() if each is not None})
    seeds, points = shared.parse_seeds(options.seeds), None
    if options.samples is not None:
        axes, points = search.random_axes(texts, source, options.samples, seeds[0])
    else:
        axes = [sweep.parse_axis(text, source, option) for option, text in texts]
    planned = sweep.plan(options.task, options.algorithm, axes, seeds=seeds, overrides=overrides, points=points)
    out = options.out or _default_out("search", options, axes)
    found = search.run_search(planned, out, chosen, workers=workers, **_how(options))
    print(repr(found))
    return 1 if None in found else 0


def add_similarity(parser):
    """Adds the options of `tffcl similarity`."""
    shared.add_task_options(parser)
    what = "signature that clients send of their data (default: subspace)"
    parser.add_argument("--signature", default="subspace", metavar="S", help=what)
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    points = "also write umap.png: clients as points, similar ones near each other"
    parser.add_argument("--map", action="store_true", help=points)
    parser.add_argument("--out", metavar="OUT", help="directory of the matrix and pictures (default: below runs/)")


def add_show(parser):
    """Adds the options of `tffcl show`."""
    shared.add_task_options(parser)
    seed = "seed that decides which client gets which examples (default: 0)"
    parser.add_argument("--seed", type=int, default=0, metavar="S", help=seed)
    parser.add_argument("--out", metavar="OUT", help="directory of the pictures (default: below runs/)")


def similarity(options):
    """Prints how similar the clients of a task are."""
    from tffcl.lab.batches import similarity
    from tffcl.lab.tasks import resolve, task_file
    from tffcl.registry import COMPOSED, SIGNATURES

    name, overrides = options.signature, shared.overrides(options)
    method = SIGNATURES[name].method if name in SIGNATURES else ""
    if not method:  # a signature without its own method, or a user's own builder
        method = COMPOSED
        overrides = task_file.merged({"algorithms": {method: {"signature": name}}}, overrides)
    resolved = resolve.resolve(options.task, method, seed=options.seed, overrides=overrides)
    out = options.out or f"runs/{shared.task_name(options.task)}/similarity/{name.replace(':', '.')}"
    print(similarity.write_similarity(resolved, out, data_dir=options.data_dir, map_clients=options.map))


def show(options):
    """Prints which client holds which data."""
    from tffcl.lab.batches import show
    from tffcl.lab.tasks import resolve
    from tffcl.registry import PLAIN

    resolved = resolve.resolve(options.task, PLAIN, seed=options.seed, overrides=shared.overrides(options))
    out = options.out or f"runs/{shared.task_name(options.task)}/show"
    print(show.show(resolved, out, data_dir=options.data_dir))
