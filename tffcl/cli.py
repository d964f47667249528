"""The command line. Nothing heavy is imported before a command needs it: `--help` and `list` answer at once."""

import argparse
import contextlib
import os
import pathlib
import sys

from tffcl.errors import UserError, unknown
from tffcl.experiments import study_command, sweep_command
from tffcl.reporting import formats
from tffcl.runtime import memory

_LISTS = (
    "algorithms", "tasks", "studies", "datasets", "partitions", "models", "signatures", "trainings", "aggregations", "encoders",
)  # fmt: skip
_LONGEST = 500  # characters of what a user gave in a message
_DEMO = ("pacfl", "fedavg", "solo")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the nearest name."""

    def error(self, message):
        kind, _, words = message.partition(": ")
        if kind == "unrecognized arguments" and "=" in words.split()[0] and not words.startswith("-"):
            message += "; every KEY=VALUE has a --set of its own"
        if kind == "unrecognized arguments" and words.startswith("--seeds") and self.prog in ("tffcl", "tffcl run"):
            message += "; tffcl compare runs several seeds"
        message = " ".join(message.split())
        message = message if len(message) <= _LONGEST or "(allowed" in message else f"{message[:_LONGEST]}..."
        self.exit(2, f"tffcl: {message} (see {self.prog} --help)\n")

    def _check_value(self, action, value):
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(None, str(unknown(action.dest, value, action.choices)))


def _command(commands, name, function, description):
    parser = commands.add_parser(name, help=description, description=description[0].upper() + description[1:] + ".")
    parser.set_defaults(function=function)
    return parser


def _add_task_options(parser):
    parser.add_argument("task", metavar="TASK", help="a task file (.toml), or a name from `tffcl list tasks`")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="another value of the task, e.g. train.momentum=0.9"
    )
    parser.add_argument(
        "--data-dir", metavar="D", help="where data sets are, or are put (default: $TFFCL_DATA_DIR, then TFDS's)"
    )


def _add_run_options(parser):
    _add_task_options(parser)
    parser.add_argument("--rounds", type=int, metavar="N", help="communication rounds instead of the task's")


def _add_out_options(parser):
    parser.add_argument("--out", metavar="OUT", help="directory of the results (default: below runs/)")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="delete what is in OUT first")
    _add_format(parser)


def _add_format(parser):
    parser.add_argument(
        "--format", default="", metavar="csv,md,latex,svg,pdf", help="tables and figures in these formats beside CSV and PNG"
    )


def _add_worker_options(parser):
    parser.add_argument(
        "--memory", metavar="4GB", help="what the clients of a round may take at a time (default: up to half of what is free)"
    )
    parser.add_argument(
        "--workers", metavar="H:P,...", help="share each round's clients among these running workers (see tffcl worker)"
    )
    parser.add_argument(
        "--worker-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds of silence after which a worker counts as lost (default: 30)",
    )


def build_parser() -> argparse.ArgumentParser:
    """Builds the parser of all commands."""
    parser = _Parser(prog="tffcl", description="Clustered federated learning on TensorFlow Federated.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    demo = _command(
        commands, "demo", _demo, "three methods on handwritten digits in four rotations; no network, no options needed"
    )
    demo.add_argument("--out", default="runs/demo", metavar="OUT", help="directory of the results (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=0, metavar="S")
    demo.add_argument("--resume", action="store_true", help="go on from the newest checkpoint; default: from the start")

    listing = _command(commands, "list", _list, "what there is, a line each")
    listing.add_argument("what", nargs="?", choices=_LISTS, metavar=f"[{'|'.join(_LISTS)}]")
    listing.add_argument("name", nargs="?", metavar="NAME", help="the keys that this one takes in a task file")

    doctor = _command(commands, "doctor", _doctor, "facts of this installation: versions, cores, TFF's worker, data directory")
    doctor.add_argument("--check", action="store_true", help="also start the worker and run a computation in it")
    doctor.add_argument("--data-dir", metavar="D")

    run = _command(commands, "run", _run, "run one method on a task")
    _add_run_options(run)
    run.add_argument("--algorithm", required=True, metavar="A", help="a name from `tffcl list algorithms`")
    run.add_argument("--seed", type=int, default=0, metavar="S", help="decides everything that is random (default: 0)")
    _add_out_options(run)
    _add_worker_options(run)

    compare = _command(commands, "compare", _compare, "run methods side by side: one table, one report")
    _add_run_options(compare)
    compare.add_argument("--algorithms", metavar="A,B,C", help="default: those that the task names")
    compare.add_argument("--seeds", default="0", metavar="0,1,2")
    compare.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="local=75",
        help="rounds and bytes to an accuracy; evaluates every round",
    )
    _add_out_options(compare)
    _add_worker_options(compare)

    sweep = _command(commands, "sweep", _sweep, "run one method over the values of a setting: one table, one figure")
    _add_run_options(sweep)
    sweep_command.add_sweep(sweep)
    _add_out_options(sweep)

    study = _command(commands, "study", _study, "a paper's table: its cells run, beside the published numbers")
    study_command.add_study(study)
    _add_worker_options(study)
    study_command.add_results(_command(commands, "results", _results, "RESULTS.md from the kept results of studies"))

    similarity = _command(commands, "similarity", _similarity, "no training: how alike the clients' data are")
    _add_run_options(similarity)
    similarity.add_argument(
        "--signature", default="subspace", metavar="S", help="what clients tell about their data (default: subspace)"
    )
    similarity.add_argument("--seed", type=int, default=0, metavar="S")
    similarity.add_argument("--out", metavar="OUT", help="directory of matrix and pictures (default: below runs/)")

    show = _command(commands, "show", _show, "no training: who holds what of a task, in pictures and a few lines")
    _add_task_options(show)
    show.add_argument("--seed", type=int, default=0, metavar="S", help="decides who gets which examples (default: 0)")
    show.add_argument("--out", metavar="OUT", help="directory of the pictures (default: below runs/)")

    newcomers = _command(
        commands, "newcomers", _newcomers, "clients that a run held out join it: their clusters and accuracies"
    )
    newcomers.add_argument("out", metavar="OUT", help="what `run` or `compare` wrote, for a task with newcomers.clients")
    newcomers.add_argument("--data-dir", metavar="D", help="where data sets are (default: $TFFCL_DATA_DIR, then TFDS's)")

    _add_angles(commands)

    export = _command(commands, "export", _export, "a finished run as files for a TFF deployment, or proof that such files run")
    export.add_argument("out", nargs="?", metavar="OUT", help="what `run` wrote")
    export.add_argument("--to", metavar="DIR", help="directory to write; a new or an empty one")
    export.add_argument("--check", metavar="DIR", help="load every file of an export, run it, compare the numbers")
    export.add_argument("--data-dir", metavar="D", help="where data sets are (default: $TFFCL_DATA_DIR, then TFDS's)")

    worker = _command(commands, "worker", _worker, "run the TFF worker of this installation for the rounds of another machine")
    worker.add_argument(
        "--port", type=int, required=True, metavar="P", help="on all addresses of this machine, unencrypted: close it to others"
    )
    worker.add_argument("--max-concurrent", type=int, metavar="N", help="client computations at a time (default: one a core)")

    report = _command(
        commands, "report", _report, "tables, figures and the HTML page again from the files of a run or a comparison"
    )
    report.add_argument("out", metavar="OUT", help="what `run`, `compare` or `sweep` wrote")
    _add_format(report)
    return parser


def _add_angles(commands):
    about = "no training: angles between whole data sets (PACFL Table 1)"
    angles = _command(commands, "angles", _angles, about)
    angles.add_argument("names", nargs="*", metavar="NAME", help="data sets (default: the paper's four)")
    angles.add_argument("--vectors", type=int, default=2, metavar="P", help="of each set (default: 2)")
    angles.add_argument(
        "--preprocessing", default="raw", metavar="HOW", help="raw (the default and the paper's), centred, normalized, grey"
    )
    angles.add_argument("--samples", type=int, metavar="N", help="images of each set (default: all)")
    angles.add_argument("--seed", type=int, default=0, metavar="S", help="decides what is random (default: 0)")
    angles.add_argument("--data-dir", metavar="D", help="where data sets are, or are put")
    angles.add_argument("--out", default="runs/angles", metavar="OUT", help="of angles.png (default: %(default)s)")
    angles.add_argument(
        "--gaussians", action="store_true", help="instead: other distances beside angles, on Gaussians (PACFL Table 5)"
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Args:
      arguments: Of the command line; default `sys.argv[1:]`.

    Returns:
      0; 1 if a run of a comparison failed; 2 for what the user can mend, said in one line; 130 after Ctrl-C.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    options = build_parser().parse_args(arguments)
    try:
        _check_no_nul(options)
        formats.parse_formats(getattr(options, "format", ""))
        with _memory(options):
            return options.function(options) or 0
    except UserError as error:
        print(f"tffcl: {error}", file=sys.stderr)
        return 130 if type(error).__name__ == "Interrupted" else 2
    except KeyboardInterrupt:
        print("tffcl: stopped", file=sys.stderr)
        return 130
    except PermissionError as error:
        print(f"tffcl: {error.filename} cannot be written or read: {error.strerror}", file=sys.stderr)
        return 2
    except (FileExistsError, NotADirectoryError) as error:
        print(f"tffcl: {error.filename} is a file; it must be a directory", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"tffcl: the memory of this machine is not enough: {str(error) or 'allocation failed'}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `tffcl ... | head`: nobody reads on
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
        return 0
    except (ConnectionError, TimeoutError):  # of a network, not of files
        raise
    except OSError as error:  # a full disk, a name that is too long
        name = str(error.filename or "a file")
        name = name if len(name) <= 150 else f"{name[:70]}...{name[-70:]}"
        print(f"tffcl: {name} cannot be written or read: {error.strerror or error}", file=sys.stderr)
        return 2


def _check_no_nul(options):
    for name, value in vars(options).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and "\0" in text:
                raise UserError(f"{name} is {text[:100]!r}; a NUL character is not allowed")


def _memory(options):
    given = getattr(options, "memory", None)
    return contextlib.nullcontext() if given is None else memory.budget(memory.parse_bytes(given))


def _overrides(options) -> dict:
    pairs = [_with_section(pair, options) for pair in options.set]
    if getattr(options, "rounds", None) is not None:
        pairs.append(f"train.rounds={options.rounds}")
    return _overrides_of(pairs)


def _with_section(pair: str, options) -> str:
    """Puts the section before a key of [train] or of the method that runs, as --over takes them."""
    key, equals, value = pair.partition("=")
    if not equals or "." in key or not key.strip():
        return pair
    from tffcl.experiments import config

    return f"{config.full_key(options.task, getattr(options, 'algorithm', None), key.strip())}={value}"


def _overrides_of(pairs: list[str]) -> dict:
    from tffcl.experiments import config

    return config.parse_overrides(pairs) if pairs else {}


def _workers(options):
    if not options.workers:
        return None
    from tffcl.runtime import RemoteWorkers

    return RemoteWorkers.parse(options.workers, options.worker_timeout)


def _export(options):
    if options.check:
        if options.out or options.to:
            raise UserError("give --check DIR alone, or OUT and --to DIR")
        from tffcl.export import export_check

        for line in export_check.check_export(options.check, data_dir=options.data_dir):
            print(line)
        return
    if not (options.out and options.to):
        raise UserError("tffcl export needs OUT and --to DIR, or --check DIR")
    from tffcl.export import export_run as export

    manifest = export.export_run(options.out, options.to, data_dir=options.data_dir)
    print(export.describe(manifest, options.to))


def _worker(options):
    from tffcl import runtime

    given = options.max_concurrent
    if given is not None and given < 1:
        raise UserError(f"--max-concurrent is {given}; it must be 1 or more")
    runtime.serve(options.port, runtime.WorkerSettings(given) if given else runtime.WorkerSettings())


def _task_name(task: str) -> str:
    return pathlib.Path(task).stem


def _demo(options):
    from tffcl.experiments import compare, config

    configs = [config.resolve("demo_digits", algorithm, seed=options.seed) for algorithm in _DEMO]
    compare.compare(configs, options.out, resume=options.resume, overwrite=not options.resume)
    _print_report(options.out)


def _run(options):
    from tffcl.experiments import config

    resolved = config.resolve(options.task, options.algorithm, seed=options.seed, overrides=_overrides(options))
    from tffcl.experiments.run import run  # which imports TensorFlow: a mistake is told before

    out = options.out or f"runs/{_task_name(options.task)}/{options.algorithm}/seed-{options.seed}"
    run(resolved, out, data_dir=options.data_dir, resume=options.resume, overwrite=options.overwrite, workers=_workers(options))
    _print_report(out, options)


def _compare(options):
    from tffcl.experiments import config, tasks
    from tffcl.reporting import targets

    wanted = [targets.parse_target(text) for text in options.target]
    overrides = _overrides(options)
    if wanted:
        overrides = tasks.merged({"evaluation": {"every": 1}}, overrides)
    names = options.algorithms.split(",") if options.algorithms else tasks.named_algorithms(options.task)
    seeds = sweep_command.parse_seeds(options.seeds)
    configs = [config.resolve(options.task, name, seed=seed, overrides=overrides) for seed in seeds for name in names]
    from tffcl.experiments import compare  # which imports TensorFlow: a mistake is told before

    out = options.out or f"runs/{_task_name(options.task)}"
    how = {"data_dir": options.data_dir, "resume": options.resume, "overwrite": options.overwrite}
    summaries = compare.compare(configs, out, **how, workers=_workers(options), targets=wanted)
    _print_report(out, options)
    return 1 if None in summaries else 0


def _sweep(options):
    return sweep_command.sweep(options, _overrides(options))


def _study(options):
    return study_command.study(options, _overrides_of(options.set), _workers)


def _results(options):
    study_command.results(options)


def _newcomers(options):
    from tffcl.experiments import joining as newcomers
    from tffcl.reporting import files, newcomers_table

    if files.is_run(options.out):
        print(newcomers.describe(newcomers.join_newcomers(options.out, data_dir=options.data_dir)))
        return
    newcomers.join_all(options.out, data_dir=options.data_dir)
    print(newcomers_table.write_table(options.out))


def _report(options):
    _print_report(options.out, options)


def _print_report(out, options=None):
    from tffcl.reporting.terminal import print_report

    print_report(out, getattr(options, "format", ""))


def _similarity(options):
    from tffcl.experiments import catalog, config, similarity, tasks

    name, overrides = options.signature, _overrides(options)
    method = catalog.SIGNATURES.get(name, "composed")
    if method == "composed":  # one that no method is named after, or a builder of the user's own
        overrides = tasks.merged({"algorithms": {"composed": {"signature": name}}}, overrides)
    resolved = config.resolve(options.task, method, seed=options.seed, overrides=overrides)
    out = options.out or f"runs/{_task_name(options.task)}/similarity/{name.replace(':', '.')}"
    print(similarity.similarity(resolved, out, data_dir=options.data_dir))


def _show(options):
    from tffcl.experiments import config, show

    # Any method would do, and no model is built: without its keys' check TensorFlow is not imported.
    resolved = config.resolve(options.task, "fedavg", seed=options.seed, overrides=_overrides(options), check_model=False)
    out = options.out or f"runs/{_task_name(options.task)}/show"
    print(show.show(resolved, out, data_dir=options.data_dir))


def _angles(options):
    if options.gaussians:
        from tffcl.experiments import gaussian_table

        if options.names:
            raise UserError(f"--gaussians needs no data sets; given: {', '.join(options.names)}")
        print(gaussian_table.gaussian_table(seed=options.seed).to_text())
        return
    from tffcl.experiments import dataset_angles

    found = dataset_angles.dataset_angles(
        options.names or dataset_angles.PACFL_SETS,
        num_vectors=options.vectors,
        data_dir=options.data_dir,
        preprocessing=options.preprocessing,
        samples=options.samples,
        seed=options.seed,
    )
    from tffcl.reporting import figures

    picture = figures.save(found.figure(), pathlib.Path(options.out) / "angles.png")
    print(f"{found.to_text()}\nwritten: {picture}")


def _list(options):
    from tffcl.experiments import explain, listing

    lines = explain.explain(options.what, options.name) if options.name else listing.listing(options.what, _LISTS)
    print("\n".join(lines))


def _doctor(options):
    from tffcl.experiments import doctor

    for name, fact in doctor.facts(options.data_dir, check=options.check):
        print(f"{name:<24}{fact}")
