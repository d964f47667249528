"""The command line. Heavy packages are imported only when a command needs them: `--help` and `list` answer at once."""

import argparse
import io
import os
import pathlib
import signal
import sys

from tffcl.clients.simulation_context import simulating
from tffcl.errors import Option, UserError, printable, short_path, tell, unknown
from tffcl.lab.cli import command_options, listing, run_command, study_command
from tffcl.runtime import memory

_LONGEST = 500  # characters of a message, which may contain what a user gave


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, which suggests the nearest name."""

    def error(self, message):
        kind, _, words = message.partition(": ")
        if kind == "unrecognized arguments" and "=" in words.split()[0] and not words.startswith("-"):
            message += "; every KEY=VALUE has a --set of its own"
        if kind == "unrecognized arguments" and words.startswith("--seeds") and self.prog in ("tffcl", "tffcl run"):
            message += "; tffcl compare runs several seeds"
        message = " ".join(message.split())
        message = message if len(message) <= _LONGEST or "(allowed" in message else f"{message[:_LONGEST]}..."
        self.exit(2, f"tffcl: {printable(message)} (see {self.prog} --help)\n")

    def _check_value(self, action, value):
        if value == "" and action.choices is None:  # --workers "$UNSET" must not run on this machine
            raise argparse.ArgumentError(action, "it is empty, as of a variable that is not set; leave it out")
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                None, str(unknown("kind" if action.dest == "what" else action.dest, value, action.choices))
            )


def _add_list(parser):
    kinds = listing.kinds()
    parser.add_argument("what", nargs="?", choices=kinds, metavar=f"[{'|'.join(kinds)}]")
    parser.add_argument("name", nargs="?", metavar="NAME", help="print the keys that NAME takes in a task file")


def _list(options):
    if options.name:
        from tffcl.lab.cli import explain

        lines = explain.explain(options.what, options.name)
    else:
        lines = listing.listing(options.what)
    print("\n".join(lines))


def _add_init(parser):
    new = "the file to write; it must not exist yet (default: %(default)s)"
    parser.add_argument("file", nargs="?", default="my_task.toml", metavar="FILE", help=new)


def _init(options):
    """Writes the file, and prints commands that use it."""
    target = pathlib.Path(options.file)
    if target.suffix != ".toml":
        raise UserError(f"{target} is no name of a task file; it must end in .toml")
    if not str(target).isprintable():
        raise UserError(f"{str(target)!r} is no name of a task file; it has characters that cannot be written in one")
    template = pathlib.Path(__file__).with_name("new_task.toml").read_text(encoding="utf-8")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(template.format(name=target))
    except FileExistsError:
        raise UserError(f"{target} is there already; give another name, and it stays as it is") from None
    print(f"written: {target}\nnext: tffcl show {target}; tffcl similarity {target}; tffcl compare {target}")


def _add_doctor(parser):
    missing = "install packages that tffcl needs and that are missing"
    parser.add_argument("--fix", action="store_true", help=missing)
    parser.add_argument("--check", action="store_true", help="also start the worker and run a computation on it")
    command_options.add_data_dir(parser)


def _doctor(options):
    from tffcl.lab.cli import doctor

    if options.fix and ((code := doctor.fix()) or not options.check):
        return code
    for name, fact in doctor.facts(options.data_dir, check=options.check):
        print(f"{name:<24}{fact}")


def _add_newcomers(parser):
    wrote = "the directory that `run` or `compare` wrote, for a task with newcomers.clients"
    parser.add_argument("out", metavar="OUT", help=wrote)
    command_options.add_data_dir(parser)
    command_options.add_trust(parser)


def _newcomers(options):
    from tffcl.lab.reporting import batch_index
    from tffcl.runs.run_directory import RunDirectory

    one = RunDirectory(options.out).is_run
    given = {"data_dir": options.data_dir, "trust_builders": options.trust_builders}
    if not one:
        batch_index.find_runs(options.out)
    from tffcl.lab.batches import newcomers
    from tffcl.lab.reporting import newcomers_table

    if one:
        print(newcomers.describe(newcomers.join_newcomers(options.out, **given)))
        return
    newcomers.join_all(options.out, **given)
    print(newcomers_table.write_table(options.out))


def _add_export(parser):
    parser.add_argument("out", nargs="?", metavar="OUT", help="the directory that `run` wrote")
    parser.add_argument("--to", metavar="DIR", help="directory to write to; it must be new or empty")
    check = "load and run every file of the export in DIR, and compare the numbers"
    parser.add_argument("--check", metavar="DIR", help=check)
    command_options.add_data_dir(parser)
    command_options.add_trust(parser)


def _export(options):
    given = {"data_dir": options.data_dir, "trust_builders": options.trust_builders}
    if options.check:
        if options.out or options.to:
            raise UserError("give --check DIR alone, or OUT and --to DIR")
        from tffcl.export import manifest

        # A missing export is reported before TensorFlow is imported.
        manifest.read_manifest(pathlib.Path(options.check))
        from tffcl.lab.tasks import exports

        for line in exports.check_export(options.check, **given):
            print(line)
        return
    if not (options.out and options.to):
        raise UserError("tffcl export needs OUT and --to DIR, or --check DIR")
    from tffcl.lab.tasks import resolve

    resolve.load_run_config(options.out, trust_builders=options.trust_builders)
    from tffcl.export import writer
    from tffcl.lab.tasks import exports

    written = exports.export_run(options.out, options.to, **given)
    print(writer.describe(written, options.to, more=" --trust-builders" * options.trust_builders))


def _add_worker(parser):
    where = "port to listen on, on all addresses of this machine, unencrypted: block it for others"
    parser.add_argument("--port", type=int, required=True, metavar="P", help=where)
    most = "number of concurrent client computations (default: one per core)"
    parser.add_argument("--max-concurrent", type=int, metavar="N", help=most)


def _worker(options):
    from tffcl import runtime

    given = options.max_concurrent
    if given is not None and given < 1:
        raise UserError(f"--max-concurrent is {given}; it must be 1 or more")
    runtime.serve(options.port, runtime.WorkerSettings(given) if given else runtime.WorkerSettings())


def _add_report(parser):
    parser.add_argument("out", metavar="OUT", help="the directory that `run`, `compare` or `sweep` wrote")
    command_options.add_format(parser)


def _report(options):
    command_options.print_report(options.out, options)


# For each command: the function that does it, the function that adds its options, and its line in the help.
_COMMANDS = {
    "demo": (run_command.demo, run_command.add_demo,
             "compare three methods on handwritten digits in four rotations; needs no network and no options"),
    "list": (_list, _add_list, "list what is available, one line each"),
    "init": (_init, _add_init, "write a commented task file of your own, to start from"),
    "doctor": (_doctor, _add_doctor, "print facts about this installation: versions, cores, worker, data directory"),
    "run": (run_command.run, run_command.add_run, "run one method on a task"),
    "compare": (run_command.compare, run_command.add_compare, "run several methods on a task: one table, one report"),
    "sweep": (run_command.sweep, run_command.add_sweep,
              "run one method over the values of a setting: one table, one figure"),
    "study": (study_command.study, study_command.add_study,
              "run the cells of a paper's table, and print them beside the published numbers"),
    "results": (study_command.results, study_command.add_results, "write RESULTS.md from the kept results of studies"),
    "similarity": (run_command.similarity, run_command.add_similarity,
                   "show how similar the clients' data are, without training"),
    "show": (run_command.show, run_command.add_show,
             "show which client of a task holds which data, in pictures and a few lines, without training"),
    "newcomers": (_newcomers, _add_newcomers,
                  "let held-out clients join a finished run, and print their clusters and accuracies"),
    "export": (_export, _add_export, "write a finished run as files for a TFF deployment, or check such files"),
    "worker": (_worker, _add_worker, "start the TFF worker of this installation for the rounds of another machine"),
    "report": (_report, _add_report,
               "rebuild tables, figures and the HTML page from the files of a run or a comparison"),
}  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """Builds the parser of all commands."""
    parser = _Parser(prog="tffcl", description="Clustered federated learning on TensorFlow Federated.")
    shell = 'print shell completion for bash or zsh: eval "$(tffcl --print-completion bash)"'
    parser.add_argument(
        "--print-completion", action=listing.PrintCompletion, choices=listing.SHELLS, metavar="SHELL", help=shell
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, (function, add_options, about) in _COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        command.set_defaults(function=function)
        add_options(command)
    return parser


def _hear_no_more(arguments):
    """Ignores Ctrl-C when the process is about to end, because a second one would print tracebacks of the shutdown."""
    if arguments is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Args:
      arguments: The arguments of the command line; default `sys.argv[1:]`.

    Returns:
      0; 1 if a run of a comparison failed; 2 for an error that the user can correct, reported in one line; 130 after
      Ctrl-C, and after SIGTERM or SIGHUP in a run or an export.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? for a β
    Option.on_command_line = True
    try:
        options = build_parser().parse_args(arguments)
        _check_no_nul(options)
        command_options.parse_formats(getattr(options, "format", ""))
        with _simulation(options):
            return options.function(options) or 0
    except ModuleNotFoundError as error:
        from tffcl.lab.cli import doctor

        if not doctor.missing_packages():
            raise
        tell(f"{error.name} is not installed; tffcl doctor --fix installs what is missing")
        return 2
    except UserError as error:
        _hear_no_more(arguments)
        tell(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _hear_no_more(arguments)
        tell("stopped")
        return 130
    except (FileExistsError, NotADirectoryError) as error:
        tell(f"{error.filename} is a file; it must be a directory")
        return 2
    except MemoryError as error:
        tell(f"the memory of this machine is not enough: {str(error) or 'allocation failed'}")
        return 2
    except BrokenPipeError:  # `tffcl ... | head`: the reader has ended
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
        return 0
    except (ConnectionError, TimeoutError):  # network errors, not file errors
        raise
    except OSError as error:  # no permission, a full disk, a name that is too long
        tell(f"{short_path(error.filename or 'a file')} cannot be written or read: {error.strerror or error}")
        return 2
    finally:
        Option.on_command_line = False


def _check_no_nul(options):
    for name, value in vars(options).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and "\0" in text:
                raise UserError(f"{name} is {text[:100]!r}; a NUL character is not allowed")


def _simulation(options):
    given = {name: getattr(options, name, None) for name in ("memory", "shards")}
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("shards", 0) < 0:
        raise UserError(f"--shards is {given['shards']}; it must be 0 or more")
    if "memory" in given:
        given["memory"] = memory.parse_bytes(given["memory"])
    return simulating(**given)
