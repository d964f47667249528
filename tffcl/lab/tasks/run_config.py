"""All values that decide a run of a task."""

import dataclasses
from collections.abc import Mapping

from tffcl.display import Shown
from tffcl.lab.tasks.attack_settings import AttackSettings
from tffcl.lab.tasks.method_settings import MethodSource
from tffcl.lab.tasks.settings import (
    CheckpointSettings,
    DriftSettings,
    EvaluationSettings,
    NewcomerSettings,
    TrainSettings,
)
from tffcl.runs.privacy import PrivacySettings
from tffcl.validation import Parameters


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
