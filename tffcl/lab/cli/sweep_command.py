"""`tffcl sweep`: its options, and a sweep or a search by them."""

import pathlib
from collections.abc import Mapping

from tffcl.errors import UserError
from tffcl.lab.cli import command_options as shared


def add_sweep(parser):
    """Adds the options of `tffcl sweep`."""
    shared.add_run_options(parser)
    shared.add_algorithm(parser)
    over = "a key as for --set and its values; A's own keys and train's need no section"
    parser.add_argument("--over", required=True, metavar="KEY=V1,V2,V3", help=over)
    line = "a second setting: a line for each of its values"
    parser.add_argument("--and", dest="second", metavar="KEY=W1,W2", help=line)
    parser.add_argument("--seeds", default="0", metavar="0,1,2")
    select = "pick the best point by validation accuracy, or by another metric; only that one is tested"
    parser.add_argument("--select", metavar="cluster|global|cluster_auc|...", help=select)
    samples = "with --select: N points at random; values may be LOW..HIGH"
    parser.add_argument("--samples", type=int, metavar="N", help=samples)
    halving = "with --select: stop bad points early, keep 1/H"
    parser.add_argument("--halving", type=int, default=0, metavar="H", help=halving)
    fresh = "with --select: to test with (default: 3)"
    parser.add_argument("--fresh-seeds", type=int, default=3, metavar="N", help=fresh)
    shared.add_out_options(parser)


def sweep(options) -> int:
    """Runs a sweep, or with `--select` a search; returns 1 if a run failed."""
    from tffcl.lab.batches import sweep
    from tffcl.lab.tasks import resolve

    overrides = shared.overrides(options)
    source = resolve.find_source(options.task, options.algorithm, overrides)
    texts = [("--over", options.over), *([("--and", options.second)] if options.second else [])]
    if options.select:
        return _search(options, overrides, source, texts)
    if options.samples or options.halving:
        raise UserError("--samples and --halving choose among points; say by which accuracy with --select cluster")
    axes = [sweep.parse_axis(text, source, option) for option, text in texts]
    planned = sweep.plan(
        options.task, options.algorithm, axes, seeds=shared.parse_seeds(options.seeds), overrides=overrides
    )
    out = options.out or _default_out("sweep", options, axes)
    from tffcl.lab.batches.batch import Options  # which imports TensorFlow: a mistake is told before

    summaries = sweep.run_plan(planned, out, Options(options.data_dir, options.resume, options.overwrite))
    shared.print_report(out, options)
    return 1 if None in summaries else 0


def _default_out(kind: str, options, axes) -> str:
    return f"runs/{pathlib.Path(options.task).stem}/{kind}-{options.algorithm}-{'-'.join(axis.name for axis in axes)}"


def _search(options, overrides: Mapping, source, texts) -> int:
    from tffcl.lab.batches import search, sweep

    chosen = search.SearchOptions(options.select, options.halving, options.fresh_seeds)
    seeds, points = shared.parse_seeds(options.seeds), None
    if options.samples:
        axes, points = search.random_axes(texts, source, options.samples, seeds[0])
    else:
        axes = [sweep.parse_axis(text, source, option) for option, text in texts]
    planned = sweep.plan(options.task, options.algorithm, axes, seeds=seeds, overrides=overrides, points=points)
    out = options.out or _default_out("search", options, axes)
    how = {"data_dir": options.data_dir, "resume": options.resume, "overwrite": options.overwrite}
    found = search.run_search(planned, out, chosen, **how)
    print(repr(found))
    return 1 if None in found else 0
