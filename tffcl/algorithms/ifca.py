"""IFCA: the iterative federated clustering algorithm (Ghosh et al., NeurIPS 2020, arXiv:2006.04088, Alg. 1, model
averaging).

The server keeps K models; every client of a cohort trains the one with the lowest loss on its training data.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import keyed_factory, pad_rows
from tffcl.algorithms import clustered_training
from tffcl.algorithms.choosing_method import Choosing, build_chooser, has_too_few, notes_of_models
from tffcl.algorithms.clustered_training import build_clustered_training, round_computations
from tffcl.algorithms.each_round_parameters import IFCAParameters
from tffcl.algorithms.method import (
    ClusteredState,
    Exports,
    Method,
    Views,
    ended_within,
    in_first_rounds,
    method_builder,
)
from tffcl.client_work.client_work import ClientResult, ClientWork, keyed
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import CHOOSE, training_work
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import current
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.rounds import privacy_releases
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server import all_values, models_type, move_rows
from tffcl.rounds.simulation import run_round
from tffcl.rounds.sum_only_form import summed_form
from tffcl.rounds.traffic import RoundMetrics, Traffic
from tffcl.trace_cache import built_once

# What a deployment must know about the start of a run, beside its first values.
_BEGINS = {
    "attracting": "the first models are drawn again until each is chosen by enough clients: initial is the first draw",
    "warm_up": "up to round {warm_up_rounds} the coordinator gives each client a row (`forced`), {forced}",
    "fedavg": (
        "up to round {fedavg_rounds} it is FedAvg (`forced` 0 for everyone); then every row has the layers of row 0 "
        "but for the last, which is drawn for each"
    ),
}
_AVERAGED = "it is FedAvg (fedavg_rounds)"
_FORCED = "clients are in random groups (warm_up_rounds)"
_MOST_DRAWS = 200
_TRIED_CLIENTS = 100  # enough to see a share of a tenth, in `find_attracting`


def build_ifca_round(
    model: FlatModel,
    training: LocalTraining,
    parameters: IFCAParameters,
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
    moves: bool = False,
) -> Round:
    """Builds one round of IFCA (Alg. 1 lines 3 to 11).

    All models `float32[K,P]` go to every client, which uploads the difference to the model it chose, keyed by its row.
    A model that no client chose stays unchanged. The client's field `forced` is the row that it must take, or `CHOOSE`;
    its report has the `choice`.

    Args:
      parameters: How clients choose, and what is shared.
      moves: Whether clients have the field `moves`, see `client_work.training.build_choose_and_train`.

    Raises:
      UserError: If a representation is to be shared with a custom aggregation, whose weights are not known.
    """
    if parameters.share_representation and aggregation is not None:
        raise UserError(
            "share_representation needs the weights of the clusters, which an aggregation of one's own may hide"
        )
    traced = (parameters.num_clusters, parameters.share_representation, parameters.choose_by)
    return _build_round(model, training, *traced, aggregation, moves)


@built_once
def _build_round(
    model: FlatModel, training: LocalTraining, num_clusters: int, share: bool, choose_by: str, aggregation, moves: bool
) -> Round:
    step = _build_shared_step(_shared_size(model)) if share else move_rows
    factory = keyed_factory(aggregation, num_clusters)
    server = Server({"models": models_type(model.size, num_clusters)}, all_values, step)
    work = _build_work(model, training, choose_by, num_clusters if moves else 0)
    return compose(work, {"update": factory}, server)


@built_once
def _build_work(model: FlatModel, training: LocalTraining, choose_by: str, moves: int) -> ClientWork:
    choose_and_train, fields = build_chooser(model, training, choose_by)
    if moves:
        fields["moves"] = tff.TensorType(np.int32, [moves])

    def compute(received, client):
        start, trained, report = choose_and_train(received["models"], client)
        return ClientResult({"update": keyed(report["choice"], trained - start)}, report)

    return training_work(model, training, compute, **fields)


def _build_shared_step(shared: int) -> Callable:
    """Builds the server step whose first `shared` parameters are averaged over all clusters."""

    def step(state, results, measurements):
        models, differences = state["models"], results["update"]
        weight = measurements["update"]["weight"][:, tf.newaxis]
        common = tf.reduce_sum(weight * differences[:, :shared], 0, keepdims=True)
        common = tf.math.divide_no_nan(common, tf.reduce_sum(weight))
        everyone = tf.tile(common, [tf.shape(differences)[0], 1])
        differences = tf.concat([everyone, differences[:, shared:]], 1)
        return {**state, "models": models + pad_rows(differences, tf.shape(models)[0])}

    return step


def _shared_size(model: FlatModel) -> int:
    """How many leading parameters are not the last layer's."""
    *_, last = model.layer_slices().values()
    return last.start


def draw_models(model: FlatModel, how: IFCAParameters, seed: int) -> np.ndarray:
    """Draws K initial models, `float32 [K, P]`, by `FlatModel.draw`.

    For K = 1 this is the common initial model, so that IFCA is FedAvg. A shared representation is that of the first
    model.
    """
    models = clustered_training.draw_models(model, how.num_clusters, seed, how.initialization)
    if how.share_representation:
        models[:, : _shared_size(model)] = models[0, : _shared_size(model)]
    return models


