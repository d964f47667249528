"""The parameters of the methods that group clients by their signatures. Imports nothing heavy."""

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
    """The threshold, or the rule `SELF` if neither a threshold nor `num_clusters` is given."""
    return choices.SELF if how.threshold is how.num_clusters is None else how.threshold


@dataclasses.dataclass(frozen=True)
class CutParameters(Parameters):
    """How the distance of two clients is measured, and where the tree of their merges is cut.

    Attributes:
      metric: The distance between two clients.
      linkage: The distance between two clusters.
      threshold: Clusters up to this distance are merged; or "self" or "gap", rules that find the threshold.
      num_clusters: The number of clusters, instead of a threshold. If neither is set, the threshold is "self".
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
    """Parameters of methods whose signature can be private.

    Attributes:
      signature_noise_multiplier: z of the Gaussian noise that makes a client's signature private; 0 for neither noise
        nor clipping.
      signature_clip: With noise, the largest norm of what is noised: an example, a centre or a whole signature.
    """

    signature_noise_multiplier: NonNegative = 0.0
    signature_clip: Positive = 1.0

    @property
    def noise(self) -> dict[str, float]:
        """The arguments of the signature's builder for this noise."""
        return {"noise_multiplier": self.signature_noise_multiplier, "clip": self.signature_clip}

    def check(self):
        super().check()
        again = getattr(self, "regroup_on", None)
        check_noised(self.signature_noise_multiplier, getattr(self, "cut", None), again and again.signal)


BEFORE, AS_THEY_JOIN = "before_training", "as_they_join"
LOSS = "loss"


@dataclasses.dataclass(frozen=True)
class RegroupParameters(Parameters):
    """When clients report that their data have changed, and how many reports make all clients be grouped again.

    Attributes:
      signal: What a client checks in each round it takes part in, and reports by one flag. "loss": its own loss under
        its model, as it receives it, has risen above the least since clients were last grouped; "signature": its
        signature has moved.
      bound: A change must exceed this; in the unit of the loss, or of the metric, e.g. degrees.
      share: The share of all clients whose flags must be raised.
    """

    signal: one_of((LOSS, SIGNATURE)) = SIGNATURE
    bound: Positive = 1.0
    share: Share = 0.1


