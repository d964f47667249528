"""The parameters of each aggregation that a task file can name; imports nothing heavy."""

import dataclasses
from typing import Annotated, ClassVar

import msgspec

from tffcl.validation import Count, NonNegative, Parameters, Positive, one_of, wrong

CLIPS = ("fixed", "adaptive")
ROBUST_RULES = ("clipping", "median", "trimmed_mean", "multi_krum")
_Minority = Annotated[float, msgspec.Meta(ge=0, lt=0.5)]


@dataclasses.dataclass(frozen=True)
class SecureSumParameters(Parameters):
    """Parameters of means with secure sums: the server learns the sum of each cluster, but no single client's update.

    The server still sees the signatures that it asks for.

    Attributes:
      bound: Every coordinate of an update is clipped to this absolute value before it becomes a whole number.
      largest_weight: A client with more training examples than this counts as if it had this many; where all clients
        count the same it is 1.
      min_cluster_size: A cluster with fewer members in a round waits: its members are not asked, and it keeps its
        model. With 1, the sum of a cluster with a single member is this member's update.
    """

    bound: Positive = 4.0
    largest_weight: Positive = 10_000.0
    min_cluster_size: Count = 2


@dataclasses.dataclass(frozen=True)
class DPParameters(Parameters):
    """Parameters of differentially private means: updates are clipped, and the server noises sums and counts.

    Attributes:
      noise_multiplier: z, standard deviation of the noise in units of what one client can change; 0 is no noise.
      clip: The largest L2 norm of an update; longer updates are scaled down to it. With adaptive clipping the initial
        clip.
      clipping: "fixed", or "adaptive": the clip follows a quantile of the updates' norms (Andrew et al. 2021).
      quantile: With adaptive clipping, the share of updates that are not clipped.
      clip_learning_rate: With adaptive clipping, how fast the clip follows the quantile.
      count_share: The share of the privacy loss that pays for the noisy number of members of each cluster.
      quantile_share: With adaptive clipping, the share that pays for the noisy number of updates that are not clipped.
      min_cluster_size: A cluster keeps its model in a round in which its noisy number of members is less than this. The
        noise of that number has the standard deviation noise_multiplier / √count_share, 2.2 by default. Only a size of
        several of these standard deviations keeps clusters of few members, or none, from moving by noise.
      secure: Whether the sums are secure, too, so that the aggregator sees no client's upload.
    """

    only_with: ClassVar = dict.fromkeys(("quantile", "clip_learning_rate", "quantile_share"), ("clipping", "adaptive"))

    noise_multiplier: NonNegative = 1.0
    clip: Positive = 1.0
    clipping: one_of(CLIPS) = "fixed"
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    clip_learning_rate: Positive = 0.2
    count_share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.2
    quantile_share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    min_cluster_size: Positive = 2.0
    secure: bool = False

    def check(self):
        if self.adaptive and self.count_share + self.quantile_share >= 1:
            raise wrong("quantile_share", self.quantile_share, "with count_share it must be below 1")

    @property
    def adaptive(self) -> bool:
        """Whether the clip follows the updates' norms."""
        return self.clipping == "adaptive"


@dataclasses.dataclass(frozen=True)
class CompressionParameters(Parameters):
    """Parameters of means of updates in few bits, with a range of values for each layer.

    Attributes:
      bits: The number of bits of each coordinate.
    """

    bits: Annotated[int, msgspec.Meta(ge=1, le=8)] = 8


@dataclasses.dataclass(frozen=True)
class RobustParameters(Parameters):
    """Parameters of means that bound what malicious clients can do. None of them is private: the server sees uploads or
    their norms.

    Attributes:
      rule: "clipping" to a quantile of the members' norms; "median" or "trimmed_mean" of each coordinate; or
        "multi_krum", the mean of the updates that are nearest to others (Blanchard et al. 2017).
      attackers: The share of a cluster's members that "trimmed_mean" and "multi_krum" guard against. They leave out
        this share of each coordinate's values at both ends, or of the members. The other rules do not need it.
      quantile: For "clipping", the share of updates that are not clipped.
      initial_clip: For "clipping", the first clip of every cluster.
      clip_learning_rate: For "clipping", how fast the clip follows the quantile.
      zeroing: For "clipping", updates more than this many times as long as the clip count as zero; 0: none do.
    """

    only_with: ClassVar = dict.fromkeys(
        ("quantile", "initial_clip", "clip_learning_rate", "zeroing"), ("rule", "clipping")
    )

    rule: one_of(ROBUST_RULES) = "median"
    attackers: _Minority = 0.2
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.8
    initial_clip: Positive = 1.0
    clip_learning_rate: Positive = 0.2
    zeroing: NonNegative = 0.0

    def check(self):
        if 0 < self.zeroing < 1:
            raise wrong("zeroing", self.zeroing, "it must be 0 or a number from 1")
