"""Malicious clients of a run: who they are, what they train on, and what they do to the others' accuracy."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from tffcl.clients.cohort import stream
from tffcl.errors import UserError
from tffcl.validation import Parameters, Positive, Whole, one_of, wrong

if TYPE_CHECKING:  # at run time it would import TensorFlow
    from tffcl.clients.population import Population

KINDS = ("sign_flip", "gaussian", "lie", "label_flip", "model_replacement", "imitation")
# What `aggregators.upload_attacks.AttackedFactory` does.
OF_UPLOADS = ("sign_flip", "gaussian", "lie", "model_replacement")


@dataclasses.dataclass(frozen=True)
class AttackSettings(Parameters):
    """Who attacks and how.

    Attributes:
      kind: "sign_flip", "gaussian", "lie" (a little is enough), "label_flip" or "model_replacement"; or
        "imitation" alone: updates are honest, of a client in the wrong cluster.
      share: Of the clients that are malicious, drawn by the seed; 0 is none.
      strength: How strong; not set: 3 times the update for "sign_flip", noise of 10 times its size for "gaussian", 1.5
        standard deviations for "lie", 10 times the update for "model_replacement".
      imitates: The true group that malicious clients pretend to be of: those of other groups sign the examples of a
        benign client of it. Not set: they sign their own; of the kind "imitation" 0.
    """

    kind: one_of(KINDS) = "sign_flip"
    share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    strength: Positive | None = None
    imitates: Whole | None = None

    @property
    def imitated_group(self) -> int | None:
        """The group that malicious clients pretend to be of; None where they sign what they hold."""
        return 0 if self.imitates is None and self.kind == "imitation" else self.imitates

    def malicious(self, clients: int, seed: int) -> np.ndarray:
        """Returns the IDs of the malicious ones of so many clients, ascending."""
        rng = np.random.default_rng(stream(seed, "attack"))
        return np.sort(rng.choice(clients, round(self.share * clients), replace=False)).astype(np.int32)


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


def with_imitators(population: "Population", malicious: np.ndarray, group: int) -> "Population":
    """Returns the population in which malicious clients of other groups sign what benign clients of a group hold.

    Args:
      population: The clients, of true groups.
      malicious: Their IDs; some may not be of the population.
      group: Whom they imitate; one benign client after the other, so that no two signatures need be the same.

    Raises:
      UserError: If there are no true groups, or nobody benign is of this one.
    """
    if population.groups is None:
        raise UserError(
            "attack.imitates needs true groups, which this partition has not", table="attack", key="imitates"
        )
    bad = np.isin(population.client_ids, malicious)
    models = population.client_ids[~bad & (population.groups == group)]
    if not len(models):
        known = ", ".join(map(str, np.unique(population.groups[~bad])))
        raise wrong("imitates", group, f"it must be a group with benign clients, one of {known}")
    strangers = population.client_ids[bad & (population.groups != group)]
    signed_as = {int(client): int(models[place % len(models)]) for place, client in enumerate(strangers)}
    return dataclasses.replace(population, signed_as=signed_as)


def outcome_of(
    settings: AttackSettings,
    malicious: np.ndarray,
    clients: Mapping[str, np.ndarray],
    ids: np.ndarray,
    groups: np.ndarray | None = None,
) -> dict:
    """Returns what summary.json says of an attack.

    Args:
      settings: The attack.
      malicious: IDs of the malicious clients.
      clients: The columns of clients.csv.
      ids: The clients' IDs, in the order of these.
      groups: Their true groups, where there are such.

    Returns:
      `kind`, `share`, `malicious` (IDs) and `benign_accuracy`: mean of the cluster accuracy over the others, and by
      cluster, with `members`, how many `benign` and `malicious` ones each has; `ended`, the `cluster`, and the true
      `group`, of each malicious one; and with an imitated group `imitates`.
    """
    bad = np.isin(ids, malicious)
    accuracy, clusters = np.asarray(clients["cluster_accuracy"], float), np.asarray(clients["cluster"])
    known = ~bad & np.isfinite(accuracy)
    by_cluster, members = collections.OrderedDict(), collections.OrderedDict()
    for cluster in np.unique(clusters).tolist():
        own = clusters == cluster
        by_cluster[str(cluster)] = float(accuracy[own & known].mean()) if np.any(own & known) else None
        members[str(cluster)] = {"benign": int(np.sum(own & ~bad)), "malicious": int(np.sum(own & bad))}
    mean = float(accuracy[known].mean()) if known.any() else None
    ended = {
        str(ids[row]): {"cluster": int(clusters[row]), **({} if groups is None else {"group": int(groups[row])})}
        for row in np.flatnonzero(bad)
    }
    imitated = {} if settings.imitated_group is None else {"imitates": settings.imitated_group}
    return {
        "kind": settings.kind,
        "share": settings.share,
        "malicious": malicious.tolist(),
        "benign_accuracy": {"mean": mean, "clusters": by_cluster},
        "members": members,
        "ended": ended,
        **imitated,
    }


def note_of(outcome: Mapping) -> str:
    """Returns what a report says of an attack."""

    def percent(share):
        return "none" if share is None else f"{100 * share:.1f} %"

    own = ", ".join(f"{cluster}: {percent(share)}" for cluster, share in outcome["benign_accuracy"]["clusters"].items())
    mean = percent(outcome["benign_accuracy"]["mean"])
    where = ", ".join(
        f"{cluster}: {each['malicious']} of {sum(each.values())}" for cluster, each in outcome["members"].items()
    )
    pretending = f", who pretend to be of group {outcome['imitates']}," if "imitates" in outcome else ""
    return (
        f"attack {outcome['kind']} by {len(outcome['malicious'])} clients{pretending}; accuracy of the others {mean} "
        f"(by cluster {own}); malicious members by cluster {where}"
    )
