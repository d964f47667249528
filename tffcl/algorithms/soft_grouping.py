"""Soft clusters by signatures: every client contributes to all clusters' models, by its distances to their members."""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from scipy.special import softmax

from tffcl.aggregators.clustered_mean import keyed_factory
from tffcl.aggregators.contract import traits
from tffcl.aggregators.soft_mean import SoftMeanFactory
from tffcl.algorithms.choosing_method import has_too_few
from tffcl.algorithms.clustered_training import build_clustered_training, round_computations
from tffcl.algorithms.method import Exports, Views
from tffcl.algorithms.one_shot import OneShot, OneShotClustering, OneShotState
from tffcl.client_work.client_work import ClientResult
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.mixture import build_train_mixture, model_names
from tffcl.client_work.training import training_work
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import joined_order
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.rounds import privacy_releases
from tffcl.rounds.client_queries import build_collection
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server import all_values, models_type, move_rows
from tffcl.rounds.simulation import run_round
from tffcl.rounds.sum_only_form import summed_form
from tffcl.rounds.traffic import RoundMetrics
from tffcl.trace_cache import built_once

_OF_TRAINING = (
    "the coordinator gives each client the weights of its mixture (`weights`), from the distances of signatures, and "
    "by how much the round moves each model (`moves`): the sum of its clients' weights in it, 1 at most"
)
_NEWCOMERS = (
    "sign when they join: the weights of each are softmax(-distance / temperature) of its mean distances to the "
    "members of the clusters (Python, tffcl.algorithms.soft_grouping), where temperature is {temperature}; one that is "
    "farther from the nearest cluster than the threshold founds a new one, whose model it uses alone, unless the "
    "number of clusters is given or a rule has found a single one; the weights of all others stay"
)
_TEMPERATURE = "a tenth of the mean distance of two clients that are there"  # the default, see `memberships`


@built_once
def build_soft_round(model: FlatModel, training: LocalTraining, num_models: int, aggregation=None) -> Round:
    """Builds a round in which clients train all models `float32[K,P]`. An upload moves each model by the client's
    `weights float32[K]` and its number of examples, and by `moves float32[K]` of the round, so that a model hardly
    moves in a round whose clients are all far from it."""
    train = build_train_mixture(model, training, num_models, weighted=False)

    def compute(received, client):
        trained, report = train(received["models"], None, client["weights"], client)
        moved = client["moves"][:, tf.newaxis] * (trained - received["models"])
        update = collections.OrderedDict(weights=client["weights"], value=moved)
        return ClientResult({"update": update}, report)

    weights = tff.TensorType(np.float32, [num_models])
    work = training_work(model, training, compute, models=model_names(num_models), weights=weights, moves=weights)
    server = Server({"models": models_type(model.size, num_models)}, all_values, move_rows)
    return compose(work, {"update": SoftMeanFactory(num_models, aggregation)}, server)


@dataclasses.dataclass(frozen=True, eq=False)
class SoftGroupedState(OneShotState):
    """Adds to `OneShotState` the weights of each client in the clusters' models, `mixture float32 [N, K]`."""

    mixture: np.ndarray | None = None


