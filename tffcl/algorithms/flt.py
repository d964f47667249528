"""FLT: federated learning with taskonomy (Jamali-Rad et al., TNNLS 2022, arXiv:2103.15947, Alg. 2 and 3).

Before training every client encodes its images, sends the centres of their embeddings, and the server lays these out by
UMAP: clients with near centres are related. Case I: every client trains a mix of its relatives' models; case II: the
relatedness is cut into disjoint clusters, which train one model each.
"""

import dataclasses
import hashlib

import numpy as np

from tffcl.algorithms import dynamic_clustering
from tffcl.algorithms.clustered_training import build_clustered_training, build_summed_training, build_training_process
from tffcl.algorithms.contracts import Algorithm, Population, State, check_newcomers, extended, joined_order
from tffcl.algorithms.one_shot import OneShotClustering, signature_transfer, threshold_of
from tffcl.algorithms.related_training import MIXES, build_related_process, build_related_training
from tffcl.algorithms.signature_round import build_signing
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clustering import centre_map, hierarchical
from tffcl.clustering import client_relatedness as fcr
from tffcl.clustering import newcomers as joining
from tffcl.errors import UserError, unknown
from tffcl.models.autoencoder import FlatAutoencoder
from tffcl.models.flat import FlatModel
from tffcl.signatures.embedding import build_embedding
from tffcl.signatures.signature import build_collection

CASES = {"joint": "case I, every client its own mix by the relatedness matrix", "disjoint": "case II, disjoint clusters"}


