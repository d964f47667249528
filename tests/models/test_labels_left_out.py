"""Labels that a loss leaves out, as padding: examples of which no label counts, their weights and their answers."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tests.own_data import layers, sequential
from tests.own_objectives import X, in_graph, keras, labels_of
from tffcl.algorithms.choosing_method import losses_of_few
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.per_fedavg import build_adapt
from tffcl.algorithms.presets import build_pacfl
from tffcl.client_work.evaluation import build_choose, build_losses, build_mean_loss
from tffcl.client_work.local_sgd import build_full_gradient, build_local_sgd
from tffcl.client_work.mixture import (
    build_all_losses,
    fitted_mixture,
    label_counts,
    label_prior,
    nearest_shares,
    responsibilities,
)
from tffcl.clients.client_examples import PooledExamples
from tffcl.models.graph_function import graph_function
from tffcl.runs.evaluator import Evaluator
from tffcl.signatures.anchor_gradient import build_gradient
from tffcl.signatures.embedding import Centres
from tffcl.signatures.label_histogram import build_label_histogram
from tffcl.signatures.predictions import build_descriptors

losses = tf.keras.losses
# A class, and what is none; 255, as in pictures, is none either.
IGNORED = [0, -1, pytest.param(255, marks=pytest.mark.slow)]


@functools.cache
def of_classes(ignored, **more):
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignored)
    return tffcl.FlatModel.from_keras(keras(3), loss, (X, labels_of()), **more)


@functools.cache
def of_sequences():
    made = sequential(layers.Embedding(7, 3, input_length=5), layers.Dense(4))
    tokens = tf.TensorSpec([None, 5], tf.int32)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    return tffcl.FlatModel.from_keras(made, loss, (tokens, tokens))


def examples(model):
    """Examples of which the last has no label that counts, and the first all or more than the others."""
    rng = np.random.default_rng(0)
    if model.label_shape == ():
        return rng.normal(size=[5, 4]).astype(np.float32), np.array([1, 2, 1, 2, 0], np.int32)
    y = np.array([[1, 2, 3, 1, 2], [3, 1, 0, 0, 0], [2, 0, 3, 0, 0], [0, 0, 0, 0, 0]], np.int32)
    return rng.integers(0, 7, [4, 5]).astype(np.int32), y


@pytest.mark.slow  # means over parts of the examples, which have some of these, are below
@pytest.mark.parametrize("build", [lambda: of_classes(0), of_sequences], ids=["labels", "sequences"])
def test_examples_without_a_label_that_counts_do_not_count(build):
    """Their loss is 0, the mean is that of the others; a batch of them alone has the loss 0 and no gradient."""
    model = build()
    x, y = examples(model)
    weights = np.linspace(1, 2, len(y), dtype=np.float32)

    def all_of(vector, x, y):
        outputs = model.logits(model.unravel(vector), x, None)
        with tf.GradientTape() as tape:
            tape.watch(vector)
            empty, _ = model.training_loss(model.unravel(vector), x[-1:], y[-1:], None)
        choice = build_choose(model)(tf.stack([50 * vector, vector]), x, y)
        means = [model.objective.loss(outputs, y), model.objective.weighted_loss(outputs, y, 0 * weights + 1)]
        weighted = model.objective.weighted_loss(outputs, y, weights)
        each, mean = build_losses(model)(vector, x, y), build_mean_loss(model)(vector, x, y)
        return each, mean, empty, tape.gradient(empty, vector), choice, means, weighted

    each, mean, empty, gradient, choice, means, weighted = in_graph(all_of, model.initial, x, y)
    counts = np.reshape(y != 0, [len(y), -1]).sum(axis=1)
    assert each[-1] == 0 and np.all(each[:-1] > 0) and empty == 0 and not gradient.any()
    np.testing.assert_allclose(mean, each[:-1].mean(), rtol=1e-5)
    assert choice[0] == 1 and np.isfinite(choice[1]).all()
    np.testing.assert_allclose(means, np.sum(counts * each) / counts.sum(), rtol=1e-5)
    np.testing.assert_allclose(weighted, np.sum(weights * counts * each) / counts.sum(), rtol=1e-5)
    population = tffcl.Population.from_arrays({"a": (x, y), "b": (x[:2], y[:2])})
    few, found = losses_of_few(model, model.initial[np.newaxis], population, population.train)
    np.testing.assert_allclose(found[:, 0], [mean, each[:2].mean()], rtol=1e-5)
    assert few.all()


@pytest.fixture(scope="module")
def mostly_unlabelled():
    """A client of 240 examples: the first hundred have labels, of the others every twentieth."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=[240, 4]).astype(np.float32), np.zeros(240, np.int32)
    known = np.append(np.arange(100), np.arange(100, 240, 20))
    y[known] = 1 + ((x[known, 0] > 0) ^ (known >= 100))
    return x, y