class SoftGrouping(OneShot):
    """A one-shot method whose clients use mixtures of the clusters' models, see `memberships`."""

    state_class = SoftGroupedState

    def __init__(
        self,
        name: str,
        model: FlatModel,
        training: LocalTraining,
        clustering: OneShotClustering,
        temperature,
        aggregation,
    ):
        """Makes the method.

        Raises:
          UserError: If the number of clusters is not known but the given aggregation needs it. Also for an aggregation
            in which all clients count the same, since all models would be equal, or which hides uploads: a sum in which
            one client has nearly all the weight is its upload.
        """
        super().__init__(name, build_clustered_training(model, training), clustering)
        if aggregation is not None and clustering.num_clusters is None:
            raise UserError('grouping "soft" with an aggregation of one\'s own needs num_clusters', key="num_clusters")
        given = traits(keyed_factory(aggregation, 1))
        if given.is_uniform or not given.is_mean or given.hides_uploads:
            raise UserError(
                'grouping "soft" takes means by the clients\' weights: not aggregations in which all count the same, '
                "and no secure sums, where one that a single client weighs nearly all of is its upload",
                key="grouping",
            )
        self._how, self._temperature = (model, training, aggregation), temperature

    def _round(self, clusters: int) -> Round:
        model, training, aggregation = self._how
        return build_soft_round(model, training, clusters, aggregation)

    def initialize(self, population: Population) -> SoftGroupedState:
        labels, formed = self.formed(population)
        start = {**self.engine.start(population, labels), **formed}
        start["aggregators"] = self._round(len(start["models"])).initial_aggregators
        return SoftGroupedState(**start, mixture=memberships(formed["proximity"], labels, self._temperature))

    def next(self, state: SoftGroupedState, cohort: Cohort):
        composed, where = self._round(len(state.models)), state.index(cohort.client_ids)
        if has_too_few(composed, cohort, self.hides_empty_rounds(state)):
            return state, RoundMetrics.of_nobody()
        weights = state.mixture[where]
        moves = np.broadcast_to(np.minimum(weights.sum(axis=0), 1), weights.shape)
        fields = {"optimizers": state.optimizers, "weights": weights, "moves": moves}
        result = run_round(composed, cohort, {"models": state.models}, state.aggregators, **fields)
        changes = {"models": result.values["models"], "aggregators": result.aggregators}
        after = dataclasses.replace(state, **changes, optimizers=result.optimizers)
        return after, result.metrics(cohort, state.assignment[where])

    def models_for(self, state: SoftGroupedState, client_ids):
        return state.models, state.mixture[state.index(client_ids)]

    def hides_empty_rounds(self, state: SoftGroupedState) -> bool:
        return privacy_releases.all_noised(self._round(len(state.models)).uploads)

    def admit(self, state: SoftGroupedState, newcomers: Population, *, whole: bool = True) -> SoftGroupedState:
        """Newcomers join the existing clusters, or clusters that they found."""
        joined, old = super().admit(state, newcomers, whole=whole), len(state.client_ids)
        order = joined_order(state, newcomers)
        back = np.argsort(order)  # old clients first
        proximity, labels = joined.proximity[np.ix_(back, back)], joined.assignment[back]
        found = memberships(proximity, labels, self._temperature, old)
        founded = labels >= len(state.models)
        found[founded] = np.eye(found.shape[1], dtype=np.float32)[labels[founded]]
        found[:old] = np.pad(state.mixture, [[0, 0], [0, found.shape[1] - state.mixture.shape[1]]])
        return dataclasses.replace(joined, mixture=found[order], optimizers=self._optimizers(joined))

    def _optimizers(self, state: SoftGroupedState) -> KeptStates | None:
        """The optimizer states that clients keep, with a first state for each model that newcomers founded."""
        if state.optimizers is None:
            return None
        first = self._round(len(state.models)).work.optimizer
        ids = state.client_ids[state.optimizers.has(state.client_ids)]
        return KeptStates(first).updated(ids, [{**first, **kept} for kept in state.optimizers.of(ids)])

    def views(self, state: SoftGroupedState) -> Views:
        return dataclasses.replace(super().views(state), mixture=state.mixture if len(state.models) > 1 else None)

    def exports(self) -> Exports:
        def build_for(values) -> dict:
            signature = {"signature": build_collection(self.clustering.sent_by_devices)}
            first = {"models": self.engine.first_models(len(values["models"]))}
            return {**signature, **round_computations(self._round(len(first["models"])), first)}

        temperature = _TEMPERATURE if self._temperature is None else f"{self._temperature:g}"
        return Exports(
            lambda: build_for({"models": self.engine.first_models(self.clustering.num_clusters or 1)}),
            server_values=lambda state: {"models": state.models},
            summed=summed_form(self._round(1)) and (lambda clusters: summed_form(self._round(clusters))(clusters)),
            clustering={**self.clustering.described(), "newcomers": _NEWCOMERS.format(temperature=temperature)},
            build_for=build_for,
            members_needed=lambda: self._round(1).members_needed,
            when={"training": _OF_TRAINING},
        )


def memberships(
    proximity: np.ndarray, labels: np.ndarray, temperature: float | None = None, members: int | None = None
) -> np.ndarray:
    """Returns softmax(-distance / temperature) over the clusters for every client.

    A client's distance to a cluster is its mean proximity to the other members; the distance of a cluster's only member
    to it is 0.

    Args:
      proximity: Numbers `[N, N]`.
      labels: `int [N]`, the clusters, numbered from 0.
      temperature: In the unit of the proximity; None is a tenth of the mean proximity of two clients.
      members: How many first clients are members of clusters; the others are only compared with them. Default: all.

    Returns:
      `float32 [N, K]`, which sum to one; 0 for a cluster without members.
    """
    count, members = len(labels), len(labels) if members is None else members
    if temperature is None:
        between = ~np.eye(members, dtype=bool)
        temperature = 0.1 * float(proximity[:members, :members][between].mean()) if members > 1 else 1.0
    one_hot = np.eye(labels.max() + 1)[labels]
    one_hot[members:] = 0
    others = one_hot.sum(axis=0) - one_hot
    sums = np.asarray(proximity, float) @ one_hot - one_hot * np.diag(proximity)[:, np.newaxis]
    empty = (others == 0) & (one_hot == 0)
    distances = np.where(empty, np.inf, sums / np.maximum(others, 1))
    if not members:
        return np.full([count, len(one_hot.T)], 1 / len(one_hot.T), np.float32)
    return softmax(-distances / max(temperature, np.finfo(float).tiny), axis=1).astype(np.float32)
