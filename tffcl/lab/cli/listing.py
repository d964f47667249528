"""What there is by name, a line each: `tffcl list`."""

import argparse
from collections.abc import Iterator

from tffcl import registry
from tffcl.lab.batches import study_file
from tffcl.lab.datasets import federated
from tffcl.lab.tasks import encoder_data, task_file

_LAB = (federated, encoder_data, task_file, study_file)  # importing them adds the lab's kinds to the registry


def listing(kind: str | None) -> Iterator[str]:
    """Yields the names of one kind, with a line on each, or those of all kinds under headings."""
    for each in [kind] if kind else registry.kinds():
        if not kind:
            yield f"{each}:"
        rows = registry.rows(each)
        width = max(map(len, rows), default=0)
        for name, row in rows.items():
            yield f"  {name:<{width}}  {row.summary}"


SHELLS = ("bash", "zsh")


class PrintCompletion(argparse.Action):
    """`--print-completion SHELL` prints the script and ends."""

    def __call__(self, parser, namespace, values, option_string=None):
        print(script(parser, values))
        parser.exit(0)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Returns the script.

    Args:
      parser: Of all commands.
      shell: One of `SHELLS`.
    """
    import shtab  # not needed by any other command

    _name_values(parser)
    return shtab.complete(parser, shell)


def _name_values(parser: argparse.ArgumentParser):
    """Tells every option whose values have names what they are; none of this checks what a user gives."""
    import shtab

    kinds = {
        "task": "tasks",
        "algorithm": "algorithms",
        "algorithms": "algorithms",
        "signature": "signatures",
        "name": "studies",
        "names": "datasets",
    }
    files = {"out": shtab.DIRECTORY, "to": shtab.DIRECTORY, "check": shtab.DIRECTORY, "data_dir": shtab.DIRECTORY}
    for command in _parsers(parser):
        for action in command._actions:
            if action.dest in kinds and command.prog != "tffcl list":
                action.choices = list(registry.rows(kinds[action.dest]))
            elif action.dest in files or action.dest == "file":
                action.complete = files.get(action.dest, shtab.FILE)


def _parsers(parser: argparse.ArgumentParser):
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [parser, *(each for action in found for each in action.choices.values())]