@dataclasses.dataclass(frozen=True)
class TaskonomyClustering:
    """How FLT relates clients and what follows from it.

    Attributes:
      encoder: A data set that the server pre-trains the autoencoder on, once, or a file of a pre-trained one (.npz), see
        `experiments.encoders`. Paper: EMNIST (Enc1) or Fashion-MNIST (Enc2) for MNIST.
      encoder_epochs: Passes of the pre-training over its data (authors: 25 to 30).
      encoder_examples: Only so many of its images; default all.
      num_centres: k, centres that a client sends (paper: 5).
      fine_tune_epochs: J, epochs in which each client fine-tunes the encoder on its own images before encoding; 5 in the
        paper for an encoder of other data than the clients' (Enc2), 0 for one whose data cover them (Enc1).
      fine_tune_rate: Adam's learning rate in it.
      distance: A name in `client_relatedness.DISTANCES`: "closest_pair" (paper) or "matching" (the authors' code).
      gamma: γ, clients nearer than this in the map are related (paper: 1).
      clusters: "joint" (case I, every client its own mix by the relatedness matrix) or "disjoint" (case II).
      num_clusters: C, for the disjoint clusters; default the best fitting number.
      mixes: With "joint", who gets a new mix in a round, and of what: "cohort" (who took part, of their models),
        "everyone" (of the cohort's models) or "stored" (everyone, of all models that the server has: Alg. 3 line 17 as
        printed). With few clients a round "everyone" learns by far the fastest.
      num_neighbors: Of UMAP.
      change_flags: λ of Alg. 3 line 23: clients tell when their data have changed, and when more than so many have, all
        send centres again and are related anew; default: flags are not asked for.
      period: τ: the same in every round that is a multiple of it; default never.
    """

    encoder: str = "fashion_mnist"
    encoder_epochs: int = 25
    encoder_examples: int | None = None
    num_centres: int = 5
    fine_tune_epochs: int = 5
    fine_tune_rate: float = 1e-3
    distance: str = "closest_pair"
    gamma: float = 1.0
    clusters: str = "joint"
    num_clusters: int | None = None
    mixes: str = "cohort"
    num_neighbors: int = 15
    change_flags: int | None = None
    period: int | None = None

    def __post_init__(self):
        for name, allowed in (("distance", fcr.DISTANCES), ("clusters", CASES), ("mixes", MIXES)):
            if getattr(self, name) not in allowed:
                raise unknown(name, getattr(self, name), allowed)
        least = {
            "encoder_epochs": 1,
            "encoder_examples": 1,
            "num_centres": 1,
            "fine_tune_epochs": 0,
            "num_neighbors": 2,
            "num_clusters": 1,
        }
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise UserError(f"{name} is {value}; it must be a whole number from {smallest}")
        for name in ("gamma", "fine_tune_rate"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be above 0")
        dynamic_clustering.Triggers(self.change_flags, self.period)  # refuses what is impossible


@dataclasses.dataclass(frozen=True, eq=False)
class ClientRelatedness:
    """Forms the client relatedness (FCR, Alg. 2) from the centres that clients sent.

    Attributes:
      how: Distance, threshold and clusters.
      seed: Of the map.
    """

    how: TaskonomyClustering
    seed: int

    def form(self, centres: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Alg. 2 lines 13 to 19.

        Args:
          centres: `float32 [N, k, e]`.
          mask: `bool [N, k]`.

        Returns:
          The disjoint clusters `int32 [N]`, and what the state keeps: `centres`, `mask`, `points` (the map), `mapped` (`bool
          [N]`, whose centres it was made of), `proximity` (distances in it), `relatedness`, `merges` (Ward's tree of the
          relatedness' rows), `threshold` (a height at which the tree gives the clusters).
        """
        points, apart = self.distances(centres, mask)
        labels, cut = self.flattened(apart)
        mapped = np.ones(len(centres), bool)
        return labels, {"centres": centres, "mask": mask, "points": points, "mapped": mapped, "proximity": apart, **cut}

    def distances(self, centres: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lines 13 to 16: the map's points, and the clients' distances in it."""
        points = self._map(centres, mask).points
        return points, fcr.client_distances(points, mask, distance=self.how.distance)

    def flattened(self, apart: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Lines 17 to 19: the disjoint clusters; `relatedness`, `merges` and `threshold`."""
        relatedness = fcr.relate(apart, self.how.gamma)
        labels, merges = fcr.flatten(relatedness, self.how.num_clusters)
        threshold = threshold_of(hierarchical.Dendrogram(merges, "ward"), int(labels.max()) + 1)
        return labels, {"relatedness": relatedness, "merges": merges, "threshold": np.float64(threshold)}

    def place(self, extra: dict, centres: np.ndarray, mask: np.ndarray):
        """Newcomers in the map of the others: their points, and distances to the others and to each other."""
        mapped = extra["mapped"]  # with earlier newcomers it would be another map than that which has the others' points
        points = self._map(extra["centres"][mapped], extra["mask"][mapped]).place(centres, mask)
        distance = {"distance": self.how.distance}
        across = fcr.client_distances(extra["points"], extra["mask"], points, mask, **distance)
        return points, across, fcr.client_distances(points, mask, **distance)

    def _map(self, centres, mask):
        return centre_map.fit_map(centres, mask, seed=self.seed, num_neighbors=self.how.num_neighbors)


@dataclasses.dataclass(frozen=True, eq=False)
class TaskonomyGrouping(OneShotClustering):
    """FLT's grouping as the parts that other methods that cluster before training have, for a look without training.

    Attributes:
      relations: What relates the clients.
    """

    relations: ClientRelatedness | None = None

    def group(self, proximity: np.ndarray):
        """Alg. 2 lines 17 to 19; see `OneShotClustering.group`, the tree is Ward's of the relatedness' rows."""
        labels, kept = self.relations.flattened(proximity)
        return labels, hierarchical.Dendrogram(kept["merges"], "ward"), float(kept["threshold"])


def build_clustering(
    model: FlatModel,
    training: LocalTraining,
    clustering: TaskonomyClustering = TaskonomyClustering(),
    *,
    encoder: tuple[FlatAutoencoder, np.ndarray],
    seed: int = 0,
) -> TaskonomyGrouping:
    """Builds FLT's grouping; arguments as in `build_flt`."""
    del training
    relations = ClientRelatedness(clustering, seed)
    return TaskonomyGrouping(
        signature=_build_signature(model, clustering, encoder, seed),
        names={"centres": "centres", "mask": "mask"},
        measure=lambda signed, _: relations.distances(signed["centres"], signed["mask"])[1],
        unit=_UNIT,
        measure_name=clustering.distance,
        linkage="ward",
        threshold=None,
        num_clusters=clustering.num_clusters,
        tree_unit=_TREE_UNIT,
        relations=relations,
    )


def _build_signature(model, clustering: TaskonomyClustering, encoder, seed: int):
    autoencoder, vector = encoder
    return build_embedding(
        autoencoder, vector, model.example_spec, num_centres=clustering.num_centres,
        fine_tune_epochs=clustering.fine_tune_epochs, learning_rate=clustering.fine_tune_rate, seed=seed,
    )  # fmt: skip


def build_flt(
    model: FlatModel,
    training: LocalTraining,
    clustering: TaskonomyClustering = TaskonomyClustering(),
    *,
    encoder: tuple[FlatAutoencoder, np.ndarray],
    seed: int = 0,
) -> Algorithm:
    """Builds FLT.

    All clients send their centres before the first round. Newcomers join the cluster whose members' embeddings are
    nearest to theirs (section III-B4), are placed in the map of the others, and with joint clusters start from the mean of
    their relatives' models, or from the nearest client's where they have none.

    With `change_flags` or `period` clients are related anew in the middle of training (Alg. 3 lines 21 to 28): all, newcomers
    included, do as before the first round. Line 25 asks for FCR's fine-tune mode whatever the encoder; here the encoder is
    fine-tuned if `fine_tune_epochs` says so, from the pre-trained one each time: clients keep none. Who moves to another
    cluster finds that cluster's model: with disjoint clusters a new cluster starts from the mean of its members' models,
    with joint ones every client keeps its own until its next mix.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      clustering: How clients are related, and whether they train mixes or disjoint clusters' models.
      encoder: A pre-trained autoencoder and its parameters.
      seed: Of the clients' k-means and of the map.

    Returns:
      The method. `State.extra` has what `ClientRelatedness.form` says, the encoder's SHA-256 (`encoder uint8 [32]`), and
      with joint clusters `rows int32 [N]`, whose model is which row; the assignment is the disjoint clusters in both cases.
      Where clients are related anew, `dynamic_clustering.KEYS` too.
    """
    signature = _build_signature(model, clustering, encoder, seed)
    sign, relations = build_signing(signature), ClientRelatedness(clustering, seed)
    joint, triggers = clustering.clusters == "joint", dynamic_clustering.Triggers(clustering.change_flags, clustering.period)
    flags = dynamic_clustering.changed_since_signed if clustering.change_flags is not None else None
    if joint:
        rounds = build_related_training(model, training, clustering.mixes, flags)
    else:
        rounds = build_clustered_training(model, training, flags=flags)

    used = np.frombuffer(hashlib.sha256(np.ascontiguousarray(encoder[1]).tobytes()).digest(), np.uint8)

    def signed_by(population: Population):
        signed = sign(population)
        bad = np.flatnonzero(~np.isfinite(signed["centres"]).all(axis=(1, 2)))
        if len(bad):
            raise UserError(
                f"client {population.client_ids[bad[0]]} sent centres that are not finite; a lower fine_tune_rate helps, or "
                "its data hold NaN"
            )
        return signed

    def form(population: Population):
        signed = signed_by(population)
        labels, extra = relations.form(signed["centres"], signed["mask"])
        return labels, {**extra, "encoder": used}

    def initialize(population: Population) -> State:
        labels, extra = form(population)
        if triggers:
            extra |= dynamic_clustering.no_flags(population)
        if joint:
            models, own = model.initial[np.newaxis], {"rows": np.zeros(len(labels), np.int32)}
        else:
            models, own = np.repeat(model.initial[np.newaxis], labels.max() + 1, axis=0), {}
        return State(population.client_ids, labels, models, rounds.initial_aggregator_state(), {**extra, **own})

    def admit(state: State, arrivals: Population) -> State:
        check_newcomers(state, arrivals)
        if not np.array_equal(state.extra["encoder"], used):
            raise UserError("the clients' centres are of another encoder: newcomers need the file or data directory of then")
        signed, old = signed_by(arrivals), state.extra
        points, across, within = relations.place(old, signed["centres"], signed["mask"])
        labels = fcr.assign_to_nearest(signed["centres"], signed["mask"], old["centres"], old["mask"], state.assignment)
        apart = joining.extend_proximity(old["proximity"], across, within)
        related = fcr.relate(apart, clustering.gamma)
        # The old clients' relations stay as they are.
        related[: len(across), : len(across)] = old["relatedness"]
        members = extended(state, arrivals, labels)
        order = joined_order(state, arrivals)
        new = {"centres": signed["centres"], "mask": signed["mask"], "points": points, "mapped": np.zeros(len(points), bool)}
        extra = {**old, **{key: np.concatenate([old[key], new[key]])[order] for key in new}}
        extra["proximity"] = apart[np.ix_(order, order)]
        extra["relatedness"] = related[np.ix_(order, order)]
        extra["merges"] = hierarchical.build_ward_dendrogram(extra["relatedness"] != 0).merges  # for reports
        models = state.models
        if joint:
            given = _starts(models, old["rows"], related[len(across) :, : len(across)], across)
            extra["rows"] = np.concatenate([old["rows"], len(models) + np.arange(len(given), dtype=np.int32)])[order]
            models = np.concatenate([models, given])
        if triggers:
            extra |= dynamic_clustering.with_arrivals(state, arrivals)
        return dataclasses.replace(state, models=models, extra=extra, **members)

    def carry(state: State, labels, population: Population):
        if joint:
            return {}
        return {"models": dynamic_clustering.mean_of_members(state.models, state.assignment, labels, population.sizes)}

    def computations():
        process = (build_related_process if joint else build_training_process)(model, training, flags=flags is not None)
        return {"signature": build_collection(signature), "initialize": process.initialize, "training": process.next}

    sent = signature_transfer(signature)
    dynamic = dynamic_clustering.DynamicClustering(rounds, form, carry, triggers, sent)
    return Algorithm(
        "flt",
        initialize,
        (dynamic if triggers else rounds).next,
        rounds.assign,
        admit,
        computations,
        {"signature": sent, "training": rounds.transfer},
        extra_keys=(*_KEPT, *(("rows",) if joint else ()), *(dynamic_clustering.KEYS if triggers else ())),
        clustering={
            "unit": _UNIT,
            "tree_unit": _TREE_UNIT,
            "measure": clustering.distance,
            "linkage": "ward",
        },
        summed=None if joint else build_summed_training(model, training, flags=flags is not None),
    )


_UNIT, _TREE_UNIT = "distance in the UMAP map", "Ward distance"
_KEPT = ("centres", "mask", "points", "mapped", "encoder", "proximity", "relatedness", "merges", "threshold")


def _starts(models: np.ndarray, rows: np.ndarray, related: np.ndarray, across: np.ndarray) -> np.ndarray:
    """The models that newcomers start from, `float32 [B, P]`.

    Args:
      models: `float32 [K, P]`, the different models of the old clients.
      rows: `int32 [N]`, which is whose.
      related: `[B, N]` of 0 and 1.
      across: `float [N, B]`, distances.
    """
    nearest = np.eye(len(rows), dtype=np.float32)[across.argmin(axis=0)]
    shares = np.where(related.any(axis=1, keepdims=True), related, nearest).astype(np.float32)
    shares /= shares.sum(axis=1, keepdims=True)
    # Shares of models, not of clients: a model that many clients have is not spread out for each of them.
    by_model = np.stack([np.bincount(rows, weights=share, minlength=len(models)) for share in shares])
    return by_model.astype(np.float32) @ models
