"""The keys of each method that a task file can name. Imports nothing heavy."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from tffcl import choices
from tffcl.algorithms.training_parameters import training_of
from tffcl.clustering.inference_similarity import check_threshold
from tffcl.errors import UserError, unknown
from tffcl.references import is_reference, named
from tffcl.registry import find, parameters_of
from tffcl.signatures.parameters import (
    InferenceParameters,
    PartialWeightsParameters,
    PCACentresParameters,
    SubspaceParameters,
)
from tffcl.validation import Count, Fraction, NonNegative, Parameters, Positive, Whole, one_of, tell_once, wrong

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


class _NoisedSignature:
    """What methods have whose signature can be private: `signature_noise_multiplier` and `signature_clip`."""

    @property
    def noise(self) -> dict[str, float]:
        """What the builder of the signature takes of them."""
        return {"noise_multiplier": self.signature_noise_multiplier, "clip": self.signature_clip}


ARRIVALS = ("before_training", "as_they_join")


@dataclasses.dataclass(frozen=True)
class PACFLParameters(_NoisedSignature, CutParameters, SubspaceParameters):
    """How PACFL groups clients.

    Attributes:
      metric: Of two subspaces: "smallest_angle" (Eq. 2), "trace" (Eq. 3), "angle_sum", "smallest_entry".
      linkage: How far two clusters are apart; "weighted" is what the authors' code calls average.
      threshold: β in degrees; merges up to it are made; or "self" or "gap", rules that find it.
      when: "before_training": all clients are clustered before the first round (the authors' code, and the paper's
        "one-shot"); "as_they_join": those of the first round are, with their threshold or number of clusters, and
        others are placed when they first take part (Alg. 1 lines 7 to 16).
      signature_noise_multiplier: z of the Gaussian noise that makes a client's vectors private; 0 is none, and no clip.
      signature_clip: The largest norm of an example with it.
    """

    metric: one_of(choices.ANGLES) = "smallest_angle"
    when: one_of(ARRIVALS) = "before_training"
    signature_noise_multiplier: NonNegative = 0.0
    signature_clip: Positive = 1.0

    def check(self):
        super().check()
        if self.signature_noise_multiplier and (self.per_class or self.energy < 1):
            raise wrong(
                "signature_noise_multiplier",
                self.signature_noise_multiplier,
                "it is for a fixed number of vectors of all data; with per_class or energy it must be 0",
            )


@dataclasses.dataclass(frozen=True)
class FLISHCParameters(CutParameters, InferenceParameters):
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
class PCAKMHCParameters(_NoisedSignature, CutParameters, PCACentresParameters):
    """How PCA+kM+HC groups clients.

    Attributes:
      metric: How far two clients' centres are apart (authors: "matching").
      linkage: How far two clusters are apart (paper: "ward").
      signature_noise_multiplier: z of the Gaussian noise that makes a client's centres private; 0 is none, and no clip.
      signature_clip: The largest norm of a centre with it.
    """

    metric: one_of(choices.DISTANCES) = "matching"
    linkage: one_of(choices.WITH_WARD) = "ward"
    signature_noise_multiplier: NonNegative = 0.0
    signature_clip: Positive = 1.0


@dataclasses.dataclass(frozen=True)
class FedClustParameters(CutParameters, PartialWeightsParameters):
    """How FedClust groups clients.

    Attributes:
      metric: How far two clients' weights are apart (the paper: Euclidean).
      threshold: Merges up to this distance are made, in the unit of weights, so that it depends on model and warm-up;
        or "self" or "gap", rules that find it.
    """

    metric: one_of(choices.VECTOR_METRICS) = "euclidean"


# The metrics that are made for a signature; the first is its default.
METRICS: Mapping[str, Mapping[str, str]] = {
    "subspace": choices.ANGLES,
    "inference": choices.SIMILARITIES,
    "pca_centres": choices.DISTANCES,
    "embedding": choices.DISTANCES,
    "anchor_gradient": {"cosine": choices.VECTOR_METRICS["cosine"]},
}


@dataclasses.dataclass(frozen=True)
class ComposedParameters(Parameters):
    """What a composed method is made of.

    Attributes:
      signature: A name of `tffcl list signatures`, one that a package has registered, a builder "module:function"
        `(model, *, ...) -> Signature`, or a table of one of them with its parameters:
        {name = "subspace", num_vectors = 5}.
      metric: How far two clients are apart: one of the signature's own, "euclidean" or "cosine"; default the
        signature's first.
      linkage: How far two clusters are apart.
      threshold: Merges up to this distance are made; or "self" or "gap", rules that find it.
      num_clusters: The number of clusters instead. With neither, the threshold is "self".
      training: A name of `tffcl list trainings`, or a table of one with its parameters: {name = "proximal",
        proximal_weight = 0.1}.
    """

    alternatives: ClassVar = _ALTERNATIVES

    signature: str | dict = "subspace"
    metric: str | None = None
    linkage: one_of(choices.WITH_WARD) = "average"
    threshold: Cut | None = None
    num_clusters: Count | None = None
    training: str | dict = "sgd"

    cut = property(_cut_of)

    def check(self):
        _check_cut(self)
        name, own = named("signature", self.signature)
        if not is_reference(name):
            row = find("signatures", name, key="signature")
            if not row.foreign:
                parameters_of(row, own, f"signature {name}")
        metrics = {**METRICS.get(name, {}), **choices.VECTOR_METRICS}
        if self.metric is not None and self.metric not in metrics:
            raise unknown(f"metric of signature {name}", self.metric, metrics, key="metric")
        training_of(self.training)


@dataclasses.dataclass(frozen=True)
class CFLParameters(Parameters):
    """When CFL splits a cluster, and how. The two norms depend on the model and on local training unless they are
    relative.

    Attributes:
      stationary_norm: ε₁, a cluster is split when its mean update is shorter than this (authors' notebook: 0.4).
      progress_norm: ε₂, and when a member's update is longer than this (authors' notebook: 1.6).
      relative: Whether both norms are shares of the longest update of the first round.
      first_rounds: No split in so many first rounds (authors' notebook: 20).
      gate: γ, split only if sqrt((1 - α) / 2) is above it, α the largest cosine across the halves; default no gate.
      linkage: "single" makes that cosine as small as it can be (the paper's bipartition); "complete": the authors'
        notebook.
    """

    stationary_norm: Positive = 0.4
    progress_norm: Positive = 1.6
    relative: bool = False
    first_rounds: Whole = 20
    gate: Fraction | None = None
    linkage: one_of(("single", "complete")) = "single"

    def check(self):
        if self.progress_norm <= self.stationary_norm:
            norms = f"progress_norm {self.progress_norm} is not above stationary_norm {self.stationary_norm}"
            tell_once(f"{norms}: members that agree are split, too")


@dataclasses.dataclass(frozen=True)
class CLoVEParameters(Parameters):
    """How CLoVE groups clients.

    Attributes:
      num_clusters: K, the number of models.
      square_root: Whether the roots of the losses are clustered, which gives large losses less weight (an option of the
        authors' code).
    """

    num_clusters: Count = 2
    square_root: bool = False


@dataclasses.dataclass(frozen=True)
class FedSEMParameters(Parameters):
    """How FedSEM groups clients.

    Attributes:
      num_clusters: Number of centres.
    """

    num_clusters: Count = 5


@dataclasses.dataclass(frozen=True)
class FLUXParameters(Parameters):
    """When and how FLUX groups clients.

    Attributes:
      warm_up_rounds: Rounds of FedAvg before clients are grouped (the authors' code waits until the accuracy rises no
        more).
      neighbourhood: From which distance on clients are no neighbours, "knee" or "gap".
      eps_scale: What that distance is multiplied by (the authors' code: 1).
    """

    warm_up_rounds: Count = 5
    neighbourhood: one_of(choices.NEIGHBOURHOODS) = "knee"
    eps_scale: Positive = 1.0


ANSWERED_BY = ("clients", "server")


@dataclasses.dataclass(frozen=True)
class FLISDCParameters(Parameters):
    """How FLIS (DC) groups the clients of a round.

    Attributes:
      threshold: β, clients whose models' similarity is at least this are in a cluster (paper: 0.3 CIFAR-10 and SVHN,
        0.5 FMNIST).
      metric: Of two clients' answers: "agreement" (the authors' code) or "frobenius" (the paper's formula).
      soft: Whether models answer with probabilities instead of their most likely class.
      answered_by: "clients": they answer the server's images themselves and upload the answers; "server": the
        aggregator answers with the uploaded models. The same clusters; the first costs upload, the second work at the
        server.
      choose_by: How clients choose a model: by "train_loss", on their training examples, by "validation_loss", on
        examples held out of these, or by "test_accuracy", on their test examples (the authors' code; a leak). The paper
        prints a loss on the test examples (Alg. 1 line 9) and one on the server's images (its text), which have no
        labels.
    """

    threshold: float = 0.5
    metric: one_of(choices.SIMILARITIES) = "agreement"
    soft: bool = False
    answered_by: one_of(ANSWERED_BY) = "clients"
    choose_by: one_of(choices.CHOOSE_BY) = "train_loss"

    def check(self):
        check_threshold(self.threshold, "agreement", 1, None)


CASES = ("joint", "disjoint")


@dataclasses.dataclass(frozen=True)
class FLTParameters(Parameters):
    """How FLT relates clients and what follows from it.

    Attributes:
      encoder: What the server pre-trains the autoencoder on, once: a name of `tffcl list encoders`, a data set, or
        several and chosen classes of them, e.g. "cifar10+cifar100:11,20,22"; or a file of a pre-trained one (.npz).
      encoder_epochs: Passes of the pre-training over its data (authors: 25 to 30).
      encoder_examples: Only so many of its images; default all.
      latent: e, size of a code (paper: 128).
      num_centres: k, centres that a client sends: 5 in the paper; "classes": as many as the client has classes, to
        which "k can be adjusted on the client side" (section IV-A3) and is in the authors' code. More centres than
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
      signature_noise_multiplier: z of the Gaussian noise that makes a client's centres private; 0 is none, and no clip.
      signature_clip: The largest norm of a centre with it.
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
    signature_noise_multiplier: NonNegative = 0.0
    signature_clip: Positive = 1.0


IFCA_STARTS = ("independent", "attracting", "warm_up", "fedavg")


@dataclasses.dataclass(frozen=True)
class IFCAParameters(Parameters):
    """How IFCA starts and what its clusters share.

    Attributes:
      num_clusters: K, the number of models.
      start: How the first models differ: "independent", drawn so; "attracting", drawn again until each is chosen by
        `least_share` of the clients (the authors' finder); "warm_up", `warm_up_rounds` rounds with clients in random
        equal groups; "fedavg", `fedavg_rounds` rounds of FedAvg, whose model all share then but for their last layers.
      initialization: How the K models are drawn; default as the model's own.
        PACFL's code draws them by "ifca_reference".
      least_share: With "attracting": the least share of the clients that every model must attract, at most 1 / K
        (authors: 0.35 with 2 models, 0.1 with 4); default 0.4 / K.
      warm_up_rounds: With "warm_up": how many (authors: 20 on FEMNIST).
      fedavg_rounds: With "fedavg": how many, the first of the run (FLT's Table III: 500 before 1,000 of IFCA; the
        authors: 2,000).
      share_representation: Whether all layers but the last are common to all clusters and averaged over the whole
        cohort (paper, section 5, FEMNIST).
      choose_by: How clients choose a model: by "train_loss", on their training examples (paper), by "validation_loss",
        on examples held out of these, or by "test_accuracy", on their test examples, as the PACFL and FLIS authors'
        code does (a leak).
    """

    num_clusters: Count = 2
    start: one_of(IFCA_STARTS) = "independent"
    initialization: one_of(choices.INITIALIZATIONS) | None = None
    least_share: Positive | None = None
    warm_up_rounds: Count = 5
    fedavg_rounds: Count = 500
    share_representation: bool = False
    choose_by: one_of(choices.CHOOSE_BY) = "train_loss"

    def check(self):
        if self.least_share is not None and self.least_share > 1 / self.num_clusters:
            most = f"{1 / self.num_clusters:.3g}"
            raise UserError(
                f"least_share is {self.least_share}; it must be above 0 and at most 1 / num_clusters, {most}"
            )


STOCFL_STARTS = ("initial", "global", "closest")
GLOBAL_OBJECTIVES = ("fedavg", "fedprox")


@dataclasses.dataclass(frozen=True)
class StoCFLParameters(Parameters):
    """How StoCFL clusters and what holds the clusters' models together.

    Attributes:
      threshold: τ, clusters with a larger cosine merge; -1 merges everyone known (with the representation
        "cohort" those of a round), 1 nobody.
      proximal_weight: λ of Eq. 3, how strongly the global model pulls at the clusters' models.
      linkage: "single" (Alg. 1) or "centroid": which clusters of a round merge. Where single clients tell little (50
        examples each), some of another group are more alike than those of one's own: "centroid" then finds the groups,
        at a lower threshold, "single" joins them.
      representation: Of what a cluster's representation is the mean: its "members" (Eq. 2), or those of them in the
        round's "cohort" (the authors' code).
      model_merge: The model of clusters that merge: the "mean", weighted by members that trained, or that of the
        "larger" (the authors' code).
      start: Where a cluster that has never been trained starts: the "initial" model, the "global" one of that round
        (the authors' code), or that of the "closest" cluster.
      global_objective: G of Eq. 3: "fedavg" or "fedprox".
      global_order: How a round's clients train the global model: in "parallel" (Eq. 3), or in a "sequential" chain, as
        the authors' trainers do: it then takes as many times more steps, and Tables 1 and 5 cannot be met without it.
      form: What a client sends of its data: its "gradient", or its "displacement" from the anchor after some local
        steps (the authors' code).
      anchor_epochs: With the form "displacement": passes over the local data from the anchor.
      anchor_batch_size: With it: examples a step; 0 is all local data.
      anchor_learning_rate: With it: step size; default that of training.
      projection: Dimensions that each client projects its signature to; 0, or as many as the model has parameters, is
        none.
      signature_noise_multiplier: z of the Gaussian noise that makes a client's signature private; 0 is none, and no
        clip.
      signature_clip: The largest norm of a signature with it.
    """

    threshold: Annotated[
        float, msgspec.Meta(ge=-1, le=1, description="a cosine, from -1 (all clients in one cluster) to 1 (no merges)")
    ] = 0.5
    proximal_weight: NonNegative = 0.05
    linkage: one_of(choices.MERGE_RULES) = "single"
    representation: one_of(choices.REPRESENTATIONS) = "members"
    model_merge: one_of(choices.MODEL_MERGES) = "mean"
    start: one_of(STOCFL_STARTS) = "initial"
    global_objective: one_of(GLOBAL_OBJECTIVES) = "fedavg"
    global_order: one_of(choices.GLOBAL_ORDERS) = "parallel"
    form: one_of(choices.ANCHOR_FORMS) = "gradient"
    anchor_epochs: Count = 10
    anchor_batch_size: Whole = 0
    anchor_learning_rate: Positive | None = None
    projection: Whole = 4096
    signature_noise_multiplier: NonNegative = 0.0
    signature_clip: Positive = 1.0

    def check(self):
        if self.representation == "cohort" and self.linkage != "single":
            raise UserError(f"representation 'cohort' knows linkage 'single' only, not {self.linkage!r}")
        if self.global_order == "sequential" and self.global_objective == "fedprox":
            raise UserError(
                "global_objective 'fedprox' goes with global_order 'parallel' only: in a sequential chain a client "
                "starts from, and would be held near, the model of the client before it, not the broadcast one"
            )
