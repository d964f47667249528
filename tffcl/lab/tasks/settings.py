"""The tables of a task file that are the same for every method: their keys, and the values that these allow.

For [attack] also: which clients are malicious, what they train on, and how they change the others' accuracy.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
import numpy as np

from tffcl.choices import LOCAL_OPTIMIZERS, OPTIMIZER_STATES, PRECISIONS
from tffcl.client_work.local_training import LearningRateDecay, LocalTraining
from tffcl.clients.arrays import in_order
from tffcl.clients.cohort import SAMPLINGS, stream
from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.models.metrics import METRICS
from tffcl.runs.callbacks import EarlyStopping
from tffcl.validation import Count, Fraction, NonNegative, Parameters, Positive, Share, Whole, one_of, wrong

if TYPE_CHECKING:  # at run time it would import TensorFlow
    from tffcl.clients.population import Population


@dataclasses.dataclass(frozen=True)
class TrainSettings(Parameters):
    """The protocol of training.

    Attributes:
      rounds: Number of communication rounds.
      clients_per_round: Cohort size, sampled uniformly without replacement.
      participation: The cohort size as a share of the clients that are there before the first round, e.g. 0.1. If this
        and `clients_per_round` are both set, the later one holds.
      sampling: How a cohort is drawn: "fixed", or "poisson": each client takes part independently, and
        `clients_per_round` of them do on average.
      local_epochs: Passes over the local data in each round.
      batch_size: Examples in each step; 0 is all local data.
      learning_rate: The learning rate of local training.
      learning_rate_decay: The factor by which the rate is multiplied after every round, e.g. 0.99; 1 leaves it as it
        is. Or a table: `{factor = 0.5, every = 10}` lowers it in steps, `{cosine = 100, least = 0.01}` along a cosine;
        `warm_up = 5`, beside these or alone, lets it rise first.
      momentum: The momentum of local SGD.
      weight_decay: The L2 coefficient; for "adamw" the decoupled weight decay.
      optimizer: The optimizer of local training.
      beta_1: A parameter of "adam" and "adamw".
      beta_2: A parameter of "adam", "adamw" and "rmsprop".
      epsilon: A parameter of "adam", "adamw" and "rmsprop".
      optimizer_state: "reset": momentum and moments start at zero in every round; "kept": a client continues with
        those of its last round.
      clip_norm: The norm, over all weights, to which longer gradients are shortened.
      precision: "float32", or "bfloat16" for the products and convolutions of clients' steps.
      clients: Different values for single clients: `{"3" = {epochs = 1, batch_size = 32}}`.
      early_stopping: A table `{metric = "cluster_accuracy", patience = 3, min_delta = 0}`: a run ends when `patience`
        values of the metric in a row were no better than the best one before. An accuracy is measured on validation
        examples where there are some.
    """

    rounds: Count = 10
    clients_per_round: Count = 10
    participation: Share | None = None
    sampling: one_of(SAMPLINGS) = "fixed"
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


TRAIN_KEYS = tuple(field.name for field in dataclasses.fields(TrainSettings))


@dataclasses.dataclass(frozen=True)
class EvaluationSettings(Parameters):
    """When accuracies are measured.

    Attributes:
      every: Rounds between evaluations; the last round always has one.
      metrics: Names of metrics beside the accuracy, e.g. ["auc", "f1"], each computed on whole test sets.
      place_unseen: Whether clients that have not taken part yet are placed for the evaluation without training, where
        the method can do so (StoCFL, section 3.3). Otherwise they have the model that the method gives to clients about
        which it knows nothing.
    """

    every: Count = 10
    metrics: Sequence[one_of(METRICS)] = ()
    place_unseen: bool = False


@dataclasses.dataclass(frozen=True)
class CheckpointSettings(Parameters):
    """When the state is saved.

    Attributes:
      every: Rounds between checkpoints; the last round always has one.
      keep: How many of the newest checkpoints are kept.
    """

    every: Count = 10
    keep: Count = 2


@dataclasses.dataclass(frozen=True)
class NewcomerSettings(Parameters):
    """Who joins later.

    Attributes:
      clients: How many clients of the population are held out of clustering and training; the seed decides which.
      share: The same as a share of the population, e.g. 0.3. If both this and `clients` are set, the later one holds.
      epochs: Passes over its own data with which a newcomer trains the model that it receives; 0 is none. Only for
        newcomers that join after the last round.
      round: The round from which newcomers take part like all other clients; 0: they join after the last round
        (`tffcl newcomers`).
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
        """How many of so many clients are held out; UserError for a share that is nobody."""
        return self.clients if self.share is None else _number_of("newcomers", self.share, population)


