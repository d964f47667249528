"""FLT: federated learning with taskonomy (Jamali-Rad et al., TNNLS 2022, arXiv:2103.15947, Alg. 2 and 3).

Before training every client encodes its images and sends the centres of their embeddings, and the server maps these by
UMAP. Clients with near centres are related. Case I: every client trains a mix of its relatives' models. Case II: the
relatedness is cut into disjoint clusters, which train one model each.
"""

import collections
import dataclasses
import functools
import hashlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import CollectFactory
from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.method import CentreMap, ClusteredState, Exports, Method, MetricView, Moves, Views, method_builder
from tffcl.algorithms.one_shot import THRESHOLD, OneShotClustering, check_enough
from tffcl.algorithms.parameters import FLTParameters
from tffcl.algorithms.related_training import build_related_training
from tffcl.client_work.client_work import ClientResult, ClientWork, stack
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended, joined_order
from tffcl.clients.population import Population
from tffcl.clustering import hierarchical
from tffcl.clustering import taskonomy as fcr
from tffcl.clustering.reclustering import ChangeFlags, Triggers, mean_of_members, renumbered
from tffcl.clustering.relatedness_graph import GAP, ClientRelatedness, only_used, starting_models, suggested_gamma
from tffcl.errors import Diverged, UserError
from tffcl.models.autoencoder import FlatAutoencoder
from tffcl.models.flat import FlatModel
from tffcl.rounds.client_queries import build_collection, build_signing, signature_transfer
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.simulation import run_round
from tffcl.rounds.traffic import Traffic
from tffcl.signatures.embedding import CentreNoise, Centres, FineTuning, build_embed, build_embedding


def build_refining_round(
    autoencoder: FlatAutoencoder,
    example_spec,
    centres: Centres,
    fine_tuning: FineTuning,
    noise: CentreNoise = CentreNoise(),
) -> Round:
    """Builds the round in which clients fine-tune the encoder that they keep, and send the centres of their codes.

    Args:
      autoencoder: The architecture; a client keeps its parameters, `float32[P]`.
      example_spec: Structure of one example.
      centres: How many centres a client makes.
      fine_tuning: The training of the encoder; 0 epochs leave the kept encoder unchanged.
      noise: The noise of private centres.

    Returns:
      A round without server values, which collects `centres=<centres=float32[k,e],mask=bool[k]>`.
    """
    embed = build_embed(autoencoder, centres, fine_tuning, noise)

    def compute(received, client):
        del received
        local = stack(client["examples"])
        own = (
            None if noise.seed is None else tf.random.experimental.stateless_fold_in(client["seed"], noise.seed % 2**31)
        )
        found, tuned = embed(client["kept"], local, client["seed"], own)
        # If an encoder has diverged, its centres are missing.
        report = collections.OrderedDict(
            examples=tf.shape(local["y"])[0], loss=tf.constant(0.0), finite=tf.constant(True)
        )
        return ClientResult({"centres": found}, report, tuned)

    work = ClientWork(example_spec, compute, kept=tff.TensorType(np.float32, [autoencoder.size]))
    return compose(work, {"centres": CollectFactory(noise.noise_multiplier, noise.seed)}, Server())


@dataclasses.dataclass(frozen=True, eq=False)
class RefinedEncoders:
    """Asks clients for signatures by encoders that they keep.

    Attributes:
      autoencoder: The architecture.
      example_spec: Structure of one example.
      centres: How many centres a client makes.
      fine_tuning: The training of the encoder; its epochs are replaced.
      seed: Decides the order of examples and where k-means starts, together with the round and the client.
      noise: The noise of private centres.
    """

    autoencoder: FlatAutoencoder
    example_spec: object
    centres: Centres
    fine_tuning: FineTuning
    seed: int
    noise: CentreNoise = CentreNoise()

    def sign(self, population: Population, encoders: KeptStates, epochs: int, round_number: int):
        """Lets clients fine-tune and encode.

        Args:
          population: The clients.
          encoders: The encoders that they have kept.
          epochs: Epochs of fine-tuning.
          round_number: The round after which they sign; 0 before the first.

        Returns:
          `centres float32 [N, k, e]` and `mask bool [N, k]` by name, and the encoders that the clients have now.
        """
        if population.signed_as:
            raise UserError(
                "clients that go on fine-tuning their encoders train on what they hold: here they can imitate nobody"
            )
        cohort = Cohort(population, population.client_ids, (self.seed, round_number))
        result = run_round(_refining(self, epochs), cohort, kept=encoders)
        return result.collected["centres"], result.kept


