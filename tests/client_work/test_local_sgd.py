import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.oracles import softmax_regression
from tffcl.algorithms.per_fedavg import build_meta_sgd
from tffcl.algorithms.training_parameters import PerFedAvgParameters
from tffcl.client_work import local_sgd
from tffcl.client_work.client_work import stack, visiting_order
from tffcl.client_work.evaluation import build_count_correct, build_predict
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.errors import UserError
from tffcl.models import flat
from tffcl.models.classifiers import build_mlp
from tffcl.models.graph_function import graph_function
from tffcl.models.layer_weights import Weight

SEED = np.array([5, 6], np.int32)


@pytest.fixture(scope="module")
def model():
    return build_mlp((8, 8, 1), 10, hidden=12, normalization=(0.3, 0.4), seed=1)


def features(model, x):
    return model.preprocess(x).numpy().reshape(len(x), -1).astype(float)


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(epochs=3, batch_size=10, learning_rate=0.1, momentum=0.5),
        LocalTraining(epochs=1, batch_size=7, learning_rate=0.05, momentum=0.0, weight_decay=0.01),
        pytest.param(LocalTraining(epochs=4, batch_size=0, learning_rate=0.2, momentum=0.9), marks=pytest.mark.slow),
        pytest.param(
            LocalTraining(epochs=3, batch_size=10, learning_rate=0.1, momentum=0.5, proximal_weight=0.6),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            LocalTraining(epochs=2, batch_size=10, learning_rate=0.1, weight_decay=0.3, proximal_weight=0.6),
            marks=pytest.mark.slow,
        ),
        LocalTraining(epochs=2, batch_size=10, learning_rate=0.1, momentum=0.9, weight_decay=0.3, proximal_weight=0.6),
    ],
    ids=["momentum", "weight decay", "full batch", "proximal", "decay and proximal", "everything"],
)
@pytest.mark.parametrize(
    "elsewhere, worth_splitting",
    [
        pytest.param(False, 0, id="start, tensors"),
        pytest.param(True, 10**9, id="centre, vector"),
        pytest.param(False, 10**9, id="start, vector", marks=pytest.mark.slow),
        pytest.param(True, 0, id="centre, tensors", marks=pytest.mark.slow),
    ],
)
def test_it_is_numpys_sgd(digits, model, training, elsewhere, worth_splitting, monkeypatch):
    monkeypatch.setattr(local_sgd, "_WORTH_SPLITTING", worth_splitting)
    x, y = digits[0][:45], digits[1][:45]
    centre = model.draw(9) if elsewhere else model.initial
    given = (tf.constant(centre),) if elsewhere else ()
    trained, loss = build_local_sgd(model, training)(model.initial, x, y, SEED, *given)
    batches, last = [], 0
    for epoch in range(training.epochs):
        order = visiting_order(45, SEED + [0, epoch]).numpy()
        size = training.batch_size or 45
        last = len(batches)
        batches += [order[start : start + size] for start in range(0, 45, size)]
    tensors = [part.numpy() for part in model.unravel(tf.constant(model.initial))]
    expected, losses = softmax_regression.train(
        tensors, features(model, x), y, batches, training.learning_rate, training.momentum, training.weight_decay,
        training.proximal_weight, [part.numpy() for part in model.unravel(tf.constant(centre))],
    )  # fmt: skip
    np.testing.assert_allclose(trained, model.ravel(expected), atol=2e-5)
    mean = np.average(losses[last:], weights=[len(batch) for batch in batches[last:]])
    assert float(loss) == pytest.approx(mean, rel=1e-4)


