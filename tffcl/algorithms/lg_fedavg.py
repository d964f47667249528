"""LG-FedAvg (Liang et al. 2020, arXiv:2001.01523, Alg. 1): every client keeps its own first layers; the last ones are
averaged."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import keyed_factory
from tffcl.aggregators.contract import traits
from tffcl.aggregators.per_cluster import rearranged_rows
from tffcl.algorithms.clustered_training import ClusteredTraining, build_clustered_training, build_engine
from tffcl.algorithms.fedavg import OneModel, one_model
from tffcl.algorithms.method import ClusteredState, Exports, Views, ended_within, in_first_rounds
from tffcl.algorithms.training_parameters import ALL_BUT_FOUR, LGFedAvgParameters
from tffcl.client_work.client_work import ClientResult, ClientWork, keyed
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_train_and_report, training_work
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.clustering.reclustering import mean_of_members
from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.layer_parts import LayerParts, layer_parts
from tffcl.models.model_rows import ModelRows, rows_with_own
from tffcl.rounds.composer import WEIGHTINGS, Round, Server, compose
from tffcl.rounds.server import keyed_server, models_type, own_row
from tffcl.rounds.traffic import RoundMetrics, Traffic
from tffcl.trace_cache import built_once


def local_names(model: FlatModel, local_layers: int | list[str] | str | None) -> list[str]:
    """Returns the names of layers and weights that clients keep; `local_layers` as in `LGFedAvgParameters`.

    Raises:
      UserError: If there are fewer layers than asked for.
    """
    layers = list(model.layer_slices())
    if local_layers is None:
        return layers[: max(len(layers) - 2, min(1, len(layers) - 1))]
    if local_layers == ALL_BUT_FOUR:
        return [weight.name for weight in model.weights[:-4]]
    if isinstance(local_layers, list):
        return local_layers
    if local_layers > len(layers):
        allowed = f"it must be from 0 to the number of layers of {model.name}, {len(layers)} ({', '.join(layers)})"
        raise UserError(f"local_layers is {local_layers}; {allowed}", key="local_layers")
    return layers[:local_layers]


@built_once
def build_partly_shared_work(model: FlatModel, training: LocalTraining, parts: LayerParts) -> ClientWork:
    """Builds clustered training in which only the global part of the model is sent (Liang et al. 2020, Alg. 1).

    The client joins its own local layers to the global part that it receives, trains both together, keeps the local
    layers and uploads the difference of the global part under its key. If training is not finite, it keeps nothing.

    Args:
      parts: The parts that are kept and shared.

    Returns:
      Work that receives `<model=float32[G]>` and keeps `float32[L]`, with the field `key` and the upload
      `update=<key=int32,value=float32[G]>`; none if nothing is global.
    """
    train_and_report = build_train_and_report(model, training)

    def compute(received, client):
        trained, report = train_and_report(parts.join(client["kept"], received["model"]), client)
        local, shared = parts.split(trained)
        uploads = {"update": keyed(client["key"], shared - received["model"])} if parts.global_size else {}
        return ClientResult(uploads, report, tf.where(report["finite"], local, client["kept"]))

    kept = tff.TensorType(np.float32, [parts.local_size])
    return training_work(model, training, compute, kept=kept, key=np.int32)


@built_once
def build_partly_shared_round(
    model: FlatModel, training: LocalTraining, parts: LayerParts, weighting: str, aggregation
) -> Round:
    """Builds a round of clustered training of the global part alone, `models float32[?,G]` on the server.

    If nothing is global, nothing is sent, as in SOLO.
    """
    work, size = build_partly_shared_work(model, training, parts), parts.global_size
    if not size:
        return compose(work, {}, Server({"models": models_type(0)}, own_row))
    shared = [int(np.sum(~parts.is_local[layer])) for layer in model.layer_slices().values()]
    factory = traits(keyed_factory(aggregation)).with_layers([layer for layer in shared if layer])
    return compose(work, {"update": factory}, keyed_server(size), weighting=WEIGHTINGS[weighting])


def build_partly_shared_training(
    model: FlatModel,
    training: LocalTraining,
    parameters: LGFedAvgParameters = LGFedAvgParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> ClusteredTraining:
    """Builds LG-FedAvg, the method of one model or the rounds of any grouping; other arguments are as in
    `build_fedavg`.

    A client's model consists of its own local layers and the server's current global part; a client that has not
    trained yet has the local layers that all start from. Local layers stay with the client and cost no traffic; after
    `fedavg_rounds` a client receives its first local layers once. With every layer global it is FedAvg, with every
    layer local SOLO.

    Args:
      training: Local hyper-parameters of both parts.
      parameters: Which layers are local.

    Raises:
      UserError: If the model has no such layers.
    """
    parts = layer_parts(model, local_names(model, parameters.local_layers))
    return build_engine(
        model, functools.partial(build_partly_shared_round, model, training, parts, parameters.weighting), aggregation,
        kind=PartlySharedTraining, parts=parts, kept=np.zeros(parts.local_size, np.float32),
        whole_rounds=parameters.fedavg_rounds,
        whole=build_clustered_training(model, training, aggregation=aggregation) if parameters.fedavg_rounds else None,
    )  # fmt: skip


_WHOLE = "the whole model is shared (fedavg_rounds)"


class LGFedAvg(OneModel):
    """LG-FedAvg, see `build_lg_fedavg`."""

    def views(self, state: ClusteredState) -> Views:
        found = super().views(state)
        if not self.engine.is_whole(state):
            return found
        return dataclasses.replace(found, notes=(in_first_rounds(self.engine.whole_rounds, _WHOLE),))


build_lg_fedavg = one_model("lg_fedavg", build_partly_shared_training, LGFedAvg)


@dataclasses.dataclass(frozen=True, eq=False)
class PartlySharedTraining(ClusteredTraining):
    """Rounds on a state whose `models float32 [K, G]` are the global parts, and `server["local"] float32 [K, L]` the
    local parts from which a cluster's members start; `kept` holds the local part of each client that has trained.

    During the first rounds, if they share the whole model, the models are whole, `[K, P]`, and there is no
    `server["local"]`.

    Attributes:
      parts: The local and the global part.
      whole_rounds: How many first rounds share the whole model.
      whole: The engine of these rounds; None without them.
    """

    parts: LayerParts | None = None
    whole_rounds: int = 0
    whole: ClusteredTraining | None = None

    @functools.cached_property
    def initial(self) -> np.ndarray:
        """`float32 [G]`, the global part that every cluster starts from."""
        return self.model.initial[~self.parts.is_local]

    def is_whole(self, state: ClusteredState) -> bool:
        """Whether a state is of the first rounds, which share the whole model."""
        return "local" not in state.server

    def start(self, population: Population, assignment: np.ndarray, clusters: int = 0) -> dict:
        if self.whole:
            return {**self.whole.start(population, assignment, clusters), "kept": KeptStates(self.kept)}
        start = super().start(population, assignment, clusters)
        return {**start, "server": {"local": self._first_local(len(start["models"]))}}

    def _first_local(self, count: int) -> np.ndarray:
        return np.repeat(self.model.initial[np.newaxis, self.parts.is_local], count, axis=0)

    def rearranged(self, state: ClusteredState, rows: np.ndarray) -> dict:
        if self.is_whole(state):
            return self.whole.rearranged(state, rows)
        rearranged = super().rearranged(dataclasses.replace(state, server={}), rows)
        local = rearranged_rows(state.server["local"], self._first_local(len(rows)), rows)
        return {**rearranged, "server": {"local": local}}

    def formed_anew(self, state: ClusteredState, labels: np.ndarray, origins: np.ndarray) -> dict:
        carried = super().formed_anew(state, labels, origins)
        if not self.is_whole(state):
            own = mean_of_members(state.server["local"], state.assignment, labels)
            carried["server"]["local"][origins < 0] = own[origins < 0]
        return carried

    def whole_model(self, state: ClusteredState, row: int) -> np.ndarray:
        whole = super().whole_model(state, row)
        return whole if self.is_whole(state) else self.parts.joined(state.server["local"][row], whole)[0]

    def started_from(self, state: ClusteredState, rows: np.ndarray, model: np.ndarray) -> dict:
        if self.is_whole(state):
            return super().started_from(state, rows, model)
        local = np.array(state.server["local"])
        local[rows] = model[self.parts.is_local]
        return {**super().started_from(state, rows, model[~self.parts.is_local]), "server": {"local": local}}

    def next(self, state: ClusteredState, cohort: Cohort) -> tuple[ClusteredState, RoundMetrics]:
        if self.is_whole(state) and cohort.seed[1] <= self.whole_rounds:
            return self._next_whole(state, cohort)
        if self.is_whole(state):  # no client took part in the last whole round
            state = self._parted(state)
        after, metrics = super().next(state, cohort)
        if self.whole:  # a client receives the learned local layers before its first round
            fresh = int((~state.kept.has(metrics.client_ids)).sum())
            sent = Traffic(down=self.kept.nbytes) * fresh
            metrics = dataclasses.replace(metrics, traffic=metrics.traffic + sent)
        return after, metrics

    def _next_whole(self, state: ClusteredState, cohort: Cohort) -> tuple[ClusteredState, RoundMetrics]:
        """A round that shares the whole model; after the last one the state has the two parts."""
        after, metrics = self.whole.next(dataclasses.replace(state, kept=None), cohort)
        after = dataclasses.replace(after, kept=state.kept)
        return (after if cohort.seed[1] < self.whole_rounds else self._parted(after)), metrics

    def _parted(self, state: ClusteredState) -> ClusteredState:
        """The state after the whole rounds, in its two parts."""
        local, shared = state.models[:, self.parts.is_local], state.models[:, ~self.parts.is_local]
        return dataclasses.replace(
            state, models=shared, server={"local": local}, aggregators=self._aggregators_after(state)
        )

    def _aggregators_after(self, state: ClusteredState):
        """The aggregators' states after the last whole round: those that fit the shared parts go on, the others start.

        That of a private mean fits, and must go on, because its noise is drawn by seed and round: a fresh one would
        hide two releases by the same numbers, and their difference would have no noise.
        """
        ended, begun = (engine.round_for(len(state.models)) for engine in (self.whole, self))

        def kind(composed: Round, name: str):
            return composed.aggregators[name].initialize.type_signature

        first = begun.initial_aggregators
        goes_on = [name for name in first if name in ended.aggregators and kind(ended, name) == kind(begun, name)]
        return type(first)((name, state.aggregators[name] if name in goes_on else first[name]) for name in first)

    def broadcast(self, state: ClusteredState) -> dict:
        """Returns the global parts alone; `server["local"]` is for clients without local layers of their own."""
        return {"models": state.models}

    def brought_by(self, state: ClusteredState, client_ids) -> list:
        """The client's own local part, or that of its cluster if it has none."""
        own, starts = state.kept.has(client_ids), state.server["local"][state.clusters(client_ids)]
        kept = iter(state.kept.of(np.asarray(client_ids)[own]))
        return [next(kept) if has else start for has, start in zip(own, starts)]

    def models_for(self, state: ClusteredState, client_ids) -> tuple[np.ndarray, np.ndarray]:
        """A row for each client that has local layers of its own, and one for the others of each cluster."""
        if self.is_whole(state):
            return self.whole.models_for(state, client_ids)
        clusters, own = state.clusters(client_ids), state.kept.has(client_ids)
        common, place = np.unique(clusters[~own], return_inverse=True)
        rows = np.empty(len(clusters), np.int32)
        rows[~own], rows[own] = place, len(common) + np.arange(own.sum())
        local = rows_with_own(state.server["local"][common], state.kept.of(np.asarray(client_ids)[own]))
        shared = np.concatenate([common, clusters[own]])

        def joined(row: int) -> np.ndarray:
            return self.parts.joined(local[row], state.models[shared[row]])[0]

        return ModelRows(len(local), self.model.size, joined), rows

    def exports(self, **more) -> Exports:
        def values(state: ClusteredState) -> dict:
            if self.is_whole(state):
                raise ended_within(self.whole_rounds, _WHOLE)
            return self.broadcast(state)

        if self.whole:
            note = (
                f"a run begins with {counted(self.whole_rounds, 'round')} of FedAvg on the whole model, whose two "
                "parts are then what all start from"
            )
            more["when"] = {**more.get("when", {}), "training": note}
        return dataclasses.replace(super().exports(**more), server_values=values)
