"""`tffcl list` prints what is available by name, one line each; also shell completion."""

import argparse
import importlib
from collections.abc import Iterator

from tffcl import registry

# The lab's kinds, and the modules that add them to the registry when they are imported.
_LAB = {
    "tasks": "tffcl.lab.tasks.task_file",
    "studies": "tffcl.lab.batches.study_file",
    "datasets": "tffcl.lab.datasets.federated",
    "partitions": "tffcl.lab.datasets.federated",
    "encoders": "tffcl.lab.tasks.encoder_data",
}


def kinds() -> tuple[str, ...]:
    """All kinds of names, the library's before the lab's."""
    return (*(kind for kind in registry.kinds() if kind not in _LAB), *_LAB)


def rows(kind: str) -> dict[str, registry.Row]:
    """Like `registry.rows`, but also for the lab's kinds."""
    if kind in _LAB:
        importlib.import_module(_LAB[kind])
    return registry.rows(kind)


def listing(kind: str | None) -> Iterator[str]:
    """Yields a line for each name of one kind, or for the names of all kinds, under headings."""
    for each in [kind] if kind else kinds():
        if not kind:
            yield f"{each}:"
        found = rows(each)
        width = max(map(len, found), default=0)
        for name, row in found.items():
            yield f"  {name:<{width}}  {row.summary}"


SHELLS = ("bash", "zsh")


class PrintCompletion(argparse.Action):
    """The option `--print-completion SHELL`, which prints the script and exits."""

    def __call__(self, parser, namespace, values, option_string=None):
        print(script(parser, values))
        parser.exit(0)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Returns the completion script.

    Args:
      parser: The parser of all commands.
      shell: One of `SHELLS`.
    """
    import shtab  # not needed by any other command

    _name_values(parser)
    return shtab.complete(parser, shell)


def _name_values(parser: argparse.ArgumentParser):
    """Gives options whose values have names the choices for completion, which do not check what a user gives."""
    import shtab

    named = {
        "task": "tasks",
        "algorithm": "algorithms",
        "algorithms": "algorithms",
        "signature": "signatures",
        "name": "studies",
    }
    files = {"out": shtab.DIRECTORY, "to": shtab.DIRECTORY, "check": shtab.DIRECTORY, "data_dir": shtab.DIRECTORY}
    names = {kind: list(rows(kind)) for kind in set(named.values())}  # once, because it reads many files
    for command in _parsers(parser):
        for action in command._actions:
            if action.dest in named and command.prog != "tffcl list":
                action.choices = names[named[action.dest]]
            elif action.dest in files or action.dest == "file":
                action.complete = files.get(action.dest, shtab.FILE)


def _parsers(parser: argparse.ArgumentParser):
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [parser, *(each for action in found for each in action.choices.values())]
