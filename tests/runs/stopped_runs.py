"""A tiny run that damage is done to, and how it is told."""

import pytest

from tffcl.errors import UserError
from tffcl.lab.batches.run import run
from tffcl.lab.tasks import resolve

NEWEST = "checkpoints/round_000003.npz"
SETTINGS = {
    "train": {"rounds": 4, "clients_per_round": 3, "local_epochs": 1},
    "partition": {"clients": 8},
    "model": {"hidden": 4},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 1},
}


def resolved(seed=0, rounds=4):
    train = {**SETTINGS["train"], "rounds": rounds}
    return resolve.resolve("demo_digits", "fedavg", seed=seed, overrides={**SETTINGS, "train": train})


def go(out, **options):
    return run(resolved(), out, show_progress=False, **options)


def refused(out, *, unchanged=True, **options):
    """The line with which a run is refused; what is in the directory stays as it is."""
    before = contents(out)
    with pytest.raises(UserError) as told:
        go(out, **options)
    assert "\n" not in str(told.value)
    if unchanged:
        assert contents(out) == before
    return str(told.value)


def rounds_written(out) -> int:
    """The rounds in a run's rounds.csv so far."""
    file = out / "rounds.csv"
    return len(file.read_text().splitlines()) - 1 if file.is_file() else 0


def contents(out):
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {path.relative_to(out): path.read_bytes() for path in files}


def assert_same_result(found, summary):
    for key in ("accuracy", "clusters", "traffic", "notes"):
        assert found[key] == summary[key]