def find_attracting(
    model: FlatModel, how: IFCAParameters, seed: int, choose_rows, population: Population
) -> tuple[np.ndarray, int]:
    """Draws K models until each attracts enough clients (the IFCA authors' `find_good_initializer`).

    Args:
      how: K and the lowest share.
      seed: Decides the draws.
      choose_rows: `(models, population) -> int32 [N]`, the rows that clients choose.
      population: The clients; at most 100 of them, which the seed decides, are asked.

    Returns:
      The models `float32 [K, P]`, and how often a client received K models and reported its choice, over all clients
      and draws.

    Raises:
      UserError: If none of 200 draws attracts enough clients.
    """
    least = how.least_share if how.least_share is not None else 0.4 / how.num_clusters
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(population.client_ids))[:_TRIED_CLIENTS])
    chosen = population.restricted(population.client_ids[rows])
    best = 0.0
    for draw in range(_MOST_DRAWS):
        models = draw_models(model, how, seed + draw)
        current().release(privacy_releases.of_all("the choices among models", chosen))
        shares = np.bincount(choose_rows(models, chosen), minlength=how.num_clusters) / len(rows)
        if shares.min() >= least:
            return models, (draw + 1) * len(rows)
        best = max(best, shares.min())
    raise UserError(
        f"{_MOST_DRAWS} draws gave no {how.num_clusters} models that each attract {least:.3g} of the clients (best: "
        f"{best:.3g}); a lower least_share, another start or fewer clusters would do"
    )


@dataclasses.dataclass(frozen=True, eq=False)
class IFCAState(ClusteredState):
    """Adds to `ClusteredState` the progress of the start.

    Attributes:
      tries: `int64`, how often a client received K models and reported its choice, until the first round counts it.
      averaging: `int64`, how many first rounds of FedAvg or of a warm-up are left; -1 once clients choose.
    """

    tries: np.ndarray | None = None
    averaging: np.ndarray | None = None


