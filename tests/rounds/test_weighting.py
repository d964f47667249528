"""How much a client counts in the means of a round: by its examples, all alike, or not at all."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.short_runs import TRAINING, assert_close, cohort_of
from tffcl.aggregators.clustered_mean import ClusteredMeanFactory
from tffcl.algorithms.clustered_training import build_clustered_round
from tffcl.algorithms.solo import build_solo
from tffcl.client_work.client_work import ClientResult, ClientWork, keyed, stack
from tffcl.client_work.training import build_update_work
from tffcl.errors import UserError
from tffcl.rounds.composer import Server, by_examples, compose, uniform
from tffcl.rounds.server import keyed_server
from tffcl.rounds.simulation import run_round

WEIGHTS = {by_examples: [31, 40, 25], uniform: [1, 1, 1]}


@pytest.mark.parametrize("weighting", WEIGHTS)
def test_a_round_gives_the_mean_by_its_weighting(tff_worker, model, population, weighting):
    """Of the models that the same clients train by themselves."""
    work, uploads = build_update_work(model, TRAINING), {"update": ClusteredMeanFactory()}
    composed = compose(work, uploads, keyed_server(model.size), weighting=weighting)
    cohort = cohort_of(population, [0, 1, 2], 1)
    values = {"models": model.initial[np.newaxis]}
    result = run_round(composed, cohort, values, composed.initial_aggregators, key=np.zeros(3, np.int32))
    solo = build_solo(model, TRAINING)
    trained = np.stack(solo.next(solo.initialize(population), cohort)[0].kept.of([0, 1, 2]))
    means = {each: np.average(trained, axis=0, weights=weights) for each, weights in WEIGHTS.items()}
    assert_close(result.values["models"][0], means[weighting])
    assert np.abs(means[uniform] - means[by_examples]).max() > 1e-3
    np.testing.assert_array_equal(result.measurements["update"]["weight"], [sum(WEIGHTS[weighting])])


def test_by_examples_is_what_rounds_do_unless_told(model):
    assert build_clustered_round(model, TRAINING).weighting is by_examples


def faulty(model) -> ClientWork:
    """Clients upload their ID, twice; the training of client 1 is not finite."""

    def compute(received, client):
        value = tf.cast(client["client_id"], tf.float32)
        broken = tf.equal(client["client_id"], 1)
        value = tf.where(broken, np.float32(np.nan), value)
        count = tf.shape(stack(client["examples"])["y"])[0]
        report = collections.OrderedDict(examples=count, loss=value, finite=tf.math.logical_not(broken))
        return ClientResult(
            {"update": keyed(tf.constant(0), tf.stack([value, value])), "mean": tf.stack([value, value])}, report
        )

    return ClientWork(model.example_spec, compute)


@pytest.mark.parametrize("weighting", WEIGHTS)
def test_a_client_whose_training_is_not_finite_has_no_weight(tff_worker, model, population, weighting):
    def step(state, results, measurements):
        return {"keyed": results["update"], "mean": results["mean"], "weight": measurements["update"]["weight"]}

    held = {"keyed": tff.TensorType(np.float32, [None, 2]), "mean": tff.TensorType(np.float32, [2])}
    uploads = {"update": ClusteredMeanFactory(), "mean": tff.aggregators.MeanFactory()}
    server = Server(private={**held, "weight": tff.TensorType(np.float32, [None])}, step=step)
    composed = compose(faulty(model), uploads, server, weighting=weighting)
    first = {"keyed": np.zeros([0, 2], np.float32), "mean": np.zeros(2, np.float32), "weight": np.zeros(0, np.float32)}
    cohort, aggregators = cohort_of(population, [0, 1, 2], 1), composed.initial_aggregators
    after, told = composed.simulated({**first, "aggregators": aggregators}, cohort.inputs())
    one, _, other = WEIGHTS[weighting]
    expected = np.full(2, (one * 0 + other * 2) / (one + other))
    np.testing.assert_allclose(after["keyed"], [expected], rtol=1e-6)
    np.testing.assert_allclose(after["mean"], expected, rtol=1e-6)
    np.testing.assert_array_equal(after["weight"], [one + other])
    assert told["reports"]["value"]["finite"].sum() == 2
    # The coordinator of a simulation does not go on silently.
    with pytest.raises(UserError, match="client 1 trained a model that is not finite .* in round 1"):
        run_round(composed, cohort, first, aggregators)


def test_models_by_name_beside_what_the_server_keeps_for_itself(tff_worker, model, population):
    def compute(received, client):
        count = tf.shape(stack(client["examples"])["y"])[0]
        report = collections.OrderedDict(examples=count, loss=0.0, finite=True)
        return ClientResult({"update": collections.OrderedDict(bias=tf.ones([2]))}, report)

    def step(state, results, measurements):
        moved = collections.OrderedDict(bias=state["models"]["bias"] + results["update"]["bias"])
        return {"models": moved, "rounds": state["rounds"] + 1}

    first = {"models": collections.OrderedDict(bias=np.zeros(2, np.float32)), "rounds": np.int32(0)}
    models, kept = {"models": tff.to_type([("bias", tff.TensorType(np.float32, [2]))])}, tff.TensorType(np.int32)
    server = Server(models, step=step, private={"rounds": kept})
    composed = compose(ClientWork(model.example_spec, compute), {"update": tff.aggregators.MeanFactory()}, server)
    after = run_round(composed, cohort_of(population, [0, 1], 1), first, composed.initial_aggregators).values
    assert after["models"]["bias"].tolist() == [1, 1] and after["rounds"] == 1
