"""The keys of methods whose clients use mixtures of models. Imports nothing heavy."""

import dataclasses
from typing import Annotated

import msgspec

from tffcl.validation import Count, NonNegative, Parameters, one_of

SOFT_STARTS = ("clusters", "own")
_Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]


@dataclasses.dataclass(frozen=True)
class FedEMParameters(Parameters):
    """Of how many models FedEM's clients are mixtures.

    Attributes:
      num_clusters: K, the number of models (paper: 3).
      mixture_steps: By how many EM steps a newcomer, and everybody at an evaluation, finds its mixture of the models as
        they are then, from equal weights. In a round it is one, from the mixture that the client keeps.
    """

    num_clusters: Count = 3
    mixture_steps: Count = 20


@dataclasses.dataclass(frozen=True)
class FedRCParameters(Parameters):
    """Of how many models FedRC's clients are mixtures.

    Attributes:
      num_clusters: K, the number of models (paper: 3).
      mixture_steps: As of FedEM.
    """

    num_clusters: Count = 3
    mixture_steps: Count = 20


@dataclasses.dataclass(frozen=True)
class FedSoftParameters(Parameters):
    """How FedSoft's clients are tied to the clusters' models.

    Attributes:
      num_clusters: S, the number of clusters.
      proximal_weight: λ, how strongly the clusters' models pull at a client's (authors: 0.1).
      estimate_every: τ, in how many rounds importance weights are estimated anew (authors: 2).
      smoother: σ, the weight of a cluster that no example of a client is nearest to (authors: 0.0001).
      start: What a client trains: the mean of the "clusters" by its importance weights, or its "own" model of the last
        round, as the authors' code does.
    """

    num_clusters: Count = 2
    proximal_weight: NonNegative = 0.1
    estimate_every: Count = 2
    smoother: _Share = 0.0001
    start: one_of(SOFT_STARTS) = "clusters"
