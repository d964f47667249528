"""The parameters of the methods that group clients in every round or during training, and of those whose clients use
mixtures of models. Imports nothing heavy."""

import dataclasses
from typing import Annotated, ClassVar

import msgspec

from tffcl import choices
from tffcl.algorithms.parameters import NoisedSignature
from tffcl.clustering.vector_distances import check_threshold
from tffcl.errors import UserError
from tffcl.validation import Count, Fraction, NonNegative, Parameters, Positive, Whole, one_of, tell_once


@dataclasses.dataclass(frozen=True)
class CFLParameters(Parameters):
    """When CFL splits a cluster, and how. The two norms depend on the model and on local training unless they are
    relative.

    Attributes:
      stationary_norm: ε₁. A cluster is split if its mean update is shorter than this (authors' notebook: 0.4) and the
        next condition holds, too.
      progress_norm: ε₂. A member's update must be longer than this (authors' notebook: 1.6).
      relative: Whether both norms are shares of the longest update of the first round.
      first_rounds: The number of first rounds without a split (authors' notebook: 20).
      gate: γ. A cluster is split only if sqrt((1 - α) / 2) is above it, where α is the largest cosine across the
        halves; default no gate.
      linkage: "single" makes that cosine as small as it can be (the paper's bipartition); "complete" is the authors'
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
      square_root: Whether to cluster the square roots of the losses, which gives large losses less weight (an option of
        the authors' code).
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
      warm_up_rounds: Rounds of FedAvg before clients are grouped (the authors' code waits until the accuracy stops
        rising).
      neighbourhood: The rule for the distance from which on clients are no longer neighbours, "knee" or "gap".
      eps_scale: Multiplies that distance (the authors' code: 1).
    """

    warm_up_rounds: Count = 5
    neighbourhood: one_of(choices.NEIGHBOURHOODS) = "knee"
    eps_scale: Positive = 1.0


ANSWERED_BY = ("clients", "server")


@dataclasses.dataclass(frozen=True)
class FLISDCParameters(Parameters):
    """How FLIS (DC) groups the clients of a round.

    Attributes:
      threshold: β, clients whose models have at least this similarity are in one cluster (paper: 0.3 CIFAR-10 and SVHN,
        0.5 FMNIST).
      metric: The similarity of two clients' answers: "agreement" (the authors' code) or "frobenius" (the paper's
        formula).
      soft: Whether models answer with probabilities instead of their most likely class.
      answered_by: "clients": clients answer the server's images themselves and upload the answers. "server": the
        aggregator answers with the uploaded models. The clusters are the same; the first costs upload, the second
        computation on the server.
      choose_by: How clients choose a model: by "train_loss", on their training examples, by "validation_loss", on
        examples held out from these, or by "test_accuracy", on their test examples (the authors' code; a leak). The
        paper prints a loss on the test examples (Alg. 1 line 9) and one on the server's images (in its text), which
        have no labels.
    """

    threshold: float = 0.5
    metric: one_of(choices.SIMILARITIES) = "agreement"
    soft: bool = False
    answered_by: one_of(ANSWERED_BY) = "clients"
    choose_by: one_of(choices.CHOOSE_BY) = "train_loss"

    def check(self):
        check_threshold(self.threshold, "agreement", 1, None)


IFCA_STARTS = ("independent", "attracting", "warm_up", "fedavg")


