"""Runs whose clients keep their optimizer: resumed, refused with another one, and on clients that there are."""

import dataclasses
import inspect
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tffcl
from tests import own_data
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.method import Method
from tffcl.errors import UserError
from tffcl.runs import fingerprint

ADAM = tffcl.LocalTraining(
    batch_size=10,
    learning_rate=0.01,
    learning_rate_decay=tffcl.LearningRateDecay(cosine=6, warm_up=2),
    optimizer=tff.learning.optimizers.build_adam(0.01),
    optimizer_state="kept",
    clip_norm=1.0,
    clients={"clinic_1": {"epochs": 2}},
)


def trained(training, out: pathlib.Path, **how):
    population = tffcl.Population.from_arrays(*own_data.clinics())
    method = build_fedavg(own_data.perceptron(), training)
    return tffcl.train(
        method, population, rounds=4, clients_per_round=3, seed=1, out=out, checkpoint_every=1, show_progress=False,
        **how,
    )  # fmt: skip


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tff_worker, tmp_path):
    whole = trained(ADAM, tmp_path / "whole")
    trained(ADAM, tmp_path / "parts", until=2)
    resumed = trained(ADAM, tmp_path / "parts", resume=True)
    np.testing.assert_array_equal(resumed.trained.state.models, whole.trained.state.models)
    others = [
        {"optimizer": tff.learning.optimizers.build_adam(0.01, beta_1=0.8)},
        {"optimizer": "rmsprop"},
        {"optimizer_state": "reset"},
        {"learning_rate_decay": 0.5},
        {"clip_norm": 2.0},
        {"clients": None},
    ]
    for other in others:
        with pytest.raises(UserError, match=f"holds another run: its built_from.training.{next(iter(other))}"):
            trained(dataclasses.replace(ADAM, **other), tmp_path / "whole", resume=True)


@pytest.mark.slow
def test_a_servers_optimizer_with_a_state_of_named_tuples_is_resumed(tff_worker, tmp_path):
    """Adafactor's, which also makes floats of its number of steps and has a Python `if` on a tensor. To the server's
    optimizer a model is one vector."""
    population, model = tffcl.Population.from_arrays(*own_data.clinics()), own_data.perceptron()
    optimizer = tff.learning.optimizers.build_adafactor(0.1)

    def state_of(name, optimizer=optimizer, **how):
        method = build_fedavg(model, tffcl.LocalTraining(), optimizer=optimizer)
        how = {"rounds": 3, "clients_per_round": 3, "show_progress": False, **how}
        result = tffcl.train(method, population, out=tmp_path / name, **how)
        return result and result.trained.state

    whole = state_of("whole")
    state_of("parts", until=2)
    np.testing.assert_array_equal(state_of("parts", resume=True).models, whole.models)
    in_blocks = state_of("blocks", memory="1MB", shards=0)
    np.testing.assert_allclose(in_blocks.models, whole.models, rtol=0, atol=1e-6)
    mean = state_of("mean", None, rounds=1).models[0]
    first = optimizer.initialize(tf.TensorSpec(mean.shape, tf.float32))
    _, stepped = optimizer.next(first, tf.constant(model.initial), tf.constant(model.initial - mean))
    np.testing.assert_allclose(state_of("once", rounds=1).models[0], stepped, rtol=0, atol=1e-6)


def test_a_servers_schedule_tells_runs_apart():
    def told(decay):
        adam = tff.learning.optimizers.build_adam(0.1)
        method = build_fedavg(
            own_data.perceptron(), tffcl.LocalTraining(), optimizer=tffcl.parts.ScheduledOptimizer(adam, decay)
        )
        return fingerprint.of_method(method)["optimizer"]

    falling = told(tffcl.LearningRateDecay(0.9))
    assert falling == told(tffcl.LearningRateDecay(0.9)) != told(tffcl.LearningRateDecay(0.8))
    assert falling["optimizer"]["learning_rate"] == 0.1


@pytest.mark.parametrize("name", ["adam", "sgdm", "yogi", "adagrad"])
def test_all_that_an_optimizer_is_set_to_is_noted(name):
    build = getattr(tff.learning.optimizers, f"build_{name}")

    def told(**how):
        return fingerprint._plain(build(0.1, **how))

    for key in [*inspect.signature(build).parameters][1:]:
        assert told(**{key: 0.5}) != told()


class Averaging(Method):
    """A method of a user's own that is given an optimizer and an aggregation."""

    name, model, state_class = "averaging", None, None
    initialize = next = models_for = None

    def __init__(self, optimizer, aggregation):
        pass


def test_an_optimizer_and_an_aggregation_of_a_users_own_method_are_noted():
    def told(rate=0.1, clip=1.0):
        given = tff.learning.optimizers.build_sgdm(rate), tffcl.aggregation("dp", clip=clip, noise_multiplier=1.0)
        return fingerprint._table(fingerprint._own(Averaging(*given).made_of))

    assert told() == told() and len({str(each) for each in (told(), told(rate=0.2), told(clip=2.0))}) == 3


def test_settings_of_a_client_that_there_is_not_are_refused(tmp_path):
    with pytest.raises(UserError, match="unknown client in clients 'clinic_x'; did you mean 'clinic_"):
        trained(dataclasses.replace(ADAM, clients={"clinic_x": {"epochs": 2}}), tmp_path / "run")
