"""The tables of a task file that are the same for every method: what they hold, and what is allowed in them; and all of a run's."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated

import msgspec

from tffcl.clients.sampling import KINDS
from tffcl.experiments.attacks import AttackSettings
from tffcl.experiments.methods import MethodSource
from tffcl.runner.privacy import PrivacySettings
from tffcl.shown import Shown
from tffcl.validation import (
    Count,
    Fraction,
    NonNegative,
    Parameters,
    Positive,
    Share,
    Whole,
    one_of,
    wrong,
)


@dataclasses.dataclass(frozen=True)
class TrainSettings(Parameters):
    """The protocol of training.

    Attributes:
      rounds: Communication rounds.
      clients_per_round: Cohort size, sampled uniformly without replacement.
      participation: The cohort size as a share of the clients there are before the first round, e.g. 0.1; of this and
        `clients_per_round` the one that is said last holds.
      sampling: "fixed", or "poisson": each client takes part independently, `clients_per_round` of them on average.
      local_epochs: Passes over the local data a round.
      batch_size: Examples a step; 0 is all local data.
      learning_rate: Of local SGD.
      learning_rate_decay: What it is multiplied by after every round, e.g. 0.99; 1 leaves it as it is.
      momentum: Of local SGD.
      weight_decay: L2 coefficient.
    """

    rounds: Count = 10
    clients_per_round: Count = 10
    participation: Share | None = None
    sampling: one_of(KINDS) = "fixed"
    local_epochs: Count = 1
    batch_size: Whole = 10
    learning_rate: Positive = 0.01
    learning_rate_decay: Share = 1.0
    momentum: Fraction = 0.0
    weight_decay: NonNegative = 0.0

    def cohort_size(self, clients: int) -> int:
        """How many of so many clients take part in a round: at least one."""
        return self.clients_per_round if self.participation is None else max(1, round(self.participation * clients))


@dataclasses.dataclass(frozen=True)
class EvaluationSettings(Parameters):
    """When accuracies are taken.

    Attributes:
      every: Rounds between evaluations; the last round always has one.
      place_unseen: Whether clients that have not taken part yet are placed for the evaluation without training, where the
        method can (StoCFL, section 3.3); else they have the model that it gives to those of whom it knows nothing.
    """

    every: Count = 10
    place_unseen: bool = False


@dataclasses.dataclass(frozen=True)
class CheckpointSettings(Parameters):
    """When the state is saved.

    Attributes:
      every: Rounds between checkpoints; the last round always has one.
      keep: How many of the newest are kept.
    """

    every: Count = 10
    keep: Count = 2


@dataclasses.dataclass(frozen=True)
class NewcomerSettings(Parameters):
    """Who joins later.

    Attributes:
      clients: How many of the population are held out of clustering and training; the seed decides which.
      share: The same as a share of the population, e.g. 0.3; of this and `clients` the one that is said last holds.
      epochs: Passes over its own data with which a newcomer trains the model that it is given; 0 is none. After the last
        round only.
      round: From this round on they take part as all others do; 0: they join after the last (`tffcl newcomers`).
    """

    clients: Whole = 0
    share: Fraction | None = None
    epochs: Whole = 5
    round: Whole = 0

    @property
    def any(self) -> bool:
        """Whether somebody is held out."""
        return bool(self.clients if self.share is None else self.share)

    def count(self, population: int) -> int:
        """How many of so many clients are held out."""
        return self.clients if self.share is None else round(self.share * population)


@dataclasses.dataclass(frozen=True)
class DriftSettings(Parameters):
    """Whose data change in the middle of a run, and when (see `datasets.drift`).

    Attributes:
      clients: How many clients exchange their data, with those of other groups where there are groups; 0 is none.
      round: From this round on they hold the other data.
    """

    clients: Annotated[int, msgspec.Meta(ge=0, description="0 or a whole number from 2")] = 0
    round: Annotated[int, msgspec.Meta(ge=2)] = 2

    def check(self):
        if self.clients == 1:
            raise wrong("clients", 1, "it must be 0 or a whole number from 2")


@dataclasses.dataclass(frozen=True)
class RunConfig(Shown):
    """All values that decide a run.

    Attributes:
      task: Name of the task.
      algorithm: The label of the method's table, by default its name.
      seed: Decides partition, sampling, initial weights, shuffling and server-side randomness.
      description: The task in a sentence.
      source: Where its setting comes from.
      dataset: Name and options, see `datasets`.
      partition: Name and options.
      model: Name and options, see `models`.
      train: Protocol of training, with the method's own values.
      method: The method's own parameters; None for a method that has none.
      evaluation: When accuracies are taken.
      checkpoint: When the state is saved.
      newcomers: Who joins later.
      drift: Whose data change in the middle.
      privacy: What private releases may cost.
      attack: Which clients are malicious.
      aggregation: Name and options of how updates are aggregated inside each cluster; empty for the plain mean.
      base: What the method is, where that is not its label: a name in the catalog, or a builder "module:function".
      directory: Where modules of builders are looked for, the task file's; "" where there are none.
    """

    task: str
    algorithm: str
    seed: int
    description: str
    source: str
    dataset: Mapping
    partition: Mapping
    model: Mapping
    train: TrainSettings
    method: Parameters | None
    evaluation: EvaluationSettings
    checkpoint: CheckpointSettings
    newcomers: NewcomerSettings = NewcomerSettings()
    drift: DriftSettings = DriftSettings()
    privacy: PrivacySettings = PrivacySettings()
    attack: AttackSettings = AttackSettings()
    aggregation: Mapping = dataclasses.field(default_factory=dict)
    base: str = ""
    directory: str = ""

    def facts(self):
        """What is run, in short; `as_dict` has every value."""
        train, names = (
            self.train,
            [each.get("name", each.get("builder")) for each in (self.dataset, self.partition, self.model)],
        )
        share = f"{train.clients_per_round}" if train.participation is None else f"{100 * train.participation:g} %"
        return {
            "task": self.task,
            "algorithm": self.algorithm,
            "seed": self.seed,
            "rounds": f"{train.rounds} of {share} clients",
            **dict(zip(("dataset", "partition", "model"), names)),
        }

    @property
    def method_source(self) -> MethodSource:
        """Where the method comes from."""
        return MethodSource(self.algorithm, self.base or self.algorithm, self.directory)

    def as_dict(self) -> dict:
        """Plain containers without None, as TOML takes them; no table for newcomers or drift where there are none."""
        values = _without_none(dataclasses.asdict(self))
        if self.train.sampling == "fixed":
            del values["train"]["sampling"]  # as runs of earlier versions have it
        there = {"newcomers": self.newcomers.any, "drift": self.drift.clients, "attack": self.attack.share}
        for name, is_there in {**there, "privacy": values["privacy"]}.items():
            if not is_there:
                del values[name]
        for name in ("aggregation", "base", "directory"):
            if not values[name]:
                del values[name]
        if not self.evaluation.place_unseen:  # runs of earlier versions have no such key
            del values["evaluation"]["place_unseen"]
        if not values.get("method", {}).get("signature_noise_multiplier"):  # nor these
            for name in ("signature_noise_multiplier", "signature_clip"):
                values.get("method", {}).pop(name, None)
        return values


def _without_none(value):
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return list(value) if isinstance(value, tuple) else value
