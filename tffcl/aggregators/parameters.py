"""The keys of each aggregation that a task file can name; imports nothing heavy."""

import dataclasses
from typing import Annotated

import msgspec

from tffcl.validation import Count, NonNegative, Parameters, Positive, one_of, wrong

CLIPS = ("fixed", "adaptive")
ROBUST_RULES = ("clipping", "median", "trimmed_mean", "multi_krum")
_Minority = Annotated[float, msgspec.Meta(ge=0, lt=0.5)]


@dataclasses.dataclass(frozen=True)
class SecureSumParameters(Parameters):
    """Of means whose sums are secure: the server learns the sums of each cluster, and of no client's update alone.

    The server still sees the signatures that it asks for.

    Attributes:
      bound: Every coordinate of an update is clipped to this absolute value before it becomes a whole number.
      largest_weight: A client with more training examples counts as one with so many; where all clients count the same
        it is 1.
      min_cluster_size: A cluster with fewer members in a round waits: they are not asked, and it keeps its model. With
        1 the sum of a cluster's only member is its update.
    """

    bound: Positive = 4.0
    largest_weight: Positive = 10_000.0
    min_cluster_size: Count = 2


@dataclasses.dataclass(frozen=True)
class DPParameters(Parameters):
    """Of differentially private means: updates are clipped, sums and counts are noised, at the server.

    Attributes:
      noise_multiplier: z, standard deviation of the noise in units of what one client can change; 0 is no noise.
      clip: The largest L2 norm of an update; longer ones are scaled down to it. With an adaptive clip the first one.
      clipping: "fixed", or "adaptive": the clip follows a quantile of the updates' norms (Andrew et al. 2021).
      quantile: Of an adaptive clip, the share of updates that are not clipped.
      clip_learning_rate: Of an adaptive clip.
      count_share: The share of the privacy loss that pays for the noisy number of members of each cluster.
      quantile_share: With an adaptive clip, the share that pays for the noisy number of updates that are not clipped.
      min_cluster_size: A cluster whose noisy number of members in a round is less keeps its model in that round. The
        noise of that number has the standard deviation noise_multiplier / √count_share, 2.2 by default: only a size of
        several of these keeps clusters of few members, or none, from moving by noise.
      secure: Whether the sums are secure, too, so that the aggregator sees no client's upload.
    """

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
    """Of means of updates in few bits, with a range of values for each layer.

    Attributes:
      bits: Of each coordinate.
    """

    bits: Annotated[int, msgspec.Meta(ge=1, le=8)] = 8


@dataclasses.dataclass(frozen=True)
class RobustParameters(Parameters):
    """Of means that bound what malicious clients can do. None of them is private; the server sees uploads or their
    norms.

    Attributes:
      rule: "clipping" to a quantile of the members' norms; "median" or "trimmed_mean" of each coordinate; or
        "multi_krum", the mean of the updates that are nearest to others (Blanchard et al. 2017).
      attackers: The share of a cluster's members that "trimmed_mean" and "multi_krum" guard against: so much is left
        out, of each coordinate at both ends, or of the members.
      quantile: Of "clipping", the share of updates that are not clipped.
      initial_clip: Of "clipping", the first clip of every cluster.
      clip_learning_rate: Of "clipping", how fast the clip follows the quantile.
      zeroing: Of "clipping": updates that are so many times longer than the clip count as zero; 0: none do.
    """

    rule: one_of(ROBUST_RULES) = "median"
    attackers: _Minority = 0.2
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.8
    initial_clip: Positive = 1.0
    clip_learning_rate: Positive = 0.2
    zeroing: NonNegative = 0.0

    def check(self):
        if 0 < self.zeroing < 1:
            raise wrong("zeroing", self.zeroing, "it must be 0 or a number from 1")
