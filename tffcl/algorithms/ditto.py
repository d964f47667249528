"""Ditto (Li et al., ICML 2021, arXiv:2012.04221, Alg. 1): a personal model for every client, held near the shared
one."""

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import (
    ClusteredTraining,
    build_clustered_round,
    build_engine,
    of_large_clusters,
)
from tffcl.algorithms.fedavg import OneModel, one_model
from tffcl.algorithms.method import ClusteredState, Exports, Views
from tffcl.algorithms.training_parameters import DittoParameters
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_own_work
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.models.flat import FlatModel
from tffcl.models.model_rows import rows_with_own
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server import models_type, own_row
from tffcl.rounds.simulation import run_round
from tffcl.trace_cache import built_once


@built_once
def build_personal_round(model: FlatModel, training: LocalTraining) -> Round:
    """Builds a round in which every client trains the model that it keeps, held near row `key` of the server's `models
    float32[?,P]`."""
    work = build_own_work(model, training, towards="model")
    return compose(work, {}, Server({"models": models_type(model.size)}, own_row))


@dataclasses.dataclass(frozen=True, eq=False)
class PersonalTraining(ClusteredTraining):
    """Rounds in which every client also trains and keeps a model of its own, held near the model of its cluster.

    Attributes:
      personal: The round of the personal models, which sends nothing.
    """

    trained_models: ClassVar[int] = 2

    personal: Round | None = None

    def next(self, state: ClusteredState, cohort: Cohort):
        """Runs one round: trains first the personal models, held near the clusters' models before the round, then the
        clusters' models by FedAvg. A client that is not asked trains neither."""
        cohort = of_large_clusters(self.round_for(len(state.models)), state, cohort)
        clusters = state.clusters(cohort.client_ids)
        rows, keys = np.unique(clusters, return_inverse=True)
        models, own = {"models": state.models[rows]}, state.optimizers or {}
        result = run_round(
            self.personal, cohort, models, kept=state.kept, optimizers=own.get("personal"), key=keys.astype(np.int32)
        )
        shared = dataclasses.replace(state, kept=None, optimizers=own.get("shared"))
        after, sent = super().next(shared, dataclasses.replace(cohort, local_test=None))
        metrics = dataclasses.replace(result.metrics(cohort, clusters), traffic=sent.traffic)
        own = {"personal": result.optimizers, "shared": after.optimizers} if result.optimizers is not None else None
        return dataclasses.replace(after, kept=result.kept, optimizers=own), metrics

    def own_states(self, state: ClusteredState) -> KeptStates | None:
        return (state.optimizers or {}).get("personal")

    def models_for(self, state: ClusteredState, client_ids):
        """The client's own model, or that of its cluster if it has not trained yet."""
        own = state.kept.has(client_ids)
        rows = np.where(own, len(state.models) - 1 + np.cumsum(own), state.clusters(client_ids)).astype(np.int32)
        kept = state.kept.of(np.asarray(client_ids)[own])
        return rows_with_own(state.models, kept), rows

    def exports(self, **more) -> Exports:
        build = more.pop("build", dict)
        return super().exports(build=lambda: {**build(), "personal_training": self.personal.deployed_with_kept}, **more)


class Ditto(OneModel):
    """Ditto, see `build_ditto`; a client's cluster is itself."""

    def views(self, state: ClusteredState) -> Views:
        return Views(state.client_ids, state.client_ids, global_model=state.models[0])


def build_personal_training(
    model: FlatModel,
    training: LocalTraining,
    parameters: DittoParameters = DittoParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> PersonalTraining:
    """Builds Ditto, the method of one model or the rounds of any grouping; other arguments are as in `build_fedavg`.

    The global model is trained by FedAvg (the paper's default solver). Each client of a cohort also trains its personal
    model, on the same batches in the same order. It starts from the initial model, is trained further in each of the
    client's rounds, and stays on the device. A client that has not trained yet has no personal model and is assigned
    the global one. As the method of one model, the only row of the state's models is the global one. Its mean is
    weighted by examples; the authors' code averages unweighted, which is the aggregation "uniform_mean".

    Args:
      training: Local hyper-parameters of both models.
      parameters: λ.
    """
    proximal = training.with_proximal_weight(parameters.proximal_weight)
    own = {"kind": PersonalTraining, "kept": model.initial, "personal": build_personal_round(model, proximal)}
    return build_engine(
        model, lambda factory: build_clustered_round(model, training, aggregation=factory), aggregation, **own
    )


build_ditto = one_model("ditto", build_personal_training, Ditto)