@dataclasses.dataclass(frozen=True)
class WhenParameters(Parameters):
    """When clients are grouped, and when they are grouped again.

    Attributes:
      when: "before_training": all clients are grouped before the first round. "as_they_join": those of the first round
        are grouped, and others are placed when they first take part. A number: all clients are grouped after this many
        rounds of FedAvg; all clusters start from its model, and signatures that depend on a model use it.
      regroup_every: Rounds after which all clients sign and are grouped again, each time; not set: never.
      regroup_on: Group all again when enough clients report that their data have changed: {signal = "loss", bound =
        0.5, share = 0.1}; not set: never.
    """

    when: Count | one_of((BEFORE, AS_THEY_JOIN)) = BEFORE
    regroup_every: Count | None = None
    regroup_on: RegroupParameters | None = None

    @property
    def only_before(self) -> bool:
        """Whether clients are grouped once, before training."""
        return self.when == BEFORE and self.regroup_every is None and self.regroup_on is None

    def check_engine(self, counts_members: bool):
        """Raises UserError for local training that counts clusters' members, if clusters form after rounds of it."""
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
      metric: The distance of two subspaces: "smallest_angle" (Eq. 2), "trace" (Eq. 3), "angle_sum", "smallest_entry".
      linkage: The distance between two clusters; "weighted" is what the authors' code calls average.
      threshold: β in degrees; clusters up to this distance are merged; or "self" or "gap", rules that find it.
      when: As for all methods that group by signatures; "before_training" is the authors' code and the paper's
        "one-shot", "as_they_join" is Alg. 1 lines 7 to 16.
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
      metric: Similarity of two clients' answers: "agreement" (authors' code) or "frobenius" (the paper's formula).
      linkage: The distance between two clusters, computed on 1 - similarity.
      threshold: β, clusters down to this similarity are merged; or "self" or "gap", rules that find it.
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
      metric: The distance between two clients' centres (authors: "matching").
      linkage: The distance between two clusters (paper: "ward").
    """

    metric: one_of(choices.DISTANCES) = "matching"
    linkage: one_of(choices.WITH_WARD) = "ward"


@dataclasses.dataclass(frozen=True)
class FedClustParameters(WhenParameters, CutParameters, PartialWeightsParameters):
    """How FedClust groups clients.

    Attributes:
      metric: The distance between two clients' weights (the paper: Euclidean).
      threshold: Clusters up to this distance are merged. It is in the unit of weights, so it depends on the model and
        the warm-up. Or "self" or "gap", rules that find it.
    """

    metric: one_of(choices.VECTOR_METRICS) = "euclidean"


@dataclasses.dataclass(frozen=True)
class FLHCParameters(WhenParameters, CutParameters):
    """When and how FL+HC groups clients.

    Attributes:
      metric: The distance between two clients' updates (paper: also the sum of the absolute differences).
      linkage: The distance between two clusters.
      threshold: Clusters up to this distance are merged. It is in the unit of weights, so it depends on the model and
        training. Or "self" or "gap", rules that find it.
      when: As for all methods that group by signatures; a number is the paper's n rounds of FedAvg before grouping.
    """

    metric: one_of(choices.VECTOR_METRICS) = "euclidean"
    linkage: one_of(choices.WITH_WARD) = "complete"
    when: Count | one_of((BEFORE, AS_THEY_JOIN)) = 10


TRUE = "true"  # stands for the true groups in place of a mapping


@dataclasses.dataclass(frozen=True)
class GivenParameters(Parameters):
    """The groups of clients, where they are known.

    Attributes:
      groups: Maps each client, by its name in files, to its group, text or a whole number; or the path of a CSV file
        (.csv) with the columns client and group; or "true" for the true groups: those of the partition, of the column
        `group` of `Population.from_frame`, or of `Population.with_groups`. With the groups of a partition this is the
        oracle, which knows what other methods have to find.
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
        """Returns the group of each client by its name; None for the true groups.

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
            group = group.strip()  # blanks around a name must not make another group
            if not group or groups.setdefault(client, group) != group:
                what = "no group" if not group else f"two groups, {groups[client]} and {group}"
                raise UserError(f"client {client} has {what} in {file}; a client is of one group", key="groups")
        return groups


@dataclasses.dataclass(frozen=True)
class KFedParameters(NoisedSignature, WhenParameters):
    """How k-FED groups clients.

    Attributes:
      num_clusters: k, the number of clusters.
      num_centres: k', k-means centres that a client sends of its examples; √k at most in the paper. 1: their mean.
    """

    num_clusters: Count = 2
    num_centres: Count = 1


@dataclasses.dataclass(frozen=True)
class EMDCFLParameters(WhenParameters, CutParameters, OutputsParameters):
    """When and how EMD-CFL groups clients.

    Attributes:
      metric: The distance between two clients' outputs.
      threshold: Clusters up to this distance, in the unit of the outputs, are merged; or "self" or "gap", rules that
        find it. "self" compares clients with themselves, as the paper does.
      when: As for all methods that group by signatures; default 1 round, for the paper's epoch before grouping.
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
    """Returns the metrics of a signature, with its own before those of any vectors."""
    return {**METRICS.get(signature, {}), **choices.VECTOR_METRICS}


def why_not(signature: str, metric: str, grouping: str) -> str:
    """Says why a grouping cannot group clients by a signature and a metric; "" if it can.

    Args:
      signature: The name of the signature, or of a builder.
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
    """The parts of a composed method.

    Attributes:
      signature: A name from `tffcl list signatures`, one that a package has registered, a builder "module:function"
        `(model, *, ...) -> Signature`, or a table of one with parameters: {name = "subspace", num_vectors = 5}.
      metric: The distance between two clients: one of the signature's own, "euclidean", "cosine" or
        "decomposed_cosine"; default the signature's first.
      grouping: How clients are grouped: a name from `tffcl list groupings`; "hierarchical" and "density" take a
        threshold.
      temperature: For the grouping "soft", in the unit of the metric: the weights of a client in the clusters are the
        softmax of minus its mean distance to their members, divided by this. Default: a tenth of the mean distance of
        two clients.
      linkage: The distance between two clusters, in a tree.
      threshold: Clusters up to this distance are merged; or "self" or "gap", rules that find it.
      num_clusters: The number of clusters, instead of a threshold. If neither is set, the threshold is "self"; for
        "density", where the distances to the nearest neighbour bend upwards.
      training: A name from `tffcl list trainings`, or a table of one with its parameters: {name = "proximal",
        proximal_weight = 0.1}.
    """

    alternatives: ClassVar = _ALTERNATIVES
    only_with: ClassVar = {"temperature": ("grouping", choices.SOFT)}

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
        """The threshold or the rule that finds it; None where the number of clusters is given."""
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


CASES = ("joint", "disjoint")


@dataclasses.dataclass(frozen=True)
class FLTParameters(NoisedSignature):
    """How FLT relates clients and trains by their relations.

    Attributes:
      encoder: What the server pre-trains the autoencoder on, once: a name from `tffcl list encoders`, a data set, or
        several and chosen classes of them, e.g. "cifar10+cifar100:11,20,22"; or a file of a pre-trained one (.npz).
      encoder_epochs: Passes of the pre-training over its data (authors: 25 to 30).
      encoder_examples: How many of its images to use; default all.
      latent: e, size of a code (paper: 128).
      num_centres: k, the centres that a client sends: 5 in the paper. "classes": as many as the client has classes,
        to which it "can be adjusted" on the client side (section IV-A3) and is in the authors' code. More centres than
        classes cut the codes of one class in pieces, and pieces of two groups may lie near each other. The server sees
        how many centres there are.
      fine_tune_epochs: J, epochs in which each client fine-tunes the encoder on its own images before the first round:
        5 in the paper if the encoder's data do not cover the clients' (Enc2), 0, the normal mode of Alg. 2, if they do
        (Enc1).
      refine_epochs: The same each time clients are related anew in the middle of training (Alg. 3 line 25, always the
        fine-tune mode): each client goes on from its latest encoder. 0: nobody trains; a client encodes with its own
        encoder if it fine-tuned one before the first round, else with the pre-trained one.
      fine_tune_optimizer: "sgd" (paper) or "adam" (the authors' code).
      fine_tune_rate: Its step size; default 0.01 for SGD, as for all training in the paper, and 0.001 for Adam, as in
        the code.
      metric: The distance of two clients' centres: "closest_pair" (paper) or "matching" (the authors' code).
      threshold: γ, clients nearer than this in the map are related (paper: 1, "can be tuned"); "gap": where the tree of
        average linkage of the clients' distances has its largest relative gap, which needs no knowledge of the groups.
      clusters: "joint" (case I, every client its own mix by the relatedness matrix) or "disjoint" (case II).
      num_clusters: C, for disjoint clusters; default the number that fits best.
      mixes: With "joint", who gets a new mix in a round, and of which models: "everyone" (of the cohort's models),
        "cohort" (only clients that took part) or "stored" (everyone, of all models on the server, as in Alg. 3 line
        17). They are the same where all take part. Otherwise "stored" dilutes each update with the models of absent
        clients: with a fifth of the clients a round on LEAF FEMNIST it reaches 55 % after 100 rounds, "everyone" 67 %;
        and only "everyone" is FedAvg when all are related, than which FLT is faster in the paper (Fig. 4).
      weighting: How clients are weighted in a mix or a cluster's mean. Alg. 3 lines 17 and 19 print both p_m, a
        client's share of all examples, and a factor by the number of relatives, 1/|Ã_m|_0 and 1/|C_c|, and the products
        do not sum to 1. "examples" takes the first, as FedAvg and the authors' later code do; "uniform" takes the
        second, as their earlier code does.
      num_neighbors: The number of neighbours of UMAP.
      map_dimensions: u, the dimensions of UMAP's map (paper: "typically 2 or 3").
      min_dist: For UMAP, how near points may lie in the map, from 0 to 1; γ has the same unit.
      change_flags: λ of Alg. 3 line 23. Clients report when their data have changed; when more than this many have,
        all send centres again and are related anew. Default: clients do not report.
      period: τ. Clients are also related anew in every round that is a multiple of this, or in the next round in which
        someone takes part; default never.
    """

    only_with: ClassVar = {"mixes": ("clusters", "joint")}

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