class IFCA(Choosing):
    """IFCA, see `build_ifca`."""

    name = "ifca"
    state_class = IFCAState
    fields = ("forced",)  # the clients' fields that the coordinator sets

    def __init__(self, model: FlatModel, training: LocalTraining, parameters: IFCAParameters, seed: int, aggregation):
        super().__init__(model, parameters.choose_by)
        self._parameters, self._seed = parameters, seed
        moves = "moves" in self.fields
        self._round = build_ifca_round(model, training, parameters, aggregation=aggregation, moves=moves)
        self._drawn = draw_models(model, parameters, seed)
        self._fedavg_rounds = parameters.fedavg_rounds if parameters.start == "fedavg" else 0
        self._warms_up = parameters.start == "warm_up"
        self._averaging = build_clustered_training(model, training) if self._fedavg_rounds else None
        if self._averaging and aggregation is not None:
            raise UserError("start 'fedavg' takes no aggregation of one's own: its first rounds are of one model")
        self.trying = Traffic(down=self._drawn.nbytes, up=np.dtype(np.int32).itemsize)

    def initialize(self, population: Population) -> IFCAState:
        models, how, tries = self._drawn, self._parameters, 0
        if how.start == "attracting" and how.num_clusters > 1:
            models, tries = find_attracting(self.model, how, self._seed, self.chosen_rows, population)
        elif self._fedavg_rounds:
            models = np.repeat(self.model.initial[np.newaxis], how.num_clusters, axis=0)
        start = vars(self.start(population, models, self._round.initial_aggregators))
        left = {"fedavg": how.fedavg_rounds, "warm_up": how.warm_up_rounds}.get(how.start, -1)
        return IFCAState(**start, tries=np.int64(tries), averaging=np.int64(left))

    def next(self, state: IFCAState, cohort: Cohort):
        if self._fedavg_rounds and state.averaging > 0:
            return self._average(state, cohort)
        if has_too_few(self._round, cohort, self.hides_empty_rounds(state)):
            return state, RoundMetrics.of_nobody()
        if self._fedavg_rounds and state.averaging == 0:
            state = dataclasses.replace(state, models=self._apart(state.models))
        state, metrics = self._choose_and_train(state, cohort)
        metrics = metrics.with_signatures(self.trying * int(state.tries))
        left = self._parameters.warm_up_rounds - cohort.seed[1] if self._warms_up else -1
        return dataclasses.replace(state, tries=np.int64(0), averaging=np.int64(max(left, -1))), metrics

    def _average(self, state: IFCAState, cohort: Cohort):
        """A round of FedAvg: all K models are one."""
        engine, everyone = self._averaging, np.zeros_like(state.assignment)
        aggregators, optimizers = engine.round.initial_aggregators, state.optimizers
        one = ClusteredState(state.client_ids, everyone, state.models[:1], aggregators, optimizers=optimizers)
        one, metrics = engine.next(one, cohort)
        models = np.repeat(one.models, self._parameters.num_clusters, axis=0)
        left = np.int64(state.averaging - 1)
        changes = {"models": models, "averaging": left, "optimizers": one.optimizers}
        return dataclasses.replace(state, assignment=everyone, **changes), metrics

    def _apart(self, models: np.ndarray) -> np.ndarray:
        """FedAvg's model with the last layers of the drawn ones; if trained weights were given, with its own last
        layers plus the noise of the drawn ones."""
        shared, last = _shared_size(self.model), self._drawn
        if self.model.has_trained_weights:
            last = models + (last - self.model.initial)
        return np.concatenate([models[:, :shared], last[:, shared:]], axis=1)

    def _choose_and_train(self, state: IFCAState, cohort: Cohort):
        return self.train_rows(state, cohort, forced=self.forced(cohort))[:2]

    def forced(self, cohort: Cohort) -> np.ndarray:
        """Returns the row that each client of the cohort must take, or `CHOOSE`: random equal groups in the warm-up. In
        a private round rows are drawn independently: with equal groups, one more client would move others, too, and so
        change more than the one row that the noise hides."""
        clients, number, how = len(cohort.client_ids), cohort.seed[1], self._parameters
        if not self._warms_up or number > how.warm_up_rounds:
            return np.full(clients, CHOOSE)
        rng = np.random.default_rng([self._seed, number])
        if privacy_releases.all_noised(self._round.uploads):
            return rng.integers(how.num_clusters, size=clients, dtype=np.int32)
        return (rng.permutation(clients) % how.num_clusters).astype(np.int32)

    def train_rows(self, state: IFCAState, cohort: Cohort, **fields):
        """Runs a round in which clients choose and train, with their fields; returns the next state, the round's
        metrics, and the aggregators' measurements."""
        values, fields = {"models": state.models}, {"optimizers": state.optimizers, **fields, **self.tried(cohort)}
        result = run_round(self._round, cohort, values, state.aggregators, **fields)
        chosen = result.reports["choice"]
        assignment = state.assignment.copy()
        assignment[state.index(cohort.client_ids)] = chosen
        changes = {"models": result.values["models"], "aggregators": result.aggregators}
        changes["optimizers"] = result.optimizers
        state = dataclasses.replace(state, assignment=assignment, **changes)
        return state, result.metrics(cohort, chosen), result.measurements

    def views(self, state: IFCAState) -> Views:
        found = super().views(state)
        if self._fedavg_rounds and state.averaging >= 0:
            note = in_first_rounds(self._fedavg_rounds, _AVERAGED)
            return dataclasses.replace(found, notes=(*found.notes, note))
        notes = [*notes_of_models(self.model, state.assignment, self._parameters.num_clusters)]
        if state.averaging >= 0:
            notes.append(in_first_rounds(self._parameters.warm_up_rounds, _FORCED))
        return dataclasses.replace(found, notes=(*found.notes, *notes, *self._notes_of_waiting(state)))

    def _notes_of_waiting(self, state: IFCAState) -> list[str]:
        """Says which models have clients but never moved, because too few of these were in a round."""
        still = [row for row in np.unique(state.assignment) if np.array_equal(state.models[row], self._drawn[row])]
        if not still or self._round.members_needed < 2:
            return []
        rows = ", ".join(map(str, still))
        return [
            f"never moved: model {rows}; with secure sums a model of fewer than {self._round.members_needed} clients "
            f"in a round waits"
        ]

    def hides_empty_rounds(self, state: IFCAState) -> bool:
        return privacy_releases.all_noised(self._round.uploads)

    def exports(self) -> Exports:
        def values(state: IFCAState) -> dict:
            if self._fedavg_rounds and state.averaging >= 0:
                raise ended_within(self._fedavg_rounds, _AVERAGED)
            return {"models": state.models}

        first = (
            np.repeat(self.model.initial[np.newaxis], len(self._drawn), axis=0) if self._fedavg_rounds else self._drawn
        )
        forced = "drawn for it alone" if privacy_releases.all_noised(self._round.uploads) else "in random equal groups"
        begins = _BEGINS.get(self._parameters.start, "").format(**vars(self._parameters), forced=forced)
        return Exports(
            lambda: round_computations(self._round, {"models": first}),
            server_values=values,
            summed=summed_form(self._round),
            members_needed=lambda: self._round.members_needed,
            when={"training": begins} if begins else {},
        )


@method_builder
def build_ifca(
    model: FlatModel,
    training: LocalTraining,
    parameters: IFCAParameters = IFCAParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds IFCA: K models, of which every client takes the one with the least loss.

    Models are averaged with the clients' numbers of examples as weights, as in the authors' code for FEMNIST; in Alg. 1
    and their code for CIFAR-10 all clients count the same, which is the aggregation "uniform_mean" here. A client's
    assignment is its last choice; `choose` asks all clients. Newcomers choose as all others do.

    Args:
      parameters: K, how the models start, and how clients choose.
      seed: Decides the initial models, and the groups of the warm-up.
    """
    return IFCA(model, training, parameters, seed, aggregation)