def _number_of(table: str, share: float, clients: int) -> int:
    """How many of so many clients the share of a table is; UserError for one above 0 that is nobody: the run would be
    as without it."""
    count = round(share * clients)
    if share and not count:
        rule = f"which is none of {counted(clients, 'client')}; give a larger one, or 0"
        raise UserError(f"{table}.share is {share:g}, {rule}", table=table, key="share")
    return count


DRIFTS = ("sudden", "incremental", "recurrent", "swapped")


@dataclasses.dataclass(frozen=True)
class DriftSettings(Parameters):
    """Whose data change in the middle of a run, how and when (see `lab.tasks.populations`).

    Attributes:
      clients: How many clients exchange their data, among those that take part before `round`; where there are groups,
        they exchange with clients of other groups. 0 is none.
      round: The round from which they hold the other data.
      pattern: "sudden": all data change at once; "incremental": in `steps` steps, each of which replaces a further part
        of a client's examples; "recurrent": after `every` rounds they get their own data back, after as many more the
        other data again, and so on; "swapped": all clients of each true group that take part before `round` hold the
        data of the next group, so the groups keep their members, and `clients` is not set.
      every: Rounds from one change to the next, where there are several.
      steps: The number of changes of an incremental drift.
    """

    only_with: ClassVar = {"every": ("pattern", "incremental", "recurrent"), "steps": ("pattern", "incremental")}

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
        return list(range(self.round, last + 1, self.every))[:most]


ATTACKS = ("sign_flip", "gaussian", "lie", "label_flip", "model_replacement", "imitation")
# What `aggregators.upload_attacks.AttackedFactory` does.
OF_UPLOADS = ("sign_flip", "gaussian", "lie", "model_replacement")


@dataclasses.dataclass(frozen=True)
class AttackSettings(Parameters):
    """Who attacks and how.

    Attributes:
      kind: "sign_flip", "gaussian", "lie" (a little is enough), "label_flip" or "model_replacement"; or "imitation"
        alone, in which a client in the wrong cluster sends honest updates.
      share: The share of clients that are malicious, drawn by the seed; 0 is none.
      strength: The strength of the attack. Not set: 3 times the update for "sign_flip", noise of 10 times its size for
        "gaussian", 1.5 standard deviations for "lie", 10 times the update for "model_replacement".
      imitates: The true group to which malicious clients pretend to belong, by its number, or by its name where groups
        have names. Malicious clients of other groups sign the examples of a benign client of this group. Not set: they
        sign their own examples; for the kind "imitation" the group is then 0.
    """

    only_with: ClassVar = {"strength": ("kind", *OF_UPLOADS)}

    kind: one_of(ATTACKS) = "sign_flip"
    share: Fraction = 0.0
    strength: Positive | None = None
    imitates: Whole | str | None = None

    @property
    def imitated_group(self) -> int | str | None:
        """The group that malicious clients pretend to be of; None where they sign what they hold."""
        return 0 if self.imitates is None and self.kind == "imitation" else self.imitates

    def malicious(self, client_ids: np.ndarray, seed: int) -> np.ndarray:
        """Returns the IDs of the malicious ones of those clients that take part from the beginning, ascending;
        UserError for a share that is nobody."""
        rng, count = np.random.default_rng(stream(seed, "attack")), _number_of("attack", self.share, len(client_ids))
        return np.sort(rng.choice(client_ids, count, replace=False)).astype(np.int32)


def with_wrong_labels(population: "Population", malicious: np.ndarray, classes: int) -> "Population":
    """Returns the population in which malicious clients hold the label C - 1 - y for y, of training examples.

    Args:
      malicious: Their IDs; some may not be of the population.
      classes: C.
    """
    from tffcl.clients.client_examples import ClientExamples

    held = dict(population.train_examples)
    for client in np.intersect1d(malicious, population.client_ids).tolist():
        own = held[client]
        held[client] = ClientExamples(own.x, np.asarray(classes - 1 - own.y, own.y.dtype))
    counts = population.label_counts
    if counts is not None:
        rows = np.isin(population.client_ids, malicious)[:, np.newaxis]
        counts = np.where(rows, counts[:, ::-1], counts)
    return dataclasses.replace(population, train_examples=held, label_counts=counts)


