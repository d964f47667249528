"""The tables of a task file that are the same for every method: what they hold, and what is allowed in them."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import msgspec

from tffcl.choices import LOCAL_OPTIMIZERS, OPTIMIZER_STATES, PRECISIONS
from tffcl.client_work.local_training import LearningRateDecay, LocalTraining
from tffcl.clients.cohort import KINDS
from tffcl.models.metrics import METRICS
from tffcl.runs.callbacks import EarlyStopping
from tffcl.validation import Count, Fraction, NonNegative, Parameters, Positive, Share, Whole, one_of, wrong


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
      learning_rate: Of local training.
      learning_rate_decay: What it is multiplied by after every round, e.g. 0.99; 1 leaves it as it is. Or a table:
        `{factor = 0.5, every = 10}` falls in steps, `{cosine = 100, least = 0.01}` along a cosine, `warm_up = 5` beside
        these or alone lets it rise first.
      momentum: Of local SGD.
      weight_decay: L2 coefficient; of "adamw" the decoupled one.
      optimizer: Of local training.
      beta_1: Of "adam" and "adamw".
      beta_2: Of "adam", "adamw" and "rmsprop".
      epsilon: Of the same.
      optimizer_state: "reset": momentum and moments start at zero in every round; "kept": a client goes on with those
        of its last round.
      clip_norm: The norm, over all weights, to which longer gradients are shortened.
      precision: "bfloat16": the products and convolutions of clients' steps are computed in it.
      clients: Single clients' own values: `{"3" = {epochs = 1, batch_size = 32}}`.
      early_stopping: A table `{metric = "cluster_accuracy", patience = 3, min_delta = 0}`: a run ends when so many
        values of the metric in a row were no better than the best before. An accuracy is that on validation examples
        where there are some.
    """

    rounds: Count = 10
    clients_per_round: Count = 10
    participation: Share | None = None
    sampling: one_of(KINDS) = "fixed"
    local_epochs: Count = 1
    batch_size: Whole = 10
    learning_rate: Positive = 0.01
    learning_rate_decay: Share | LearningRateDecay = 1.0
    momentum: Fraction = 0.0
    weight_decay: NonNegative = 0.0
    optimizer: one_of(LOCAL_OPTIMIZERS) = "sgd"
    beta_1: Fraction | None = None
    beta_2: Fraction | None = None
    epsilon: Positive | None = None
    optimizer_state: one_of(OPTIMIZER_STATES) = "reset"
    clip_norm: Positive | None = None
    precision: one_of(PRECISIONS) = "float32"
    clients: dict[str, dict[str, int]] | None = None
    early_stopping: EarlyStopping | None = None

    @property
    def local(self) -> LocalTraining:
        """The client's share of the protocol."""
        names = {field.name for field in dataclasses.fields(LocalTraining)} - {"epochs"}
        same = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name in names}
        return LocalTraining(epochs=self.local_epochs, **same)

    def check(self):
        self.local  # which checks what goes together

    def cohort_size(self, clients: int) -> int:
        """How many of so many clients take part in a round: at least one."""
        return self.clients_per_round if self.participation is None else max(1, round(self.participation * clients))


@dataclasses.dataclass(frozen=True)
class EvaluationSettings(Parameters):
    """When accuracies are taken.

    Attributes:
      every: Rounds between evaluations; the last round always has one.
      metrics: Names of metrics beside the accuracy, e.g. ["auc", "f1"], each computed on whole test sets.
      place_unseen: Whether clients that have not taken part yet are placed for the evaluation without training, where
        the method can (StoCFL, section 3.3); else they have the model that it gives to those of whom it knows nothing.
    """

    every: Count = 10
    metrics: Sequence[one_of(METRICS)] = ()
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
      epochs: Passes over its own data with which a newcomer trains the model that it is given; 0 is none. After the
        last round only.
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


DRIFTS = ("sudden", "incremental", "recurrent", "swapped")


@dataclasses.dataclass(frozen=True)
class DriftSettings(Parameters):
    """Whose data change in the middle of a run, how and when (see `lab.tasks.populations`).

    Attributes:
      clients: How many clients exchange their data, with those of other groups where there are groups; 0 is none.
      round: From this round on they hold the other data.
      pattern: "sudden": all at once; "incremental": in `steps`, of which each replaces a further part of a client's
        examples; "recurrent": they have their own data back after `every` rounds, the others after as many more, and so
        on; "swapped": all clients of each true group hold the data of the next group, so that who belongs together
        stays as it is, and `clients` is not set.
      every: Rounds from one change to the next, where there are several.
      steps: How many changes make an incremental drift.
    """

    clients: Annotated[int, msgspec.Meta(ge=0, description="0 or a whole number from 2")] = 0
    round: Annotated[int, msgspec.Meta(ge=2)] = 2
    pattern: one_of(DRIFTS) = "sudden"
    every: Count = 10
    steps: Annotated[int, msgspec.Meta(ge=2)] = 4

    def check(self):
        if self.clients == 1:
            raise wrong("clients", 1, "it must be 0 or a whole number from 2")
        if self.clients and self.pattern == "swapped":
            raise wrong("clients", self.clients, 'where pattern is "swapped" all clients change; it must be 0')

    @property
    def any(self) -> bool:
        """Whether data change at all."""
        return self.clients > 0 or self.pattern == "swapped"

    def rounds(self, last: int) -> list[int]:
        """Returns the rounds of a run, up to its last one, with which data change."""
        most = {"incremental": self.steps, "recurrent": last}.get(self.pattern, 1) if self.any else 0
        return [each for each in range(self.round, last + 1, self.every)][:most]