@pytest.mark.slow
def test_means_over_parts_of_the_examples_are_those_over_all_labels_that_count(mostly_unlabelled):
    """Whatever the parts are: gradients that clients sign, correct by and adapt by, and the loss that is told."""
    model, (x, y) = of_classes(0), mostly_unlabelled
    plain = tffcl.LocalTraining(weight_decay=0.0)
    decaying = dataclasses.replace(plain, batch_size=10, weight_decay=0.3)
    of_parts = [build_gradient(model), lambda at, x, y: build_full_gradient(model, decaying)(at, x, y) - 0.3 * at]
    adapt = build_adapt(model, plain, rate=1.0, steps=1)
    resting = [dataclasses.replace(plain, batch_size=size, learning_rate=1e-9, epochs=1) for size in (0, 10)]
    rounds = [build_local_sgd(model, each) for each in resting]

    def found(vector, x, y, seed):
        with tf.GradientTape() as tape:
            tape.watch(vector)
            loss, _ = model.training_loss(model.unravel(vector), x, y, None)
        gradients = [tape.gradient(loss, vector), *(each(vector, x, y) for each in of_parts)]
        return [*gradients, vector - adapt(vector, x, y, seed)], [
            loss,
            *(each(vector, x, y, seed)[1] for each in rounds),
        ]

    gradients, told = in_graph(found, model.initial, x, y, np.array([1, 2], np.int32))
    assert np.linalg.norm(gradients[0]) > 0.1
    for each in gradients[1:]:
        np.testing.assert_allclose(each, gradients[0], atol=1e-5)
    np.testing.assert_allclose(told[1:], told[0], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("build", [lambda: of_classes(0), of_sequences], ids=["labels", "sequences"])
def test_a_histogram_has_shares_of_the_labels_that_count(build):
    model = build()
    x, y = examples(model)
    histogram = build_label_histogram(model)
    found = histogram.computation(histogram.context, [{"x": a, "y": b} for a, b in zip(x, y)])
    counts = np.bincount(y[y != 0], minlength=model.objective.num_classes)
    np.testing.assert_allclose(found, counts / counts.sum(), rtol=1e-6)


def test_a_class_that_is_left_out_has_no_description_and_what_would_count_it_is_refused():
    model = of_classes(0)
    x, y = np.tile(examples(model)[0], [2, 1]), np.array([1, 2, 1, 2, 0, 0, 0, 1, 2, 0], np.int32)
    descriptors = build_descriptors(model)
    found = descriptors.computation(descriptors.context, [{"x": a, "y": b} for a, b in zip(x, y)])
    assert np.all(found["conditional"][0] == -1) and np.all(found["conditional"][1:, 1] >= 0)
    refused = "would count what the loss leaves out, class 0, as a class"
    with pytest.raises(tffcl.UserError, match=refused):
        build_pacfl(model, tffcl.LocalTraining(), PACFLParameters(preprocess="raw", per_class=True))
    with pytest.raises(tffcl.UserError, match=refused):
        Centres.named("classes", model.objective)


@pytest.mark.slow
def test_training_by_weights_of_one_is_plain_training():
    """Of sequences of which not all labels count: each counts as much as every other one."""
    model = of_sequences()
    x, y = examples(model)
    sgd = build_local_sgd(model, tffcl.LocalTraining(epochs=2, batch_size=2, learning_rate=0.5))

    def both(vector, x, y, seed):
        return sgd(vector, x, y, seed), sgd(vector, x, y, seed, example_weights=tf.ones([4]))

    plain, weighted = in_graph(both, model.initial, x, y, np.array([1, 2], np.int32))
    np.testing.assert_allclose(weighted[0], plain[0], atol=1e-6)
    np.testing.assert_allclose(weighted[1], plain[1], rtol=1e-5)
    assert np.abs(plain[0] - model.initial).max() > 1e-2


def test_examples_without_a_label_that_counts_are_nearest_to_no_model():
    shares = nearest_shares(tf.constant([[0.0, 2.0, 0.0], [1.0, 1.0, 0.0]]), 0.0, tf.constant([1.0, 2.0, 0.0]))
    np.testing.assert_allclose(shares, [0.5, 0.5])
    losses, none = tf.constant([[0.0], [1.0], [2.0]]), tf.zeros(1)
    np.testing.assert_allclose(nearest_shares(losses, 0.0, none), [1 / 3] * 3)
    np.testing.assert_allclose(responsibilities(losses, tf.constant([0.2, 0.3, 0.5]), none)[1], [0.2, 0.3, 0.5])


@pytest.mark.slow
@pytest.mark.parametrize("ignored", IGNORED)
def test_examples_without_a_label_that_counts_weigh_nothing_in_a_mixture(ignored):
    """What a mixture of models makes of a client with them is what it makes of the client without."""
    model, (x, y) = of_classes(ignored), examples(of_classes(0))
    y[-1] = ignored
    models = np.stack([model.initial, 1 - model.initial, -model.initial])
    known = np.random.default_rng(0).uniform(1, 9, [3, 3]).astype(np.float32)
    all_losses = build_all_losses(model)

    def mixed(models, known, x, y):
        losses, counted, counts = all_losses(models, x, y), model.objective.counted(y), model.objective.counts(y)
        prior = label_prior(known, y, counted)
        shares, _ = responsibilities(losses, tf.constant([0.2, 0.3, 0.5]), counts, prior)
        mixtures = fitted_mixture(losses, 3, counts), fitted_mixture(losses, 3, counts, prior)
        return *mixtures, label_counts(shares, y, counted, 3), tf.reduce_sum(shares, 1)

    some = (tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in (x, y))
    traced = graph_function(mixed, tf.TensorSpec(models.shape), tf.TensorSpec(known.shape), *some)

    def found(rows):
        return traced(*map(tf.constant, (models, known, x[rows], y[rows])))

    for one, other in zip(found(slice(0, None)), found(slice(0, -1))):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    mixture = found(slice(-1, None))[0]
    np.testing.assert_allclose(mixture, 1 / 3, rtol=1e-5)  # as without examples


def test_labels_of_a_sequence_are_equal_parts_of_it():
    """Of those that count, by loops: what FedRC's models know of labels, and what they are responsible for."""
    rng, y = np.random.default_rng(0), np.array([[0, 1, 2], [1, 1, 0], [2, 0, 0]], np.int32)
    counted = np.array([[True] * 3, [True, True, False], [False] * 3])
    known, shares = rng.uniform(1, 9, [2, 3]).astype(np.float32), rng.uniform(size=[2, 3]).astype(np.float32)
    logarithms = -np.log(known / known.sum(axis=1, keepdims=True))
    prior, counts = np.zeros([2, 3]), np.zeros([2, 3])
    for example, own in enumerate([[0, 1, 2], [1, 1], []]):
        for label in own:
            prior[:, example] += logarithms[:, label] / len(own)
            counts[:, label] += shares[:, example] / len(own)
    np.testing.assert_allclose(label_prior(tf.constant(known), tf.constant(y), counted), prior, rtol=1e-5)
    np.testing.assert_allclose(label_counts(shares, tf.constant(y), counted, 3), counts, rtol=1e-5)


@pytest.mark.parametrize("ignored", IGNORED)
def test_a_confusion_has_the_labels_that_count(ignored):
    model, (x, y) = of_classes(ignored), examples(of_classes(0))
    y[0] = ignored
    population = tffcl.Population.from_arrays({0: (x, np.abs(y) % 3)})
    nobody = np.zeros(1, int)
    evaluator = Evaluator(model, population, tests=PooledExamples(x, y, [np.arange(5)]))
    found = evaluator.confusion(model.initial[np.newaxis], nobody, nobody)[0]
    np.testing.assert_array_equal(found.sum(axis=1), [np.sum((y == each) & (y != ignored)) for each in range(3)])


def test_accuracies_are_of_the_labels_that_count():
    """A model that answers with the class which is left out is right nowhere."""
    model, (x, y) = of_classes(0), examples(of_classes(0))
    population, nobody = tffcl.Population.from_arrays({0: (x, y)}, {0: (x, y)}), np.zeros(1, int)
    answers = np.zeros_like(model.initial)
    for label, share in ((0, 0.0), (1, 0.5), (2, 0.5)):
        answers[-3:] = np.eye(3)[label]  # the biases
        evaluator = Evaluator(model, population)
        assert evaluator.cluster_accuracy(answers[np.newaxis], nobody).tolist() == [share]
        assert evaluator.global_accuracy(answers) == share


@pytest.mark.slow
def test_a_class_of_weight_0_is_no_padding():
    """Its labels are wrong or right as all are, also under a loss that does not name what it leaves out."""
    loss = losses.CategoricalCrossentropy(from_logits=True)
    assert tffcl.FlatModel.from_keras(keras(3), loss, (X, labels_of()), class_weight={0: 0.0}).objective.ignored == ()


class Weighted(losses.Loss):
    """A user's own, which leaves the label 0 out."""

    def call(self, y, p):
        each = losses.sparse_categorical_crossentropy(y, p, from_logits=True)
        return each * tf.gather(tf.constant([0.0] + [1.0] * 6), tf.cast(y, tf.int32))


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [pytest.param(None, id="nothing left out"), pytest.param(0, id="ignore_class"), pytest.param(Weighted(), id="own")],
)
def test_a_mask_of_the_outputs_needs_labels_that_are_left_out(loss):
    """Keras leaves padding out of the loss by it."""
    tagger = tf.keras.Sequential(
        [layers.Embedding(7, 4, mask_zero=True), layers.SimpleRNN(4, return_sequences=True), layers.Dense(7)]
    )
    tagger.build([None, 6])
    spec = (tf.TensorSpec([None, 6], tf.int32), tf.TensorSpec([None, 6], tf.int32))
    refused, built = loss is None, isinstance(loss, losses.Loss)
    loss = loss if built else losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=loss)
    if refused:
        with pytest.raises(tffcl.UserError, match="carry a mask, .* ignore_class"):
            tffcl.FlatModel.from_keras(tagger, loss, spec)
    else:
        assert tffcl.FlatModel.from_keras(tagger, loss, spec).size == sum(map(np.size, tagger.get_weights()))