@functools.lru_cache(maxsize=4)  # for the modes of one method
def _refining(encoders: RefinedEncoders, epochs: int) -> Round:
    fine_tuning = dataclasses.replace(encoders.fine_tuning, epochs=epochs)
    how = encoders.centres, fine_tuning, encoders.noise
    return build_refining_round(encoders.autoencoder, encoders.example_spec, *how)


def changed_since_signed(state, cohort: Cohort) -> np.ndarray:
    """δ of line 13, `int32 [m]`: 1 for a client whose data have changed since it signed; each client itself knows."""
    versions = cohort.population.versions[cohort.population.index(cohort.client_ids)]
    return (versions > state.flags.signed_version[state.index(cohort.client_ids)]).astype(np.int32)


_UNIT, _TREE_UNIT = "distance in the UMAP map", "Ward distance"

# What a deployment must know if clusters are formed anew.
_ANEW = (
    "in a run clients are related anew when more than {change_flags} of them have told `changed`, and in every round "
    "that is a multiple of {period} (None: never): all fine-tune the encoder that they keep and send centres again, of "
    "which there is no computation here: `signature` is that of before the first round"
)
_NEWCOMERS = (
    "sign when they join: each is in the cluster to whose members its centres are nearest (Python, "
    "tffcl.clustering.taskonomy)"
)
_RELATED = (
    "; it is related to all who are nearer than `gamma` (of clustering/state.npz) in the map, and starts from the mean "
    "of their models, or where there are none from the nearest client's"
)


@dataclasses.dataclass(frozen=True, eq=False)
class TaskonomyGrouping(OneShotClustering):
    """FLT's grouping in the form of other methods that cluster before training, to inspect it without training.

    Attributes:
      relations: The rule that relates the clients.
    """

    relations: ClientRelatedness | None = None

    def group(self, proximity: np.ndarray, signatures=None):
        """Alg. 2 lines 17 to 19; see `OneShotClustering.group`. The tree is Ward's tree of the relatedness' rows."""
        del signatures
        labels, kept = self.relations.flattened(proximity)
        return labels, hierarchical.Dendrogram(kept["merges"], "ward"), float(kept["threshold"])

    def build_signing(self):
        """See `OneShotClustering.build_signing`."""
        sign = super().build_signing()

        def checked(population: Population, *more):
            signed = sign(population, *more)
            check_centres(signed.whole, population)
            return signed

        return checked

    def suggest(self, proximity: np.ndarray, dendrogram: hierarchical.Dendrogram) -> hierarchical.Suggestion:
        """Suggests γ, from the clients' distances in the map; see `relatedness_graph.suggested_gamma`."""
        del dendrogram
        found = suggested_gamma(proximity, self.unit)
        labels, _ = dataclasses.replace(self.relations, threshold=GAP).flattened(proximity)
        return dataclasses.replace(found, num_clusters=int(labels.max()) + 1)

    @property
    def suggested_unit(self) -> str:
        return self.unit


def check_centres(signed, population: Population):
    """Raises Diverged, with the client's name, if a client has sent no centre, e.g. since its encoder diverged, or one
    that is not finite."""
    bad = np.flatnonzero(~np.isfinite(signed["centres"]).all(axis=(1, 2)) | ~signed["mask"].any(axis=1))
    if len(bad):
        raise Diverged(
            f"client {population.name_of(population.client_ids[bad[0]])} has no finite centre to send: its "
            "fine-tuning diverged, and a lower fine_tune_rate helps, or its data hold NaN"
        )


def group_flt(
    model: FlatModel,
    training: LocalTraining,
    parameters: FLTParameters = FLTParameters(),
    *,
    encoder: tuple[FlatAutoencoder, np.ndarray],
    seed: int = 0,
    noise_seed: int | None = None,
) -> TaskonomyGrouping:
    """Builds FLT's grouping; arguments as in `build_flt`."""
    del training
    relations = _relations(parameters, seed)
    return TaskonomyGrouping(
        signature=_build_signature(model, parameters, encoder, seed, noise_seed),
        distances=lambda signed, _: relations.distances(signed["centres"], signed["mask"])[1], unit=_UNIT,
        metric=parameters.metric, linkage="ward", threshold=None, num_clusters=parameters.num_clusters,
        tree_unit=_TREE_UNIT, setting=THRESHOLD, relations=relations,
    )  # fmt: skip


def _centres(model: FlatModel, how: FLTParameters) -> Centres:
    return Centres.named(how.num_centres, model.objective)


