"""StoCFL's signature: gradients at the anchor, displacements from it, and what projecting them costs."""

import numpy as np
import pytest
import tensorflow as tf

from tests.oracles import softmax_regression
from tffcl.aggregators.collect import by_client
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError
from tffcl.models.classifiers import build_mlp
from tffcl.rounds.client_queries import build_collection
from tffcl.signatures.anchor_gradient import build_anchor_gradient, build_gradient, sketch
from tffcl.signatures.parameters import AnchorGradientSignatureParameters

SEED = tf.constant([7, 1], tf.int32)


@pytest.fixture(scope="module")
def model():
    return build_mlp((8, 8, 1), 10, hidden=16, normalization=(0.3, 0.4), seed=3)


def numpys(model, x, y):
    features = model.preprocess(x).numpy().reshape(len(x), -1).astype(float)
    tensors = [part.numpy().astype(float) for part in model.unravel(tf.constant(model.initial))]
    return model.ravel(softmax_regression.gradient(tensors, features, y)[0])


def asking(signature):
    collect = build_collection(signature)

    def ask(datasets):
        clients = [{"examples": each, "client_id": np.int32(number)} for number, each in enumerate(datasets)]
        return by_client(collect(signature.context, clients)[1], range(len(clients)))

    return ask


def ask(signature, datasets):
    return asking(signature)(datasets)


def datasets(digits, parts):
    return [tf.data.Dataset.from_tensor_slices({"x": digits[0][part], "y": digits[1][part]}) for part in parts]


@pytest.mark.parametrize("count", [1, 99, 100, 101, 350])
def test_the_gradient_is_the_exact_mean_over_all_examples(digits, model, count):
    x, y = digits[0][:count], digits[1][:count]
    np.testing.assert_allclose(build_gradient(model)(model.initial, x, y), numpys(model, x, y), atol=2e-6)


def test_no_examples_have_no_direction(digits, model):
    np.testing.assert_array_equal(
        build_gradient(model)(model.initial, digits[0][:0], digits[1][:0]), np.zeros(model.size)
    )


def test_dropout_does_not_touch_the_gradient(digits):
    """Clients with the same data must send the same."""
    plain, dropping = (build_mlp((8, 8, 1), 10, hidden=16, dropout=rate, seed=3) for rate in (0.0, 0.5))
    x, y = digits[0][:40], digits[1][:40]
    np.testing.assert_array_equal(
        build_gradient(plain)(plain.initial, x, y), build_gradient(dropping)(plain.initial, x, y)
    )


def test_clients_send_their_gradient(tff_worker, digits, model):
    parts = [slice(0, 130), slice(130, 170), slice(170, 171)]
    signature = build_anchor_gradient(model)
    found = ask(signature, datasets(digits, parts))
    assert found.shape == (3, model.size)
    for row, part in zip(found, parts):
        np.testing.assert_allclose(row, numpys(model, digits[0][part], digits[1][part]), atol=2e-6)


def test_one_step_on_all_data_displaces_by_the_gradient(tff_worker, digits, model):
    local = LocalTraining(epochs=1, batch_size=0, learning_rate=0.25)
    signature = build_anchor_gradient(model, form="displacement", local=local)
    (found,) = ask(signature, datasets(digits, [slice(0, 60)]))
    np.testing.assert_allclose(found, 0.25 * numpys(model, digits[0][:60], digits[1][:60]), atol=1e-6)


def test_more_steps_displace_as_local_sgd_does(tff_worker, digits, model):
    local = LocalTraining(epochs=3, batch_size=0, learning_rate=0.25)
    signature = build_anchor_gradient(model, form="displacement", local=local)
    (found,) = ask(signature, datasets(digits, [slice(0, 60)]))
    features = model.preprocess(digits[0][:60]).numpy().reshape(60, -1).astype(float)
    tensors = [part.numpy() for part in model.unravel(tf.constant(model.initial))]
    trained, _ = softmax_regression.train(tensors, features, digits[1][:60], [np.arange(60)] * 3, 0.25, 0.0)
    np.testing.assert_allclose(found, model.initial - model.ravel(trained), atol=2e-5)


@pytest.mark.slow
def test_clients_of_the_same_examples_visit_them_in_orders_of_their_own(tff_worker, digits, model):
    signature = build_anchor_gradient(
        model, form="displacement", local=LocalTraining(epochs=2, batch_size=5, learning_rate=0.1)
    )
    same = datasets(digits, [slice(0, 60)] * 2)
    asked = asking(signature)
    first, second = asked(same)
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(asked(same), [first, second])
    first, second = ask(build_anchor_gradient(model, projection=100), same)
    np.testing.assert_array_equal(first, second)  # the projection is one for all


