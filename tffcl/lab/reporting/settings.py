"""The settings of runs as a table: those that they share, and those in which the methods differ."""

from collections.abc import Mapping, Sequence

from tffcl.runs.run_files import RunFiles

# These stand at the head of a report.
_SAID_ELSEWHERE = {"task", "algorithm", "seed", "description", "source"}
_VERSIONS = "versions"


def flatten(config: Mapping, prefix: str = "") -> dict[str, str]:
    """Returns nested tables as "train.epochs": "5"."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = _show(value)
    return flat


def shared(runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    """Returns the settings that all runs have alike."""
    flats = [_settings(run) for run in runs]
    return [(name, value) for name, value in flats[0].items() if all(flat.get(name) == value for flat in flats)]


def differing(runs: Sequence[RunFiles]) -> tuple[list[str], list[list[str]]]:
    """Returns the settings in which runs differ: the methods, and rows of a name and its value for each method.

    Where the seeds of a method differ, all their values are given.
    """
    flats = [(run.method, _settings(run)) for run in runs]
    methods = list(dict.fromkeys(method for method, _ in flats))
    alike = {name for name, _ in shared(runs)}
    names = dict.fromkeys(name for _, flat in flats for name in flat if name not in alike)
    rows = []
    for name in names:
        values = {
            method: dict.fromkeys(flat.get(name, "") for own, flat in flats if own == method) for method in methods
        }
        rows.append([name, *(" / ".join(value for value in values[method] if value) for method in methods)])
    return methods, rows


def versions(runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    """Returns the versions of software that the runs have noted."""
    noted: dict[str, dict[str, None]] = {}
    for run in runs:
        table = run.config.get(_VERSIONS)
        for name, value in flatten(table).items() if isinstance(table, Mapping) else ():
            noted.setdefault(name, {})[value] = None
    return [(name, " / ".join(values)) for name, values in noted.items()]


def _settings(run: RunFiles) -> dict[str, str]:
    return flatten({name: value for name, value in run.config.items() if name not in _SAID_ELSEWHERE | {_VERSIONS}})


def _show(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(_show(each) for each in value)
    return str(value)
