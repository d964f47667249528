"""What there is by name, a line each: `tffcl list`."""

import argparse
from collections.abc import Iterator, Mapping

from tffcl.lab.batches import study_files
from tffcl.lab.datasets import registry as data
from tffcl.lab.tasks import catalog, task_file
from tffcl.lab.tasks.encoder_data import ENCODERS
from tffcl.references import registered


def described() -> dict[str, Mapping[str, str]]:
    """Returns for every kind of thing what there is, name to description, what installed packages register with it."""
    found = {
        "algorithms": {name: entry.description for name, entry in catalog.ALGORITHMS.items()},
        "tasks": task_file.task_descriptions(),
        "studies": study_files.study_titles(),
        "datasets": {name: entry.summary for name, entry in data.DATASETS.items()},
        "partitions": {name: entry.summary for name, entry in data.PARTITIONS.items()},
        "models": {name: entry.description for name, entry in catalog.MODELS.items()},
        "signatures": catalog.COMPOSED_SIGNATURES,
        "trainings": catalog.TRAININGS,
        "aggregations": {name: entry.description for name, entry in catalog.AGGREGATIONS.items()},
        "encoders": {name: description for name, (_, description) in ENCODERS.items()},
    }
    for kind, known in found.items():
        others = registered(kind.removesuffix("s")).items()
        found[kind] = {**known, **{name: f"{value}, of an installed package" for name, value in others if name not in known}}
    return found


def listing(kind: str | None, kinds: tuple[str, ...]) -> Iterator[str]:
    """Yields the lines of one kind, or of all of these under headings."""
    everything = described()
    for each in [kind] if kind else kinds:
        if not kind:
            yield f"{each}:"
        width = max(map(len, everything[each]), default=0)
        for name, description in everything[each].items():
            yield f"  {name:<{width}}  {description}"


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

    from tffcl.lab.cli.listing import described

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
