"""Shell completion: a script for bash or zsh that knows the commands, their options and the names that tffcl has."""

import argparse

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

    from tffcl.experiments.listing import described

    names = described()
    values = {
        "task": names["tasks"],
        "algorithm": names["algorithms"],
        "algorithms": names["algorithms"],
        "signature": names["signatures"],
        "name": names["studies"],
        "names": names["datasets"],
    }
    files = {"out": shtab.DIRECTORY, "to": shtab.DIRECTORY, "check": shtab.DIRECTORY, "data_dir": shtab.DIRECTORY}
    for command in _parsers(parser):
        for action in command._actions:
            if action.dest in values and command.prog != "tffcl list":
                action.choices = list(values[action.dest])
            elif action.dest in files or action.dest == "file":
                action.complete = files.get(action.dest, shtab.FILE)


def _parsers(parser: argparse.ArgumentParser):
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [parser, *(each for action in found for each in action.choices.values())]