@dataclasses.dataclass(frozen=True)
class IFCAParameters(Parameters):
    """How IFCA starts and what its clusters share.

    Attributes:
      num_clusters: K, the number of models.
      start: How the first models come to differ. "independent": they are drawn independently. "attracting": they are
        drawn again until each is chosen by `least_share` of the clients (the authors' finder). "warm_up":
        `warm_up_rounds` rounds with clients in random equal groups (in private rounds each client's group is drawn by
        itself). "fedavg": `fedavg_rounds` rounds of FedAvg, whose model all then share except for their last layers.
      initialization: How the K models are drawn; default as the model itself. PACFL's code uses "ifca_reference".
      least_share: With "attracting", the least share of the clients that every model must attract, at most 1 / K
        (authors: 0.35 with 2 models, 0.1 with 4); default 0.4 / K.
      warm_up_rounds: With "warm_up", the number of warm-up rounds (authors: 20 on FEMNIST).
      fedavg_rounds: With "fedavg", the number of rounds of FedAvg, the first of the run (FLT's Table III: 500 before
        1,000 of IFCA; the authors: 2,000).
      share_representation: Whether all clusters share all layers but the last, averaged over the whole cohort (paper,
        section 5, FEMNIST).
      choose_by: How clients choose a model: by "train_loss", on their training examples (paper), by "validation_loss",
        on examples held out from these, or by "test_accuracy", on their test examples, as the PACFL and FLIS authors'
        code does (a leak).
    """

    only_with: ClassVar = {
        "least_share": ("start", "attracting"),
        "warm_up_rounds": ("start", "warm_up"),
        "fedavg_rounds": ("start", "fedavg"),
    }

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
class StoCFLParameters(NoisedSignature):
    """How StoCFL clusters clients, and what holds the clusters' models together.

    Attributes:
      threshold: τ. Clusters with a larger cosine merge; -1 merges all known clients (with the representation "cohort"
        those of a round), 1 merges none.
      proximal_weight: λ of Eq. 3, how strongly the global model pulls at the clusters' models.
      linkage: "single" (Alg. 1) or "centroid": which clusters of a round merge. Where single clients hold little
        information (50 examples each), some clients of different groups are more alike than clients of one group. Then
        "centroid", at a lower threshold, finds the groups, and "single" joins them.
      representation: What a cluster's representation is the mean of: its "members" (Eq. 2), or its members in the
        round's "cohort" (the authors' code).
      model_merge: The model of clusters that merge: the "mean", weighted by members that trained, or the model of the
        "larger" cluster (the authors' code).
      start: The model from which a cluster that has never been trained starts: the "initial" one, the "global" one of
        that round (the authors' code), or that of the "closest" cluster.
      global_objective: G of Eq. 3: "fedavg" or "fedprox".
      global_order: How a round's clients train the global model: in "parallel" (Eq. 3), or in a "sequential" chain, as
        the authors' trainers do. The chain takes as many times more steps as a round has clients, and Tables 1 and 5
        cannot be met without it.
      form: What a client sends of its data: its "gradient", or its "displacement" from the anchor after some local
        steps (the authors' code).
      anchor_epochs: With the form "displacement", passes over the local data from the anchor.
      anchor_batch_size: With the form "displacement", examples in a step; 0 is all local data.
      anchor_learning_rate: With the form "displacement", the step size; default that of training.
      projection: Dimensions that each client projects its signature to; 0, or the model's number of parameters, is no
        projection.
    """

    only_with: ClassVar = dict.fromkeys(
        ("anchor_epochs", "anchor_batch_size", "anchor_learning_rate"), ("form", "displacement")
    )

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

    def check(self):
        if self.representation == "cohort" and self.linkage != "single":
            raise UserError(f"representation 'cohort' knows linkage 'single' only, not {self.linkage!r}")
        if self.global_order == "sequential" and self.global_objective == "fedprox":
            raise UserError(
                "global_objective 'fedprox' goes with global_order 'parallel' only: in a sequential chain a client "
                "starts from, and would be held near, the model of the client before it, not the broadcast one"
            )


MEASURES = {"loss": "mean losses", "error": "shares of wrong answers, from 0 to 1"}
FEDDRIFT_STARTS = {"one": "one model for all", "each": "a model for each client"}


@dataclasses.dataclass(frozen=True)
class FedDriftParameters(Parameters):
    """When FedDrift creates models and merges them.

    Attributes:
      threshold: δ. A client whose loss has risen by more than this creates a model, and models that lose no more than
        this on each other's data merge. It has the unit of the measure. A model that a single client created is fitted
        to this client, so too small a δ leaves such models apart.
      measure: What is compared: the "loss" (paper), or the "error", the share of wrong predictions (the authors' code,
        with δ from 0.04 to 0.2; 0.1 on MNIST).
      eager: Whether to use FedDrift-Eager: clients whose losses rise in one round share one new model, and none merge.
      start: "one" model for all (paper), or a model for "each" client, which then merge, for data with several concepts
        from the beginning (an option of the authors' code).
      check_every: Rounds from one time step, in which the clients of the round try all models, to the next.
    """

    threshold: Positive = 1.0
    measure: one_of(MEASURES) = "loss"
    eager: bool = False
    start: one_of(FEDDRIFT_STARTS) = "one"
    check_every: Count = 1


