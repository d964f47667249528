"""Local training in bfloat16: against float32, twice the same, and what is refused."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tests import own_data
from tests.short_runs import TRAINING
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.per_fedavg import build_meta_sgd
from tffcl.algorithms.training_parameters import PerFedAvgParameters
from tffcl.client_work.local_sgd import build_local_sgd
from tffcl.errors import UserError
from tffcl.models.classifiers import build_leaf_cnn, build_mlp, build_resnet9
from tffcl.models.layers import in_precision
from tffcl.runs import checks

SEED = np.array([3, 4], np.int32)
BFLOAT16 = dataclasses.replace(TRAINING, precision="bfloat16")


@pytest.mark.parametrize(
    "build, most",
    [
        (lambda: build_mlp((8, 8, 1), 10, hidden=16, dropout=0.3), 0.05),
        (lambda: build_leaf_cnn((8, 8, 1), 10), 0.05),
        # Through nine layers; float32 with rounded factors differs as much.
        pytest.param(lambda: build_resnet9((32, 32, 3), 10), 0.25, marks=pytest.mark.slow),
    ],
    ids=["mlp", "leaf", "resnet9"],
)
def test_gradients_are_float32s_but_for_its_digits(build, most):
    model, rng = build(), np.random.default_rng(1)
    x = rng.integers(0, 256, (4, *model.input_shape)).astype(np.uint8)
    y, gradients, losses = tf.constant([0, 1, 2, 3]), [], []
    for each in (model, in_precision(model, "bfloat16")):
        tensors = each.unravel(tf.constant(each.initial))
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss, _ = each.training_loss(tensors, each.preprocess(x), y, SEED)
        slopes = tape.gradient(loss, tensors)
        assert loss.dtype == tf.float32 and {slope.dtype for slope in slopes} == {tf.float32}
        gradients.append(each.concat(slopes).numpy())
        losses.append(float(loss))
    difference = np.linalg.norm(gradients[1] - gradients[0]) / np.linalg.norm(gradients[0])
    assert 1e-4 < difference < most  # a digit of bfloat16 is 0.004
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


@pytest.mark.slow
def test_a_training_is_the_same_twice_and_close_to_float32s(digits, model):
    given = model.initial, digits[0][:100], digits[1][:100], SEED
    exact, first = (build_local_sgd(model, each)(*given)[0].numpy() for each in (TRAINING, BFLOAT16))
    build_local_sgd.forget()
    np.testing.assert_array_equal(build_local_sgd(model, BFLOAT16)(*given)[0], first)
    assert 0 < np.linalg.norm(first - exact) < 0.2 * np.linalg.norm(exact - model.initial)
    how = PerFedAvgParameters(alpha=0.1, beta=0.1, gradient="first_order", velocity="outer")
    meta, rounded = (build_meta_sgd(model, each, how)(*given)[0].numpy() for each in (TRAINING, BFLOAT16))
    assert 0 < np.linalg.norm(rounded - meta) < 0.2 * np.linalg.norm(meta - model.initial)


@pytest.mark.slow
def test_a_run_resumes_in_its_own_precision_alone(monkeypatch, tff_worker, tmp_path, population, model):
    # Other processors compute the same, only more slowly.
    monkeypatch.setattr(checks, "_INSTRUCTIONS", {"float32": "", "bfloat16": ""})

    def trained(training, out, **how):
        method = build_fedavg(model, training)
        return tffcl.train(
            method, population, rounds=2, clients_per_round=2, out=tmp_path / out, checkpoint_every=1,
            show_progress=False, **how,
        )  # fmt: skip

    whole = trained(BFLOAT16, "whole").trained.state.models
    trained(BFLOAT16, "parts", until=1)
    np.testing.assert_array_equal(trained(BFLOAT16, "parts", resume=True).trained.state.models, whole)
    with pytest.raises(UserError, match="built_from.training.precision is 'bfloat16', not 'float32'"):
        trained(TRAINING, "whole", resume=True)


def test_a_model_of_another_origin_is_refused():
    with pytest.raises(UserError, match='of another origin: build its Keras layers with dtype="mixed_bfloat16"'):
        build_fedavg(own_data.perceptron(), BFLOAT16)


def test_a_processor_without_it_is_refused(monkeypatch, tmp_path, population, model):
    monkeypatch.setattr(checks, "_INSTRUCTIONS", {"float32": "", "bfloat16": "no_such_flag"})
    method = build_fedavg(model, BFLOAT16)
    with pytest.raises(UserError, match=r"this processor has no bfloat16 instructions \(no_such_flag\)"):
        tffcl.train(method, population, rounds=1, clients_per_round=2, out=tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists()
