"""Which runs one table may have: what a comparison's directory holds must be of the settings of what is asked for."""

import pathlib
from collections.abc import Callable, Mapping, Sequence

from tffcl.errors import UserError
from tffcl.experiments.clock import ended
from tffcl.experiments.config import RunConfig, load_run_config
from tffcl.experiments.study_plan import settings_of
from tffcl.runner.directory import first_difference, is_begun, read_settings, shown

# What all methods of a task have in common, beside [train], of which each may have values of its own.
_SHARED = ("task", "dataset", "partition", "model", "evaluation", "newcomers", "drift", "privacy", "attack", "aggregation")
_LONGEST = 100  # characters of a value in a message


def check_comparable(
    out: pathlib.Path,
    configs: Sequence[RunConfig],
    *,
    overwrite: bool,
    others: Callable[[str], RunConfig] | None = None,
):
    """Checks that the runs which stay in a comparison's directory may stand beside those that are asked for.

    Another seed of a method that is asked for must have all of its settings; another method those that all methods share, and
    the [train] that the task has for it.

    Args:
      out: Directory of the comparison.
      configs: What is asked for.
      overwrite: Whether what is there of it is deleted.
      others: Returns what another method would be run with; without it, of its [train] the rounds alone are compared.

    Raises:
      UserError: Naming the first run that is of other settings, what differs, and what to do.
    """
    asked = {config.algorithm: config for config in configs}
    places = {(config.algorithm, config.seed) for config in configs}
    for place in sorted(out.glob("*/seed-*")):
        label, seed = place.parent.name, place.name.removeprefix("seed-")
        again = seed.isdecimal() and (label, int(seed)) in places
        # What has been asked for and has not ended is looked at where it is claimed.
        if not seed.isdecimal() or not is_begun(place) or again and (overwrite or not ended(place)):
            continue
        there = _settings_there(place, asked.get(label))
        if label in asked:
            wanted = {**settings_of(asked[label]), "seed": there.get("seed")}
            anew = "--overwrite" if again else f"--overwrite with {seed} among --seeds"
        else:
            there, wanted = _shared(there, configs, others)
            anew = f"--overwrite with {label} among --algorithms"
        difference = first_difference(there, wanted)
        if difference:
            raise UserError(f"{shown(place)} {_told(label, *difference, own=label not in asked)}, or run it anew ({anew})")


def _settings_there(place: pathlib.Path, own: RunConfig | None) -> dict:
    """The settings of the run in a directory, with the defaults of keys that an earlier version had not."""
    try:
        return settings_of(load_run_config(place, trust_builders=own or False))
    except UserError:  # its own code is not there any more, or another's
        settings = read_settings(place / "config.toml")
        return {key: value for key, value in settings.items() if key not in ("description", "source")}


def _shared(there: Mapping, configs: Sequence[RunConfig], others: Callable[[str], RunConfig] | None) -> tuple[dict, dict]:
    """Of a run of a method that is not asked for, what must be the same; and what it must be."""
    wanted = {key: value for key, value in settings_of(configs[0]).items() if key in _SHARED}
    found = {key: value for key, value in there.items() if key in _SHARED}
    if found == wanted:
        try:
            train = settings_of(others(there.get("algorithm", "")))["train"] if others else None
        except UserError:  # the task has no such method any more
            train = None
        same = {config.train.rounds for config in configs}
        if train is None:
            train = {"rounds": same.pop()} if len(same) == 1 else {}
            there = {"train": {key: value for key, value in there.get("train", {}).items() if key in train}}
        wanted["train"], found["train"] = train, there.get("train", {})
    return found, wanted


def _told(label: str, key: str, before: object, now: object, *, own: bool) -> str:
    """What a run was made with otherwise, and what can be done about it but running it anew."""
    given = f", say that this is {label}'s own (--set algorithms.{label}.{key.removeprefix('train.')}={before})"
    # A method seldom has rounds of its own: rather a run that was made shorter to try it out.
    own = own and key.startswith("train.") and key != "train.rounds" and before is not None
    return (
        f"was run with {key} {_said(before)}, not {_said(now)}; a table has runs of the same settings: give another --out"
        f"{given if own else ''}"
    )


def _said(value: object) -> str:
    text = "not set" if value is None else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