@dataclasses.dataclass(frozen=True)
class FedGWCParameters(Parameters):
    """When and how FedGWC splits clusters.

    Attributes:
      gamma: γ of the affinity exp(-γ d²) of two clients' perceptions (authors' code: 0.1).
      tolerance: ε. Interactions have settled while the mean square of their changes is below this (authors' code: 1e-5,
        with ten of a hundred clients a round). They change more with smaller cohorts, or cohorts that are a larger
        share of the clients.
      most_parts: The largest number of parts that a cluster is split into at once (authors' code: 4, and at most as
        many as cohorts fit into it).
      least_clients: A cluster with fewer clients is not split (authors' code: one that is no larger than a cohort).
    """

    gamma: Positive = 0.1
    tolerance: Positive = 1e-5
    most_parts: Annotated[int, msgspec.Meta(ge=2)] = 4
    least_clients: Count = 4


REBALANCED_BY = {
    "choices": "what the clients of the round choose, which the server sees: never fewer",
    "counts": "how many clients chose each in the rounds before: not fewer in expectation, and choices stay hidden",
}


@dataclasses.dataclass(frozen=True)
class RRClusterParameters(IFCAParameters):
    """How RR-Cluster rebalances IFCA's clusters; everything else is as in IFCA.

    Attributes:
      least_clients: B, the least number of a round's clients that train each model, or as many as there are for each; 0
        is IFCA.
      rebalance_by: "choices" of the round (paper), or "counts" of earlier rounds, which cost no further privacy.
    """

    least_clients: Whole = 10
    rebalance_by: one_of(REBALANCED_BY) = "choices"


@dataclasses.dataclass(frozen=True)
class RDPCFLParameters(NoisedSignature):
    """How R-DPCFL groups clients by their updates, and for how long.

    Attributes:
      num_clusters: M, the number of models.
      soft_rounds: The largest number of rounds in which each client's cluster is drawn, with the probability that its
        update belongs to it (paper: half of all rounds); fewer if clusters overlap. After these rounds each client
        takes the model of least loss.
      pre_training_epochs: Epochs in which a client trains the initial model, with all its examples in one batch.
      projection: Dimensions that each client projects its update to; 0 is no projection.
    """

    num_clusters: Count = 2
    soft_rounds: Count = 20
    pre_training_epochs: Count = 1
    projection: Whole = 4096


SOFT_STARTS = ("clusters", "own")


@dataclasses.dataclass(frozen=True)
class FedEMParameters(Parameters):
    """How many models FedEM's clients mix, and how they find their mixtures.

    Attributes:
      num_clusters: K, the number of models (paper: 3).
      mixture_steps: EM steps by which newcomers, and all clients at an evaluation, find their mixture of the current
        models, from equal weights. A round takes one step, from the mixture that the client keeps.
    """

    num_clusters: Count = 3
    mixture_steps: Count = 20


@dataclasses.dataclass(frozen=True)
class FedRCParameters(FedEMParameters):
    """How many models FedRC's clients mix, and how they find their mixtures, as for FedEM."""


@dataclasses.dataclass(frozen=True)
class FedSoftParameters(Parameters):
    """How FedSoft's clients are tied to the clusters' models.

    Attributes:
      num_clusters: S, the number of clusters.
      proximal_weight: λ, how strongly the clusters' models pull at a client's model (authors: 0.1).
      estimate_every: τ, rounds between two estimates of the importance weights (authors: 2).
      smoother: σ, the weight of a cluster that fits none of a client's examples best (authors: 0.0001).
      start: The model that a client trains: the mean of the "clusters", weighted by importance, or its "own" model of
        the last round, as in the authors' code.
    """

    num_clusters: Count = 2
    proximal_weight: NonNegative = 0.1
    estimate_every: Count = 2
    smoother: Fraction = 0.0001
    start: one_of(SOFT_STARTS) = "clusters"