def with_imitators(
    population: "Population", malicious: np.ndarray, group: int | str, before: "Population | None" = None
) -> "Population":
    """Returns the population in which malicious clients of other groups sign what benign clients of a group hold.

    Args:
      population: The clients, of true groups.
      malicious: Their IDs; some may not be of the population.
      group: Whom they imitate; one benign client after the other, so that no two signatures need be the same.
      before: The same clients, and perhaps fewer, at the beginning: they go on to imitate those.

    Raises:
      UserError: If there are no true groups, or nobody benign is of this one.
    """
    if population.shown_groups is None:
        raise UserError(
            "attack.imitates needs true groups, which this partition does not have", table="attack", key="imitates"
        )
    bad, groups = np.isin(population.client_ids, malicious), population.shown_groups.astype(str)
    models = population.client_ids[~bad & (groups == str(group))]
    if not len(models):
        known = ", ".join(in_order(set(groups[~bad].tolist())))
        raise wrong("imitates", group, f"it must be a group with benign clients, one of {known}")
    if before is not None:
        return dataclasses.replace(population, signed_as=before.signed_as)
    strangers = population.client_ids[bad & (groups != str(group))]
    signed_as = {int(client): int(models[place % len(models)]) for place, client in enumerate(strangers)}
    return dataclasses.replace(population, signed_as=signed_as)


def outcome_of(
    settings: AttackSettings,
    malicious: np.ndarray,
    clients: Mapping[str, np.ndarray],
    ids: np.ndarray,
    groups: np.ndarray | None,
    met: np.ndarray,
) -> dict:
    """Returns what summary.json says of an attack.

    Args:
      settings: The attack.
      malicious: IDs of the malicious clients.
      clients: The columns of clients.csv.
      ids: The clients' IDs, in the order of these.
      groups: Their true groups, as they are called, where there are such.
      met: `bool [N]`, who is in a cluster, and not one that the method has not met, see `Views.known`.

    Returns:
      `kind`, `share`, `malicious` (what these are called) and `benign_accuracy`: mean of the cluster accuracy over the
      others, and by cluster, with `members`, how many `benign` and `malicious` ones each has; `ended`, the `cluster`,
      and the true `group`, of each malicious one; and with an imitated group `imitates`.
    """
    bad, names = np.isin(ids, malicious), np.asarray(clients["client_id"])
    accuracy, clusters = np.asarray(clients["cluster_accuracy"], float), np.asarray(clients["cluster"])
    known = ~bad & np.isfinite(accuracy)
    by_cluster, members = collections.OrderedDict(), collections.OrderedDict()
    for cluster in np.unique(clusters[met]).tolist():
        own = (clusters == cluster) & met
        by_cluster[str(cluster)] = float(accuracy[own & known].mean()) if np.any(own & known) else None
        members[str(cluster)] = {"benign": int(np.sum(own & ~bad)), "malicious": int(np.sum(own & bad))}
    mean = float(accuracy[known].mean()) if known.any() else None
    ended = {
        str(names[row]): {"cluster": int(clusters[row]), **({} if groups is None else {"group": groups[row].item()})}
        for row in np.flatnonzero(bad)
    }
    imitated = {} if settings.imitated_group is None else {"imitates": settings.imitated_group}
    return {
        "kind": settings.kind,
        "share": settings.share,
        "malicious": names[bad].tolist(),
        "benign_accuracy": {"mean": mean, "clusters": by_cluster},
        "members": members,
        "ended": ended,
        **imitated,
    }


def note_of(outcome: Mapping, *, users: bool = False) -> str:
    """Returns what a report says of an attack; `users`: on a method of the user's own."""

    def percent(share):
        return "none" if share is None else f"{100 * share:.1f} %"

    own = ", ".join(f"{cluster}: {percent(share)}" for cluster, share in outcome["benign_accuracy"]["clusters"].items())
    mean = percent(outcome["benign_accuracy"]["mean"])
    where = ", ".join(
        f"{cluster}: {each['malicious']} of {sum(each.values())}" for cluster, each in outcome["members"].items()
    )
    pretending, bad = "", len(outcome["malicious"])
    if "imitates" in outcome:
        others = sum(str(each.get("group")) != str(outcome["imitates"]) for each in outcome["ended"].values())
        who = "who" if others == bad else f"of whom {others or 'none'}"  # the others are of that group themselves
        pretending = f", {who} pretend{'s' if others == 1 else ''} to be of group {outcome['imitates']}"
    if pretending and users:  # what else it asks or reads, nobody here knows
        pretending += " where tffcl.parts.build_signing asks them for a signature, and nowhere else"
    return (
        f"attack {outcome['kind']} by {counted(bad, 'client')}{pretending}; accuracy of the "
        f"others {mean} (by cluster {own}); malicious members by cluster {where}"
    )
