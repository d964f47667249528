"""How long the runs of a study will take: from earlier runs of the same setting, or from a short trial."""

import csv
import dataclasses
import json
import pathlib
import tempfile
import tomllib
from collections.abc import Iterable, Mapping

from tffcl.experiments import config as configs
from tffcl.experiments.config import RunConfig
from tffcl.experiments.run import run

_TRIAL_CLIENTS, _TRIAL_ROUNDS = 2, 3


@dataclasses.dataclass(frozen=True)
class Pace:
    """What a trial has measured of a task.

    Attributes:
      setup: Seconds before the first round.
      training: Seconds a round for each client and local epoch.
      evaluation: Seconds an evaluation.
      clients: How many clients the task has, for a task whose rounds take a share of them.
    """

    setup: float
    training: float
    evaluation: float
    clients: int

    def seconds(self, config: RunConfig) -> float:
        """Estimates a run of the task from the clients and local epochs of its rounds."""
        train = config.train
        rounds = train.rounds * train.cohort_size(self.clients) * train.local_epochs * self.training
        return self.setup + rounds + (train.rounds / config.evaluation.every + 1) * self.evaluation


def try_out(config: RunConfig, data_dir: str | None) -> Pace:
    """Runs three rounds of FedAvg with two clients and one local epoch, and times them.

    Args:
      config: Of any method of the task whose data and model are tried.
      data_dir: Where data sets are.
    """
    cohort = {"clients_per_round": _TRIAL_CLIENTS, "participation": None}
    train = dataclasses.replace(config.train, rounds=_TRIAL_ROUNDS, local_epochs=1, **cohort)
    evaluation = configs.EvaluationSettings(every=_TRIAL_ROUNDS)
    checkpoint = configs.CheckpointSettings(every=_TRIAL_ROUNDS)
    short = dataclasses.replace(
        config,
        algorithm="fedavg",
        base="",
        method=None,
        aggregation={},
        train=train,
        evaluation=evaluation,
        checkpoint=checkpoint,
    )
    with tempfile.TemporaryDirectory(prefix="tffcl-trial-") as place:
        summary = run(short, place, data_dir=data_dir, show_progress=False).summary
        with open(pathlib.Path(place) / "rounds.csv", newline="", encoding="utf-8") as file:
            seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
        clients = sum(summary["clusters"]["sizes"])
    evaluated = max(seconds[-1] - seconds[1], 0.0)
    # Two clients are trained side by side where there are two cores, as all of a round are.
    return Pace(summary["seconds"]["clustering"] + 5.0, seconds[1] / _TRIAL_CLIENTS, evaluated, clients)


def fingerprint(settings: Mapping) -> str:
    """What two runs must share to take equally long a round: all but seed, rounds and how often is saved."""
    train = {key: value for key, value in settings["train"].items() if key != "rounds"}
    kept = {key: settings.get(key, {}) for key in ("task", "algorithm", "partition", "dataset", "model", "method", "base")}
    return json.dumps({**kept, "train": train}, sort_keys=True, default=str)


def earlier_runs(roots: Iterable[pathlib.Path]) -> dict[str, float]:
    """Reads the seconds a round of finished runs below some directories, by `fingerprint`; later directories win."""
    found = {}
    for root in roots:
        for file in sorted(root.glob("**/seed-*/summary.json")):
            try:
                settings = tomllib.loads((file.parent / "config.toml").read_text(encoding="utf-8"))
                summary = json.loads(file.read_text(encoding="utf-8"))
                found[fingerprint(settings)] = summary["seconds"]["total"] / max(summary["rounds"], 1)
            except (OSError, ValueError, KeyError, TypeError):  # a run of another version tells nothing
                continue
    return found


def human_time(seconds: float) -> str:
    """Returns seconds as people say them: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