@pytest.mark.slow
def test_losses_by_epoch_are_those_of_so_many_epochs(digits, model):
    """A client with fewer epochs than another has the loss of its last in the place of the others."""
    x, y, training = digits[0][:45], digits[1][:45], LocalTraining(epochs=2, learning_rate=0.1)
    some = dataclasses.replace(training, clients={"a": {"epochs": 4}})
    by_epoch, own = build_local_sgd(model, some, by_epoch=True), build_local_sgd(model, some)
    plain = [float(own(model.initial, x, y, SEED, epochs=tf.constant(epochs))[1]) for epochs in (1, 2, 3, 4)]
    for epochs, expected in [(2, [*plain[:2], plain[1], plain[1]]), (4, plain)]:
        found = by_epoch(model.initial, x, y, SEED, epochs=tf.constant(epochs))[1]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_each_step_draws_anew():
    """A model of which a step moves the one number that its seed draws: as many have moved as there were steps."""

    def logits(tensors, features, seed):
        drawn = 0 if seed is None else tf.random.stateless_uniform([], seed, maxval=10_000, dtype=tf.int32)
        return tensors[0][drawn] * tf.ones_like(features)

    more = {"input_shape": (1,), "num_classes": None, "normalization": None, "initialization": "glorot", "seed": 0}
    drawing = flat.build_flat_model("drawing", [Weight("w/bias", (10_000,), 1, 1, constant=0.0)], logits, **more)
    x, y = np.zeros([16, 1], np.float32), np.ones(16, np.float32)
    training = LocalTraining(epochs=3, batch_size=4, learning_rate=0.01)
    steps = PerFedAvgParameters(alpha=0.0, beta=0.01, gradient="first_order", velocity="outer")
    for train, count in ((build_local_sgd(drawing, training), 12), (build_meta_sgd(drawing, training, steps), 6)):
        moved = [np.flatnonzero(train(drawing.initial, x, y, SEED + client)[0]).tolist() for client in (0, 7)]
        assert len(moved[0]) == len(moved[1]) == count and not set(moved[0]) & set(moved[1])


def test_no_examples_leave_the_model_alone(digits, model):
    trained, loss = build_local_sgd(model, LocalTraining(epochs=2))(model.initial, digits[0][:0], digits[1][:0], SEED)
    np.testing.assert_array_equal(trained, model.initial)
    assert float(loss) == 0


@pytest.mark.parametrize("count", [0, 1, 250, 251, 600])
def test_predictions(digits, model, count):
    x, y = digits[0][:count], digits[1][:count]
    w1, b1, w2, b2 = [part.numpy() for part in model.unravel(tf.constant(model.initial))]
    expected = (np.maximum(features(model, x) @ w1 + b1, 0) @ w2 + b2).argmax(axis=1) if count else np.zeros(0)
    np.testing.assert_array_equal(build_predict(model)(model.initial, x), expected)
    right, counted = build_count_correct(model)(model.initial, x, y)
    assert (int(right), int(counted)) == ((expected == y).sum(), len(y))


def test_stack(digits):
    dataset = tf.data.Dataset.from_tensor_slices({"x": digits[0][:9], "y": digits[1][:9]})
    stacked = stack(dataset)
    np.testing.assert_array_equal(stacked["x"], digits[0][:9])
    assert stack(dataset.take(0))["x"].shape == (0, 8, 8, 1)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
    ],
)
def test_bad_hyper_parameters(values, message):
    with pytest.raises(UserError, match=message):
        LocalTraining(**values)


def test_no_step_adds_three_terms_at_once(model):
    """TensorFlow adds them in the order in which their memory is free, which is another from run to run."""
    local_sgd = build_local_sgd(model, LocalTraining(learning_rate=0.1, weight_decay=0.3, proximal_weight=0.6))
    given = model.initial, np.zeros((20, 8, 8, 1), np.float32), np.zeros(20, np.int32), SEED
    train = tf.function(lambda *values: local_sgd(*values)[0])
    graph = train.get_concrete_function(*map(tf.constant, given)).graph.as_graph_def()
    nodes = [node for function in graph.library.function for node in function.node_def]
    assert nodes and not any(node.op == "AddN" and node.attr["N"].i > 2 for node in nodes)


@pytest.mark.slow
def test_a_corrected_training_gives_the_same_to_the_last_bit():
    """With tensors of their own, of a model that is large enough: an order of additions must not change by chance."""
    model, rng = build_mlp((28, 28, 1), 10, hidden=141), np.random.default_rng(0)
    x, y = rng.integers(0, 255, (60, 28, 28, 1)).astype(np.uint8), rng.integers(0, 10, 60).astype(np.int32)
    local_sgd = build_local_sgd(model, LocalTraining(epochs=2, learning_rate=0.05))
    given = model.initial, x, y, np.array([1, 2], np.int32), rng.normal(0, 1e-3, model.size).astype(np.float32)
    train = graph_function(
        lambda vector, x, y, seed, shift: local_sgd(vector, x, y, seed, correction=shift)[0],
        *(tf.TensorSpec(each.shape, each.dtype) for each in given),
    )
    assert len({train(*map(tf.constant, given)).numpy().tobytes() for _ in range(60)}) == 1
