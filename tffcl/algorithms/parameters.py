"""The keys of the methods that group clients by their signatures. Imports nothing heavy."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from tffcl import choices, files
from tffcl.algorithms.training_parameters import training_of
from tffcl.clustering.vector_distances import check_threshold
from tffcl.errors import UserError, unknown
from tffcl.references import is_reference, named
from tffcl.registry import find, parameters_of
from tffcl.signatures.parameters import (
    SIGNATURE,
    InferenceParameters,
    OutputsParameters,
    PartialWeightsParameters,
    PCACentresParameters,
    SubspaceParameters,
    check_noised,
)
from tffcl.validation import Count, NonNegative, Parameters, Positive, Share, Whole, one_of, wrong

Cut = NonNegative | one_of(choices.RULES)  # the type of a `threshold`
_ALTERNATIVES = (("threshold", "num_clusters"),)


def _check_cut(how):
    if how.threshold is not None and how.num_clusters is not None:
        raise UserError("give threshold or num_clusters, not both")


def _cut_of(how) -> float | str | None:
    """The threshold: the rule `SELF` where neither it nor `num_clusters` is given."""
    return choices.SELF if how.threshold is how.num_clusters is None else how.threshold


@dataclasses.dataclass(frozen=True)
class CutParameters(Parameters):
    """How far two clients are apart, and where the tree of their merges is cut.

    Attributes:
      metric: How far two clients are apart.
      linkage: How far two clusters are apart.
      threshold: Merges up to this distance are made; or "self" or "gap", rules that find it.
      num_clusters: The number of clusters instead. With neither, the threshold is "self".
    """

    alternatives: ClassVar = _ALTERNATIVES

    metric: str | None = None
    linkage: one_of(choices.LINKAGES) = "average"
    threshold: Cut | None = None
    num_clusters: Count | None = None

    def check(self):
        _check_cut(self)

    cut = property(_cut_of)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisedSignature(Parameters):
    """What methods have whose signature can be private.

    Attributes:
      signature_noise_multiplier: z of the Gaussian noise that makes a client's signature private; 0 is none, and no
        clip.
      signature_clip: The largest norm of what the noise is for, with it: an example, a centre or a whole signature.
    """

    signature_noise_multiplier: NonNegative = 0.0
    signature_clip: Positive = 1.0

    @property
    def noise(self) -> dict[str, float]:
        """What the builder of the signature takes of them."""
        return {"noise_multiplier": self.signature_noise_multiplier, "clip": self.signature_clip}

    def check(self):
        super().check()
        again = getattr(self, "regroup_on", None)
        check_noised(self.signature_noise_multiplier, getattr(self, "cut", None), again and again.signal)


BEFORE, AS_THEY_JOIN = "before_training", "as_they_join"
LOSS = "loss"


@dataclasses.dataclass(frozen=True)
class RegroupParameters(Parameters):
    """When clients tell that their data have changed, and how many of them are enough to group all again.

    Attributes:
      signal: "loss": the client's own loss under its model, as it receives it, has risen above the least since clients
        were last grouped; "signature": its signature has moved. Each client looks at it in the rounds that it takes
        part in, and sends one flag.
      bound: By more than this; in the unit of the loss, or of the metric, as degrees.
      share: Of all clients: so many flags must stand.
    """

    signal: one_of((LOSS, SIGNATURE)) = SIGNATURE
    bound: Positive = 1.0
    share: Share = 0.1


@dataclasses.dataclass(frozen=True)
class WhenParameters(Parameters):
    """When clients are grouped, and when again.

    Attributes:
      when: "before_training": all clients are grouped before the first round; "as_they_join": those of the first round
        are, and others are placed when they first take part; a number: all clients after so many rounds of FedAvg, from
        whose model all clusters start, and with which signatures are taken that depend on one.
      regroup_every: All clients sign and are grouped again after every so many rounds; not set: never.
      regroup_on: They are when enough of them tell that their data have changed: {signal = "loss", bound = 0.5, share =
        0.1}; not set: never.
    """

    when: Count | one_of((BEFORE, AS_THEY_JOIN)) = BEFORE
    regroup_every: Count | None = None
    regroup_on: RegroupParameters | None = None

    @property
    def only_before(self) -> bool:
        """Whether clients are grouped once, before training."""
        return self.when == BEFORE and self.regroup_every is None and self.regroup_on is None

    def check_engine(self, counts_members: bool):
        """Raises UserError for local training that counts the members of clusters, if these form after rounds of it."""
        again = self.regroup_every is not None or self.regroup_on is not None
        if counts_members and (again or isinstance(self.when, int)):
            raise UserError(
                "the local training keeps sums over the members of each cluster, as scaffold's control variates are, "
                "which are wrong when clusters form after rounds of it; leave when = N and regroup_* out, or training",
                key="training",
            )


@dataclasses.dataclass(frozen=True)
class PACFLParameters(NoisedSignature, WhenParameters, CutParameters, SubspaceParameters):
    """How PACFL groups clients.

    Attributes:
      metric: Of two subspaces: "smallest_angle" (Eq. 2), "trace" (Eq. 3), "angle_sum", "smallest_entry".
      linkage: How far two clusters are apart; "weighted" is what the authors' code calls average.
      threshold: β in degrees; merges up to it are made; or "self" or "gap", rules that find it.
      when: As of all that group by signatures; "before_training" is the authors' code, and the paper's "one-shot",
        "as_they_join" Alg. 1 lines 7 to 16.
    """

    metric: one_of(choices.ANGLES) = "smallest_angle"

    def check(self):
        if self.signature_noise_multiplier and (self.per_class or self.energy < 1):
            rule = "it is for a fixed number of vectors of all data; with per_class or energy it must be 0"
            raise wrong("signature_noise_multiplier", self.signature_noise_multiplier, rule)
        super().check()


@dataclasses.dataclass(frozen=True)
class FLISHCParameters(WhenParameters, CutParameters, InferenceParameters):
    """How FLIS (HC) groups clients.

    Attributes:
      metric: Of two clients' answers: "agreement" (the authors' code) or "frobenius" (the paper's formula).
      linkage: How far two clusters are apart, on 1 - similarity.
      threshold: β, merges down to this similarity are made; or "self" or "gap", rules that find it.
    """

    metric: one_of(choices.SIMILARITIES) = "agreement"
    threshold: float | one_of(choices.RULES) | None = None

    def check(self):
        super().check()
        if isinstance(self.threshold, float):
            check_threshold(self.threshold, "agreement", 1, None)


@dataclasses.dataclass(frozen=True)
class PCAKMHCParameters(NoisedSignature, WhenParameters, CutParameters, PCACentresParameters):
    """How PCA+kM+HC groups clients.

    Attributes:
      metric: How far two clients' centres are apart (authors: "matching").
      linkage: How far two clusters are apart (paper: "ward").
    """

    metric: one_of(choices.DISTANCES) = "matching"
    linkage: one_of(choices.WITH_WARD) = "ward"


@dataclasses.dataclass(frozen=True)
class FedClustParameters(WhenParameters, CutParameters, PartialWeightsParameters):
    """How FedClust groups clients.

    Attributes:
      metric: How far two clients' weights are apart (the paper: Euclidean).
      threshold: Merges up to this distance are made, in the unit of weights, so that it depends on model and warm-up;
        or "self" or "gap", rules that find it.
    """

    metric: one_of(choices.VECTOR_METRICS) = "euclidean"


@dataclasses.dataclass(frozen=True)
class FLHCParameters(WhenParameters, CutParameters):
    """When and how FL+HC groups clients.

    Attributes:
      metric: How far two clients' updates are apart (paper: also the sum of the absolute differences).
      linkage: How far two clusters are apart.
      threshold: Merges up to this distance are made, in the unit of weights, so that it depends on model and training;
        or "self" or "gap", rules that find it.
      when: As of all that group by signatures; the paper's n rounds of FedAvg before.
    """

    metric: one_of(choices.VECTOR_METRICS) = "euclidean"
    linkage: one_of(choices.WITH_WARD) = "complete"
    when: Count | one_of((BEFORE, AS_THEY_JOIN)) = 10


TRUE = "true"  # the word for the true groups of the clients where a mapping could stand


@dataclasses.dataclass(frozen=True)
class GivenParameters(Parameters):
    """Which clients are in a group, where that is known.

    Attributes:
      groups: A mapping of clients, as they are called in files, to groups, text or whole numbers; the path of a CSV
        file (.csv) with the columns client and group; or "true": the true groups of the partition, the column that
        `Population.from_frame` was told as `group`, or those of `Population.with_groups`. With those of a partition
        this is the oracle: no method that has to find them may know them.
    """

    groups: str | dict[str | int, str | int] = TRUE

    def check(self):
        if isinstance(self.groups, str):
            if self.groups != TRUE and not self.groups.lower().endswith(".csv"):
                rule = 'it must be "true", a mapping of clients to groups, or the path of a CSV file (.csv)'
                raise wrong("groups", self.groups, rule)
            return
        for what, values in (("clients", self.groups), ("groups", self.groups.values())):
            kinds = sorted({type(each).__name__ for each in values})
            if len(kinds) != 1:
                alike = f"{what} of groups are of {', '.join(kinds) or 'no type'}"
                raise UserError(f"{alike}; they must be all text or all whole numbers, 1 or more", key="groups")

    def by_client(self) -> dict[str, str] | None:
        """Returns the group of each client by what it is called; None for the true groups.

        Raises:
          UserError: If a file cannot be read, or has a client in two groups or in none.
        """
        if not isinstance(self.groups, str):
            return {str(client): str(group).strip() for client, group in self.groups.items()}
        if self.groups == TRUE:
            return None
        file, groups = pathlib.Path(self.groups).expanduser(), {}
        if not file.is_file():
            raise UserError(f"there is no file {file}, from which groups are read", key="groups")
        table = files.read_table(file, ("client", "group"))
        for client, group in zip(table.texts("client").tolist(), table.texts("group").tolist(), strict=True):
            group = group.strip()  # or blanks around its name would make two of it
            if not group or groups.setdefault(client, group) != group:
                what = "no group" if not group else f"two groups, {groups[client]} and {group}"
                raise UserError(f"client {client} has {what} in {file}; a client is of one group", key="groups")
        return groups


@dataclasses.dataclass(frozen=True)
class KFedParameters(NoisedSignature, WhenParameters):
    """How k-FED groups clients.

    Attributes:
      num_clusters: k, the number of clusters.
      num_centres: k', k-means centres of its examples that a client sends; the paper needs √k at most, 1 is their mean.
    """

    num_clusters: Count = 2
    num_centres: Count = 1


@dataclasses.dataclass(frozen=True)
class EMDCFLParameters(WhenParameters, CutParameters, OutputsParameters):
    """When and how EMD-CFL groups clients.

    Attributes:
      metric: How far two clients' outputs are apart.
      threshold: Merges up to this distance are made, in the unit of the outputs; or "self" or "gap", rules that find
        it. "self" compares clients with themselves, as the paper does.
      when: As of all that group by signatures; after 1 round, as the paper's clients train for an epoch first.
    """

    metric: one_of(choices.TRANSPORT) = "wasserstein"
    when: Count | one_of((BEFORE, AS_THEY_JOIN)) = 1


@dataclasses.dataclass(frozen=True)
class FedGroupParameters(WhenParameters):
    """How FedGroup groups clients.

    Attributes:
      num_clusters: The number of groups, and of singular vectors (authors: 3 on MNIST, 5 on FEMNIST).
      pre_training_epochs: Epochs that a client trains before it sends its update (authors' code: 50 batches of 10).
    """

    num_clusters: Count = 3
    pre_training_epochs: Count = 10


# The metrics that are made for a signature; the first is its default.
METRICS: Mapping[str, Mapping[str, str]] = {
    "subspace": choices.ANGLES,
    "inference": choices.SIMILARITIES,
    "pca_centres": choices.CENTRE_METRICS,
    "embedding": choices.CENTRE_METRICS,
    "centres": choices.CENTRE_METRICS,
    "outputs": choices.TRANSPORT,
    "anchor_gradient": {"cosine": choices.VECTOR_METRICS["cosine"]},
}


def metrics_of(signature: str) -> Mapping[str, str]:
    """Returns the metrics of a signature, its own before those of any vectors."""
    return {**METRICS.get(signature, {}), **choices.VECTOR_METRICS}


def why_not(signature: str, metric: str, grouping: str) -> str:
    """Says why clients with a signature cannot be grouped so by a metric; "" where they can.

    Args:
      signature: Its name, or that of a builder.
      metric: A name of `metrics_of`.
      grouping: A name in `choices.GROUPINGS`.
    """
    if grouping in (choices.TREE, choices.DENSITY, choices.SOFT, "spectral") or metric in choices.VECTOR_METRICS:
        return ""
    if grouping == "kmeans" and METRICS.get(signature) is choices.CENTRE_METRICS:
        return ""
    vectors = ", ".join(choices.VECTOR_METRICS)
    return f"{grouping} groups vectors, and {metric} is no distance between vectors; {vectors} are"


@dataclasses.dataclass(frozen=True)
class ComposedParameters(WhenParameters):
    """What a composed method is made of.

    Attributes:
      signature: A name of `tffcl list signatures`, one that a package has registered, a builder "module:function"
        `(model, *, ...) -> Signature`, or a table of one of them with its parameters:
        {name = "subspace", num_vectors = 5}.
      metric: How far two clients are apart: one of the signature's own, "euclidean", "cosine" or "decomposed_cosine";
        default the signature's first.
      grouping: Who is with whom: a name of `tffcl list groupings`; "hierarchical" and "density" take a threshold.
      temperature: With the grouping "soft", in the unit of the metric: a client's weight in a cluster is the softmax of
        minus its mean distance to the members, divided by it; default a tenth of the mean distance of two clients.
      linkage: How far two clusters are apart, in a tree.
      threshold: Merges up to this distance are made; or "self" or "gap", rules that find it.
      num_clusters: The number of clusters instead. With neither, the threshold is "self"; of "density", where the
        distances to the nearest neighbour bend upwards.
      training: A name of `tffcl list trainings`, or a table of one with its parameters: {name = "proximal",
        proximal_weight = 0.1}.
    """

    alternatives: ClassVar = _ALTERNATIVES

    signature: str | dict = "subspace"
    metric: str | None = None
    grouping: one_of(choices.GROUPINGS) = choices.TREE
    temperature: Positive | None = None
    linkage: one_of(choices.WITH_WARD) = "average"
    threshold: Cut | None = None
    num_clusters: Count | None = None
    training: str | dict = "sgd"

    @property
    def cut(self) -> float | str | None:
        """The threshold, or the rule that finds it; None where the number of clusters is given."""
        if self.grouping == choices.DENSITY and self.threshold is None:
            return choices.KNEE
        return _cut_of(self)

    def check(self):
        _check_cut(self)
        name, own = named("signature", self.signature)
        if not is_reference(name):
            row = find("signatures", name, key="signature")
            if not row.foreign:
                signed = parameters_of(row.parameter_class(), own, f"signature {name}")
                noise = getattr(signed, "noise_multiplier", 0.0)
                check_noised(noise, self.cut, self.regroup_on and self.regroup_on.signal)
        metrics = metrics_of(name)
        if self.metric is not None and self.metric not in metrics:
            raise unknown(f"metric of signature {name}", self.metric, metrics, key="metric")
        self._check_grouping(name, self.metric or next(iter(metrics)))
        _, parameters = training_of(self.training)
        self.check_engine(any(getattr(each, "counts_members", False) for each in parameters))

    def _check_grouping(self, signature: str, metric: str):
        reason = why_not(signature, metric, self.grouping)
        if reason:
            raise UserError(reason, key="grouping")
        if self.grouping == choices.DENSITY and self.num_clusters is not None:
            raise UserError("density finds the number of clusters itself; leave out num_clusters", key="num_clusters")
        if self.grouping not in (choices.TREE, choices.DENSITY, choices.SOFT) and self.num_clusters is None:
            raise UserError(
                f"grouping {self.grouping} cuts no tree: give num_clusters, and no threshold", key="num_clusters"
            )
        if metric == choices.DECOMPOSED and self.num_clusters is None:
            raise UserError(f"{metric} is of as many directions as num_clusters says; give it", key="num_clusters")
        if self.grouping not in (choices.TREE, choices.SOFT) and self.linkage != "average":
            raise UserError(f"grouping {self.grouping} has no linkage; leave it out", key="linkage")
        if self.grouping == choices.SOFT:
            if named("training", self.training)[0] != "sgd":
                raise UserError('grouping "soft" trains all models by "sgd"; leave training out', key="training")
            if not self.only_before:
                raise UserError(
                    'grouping "soft" is formed once, before training; leave when and regroup_* out', key="when"
                )
        elif self.temperature is not None:
            raise UserError('temperature is for grouping "soft"; leave it out', key="temperature")


CASES = ("joint", "disjoint")


@dataclasses.dataclass(frozen=True)
class FLTParameters(NoisedSignature):
    """How FLT relates clients and what follows from it.

    Attributes:
      encoder: What the server pre-trains the autoencoder on, once: a name of `tffcl list encoders`, a data set, or
        several and chosen classes of them, e.g. "cifar10+cifar100:11,20,22"; or a file of a pre-trained one (.npz).
      encoder_epochs: Passes of the pre-training over its data (authors: 25 to 30).
      encoder_examples: Only so many of its images; default all.
      latent: e, size of a code (paper: 128).
      num_centres: k, centres that a client sends: 5 in the paper; "classes": as many as the client has classes,
        to which it "can be adjusted" on the client side (section IV-A3) and is in the authors' code. More centres than
        classes cut the codes of one class in pieces, and pieces of two groups may lie near each other. The server sees
        how many there are.
      fine_tune_epochs: J, epochs in which each client fine-tunes the encoder on its own images before the first round;
        5 in the paper for an encoder of other data than the clients' (Enc2), 0, the normal mode of Alg. 2, for one
        whose data cover them (Enc1).
      refine_epochs: The same each time clients are related anew in the middle of training (Alg. 3 line 25, always the
        fine-tune mode): each client goes on from its latest encoder. 0: nobody trains; a client encodes with the one
        that it has, its own if it fine-tuned one before the first round, else the pre-trained one.
      fine_tune_optimizer: "sgd" (paper) or "adam" (the authors' code).
      fine_tune_rate: Its step size; default 0.01 for SGD, the paper's for all training, and 0.001 for Adam, as in the
        code.
      metric: Of two clients' centres: "closest_pair" (paper) or "matching" (the authors' code).
      threshold: γ, clients nearer than this in the map are related (paper: 1, "can be tuned"); "gap": where the tree of
        average linkage of the clients' distances has its largest relative gap, which needs to know nothing of the
        groups.
      clusters: "joint" (case I, every client its own mix by the relatedness matrix) or "disjoint" (case II).
      num_clusters: C, for the disjoint clusters; default the best fitting number.
      mixes: With "joint", who gets a new mix in a round, and of what: "everyone" (of the cohort's models), "cohort"
        (only who took part) or "stored" (everyone, of all models that the server has, as in Alg. 3 line 17). Where all
        take part the three are one. Else "stored" thins each update out with the models of absent clients: with a fifth
        of the clients a round on LEAF FEMNIST it is at 55 % after 100 rounds, "everyone" at 67 %; and only "everyone"
        is FedAvg when all are related. The paper has FLT converge faster than FedAvg there (Fig. 4), so this is what it
        must mean.
      weighting: Of clients in a mix or a cluster's mean. Alg. 3 lines 17 and 19 print both p_m, a client's share of all
        examples, and one part by the number of relatives, 1/|Ã_m|_0 and 1/|C_c|, whose products do not sum to 1:
        "examples" takes the first, which is FedAvg and the authors' later code, "uniform" the second, as their earlier
        code.
      num_neighbors: Of UMAP.
      map_dimensions: u, of UMAP's map (paper: "typically 2 or 3").
      min_dist: Of UMAP: how near points may lie in the map, from 0 to 1; γ has the same unit.
      change_flags: λ of Alg. 3 line 23: clients tell when their data have changed, and when more than so many have, all
        send centres again and are related anew; default: flags are not asked for.
      period: τ: the same in every round that is a multiple of it, or the next in which someone takes part; default
        never.
    """

    encoder: str = "fashion_mnist"
    encoder_epochs: Count = 25
    encoder_examples: Count | None = None
    latent: Count = 128
    num_centres: Count | one_of((choices.CLASSES,)) = 5
    fine_tune_epochs: Whole = 5
    refine_epochs: Whole = 5
    fine_tune_optimizer: one_of(choices.OPTIMIZERS) = "sgd"
    fine_tune_rate: Positive | None = None
    metric: one_of(choices.DISTANCES) = "closest_pair"
    threshold: Positive | one_of((choices.GAP,)) = 1.0
    clusters: one_of(CASES) = "joint"
    num_clusters: Count | None = None
    mixes: one_of(choices.MIXES) = "everyone"
    weighting: one_of(choices.WEIGHTINGS) = "examples"
    num_neighbors: Annotated[int, msgspec.Meta(ge=2)] = 15
    map_dimensions: Count = 2
    min_dist: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    change_flags: Whole | None = None
    period: Count | None = None
