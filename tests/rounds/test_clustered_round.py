"""The round of clustered training, in simulation and as what a deployment takes of it, and the bytes that
really cross.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.short_runs import TRAINING, assert_close, cohort_of, deployed_inputs
from tffcl.algorithms import scaffold
from tffcl.algorithms.clustered_training import build_clustered_round, build_clustered_training
from tffcl.algorithms.method import ClusteredState
from tffcl.algorithms.stocfl import both_models
from tffcl.errors import UserError
from tffcl.rounds.server import own_row
from tffcl.rounds.simulation import run_round
from tffcl.rounds.traffic import Traffic, type_bytes


@pytest.fixture(scope="module")
def composed(model):
    return build_clustered_round(model, TRAINING)


def test_clients_receive_and_move_the_row_of_their_key(tff_worker, composed, model, population):
    """Each row becomes what its clients make of it when they are alone with it."""
    models, keys = np.stack([model.initial, 2 * model.initial, 3 * model.initial]), np.array([2, 0, 0, 2], np.int32)
    whole = run_round(
        composed, cohort_of(population, [0, 1, 2, 3], 1), {"models": models}, composed.initial_aggregators, key=keys
    )
    for row in (0, 2):
        members = np.flatnonzero(keys == row)
        alone = run_round(
            composed, cohort_of(population, members, 1), {"models": models[[row]]}, composed.initial_aggregators,
            key=np.zeros(len(members), np.int32),
        )  # fmt: skip
        assert_close(whole.values["models"][row], alone.values["models"][0])
        assert np.abs(whole.values["models"][row] - models[row]).max() > 0.01
        np.testing.assert_array_equal(whole.reports["loss"][members], alone.reports["loss"])
    np.testing.assert_array_equal(whole.values["models"][1], models[1])
    np.testing.assert_array_equal(whole.measurements["update"]["clients"], [2, 0, 2])
    # In simulation every client has all rows; a device gets its own only, and that is what counts.
    assert whole.traffic == Traffic(4 * 4 * model.size, 4 * composed.transfer.up_bytes())


@pytest.mark.parametrize("receive", [own_row, both_models, scaffold.receive])
def test_a_key_that_is_no_row_is_refused(receive):
    """Also by devices, whose upload under it a secure sum would take for nobody's."""
    values = dict.fromkeys(("models", "control_sums", "global_model"), tf.ones([2, 5]))
    values["members"] = tf.ones([2])
    assert receive(values, {"key": np.int32(1)})["model"].shape == [5]
    for key in (-1, 2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"indices = {key} is not in \[0, 2\)"):
            receive(values, {"key": np.int32(key)})


def test_of_a_round_with_another_training_only_the_clients_part_is_traced(model, composed, monkeypatch):
    trace, traced = tff.tensorflow.computation, []
    assert composed.simulated and composed.transfer
    monkeypatch.setattr(tff.tensorflow, "computation", lambda *given: traced.append(given) or trace(*given))
    other = build_clustered_round(model, dataclasses.replace(TRAINING, epochs=3))
    assert other.simulated is not composed.simulated and other.transfer == composed.transfer
    assert len(traced) == 1


@pytest.mark.slow
def test_the_round_rebuilt_from_its_map_reduce_form(tff_worker, through_map_reduce, composed, model, population):
    process = composed.process({"models": model.initial[np.newaxis]})
    clients = deployed_inputs(cohort_of(population, [0, 1, 2], 1), key=np.array([1, 0, 1], np.int32))
    first = process.initialize()
    np.testing.assert_array_equal(first["models"], [model.initial])
    state = {**first, "models": np.stack([model.initial, 2 * model.initial])}
    direct, told = process.next(state, clients)
    again, theirs = through_map_reduce(process.next, state, clients)
    assert np.abs(direct["models"] - state["models"]).max(axis=1).min() > 0.01
    np.testing.assert_allclose(again["models"], direct["models"], atol=1e-6)
    np.testing.assert_array_equal(np.sort(theirs["reports"]["client_id"]), np.sort(told["reports"]["client_id"]))


@pytest.mark.slow  # as in the conformance suite, of PACFL
def test_the_deployed_round_is_the_simulated_one(tff_worker, composed, model, population):
    cohort, keys = cohort_of(population, [0, 1, 2], 1), np.array([1, 0, 1], np.int32)
    models = np.stack([model.initial, 2 * model.initial])
    simulated = run_round(composed, cohort, {"models": models}, composed.initial_aggregators, key=keys)
    state = {"models": models, "aggregators": composed.initial_aggregators}
    deployed, _ = composed.deployed(state, deployed_inputs(cohort, key=keys))
    np.testing.assert_allclose(deployed["models"], simulated.values["models"], atol=1e-6)


@pytest.mark.slow  # as in the conformance suite, of a stranger's method
def test_traffic_is_what_the_deployed_round_sends(composed, model):
    """Up: the result of the MapReduceForm's client work. Down: one row of the broadcast models."""
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(composed.deployed)
    transfer = composed.transfer
    assert transfer.up_bytes() == type_bytes(form.work.type_signature.result)
    assert transfer.down_bytes() == 4 * model.size
    assert transfer.up_bytes() == 4 * model.size + 4 + 4 + 4 + (4 + 4 + 1)  # key, weight, ID, report


def test_a_type_without_a_size_has_no_bytes():
    several = tff.TensorType(np.float32, [None, 3])
    with pytest.raises(ValueError, match="no fixed size"):
        type_bytes(several)
    assert type_bytes(several, rows=5) == 4 * 5 * 3  # the leading dimension may be the number of models
    with pytest.raises(ValueError, match="no fixed size"):
        type_bytes(tff.TensorType(np.float32, [3, None]), rows=5)


@pytest.mark.parametrize(
    "assignment, message",
    [
        ([0, -1, 1], "the assignment has the cluster -1; clusters are numbered from 0$"),
        ([0.0, np.nan, 1.0], r"the assignment is float64 \[3\]; it must be whole numbers \[3\], a cluster for each"),
        ([0, 1], r"the assignment is int64 \[2\]; it must be whole numbers \[3\]"),
    ],
)
def test_clusters_that_are_none_are_told_at_the_start(model, population, assignment, message):
    with pytest.raises(UserError, match=message):
        build_clustered_training(model, TRAINING).start(population.restricted([0, 1, 2]), np.array(assignment))


@pytest.mark.parametrize("cluster", [-1, 2])
def test_a_round_does_not_take_a_cluster_that_is_none_for_another(model, population, cluster):
    """The last one, as NumPy does."""
    engine, few = build_clustered_training(model, TRAINING), population.restricted([0, 1, 2])
    state = ClusteredState(**engine.start(few, np.array([0, 1, 1])))
    state = dataclasses.replace(state, assignment=np.array([0, cluster, 1]))
    with pytest.raises(UserError, match=f"has the cluster {cluster}; clusters are numbered from 0 to 1"):
        engine.next(state, cohort_of(few, [0, 1, 2], 1))