def _relations(how: FLTParameters, seed: int) -> ClientRelatedness:
    layout = {"num_components": how.map_dimensions, "num_neighbors": how.num_neighbors, "min_dist": how.min_dist}
    return ClientRelatedness(how.metric, how.threshold, how.num_clusters, layout, seed)


def _build_signature(model, parameters: FLTParameters, encoder, seed: int, noise_seed: int | None = None):
    autoencoder, vector = encoder
    centres = _centres(model, parameters)
    return build_embedding(
        autoencoder, vector, model.example_spec, num_centres=centres.most, by_class=centres.by_class,
        fine_tune_epochs=parameters.fine_tune_epochs, optimizer=parameters.fine_tune_optimizer,
        learning_rate=parameters.fine_tune_rate, seed=seed,
        **parameters.noise, noise_seed=noise_seed,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class FLTState(ClusteredState):
    """Adds to `ClusteredState` what `ClientRelatedness.form` finds about the clients.

    Attributes:
      centres: `float32 [N, k, e]`.
      mask: `bool [N, k]`, True for the centres that exist.
      points: `float [N, k, u]`, the map.
      mapped: `bool [N]`, the clients whose centres the map was made of.
      proximity: `float [N, N]`, distances in the map.
      relatedness: `[N, N]` of 0 and 1.
      merges: Ward's tree of its rows, a SciPy linkage matrix.
      threshold: The height at which the tree is cut.
      gamma: γ, the distance below which clients are related.
      encoder: `uint8 [32]`, the SHA-256 of the encoder.
      rows: `int32 [N]`, each client's row of the models, with joint clusters; else None.
      flags: The clients' reports that their data have changed, if clusters are formed anew; else None.
      encoders: The encoders that clients have fine-tuned and keep, if clusters are formed anew.
    """

    centres: np.ndarray | None = None
    mask: np.ndarray | None = None
    points: np.ndarray | None = None
    mapped: np.ndarray | None = None
    proximity: np.ndarray | None = None
    relatedness: np.ndarray | None = None
    merges: np.ndarray | None = None
    threshold: np.ndarray | None = None
    gamma: np.ndarray | None = None
    encoder: np.ndarray | None = None
    rows: np.ndarray | None = None
    flags: ChangeFlags | None = None
    encoders: KeptStates | None = None


class FLT(Method):
    """FLT, see `build_flt`; the assignment is the disjoint clusters in both cases."""

    name = "flt"
    state_class = FLTState
    pair_bytes = 8

    def __init__(self, model: FlatModel, training: LocalTraining, parameters: FLTParameters, encoder, seeds):
        (seed, noise_seed), self.model, self._parameters = seeds, model, parameters
        self._signature = _build_signature(model, parameters, encoder, seed, noise_seed)
        self._sign, self._relations = build_signing(self._signature), _relations(parameters, seed)
        self._joint = parameters.clusters == "joint"
        self._triggers = Triggers(parameters.change_flags, parameters.period)
        flags = changed_since_signed if parameters.change_flags is not None else None
        if self._joint:
            self._rounds = build_related_training(model, training, parameters.mixes, flags, parameters.weighting)
        else:
            self._rounds = build_clustered_training(model, training, flags=flags, weighting=parameters.weighting)
        self._encoder = np.frombuffer(hashlib.sha256(np.ascontiguousarray(encoder[1]).tobytes()).digest(), np.uint8)
        self.joining = Traffic.of(signature_transfer(self._signature))
        self._vector = encoder[1]
        self._doubts = None, ()  # distances in the map, and the doubts about their clusters
        noise = CentreNoise(**parameters.noise, seed=noise_seed)
        tuning = parameters.fine_tune_epochs, parameters.fine_tune_optimizer, parameters.fine_tune_rate
        how = _centres(model, parameters), FineTuning(*tuning), seed, noise
        self._refined = RefinedEncoders(encoder[0], model.example_spec, *how)
        # Line 25 broadcasts the whole autoencoder, since fine-tuning needs it.
        anew = dataclasses.replace(parameters, fine_tune_epochs=max(1, parameters.refine_epochs))
        self._signing = self.joining
        if self._triggers and parameters.refine_epochs:
            self._signing = Traffic.of(signature_transfer(_build_signature(model, anew, encoder, seed)))

    def check_clients(self, clients: int):
        check_enough(clients, self._parameters.num_clusters)

    def initialize(self, population: Population) -> FLTState:
        encoders = KeptStates(self._vector) if self._triggers else None
        labels, formed = self._form(population, encoders, self._parameters.fine_tune_epochs, 0)
        flags = ChangeFlags.none(population.versions) if self._triggers else None
        return FLTState(**self._rounds.start(population, labels), **formed, flags=flags)

    def next(self, state: FLTState, cohort: Cohort):
        """Runs one round. If clusters may be formed anew, its scalars are the raised flags and whether clusters
        were."""
        state, metrics = self._rounds.next(state, cohort)
        if not self._triggers:
            return state, metrics
        if metrics.changed is not None:
            where = state.index(metrics.client_ids)[metrics.changed]
            state = dataclasses.replace(state, flags=state.flags.with_changed(where, cohort.seed[1]))
        standing = int(state.flags.raised.sum())
        due = self._triggers.due(standing, cohort.seed[1], state.flags.formed_in)
        if due:
            state = self._formed_anew(state, cohort.population, cohort.seed[1])
            metrics = metrics.with_signatures(self._signing * len(state.client_ids))
        return state, dataclasses.replace(metrics, scalars={"change_flags": standing, "formed_anew": int(due)})

    def models_for(self, state: FLTState, client_ids):
        return self._rounds.models_for(state, client_ids)

    def models_held(self, state: FLTState, client_ids) -> int:
        """The number of models; with joint clusters one mix for each different row of relations."""
        if not self._joint:
            return len(state.models)
        related = state.relatedness[np.isin(state.client_ids, client_ids)] != 0
        return len(np.unique(np.packbits(related, axis=1), axis=0))

    def _signed_by(self, population: Population, encoders: KeptStates | None, epochs: int, round_number: int):
        """The clients' centres, and the encoders that they keep after that."""
        if encoders is None or not epochs + len(encoders):  # no client goes on from its own encoder
            signed = self._sign(population, again=round_number)
        else:
            signed, encoders = self._refined.sign(population, encoders, epochs, round_number)
        check_centres(signed, population)
        return signed, encoders

    def _form(self, population: Population, encoders: KeptStates | None, epochs: int, round_number: int):
        signed, encoders = self._signed_by(population, encoders, epochs, round_number)
        labels, formed = self._relations.form(signed["centres"], signed["mask"])
        return labels, {**formed, "encoder": self._encoder, "encoders": encoders}

    def _formed_anew(self, state: FLTState, population: Population, round_number: int) -> FLTState:
        """Lines 24 to 26; the models of disjoint clusters are means of their members' models."""
        if not np.array_equal(population.client_ids, state.client_ids):
            raise UserError(
                "clusters are formed anew by all clients: a round's population must be all that were admitted, "
                "and here one has left; take no change_flags and no period, or a method with regroup_every"
            )
        labels, formed = self._form(population, state.encoders, self._parameters.refine_epochs, round_number)
        labels, moved, _ = renumbered(labels, state.assignment)
        formed["flags"] = state.flags.formed_anew(moved, population.versions, round_number)
        return dataclasses.replace(state, assignment=labels, **formed, **self._carry(state, labels, population))

    def _carry(self, state: FLTState, labels, population: Population):
        if self._joint:
            return {}
        everyone = population.client_ids
        weights = population.sizes_of(everyone) if self._parameters.weighting == "examples" else np.ones_like(everyone)
        return {"models": mean_of_members(state.models, state.assignment, labels, weights)}

    def admit(self, state: FLTState, newcomers: Population) -> FLTState:
        check_newcomers(state, newcomers)
        if not np.array_equal(state.encoder, self._encoder):
            raise UserError(
                "the clients' centres are of another encoder: newcomers need the file or data directory of then"
            )
        # If the others have encoders of their own, a newcomer makes one, too; otherwise its centres would be in another
        # space.
        epochs = self._parameters.fine_tune_epochs or (self._parameters.refine_epochs if state.encoders else 0)
        signed, encoders = self._signed_by(newcomers, state.encoders, epochs, 0)
        points, apart = self._relations.place(state, signed["centres"], signed["mask"])
        labels = fcr.assign_to_nearest(signed["centres"], signed["mask"], state.centres, state.mask, state.assignment)
        known, gamma = len(state.client_ids), float(state.gamma)
        related = fcr.relate(apart, gamma)
        related[:known, :known] = state.relatedness  # the old clients' relations stay unchanged
        new, order = {**signed, "mapped": np.zeros(len(newcomers), bool)}, joined_order(state, newcomers)
        members, changes = extended(state, newcomers, labels, **new), {"points": points[order]}
        changes["proximity"], changes["relatedness"] = apart[np.ix_(order, order)], related[np.ix_(order, order)]
        changes["merges"] = hierarchical.build_ward_dendrogram(changes["relatedness"] != 0).merges  # for reports
        if self._joint:
            given = starting_models(state.models, state.rows, related[known:, :known], apart[:known, known:])
            rows = np.concatenate([state.rows, len(state.models) + np.arange(len(given), dtype=np.int32)])
            models, rows = only_used(state.models, given, rows[order])
            changes |= {"rows": rows, "models": models}
        if self._triggers:
            changes |= {"flags": state.flags.with_arrivals(newcomers.versions, order), "encoders": encoders}
        return dataclasses.replace(state, **changes, **members)

    def joined_traffic(self, before: FLTState | None, after: FLTState) -> Traffic:
        """A newcomer that makes an encoder only because the others have one has the same traffic as they had."""
        if before is None or not before.encoders:
            return super().joined_traffic(before, after)
        one = self.joining if self._parameters.fine_tune_epochs else self._signing
        return one * (len(after.client_ids) - len(before.client_ids))

    def views(self, state: FLTState) -> Views:
        metric = MetricView(
            state.proximity, _UNIT, self._parameters.metric, state.merges, float(state.threshold), "ward", _TREE_UNIT
        )
        shown = {"relatedness": state.relatedness, "centre_map": CentreMap(state.points, state.mask)}
        flagged = None if self._parameters.change_flags is None else state.flags.flagged_in
        moves = state.flags and Moves(state.flags.moved_in, flagged)
        few = int((~state.mask.all(axis=1)).sum()) if self._signature.least_examples > 1 else 0
        note = f"{few} of {len(state.client_ids)} clients sent fewer centres than others, of few different images"
        notes = (f"{note}: a thin signature that says little of them",) if few else ()
        if state.proximity is not self._doubts[0]:  # many rounds have the same distances
            self._doubts = state.proximity, self._relations.doubts(state, _UNIT)
        notes += self._doubts[1]
        return Views(state.client_ids, state.assignment, metric=metric, moves=moves, notes=notes, **shown)

    def exports(self) -> Exports:
        clustering = {"unit": _UNIT, "tree_unit": _TREE_UNIT, "metric": self._parameters.metric, "linkage": "ward"}
        clustering["newcomers"] = _NEWCOMERS + _RELATED * self._joint
        found = self._rounds.exports(
            build=lambda: {"signature": build_collection(self._signature)}, clustering=clustering, sign=self._sign
        )
        if not self._triggers:
            return found
        note = "; ".join([*found.when.values(), _ANEW.format(**vars(self._parameters))])
        return dataclasses.replace(found, when={"training": note})


@method_builder
def build_flt(
    model: FlatModel,
    training: LocalTraining,
    parameters: FLTParameters = FLTParameters(),
    *,
    encoder: tuple[FlatAutoencoder, np.ndarray],
    seed: int = 0,
    noise_seed: int | None = None,
) -> Method:
    """Builds FLT: clients are related by an encoder's codes of their data, in joint or disjoint clusters.

    All clients send their centres before the first round. Newcomers join the cluster whose members' embeddings are
    nearest to theirs (section III-B4) and are placed in the map of the others. With joint clusters they start from the
    mean of their relatives' models, or without relatives from the nearest client's model.

    With `change_flags` or `period` clients are related anew in the middle of training (Alg. 3 lines 21 to 28). All,
    including newcomers, then send centres again, in FCR's fine-tune mode: each goes on from its last encoder, and keeps
    the new one. (Exports only have the centres from before the first round.) A client that moves to another cluster
    takes that cluster's model: with disjoint clusters a new cluster starts from the mean of its members' models; with
    joint clusters every client keeps its own model until its next mix.

    Args:
      parameters: How clients are related, and whether they train mixes or the models of disjoint clusters.
      encoder: A pre-trained autoencoder and its parameters.
      seed: Seed of the clients' k-means and of the map.
      noise_seed: Seed of the noise of private signatures, to repeat simulations; None draws new noise.
    """
    if not (isinstance(encoder, tuple) and len(encoder) == 2):
        raise UserError(
            f"encoder is {encoder!r:.60}; it must be an autoencoder and its parameters, "
            "(FlatAutoencoder, float32 [P]), as tffcl.lab.tasks.encoders.find_encoder gives them"
        )
    return FLT(model, training, parameters, encoder, (seed, noise_seed))
