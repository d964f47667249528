"""FLIS (HC): hierarchical clustering by inference similarity after a warm-up (Morafah et al., arXiv:2208.09754, Alg. 3).

Before the first round every client trains the initial model on its own data and answers the server's images; clients
whose models answer alike are clustered hierarchically, once, and every cluster trains its own model from the initial one.
That is Alg. 3. The authors' released code clusters nothing hierarchically: it relates clients by a fixed threshold, and each
averages the last models of those that it is related to.
"""

import dataclasses
import functools
from typing import ClassVar

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.one_shot import CUTS, RULES, OneShotClustering, build_one_shot, check_cut, cut_of
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clustering import hierarchical
from tffcl.clustering import inference_similarity as inference
from tffcl.clustering.vector_distances import answer_dissimilarities
from tffcl.models.flat import FlatModel
from tffcl.signatures.predictions import build_inference, check_images
from tffcl.validation import Count, Parameters, one_of


@dataclasses.dataclass(frozen=True)
class FLISHCParameters(Parameters):
    """How FLIS (HC) groups clients.

    Attributes:
      metric: A name in `inference_similarity.FORMS`: "agreement" (the authors' code) or "frobenius" (the paper's formula).
      soft: Whether clients answer with probabilities instead of their most likely class.
      linkage: A name in `hierarchical.LINKAGES`, on 1 - similarity.
      threshold: β, merges down to this similarity are made; or a name in `one_shot.RULES`.
      num_clusters: The number of clusters instead. With neither, the threshold is "self".
    """

    renamed: ClassVar = {"similarity": "metric", "beta": "threshold"}
    alternatives: ClassVar = CUTS

    metric: one_of(inference.FORMS) = "agreement"
    soft: bool = False
    linkage: one_of(hierarchical.LINKAGES) = "average"
    threshold: float | one_of(RULES) | None = None
    num_clusters: Count | None = None

    def check(self):
        check_cut(self)
        if isinstance(self.threshold, float):
            inference.check_threshold(self.threshold, "agreement", 1, None)


_ROUNDING = 1e-6  # a pair at exactly β merges, though its float32 dissimilarity may be just above 1 - β


def build_clustering(
    model: FlatModel,
    training: LocalTraining,
    how: FLISHCParameters,
    *,
    server_images: np.ndarray | None,
    seed: int = 0,
) -> OneShotClustering:
    """Builds FLIS's grouping (Alg. 3 lines 4 to 6).

    Args:
      model: What is trained in the warm-up.
      training: Local hyper-parameters of the warm-up.
      how: Similarity and cut.
      server_images: What models are compared on, `uint8 [n, ...]`.
      seed: Decides in which order clients visit their examples in the warm-up.

    Raises:
      UserError: If there are no images, they do not fit the model, or no similarity can reach β.
    """
    images = check_images(model, server_images)
    if isinstance(how.threshold, float):
        inference.check_threshold(how.threshold, how.metric, len(images), model.num_classes if how.soft else None)
    return OneShotClustering(
        build_inference(model, training, images, soft=how.soft, seed=seed),
        functools.partial(answer_dissimilarities, how.metric),
        unit="dissimilarity",
        metric=how.metric,
        linkage=how.linkage,
        threshold=1 - how.threshold + _ROUNDING if isinstance(how.threshold, float) else cut_of(how),
        setting={"threshold": lambda threshold: 1 - threshold},
        num_clusters=how.num_clusters,
    )


@method_builder
def build_flis_hc(
    model: FlatModel,
    training: LocalTraining,
    parameters: FLISHCParameters = FLISHCParameters(),
    *,
    server_images: np.ndarray | None,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FLIS (HC).

    Newcomers do the warm-up too and join the cluster whose members' models answer like theirs, see
    `newcomers.assign_newcomers`.

    Args:
      model: What is trained.
      training: Local hyper-parameters, of the warm-up too.
      parameters: How clients are grouped.
      server_images: What models are compared on, `uint8 [n, ...]` (paper: 2,500).
      seed: Of the warm-up.
      aggregation: Of the updates inside each cluster, e.g. `tff.aggregators.MeanFactory()`, or over keyed updates; see
        `aggregators.clustered_mean.keyed_factory`.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are the answers, `value`: `int32 [N, n]` or
      `float32 [N, n, C]`; the proximity is the dissimilarity, 1 - similarity.
    """
    grouping = build_clustering(model, training, parameters, server_images=server_images, seed=seed)
    return build_one_shot("flis_hc", model, training, grouping, aggregation=aggregation)
