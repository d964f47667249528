"""Ditto (Li et al., ICML 2021, arXiv:2012.04221, Alg. 1): a personal model for every client, held near the global one."""

import dataclasses
import functools

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import build_clustered_training, build_training_process
from tffcl.algorithms.contracts import Algorithm, Cohort, Population, State, index_of
from tffcl.algorithms.solo import admit_apart, assign_rows, build_local_training, train_apart, with_rows
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.models.flat import FlatModel


@dataclasses.dataclass(frozen=True)
class PersonalTraining:
    """How personal models are trained.

    Attributes:
      proximal_weight: λ; a personal model minimises the client's loss plus λ/2 times the squared distance to the global
        model as it was broadcast in the round (Eq. Obj).
    """

    proximal_weight: float = 0.05


def build_ditto(
    model: FlatModel,
    training: LocalTraining,
    how: PersonalTraining = PersonalTraining(),
    *,
    aggregation: tff.aggregators.WeightedAggregationFactory | None = None,
) -> Algorithm:
    """Builds Ditto.

    The global model is trained by FedAvg (the paper's default solver). Each client of a cohort also trains its personal
    model, on the same batches in the same order, from its last state, at first the initial model; it stays on the device.
    A client that has not trained yet has no personal model and is assigned the global one.

    Args:
      model: What is trained.
      training: Local hyper-parameters, of both models.
      how: λ.
      aggregation: Of the global model; optional factory over keyed updates, see `ClusteredMeanFactory`.

    Returns:
      The method. Row 0 of the state's models is the global model, `extra["rows"] int32 [N]` says which row is whose; a
      client's cluster is itself.

    Raises:
      UserError: If λ is negative.
    """
    engine = build_clustered_training(model, training, aggregation=aggregation)
    proximal = dataclasses.replace(training, proximal_weight=how.proximal_weight)
    personal_training = build_local_training(model, proximal, local_test=True, towards=True)

    def initialize(population: Population) -> State:
        count = len(population.client_ids)
        models, everyone = model.initial[np.newaxis], np.arange(count, dtype=np.int32)
        rows = {"rows": np.zeros(count, np.int32)}
        return State(population.client_ids, everyone, models, engine.initial_aggregator_state(), rows)

    def next_round(state: State, cohort: Cohort):
        where = index_of(state.client_ids, cohort.client_ids)
        rows = state.extra["rows"][where]
        starts = np.where((rows > 0)[:, np.newaxis], state.models[rows], model.initial)
        train = functools.partial(personal_training, state.models[0])
        trained, metrics = train_apart(train, cohort, starts, state.assignment[where])
        alone = State(state.client_ids, np.zeros_like(state.assignment), state.models[:1], state.aggregator, {})
        averaged, sent = engine.next(alone, dataclasses.replace(cohort, local_test=None))
        models, rows = with_rows(state.models, rows, trained)
        models[0] = averaged.models[0]
        everyone = state.extra["rows"].copy()
        everyone[where] = rows
        metrics = dataclasses.replace(metrics, down_bytes=sent.down_bytes, up_bytes=sent.up_bytes)
        state = dataclasses.replace(state, models=models, aggregator=averaged.aggregator, extra={"rows": everyone})
        return state, metrics

    def computations():
        process = build_training_process(model, training, aggregation=aggregation)
        personal = build_local_training(model, proximal, towards=True)
        return {"initialize": process.initialize, "training": process.next, "personal_training": personal}

    return Algorithm(
        "ditto",
        initialize,
        next_round,
        assign_rows,
        admit_apart,
        computations,
        {"training": engine.transfer},
        extra_keys=("rows",),
        global_model=lambda state: state.models[0],
    )
