"""Meta-steps against NumPy, which batches they take, and adaptation."""

import dataclasses

import numpy as np
import pytest

from tests.oracles import meta_steps, softmax_regression
from tffcl.algorithms.per_fedavg import build_adapt, build_meta_sgd
from tffcl.algorithms.training_parameters import PerFedAvgParameters
from tffcl.client_work.client_work import visiting_order
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.errors import UserError

HOW = PerFedAvgParameters(alpha=0.2, beta=0.1, gradient="first_order", velocity="outer")
HESSIAN_FREE = {"gradient": "hessian_free", "delta": 0.01}
TRAINING = LocalTraining(epochs=2, batch_size=7, learning_rate=0.5)
SEED = np.array([3, 4], np.int32)


def tensors_of(model, vector):
    return [tensor.numpy() for tensor in model.unravel(vector)]


def grouped(n, size, needed, epochs=2):
    """The batches of all steps: every `needed` that follow each other in an epoch's order; the rest is left over."""
    groups = []
    for epoch in range(epochs):
        order = visiting_order(n, SEED + np.array([0, epoch], np.int32)).numpy()
        batches = [order[start : start + size] for start in range(0, n, size)]
        groups += [batches[i : i + needed] for i in range(0, len(batches) - needed + 1, needed)]
    return groups


@pytest.fixture(scope="module")
def data(digits):
    return digits[0][:45], digits[1][:45]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"momentum": 0.5},
        {"momentum": 0.5, "velocity": "shared", "weight_decay": 0.2},
        pytest.param(HESSIAN_FREE, marks=pytest.mark.slow),
        # As a round of Per-FedAvg has it.
        pytest.param({**HESSIAN_FREE, "momentum": 0.5}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_meta_steps_are_those_of_numpy(model, data, how):
    how, (x, y) = dict(how), data
    momentum, decay = how.pop("momentum", 0.0), how.pop("weight_decay", 0.0)
    how = dataclasses.replace(HOW, **how)
    training = dataclasses.replace(TRAINING, momentum=momentum, weight_decay=decay)
    trained, loss = build_meta_sgd(model, training, how)(model.initial, x, y, SEED)
    free = how.gradient == "hessian_free"
    groups = grouped(45, 7, 3 if free else 2)
    assert len(groups) == 2 * (2 if free else 3)  # seven batches an epoch, of which one is left over
    features = model.preprocess(x).numpy().reshape(45, -1).astype(float)
    expected, losses = meta_steps.train(
        tensors_of(model, model.initial), features, y, groups, alpha=how.alpha, beta=how.beta, momentum=momentum,
        delta=how.delta if free else None, shared=how.velocity == "shared", weight_decay=decay,
    )  # fmt: skip
    np.testing.assert_allclose(trained, model.ravel(expected), rtol=0, atol=2e-5 if free else 2e-6)
    assert np.abs(trained - model.initial).max() > 0.02
    assert float(loss) == pytest.approx(np.mean(losses[len(losses) // 2 :]), abs=1e-4)


def test_hessian_free_is_the_gradient_of_the_adapted_loss(model, data):
    """Against finite differences of F(w) = f(w - α ∇f(w)), all three batches the same examples."""
    features = model.preprocess(data[0]).numpy().reshape(45, -1).astype(float)
    start, y, every = tensors_of(model, model.initial), data[1], np.arange(45)
    rng = np.random.default_rng(0)

    def adapted_loss(tensors):
        slopes, _ = softmax_regression.gradient(tensors, features, y)
        return softmax_regression.gradient(meta_steps.plus(tensors, -0.2, slopes), features, y)[1]

    moved, _ = meta_steps.train(start, features, y, [(every,) * 3], alpha=0.2, beta=1.0, delta=1e-4)
    slope = [a - np.asarray(b, float) for a, b in zip(start, moved)]
    errors, along = [], [rng.standard_normal(t.shape) for t in start]
    for each in (along, slope):
        norm = np.sqrt(sum((t**2).sum() for t in each))
        unit = [t / norm for t in each]
        ahead, behind = (
            adapted_loss(meta_steps.plus([np.asarray(t, float) for t in start], s, unit)) for s in (1e-4, -1e-4)
        )
        errors.append(sum((s * u).sum() for s, u in zip(slope, unit)) - (ahead - behind) / 2e-4)
    # g is taken at w + and - δg of w, so a rounding of the Hessian remains, and the kinks of ReLU.
    assert np.abs(errors).max() < 5e-3


FEW = [(9, 2, 4), (2, 3, 1), (1, 2, 1)]
FEW += [pytest.param(*each, marks=pytest.mark.slow) for each in ((3, 2, 1), (5, 3, 1))]


@pytest.mark.slow
@pytest.mark.parametrize("n, needed, size", FEW)
def test_a_client_of_few_examples_trains_with_smaller_batches(model, data, n, needed, size):
    """With n below what a step needs, batches repeat."""
    x, y = data[0][:n], data[1][:n]
    how = dataclasses.replace(HOW, **(HESSIAN_FREE if needed == 3 else {}))
    trained, _ = build_meta_sgd(model, dataclasses.replace(TRAINING, epochs=1), how)(model.initial, x, y, SEED)
    groups = grouped(n, size, needed, 1)
    if not groups:
        order = visiting_order(n, SEED).numpy()
        groups = [[order[[place % n]] for place in range(needed)]]
    features = model.preprocess(x).numpy().reshape(n, -1).astype(float)
    expected, _ = meta_steps.train(
        tensors_of(model, model.initial), features, y, groups, alpha=0.2, beta=0.1, delta=0.01 if needed == 3 else None
    )
    np.testing.assert_allclose(trained, model.ravel(expected), rtol=0, atol=2e-5)
    assert np.abs(trained - model.initial).max() > 1e-3


def test_no_examples_no_step_and_a_proximal_term_is_refused(model, data):
    trained, loss = build_meta_sgd(model, TRAINING, HOW)(model.initial, data[0][:0], data[1][:0], SEED)
    np.testing.assert_array_equal(trained, model.initial)
    assert float(loss) == 0
    with pytest.raises(UserError, match="proximal_weight is 0.1; it must be 0"):
        build_meta_sgd(model, dataclasses.replace(TRAINING, proximal_weight=0.1), HOW)


def test_adaptation_is_a_step_over_all_examples(model, digits):
    """However many there are: the same as one batch of plain SGD."""
    x, y = digits[0][:230], digits[1][:230]
    decaying = dataclasses.replace(TRAINING, weight_decay=0.2)
    adapted = build_adapt(model, decaying, rate=0.3, steps=2)(model.initial, x, y, SEED)
    whole = LocalTraining(epochs=2, batch_size=0, learning_rate=0.3, weight_decay=0.2)
    expected, _ = build_local_sgd(model, whole)(model.initial, x, y, SEED)
    np.testing.assert_allclose(adapted, expected, rtol=0, atol=2e-6)
    nothing = build_adapt(model, TRAINING, rate=0.3, steps=1)(model.initial, x[:0], y[:0], SEED)
    np.testing.assert_array_equal(nothing, model.initial)
