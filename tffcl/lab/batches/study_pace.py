"""How long the runs of a study will take: from earlier runs of the same setting, or from a short trial."""

import csv
import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Iterable, Mapping

import tomli_w

from tffcl.json_files import parse_toml
from tffcl.lab.batches.run import run
from tffcl.lab.tasks import resolve as configs
from tffcl.lab.tasks.attack_settings import AttackSettings
from tffcl.lab.tasks.resolve import RunConfig
from tffcl.registry import PLAIN
from tffcl.regular_files import read_text
from tffcl.runs.privacy import PrivacySettings

_FEW, _SOME, _TRIAL_ROUNDS = 2, 12, 4


@dataclasses.dataclass(frozen=True)
class Pace:
    """What a trial has measured of a task.

    Attributes:
      setup: Seconds before the first round.
      training: Seconds a round for each client and local epoch.
      evaluation: Seconds an evaluation.
      clients: How many clients the task has, for a task whose rounds take a share of them.
      overhead: Seconds a round, whoever takes part.
    """

    setup: float
    training: float
    evaluation: float
    clients: int
    overhead: float = 0.0

    def seconds(self, config: RunConfig) -> float:
        """Estimates a run of the task from the clients and local epochs of its rounds."""
        train = config.train
        rounds = train.rounds * (self.overhead + train.cohort_size(self.clients) * train.local_epochs * self.training)
        return self.setup + rounds + (train.rounds / config.evaluation.every + 1) * self.evaluation


@dataclasses.dataclass(frozen=True)
class _Trial:
    """Seconds of a few rounds, of what precedes them and of an evaluation, and how many clients there are."""

    setup: float
    round: float
    evaluation: float
    clients: int


def try_out(config: RunConfig, data_dir: str | None) -> Pace:
    """Runs a few rounds of FedAvg with two clients, and with some more, and times them.

    Two sizes, because a round takes time of its own, which is most of it where two clients have little to train.

    Args:
      config: Of any method of the task whose data and model are tried.
      data_dir: Where data sets are.
    """
    few = _rounds_of(config, _FEW, data_dir)
    size = min(config.train.cohort_size(few.clients), _SOME)
    if size <= _FEW:
        return Pace(few.setup, few.round / (_FEW * config.train.local_epochs), few.evaluation, few.clients)
    each = max(_rounds_of(config, size, data_dir).round - few.round, 0.0) / (size - _FEW)
    overhead = max(few.round - _FEW * each, 0.0)
    return Pace(few.setup, each / config.train.local_epochs, few.evaluation, few.clients, overhead)


def _rounds_of(config: RunConfig, clients: int, data_dir: str | None) -> _Trial:
    """Runs a few rounds with so many clients."""
    train = dataclasses.replace(config.train, rounds=_TRIAL_ROUNDS, clients_per_round=clients, participation=None)
    evaluation = configs.EvaluationSettings(every=_TRIAL_ROUNDS)
    checkpoint = configs.CheckpointSettings(every=_TRIAL_ROUNDS)
    short = dataclasses.replace(
        config,
        algorithm=PLAIN,
        base="",
        method=None,
        aggregation={},
        privacy=PrivacySettings(),  # plain FedAvg has no noise that a budget could count
        attack=AttackSettings(),
        train=train,
        evaluation=evaluation,
        checkpoint=checkpoint,
    )
    with tempfile.TemporaryDirectory(prefix="tffcl-trial-") as place:
        summary = run(short, place, data_dir=data_dir, show_progress=False).summary
        with open(pathlib.Path(place) / "rounds.csv", newline="", encoding="utf-8") as file:
            seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
        clients = sum(summary["clusters"]["sizes"])
    usual = min(seconds[1:-1])  # the first one traces, the last one is evaluated
    return _Trial(summary["seconds"]["clustering"] + 5.0, usual, max(seconds[-1] - usual, 0.0), clients)


def fingerprint(settings: Mapping) -> str:
    """What two runs must share to take equally long a round: all but seed, rounds and how often is saved."""
    train = {key: value for key, value in settings["train"].items() if key != "rounds"}
    kept = {key: settings.get(key, {}) for key in ("task", "algorithm", "partition", "dataset", "model", "method", "base")}
    return json.dumps({**kept, "train": train}, sort_keys=True, default=str)


def earlier_runs(roots: Iterable[pathlib.Path], settings: Iterable[Mapping]) -> dict[str, float]:
    """Reads the seconds a round of finished runs of some settings.

    Args:
      roots: Directories below which runs are; later ones win.
      settings: Those that are asked about; runs of other tasks and methods are not parsed, since there are a thousand kept
        ones.

    Returns:
      Seconds a round by `fingerprint`, of those settings of which a run was found.
    """
    settings = list(settings)
    wanted = {fingerprint(each) for each in settings}
    named = {(tomli_w.dumps({"task": each["task"]}), tomli_w.dumps({"algorithm": each["algorithm"]})) for each in settings}
    found = {}
    for root in roots:
        for file in sorted(root.glob("**/seed-*/summary.json")):
            try:
                text = read_text(file.parent / "config.toml")
                if not any(task in text and algorithm in text for task, algorithm in named):
                    continue
                key = fingerprint(parse_toml(text))
                if key in wanted:
                    summary = json.loads(read_text(file))
                    found[key] = summary["seconds"]["total"] / max(summary["rounds"], 1)
            except (OSError, ValueError, KeyError, TypeError, RecursionError):  # a run of another version tells nothing
                continue
    return found
