"""SCAFFOLD: local steps corrected by control variates (Karimireddy et al., ICML 2020, arXiv:1910.06378, Alg. 1)."""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import UniformClusteredMeanFactory, aggregated_beside, keyed_factory, pad_rows
from tffcl.aggregators.contract import traits
from tffcl.algorithms.clustered_training import ClusteredTraining, build_engine
from tffcl.algorithms.fedavg import one_model
from tffcl.algorithms.method import ClusteredState
from tffcl.algorithms.training_parameters import ScaffoldParameters
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_controlled_work
from tffcl.clients.cohort import Cohort
from tffcl.models.flat import FlatModel
from tffcl.registry import TRAININGS
from tffcl.rounds.composer import WEIGHTINGS, Round, Server, compose
from tffcl.rounds.server import models_type, row_of
from tffcl.trace_cache import built_once


def receive(values, client) -> collections.OrderedDict:
    """Returns what a client receives: the model of its cluster, and the two numbers whose quotient is c."""
    rows = {"model": "models", "control_sum": "control_sums", "members": "members"}
    return collections.OrderedDict((name, row_of(values[of], client["key"])) for name, of in rows.items())


def averages_anew(aggregation: tff.aggregators.AggregationFactory | None) -> bool:
    """Whether the server averages c anew, since it lacks the sum of what clients add to their control variates."""
    return not traits(aggregated_beside(aggregation, UniformClusteredMeanFactory())).is_mean


@built_once
def build_controlled_round(
    model: FlatModel,
    training: LocalTraining,
    parameters: ScaffoldParameters,
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Round:
    """Builds one round of SCAFFOLD in each cluster (Alg. 1 lines 3 to 17).

    The server has `models float32[?,P]`, `control_sums float32[?,P]`, the sums N c of the members' control variates,
    and `members float32[?]`, N of line 17: how many clients each cluster has, present or not. Newcomers, whose c_i is
    zero, change N but not the sums, so that c stays the mean of all c_i.

    If the server does not receive the sum of what the clients add to their c_i (under noise, which would accumulate in
    c, or under a robust rule), they upload c_i+ itself, and the server averages c anew: c <- c + n/N (mean c_i+ - c),
    where n clients are present. With all of them present this is line 17.

    Args:
      parameters: Options.
      aggregation: Aggregates the models' updates, see `keyed_factory`. Control variates take the aggregation beside it
        (`aggregated_beside`): secure sums or a robust rule if the updates have them, else the unweighted mean.
    """

    unclipped = () if parameters.option == "difference" else ("clip_norm",)
    training.require_sgd("SCAFFOLD", *TRAININGS["scaffold"].sgd, *unclipped)
    controls, anew = aggregated_beside(aggregation, UniformClusteredMeanFactory()), averages_anew(aggregation)

    def step(state, results, measurements):
        rows = tf.shape(state["models"])[0]
        update = pad_rows(results["update"], rows)
        models = state["models"] + model.on_trained(parameters.server_learning_rate * update, update)
        change, present = pad_rows((results["control"], measurements["control"]["clients"]), rows)
        if anew:
            mean = tf.math.divide_no_nan(state["control_sums"], state["members"][:, tf.newaxis])
            waits = tf.reduce_all(tf.equal(change, 0), axis=1, keepdims=True)
            change = tf.where(waits, 0.0, change - mean)
        # A noisy number of clients can exceed the number of members.
        present = tf.clip_by_value(tf.cast(present, tf.float32), 0.0, state["members"])[:, tf.newaxis]
        return {**state, "models": models, "control_sums": state["control_sums"] + present * change}

    rows_type = models_type(model.size)
    values = {"models": rows_type, "control_sums": rows_type, "members": tff.TensorType(np.float32, [None])}
    uploads = {"update": keyed_factory(aggregation), "control": controls}
    work = build_controlled_work(model, training, parameters.option, clipped=traits(controls).clipped, anew=anew)
    return compose(work, uploads, Server(values, receive, step), weighting=WEIGHTINGS[parameters.weighting])


@dataclasses.dataclass(frozen=True, eq=False)
class ControlledTraining(ClusteredTraining):
    """Rounds of SCAFFOLD on a state whose `kept` has the control variates of clients that have trained.

    Attributes:
      anew: Whether the server averages c anew, as in `build_controlled_round`.
    """

    anew: bool = False

    def run(self, state: ClusteredState, cohort: Cohort):
        """Runs a round in which c is over the current clients; those that have left count again when they return."""
        there = np.isin(state.client_ids, cohort.population.client_ids)
        if there.all():
            return super().run(state, cohort)
        sums, members = state.server["control_sums"], {"client_ids": state.client_ids, "assignment": state.assignment}
        present = dataclasses.replace(state, **{name: ids[there] for name, ids in members.items()})
        if self.anew:  # the sums are N c, and not sums of c_i
            counts = (np.bincount(each.assignment, minlength=len(sums)) for each in (present, state))
            now, all_of = (each[:, np.newaxis].astype(np.float32) for each in counts)
            away = sums * (1 - now / np.maximum(all_of, 1))
        else:
            gone, away = state.client_ids[~there], np.zeros_like(sums)
            gone = gone[state.kept.has(gone)]
            for cluster, own in zip(state.clusters(gone), state.kept.of(gone)):
                away[cluster] += own
        present = dataclasses.replace(present, server={"control_sums": sums - away})
        after, metrics, result = super().run(present, cohort)
        found = after.server["control_sums"]
        sums = np.where(now > 0, found * all_of / np.maximum(now, 1), sums) if self.anew else found + away
        return dataclasses.replace(after, server={"control_sums": sums}, **members), metrics, result


def build_controlled_training(
    model: FlatModel,
    training: LocalTraining,
    parameters: ScaffoldParameters = ScaffoldParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> ClusteredTraining:
    """Builds SCAFFOLD, the method of one model or the rounds of any grouping; other arguments are as in `build_fedavg`.

    A client keeps its control variate; a round sends two vectors each way, and the number of members to clients. The
    code of PACFL and FLIS divides by the number of steps even with momentum, which makes control variates too large;
    here momentum is accounted for (see `build_controlled_work`).

    Args:
      parameters: Options.
    """

    def build_round(factory):
        return build_controlled_round(model, training, parameters, aggregation=factory)

    def rows(count: int):
        return {"control_sums": np.zeros([count, model.size], np.float32)}

    nothing = np.zeros(model.size, np.float32)
    return build_engine(
        model, build_round, aggregation, rows=rows, kind=ControlledTraining, kept=nothing, counts_members=True,
        anew=averages_anew(aggregation),
    )  # fmt: skip


build_scaffold = one_model("scaffold", build_controlled_training)