@pytest.mark.slow
def test_a_sketch_is_a_fixed_linear_map_of_signs():
    size, dimensions = 500, 64
    matrix = np.stack([sketch(row, dimensions, SEED) for row in np.eye(size, dtype=np.float32)], axis=1)
    assert set(np.unique(matrix)) == {-1.0, 0.0, 1.0}
    np.testing.assert_array_equal(np.abs(matrix).sum(axis=0), np.ones(size))
    vector = np.random.default_rng(0).normal(size=size).astype(np.float32)
    np.testing.assert_allclose(sketch(vector, dimensions, SEED), matrix @ vector, atol=1e-5)
    other = np.stack([sketch(row, dimensions, SEED + 1) for row in np.eye(size, dtype=np.float32)], axis=1)
    assert (matrix != other).any(axis=0).mean() > 0.9
    assert abs(matrix.sum()) < 4 * np.sqrt(size)
    assert (np.abs(matrix).sum(axis=1) > 0).all()


def test_a_sketch_draws_by_a_generator_that_it_names():
    """One that a device chose itself would project its client in another way than all others are."""
    traced = tf.function(lambda vector: sketch(vector, 8, SEED)).get_concrete_function(tf.TensorSpec([20]))
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(node for part in graph.library.function for node in part.node_def)]
    named = [tf.make_ndarray(node.attr["value"].tensor) for node in nodes if node.name.endswith("/alg")]
    assert named and all(each == tf.random.Algorithm.PHILOX.value for each in named)


@pytest.mark.slow
@pytest.mark.parametrize("cosine", [0.0, 0.5, 0.9])
def test_a_sketch_keeps_cosines_in_the_mean_with_the_error_of_its_docstring(cosine):
    rng = np.random.default_rng(5)
    size, dimensions, trials = 4000, 256, 150
    one, other = rng.normal(size=[2, size])
    other -= (one @ other) / (one @ one) * one
    pair = (
        one / np.linalg.norm(one),
        cosine * one / np.linalg.norm(one) + np.sqrt(1 - cosine**2) * other / np.linalg.norm(other),
    )
    first, second = (tf.constant(each, tf.float32) for each in pair)
    found = []
    for trial in range(trials):
        seed = tf.constant([trial, 3], tf.int32)
        a, b = sketch(first, dimensions, seed).numpy(), sketch(second, dimensions, seed).numpy()
        found.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    expected = (1 - cosine**2) / np.sqrt(dimensions)
    assert abs(np.mean(found) - cosine) < 5 * expected / np.sqrt(trials) + cosine / dimensions
    assert np.std(found) == pytest.approx(expected, rel=0.2)


def test_projected_clients_send_few_numbers_with_the_cosines_of_the_whole(tff_worker, digits, model):
    parts = [slice(start, start + 100) for start in range(0, 1000, 100)]
    whole = ask(build_anchor_gradient(model, projection=0), datasets(digits, parts))
    small = build_anchor_gradient(model, projection=600, seed=3)
    assert small.value_type.shape == (600,)
    assert build_anchor_gradient(model, projection=model.size).value_type.shape == (model.size,)
    found = ask(small, datasets(digits, parts))

    def cosines(rows):
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return units @ units.T

    assert np.abs(cosines(found) - cosines(whole)).max() < 5 / np.sqrt(600)
    np.testing.assert_array_equal(
        found, ask(build_anchor_gradient(model, projection=600, seed=3), datasets(digits, parts))
    )
    assert (
        np.abs(found - ask(build_anchor_gradient(model, projection=600, seed=4), datasets(digits, parts))).max() > 1e-3
    )


def test_what_is_refused(model):
    with pytest.raises(UserError, match="did you mean 'gradient'"):
        build_anchor_gradient(model, form="gradiant")
    with pytest.raises(UserError, match="projection is -1; it must be a number of dimensions from 1, or 0 for none"):
        build_anchor_gradient(model, projection=-1)


@pytest.mark.parametrize("wrong, message", [
    ({"form": "gradiant"}, "unknown form 'gradiant'; did you mean 'gradient'"),
    ({"projection": -1}, "projection is -1; it must be a whole number from 0"),
])  # fmt: skip
def test_what_a_task_cannot_ask_for_is_refused_before_a_signature_is_built(wrong, message):
    with pytest.raises(UserError, match=message):
        AnchorGradientSignatureParameters(**wrong)
