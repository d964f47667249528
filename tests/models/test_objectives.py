"""What labels and outputs are: losses, gradients and answers as in Keras, and what a model cannot be trained for."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tffcl
from tests import own_objectives
from tests.own_data import layers, sequential, spec
from tests.own_objectives import OBJECTIVES, X, in_graph, labels_of
from tffcl.client_work.evaluation import (
    build_choose,
    build_count_correct,
    build_losses,
    build_predict,
    build_probabilities,
)
from tffcl.errors import UserError

losses = tf.keras.losses
NAMES = {"binary logits": "binary", "several numbers": "numbers", "one-hot": "classes", "class weights": "classes"}


def examples(name):
    """Some examples, with labels as the model takes them, and as `fit` does."""
    x, y = own_objectives.examples(name)[0]["c0"]
    if name == "reconstruction":
        return x, x, x
    return x, y.astype(np.float32 if y.dtype.kind == "f" else np.int32), np.eye(3)[y] if name == "one-hot" else y


# The others are of the same losses in other forms.
QUICK = ("binary", "labels", "numbers", "reconstruction")


@pytest.fixture(
    scope="module",
    params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OBJECTIVES],
)
def case(request):
    return request.param, own_objectives.model(request.param)


def test_a_step_is_that_of_keras(case):
    """One step of `fit` on a batch, with its class weights; and the mean of the losses of the examples is its loss."""
    name, model = case
    keras, (x, y, theirs) = own_objectives.keras(*OBJECTIVES[name][0]), examples(name)
    assert model.objective.name == NAMES.get(name, name)

    def gradient(vector, x, y):
        with tf.GradientTape() as tape:
            tape.watch(vector)
            loss = model.objective.loss(model.logits(model.unravel(vector), x, None), y)
        return tape.gradient(loss, vector), loss, build_losses(model)(vector, x, y)

    moved, loss, each = in_graph(gradient, model.initial, x, y)
    keras.compile(tf.keras.optimizers.SGD(0.5), OBJECTIVES[name][1], run_eagerly=True)
    fitted = keras.fit(
        x, theirs, len(x), verbose=0, class_weight=OBJECTIVES[name][3].get("class_weight") and {0: 1.0, 1: 5.0, 2: 1.0}
    )
    after = model.ravel([variable.numpy() for variable in keras.trainable_variables])
    np.testing.assert_allclose(model.initial - 0.5 * moved, after, atol=1e-6)
    assert loss == pytest.approx(fitted.history["loss"][0], rel=1e-5)
    np.testing.assert_allclose(each.mean(), loss, rtol=1e-5)


def test_answers_are_of_the_kind_of_the_labels(case):
    name, model = case
    keras, (x, y, _) = own_objectives.keras(*OBJECTIVES[name][0]), examples(name)
    numbers = model.objective.name in ("numbers", "reconstruction")
    build = [build_predict(model), *([] if numbers else [build_probabilities(model)])]
    answers, *found = in_graph(lambda *given: [each(*given) for each in build], model.initial, x)
    assert (answers.dtype, answers.shape) == (y.dtype, y.shape)
    outputs = keras(x).numpy()
    if numbers:
        np.testing.assert_allclose(answers, outputs.reshape(y.shape), atol=1e-6)
        with pytest.raises(UserError, match="gives numbers, and no probabilities"):
            build_probabilities(model)
        return
    (found,) = found
    ones = outputs if name == "binary" else tf.sigmoid(outputs).numpy()
    expected = {"binary": np.concatenate([1 - ones, ones], axis=1), "labels": ones}
    np.testing.assert_allclose(found, expected.get(model.objective.name, tf.nn.softmax(outputs)), atol=1e-6)
    np.testing.assert_array_equal(answers, found > 0.5 if model.objective.name == "labels" else found.argmax(1))


@pytest.mark.slow
def test_one_output_is_two_with_the_first_at_zero():
    """The softmax of (0, s) is the sigmoid of s: mapped weights give the same loss, step and answers."""
    one = own_objectives.model("binary logits")
    keras = own_objectives.keras(2)
    hidden_kernel, hidden_bias, kernel, bias = (np.asarray(each) for each in one.unravel(one.initial))
    keras.set_weights([hidden_kernel, hidden_bias, np.c_[0 * kernel, kernel], np.r_[0 * bias, bias]])
    two = tffcl.FlatModel.from_keras(keras, losses.SparseCategoricalCrossentropy(from_logits=True), (X, labels_of()))
    x, y, _ = examples("binary logits")
    for build in (build_predict, build_probabilities):
        np.testing.assert_allclose(*(in_graph(build(each), each.initial, x) for each in (one, two)), atol=1e-6)
    np.testing.assert_allclose(*(in_graph(build_losses(each), each.initial, x, y) for each in (one, two)), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "outputs, loss, label, objective",
    [
        (3, losses.CategoricalFocalCrossentropy(from_logits=True), labels_of((3,), tf.float32), "classes"),
        (3, losses.CategoricalHinge(), labels_of(), "classes"),
        (3, losses.KLDivergence(), labels_of(), "classes"),
        (3, losses.CosineSimilarity(), labels_of(), "classes"),
        (3, losses.SparseCategoricalCrossentropy(from_logits=True), labels_of((), tf.float32), "classes"),
        (1, losses.Hinge(), labels_of((), tf.float32), "binary"),
    ],
)
def test_other_losses_of_classes_are_no_losses_of_numbers(outputs, loss, label, objective):
    keras = own_objectives.keras(outputs, "softmax" if isinstance(loss, losses.KLDivergence) else None)
    found = tffcl.FlatModel.from_keras(keras, loss, (X, label)).objective
    x, y = np.random.default_rng(0).normal(size=(8, 4)), np.arange(8) % found.num_classes
    as_fit_has_them = (np.eye(3)[y] if objective == "classes" else y[:, np.newaxis]).astype(np.float32)
    if isinstance(loss, losses.SparseCategoricalCrossentropy):  # of whole numbers that are floats, as pandas has them
        as_fit_has_them = y
    assert found.name == objective
    np.testing.assert_allclose(found.loss(keras(x), y.astype(np.int32)), loss(as_fit_has_them, keras(x)), rtol=1e-6)


def test_rows_of_numbers_are_no_classes_for_a_loss_of_distributions():
    model = tffcl.FlatModel.from_keras(own_objectives.keras(3), losses.KLDivergence(), (X, labels_of((3,), tf.float32)))
    assert model.objective.name == "numbers"


def test_a_functional_models_own_loss_gets_labels_as_it_declares_them():
    declared = []

    @tf.function
    def predict_on_batch(weights, x, training):
        return x @ weights[0][0]

    def loss(outputs, labels, sample_weight=None):
        declared.append((labels.dtype, labels.shape.rank))
        return tf.reduce_mean((outputs - labels) ** 2)

    functional = tff.learning.models.FunctionalModel(
        initial_weights=((np.ones([4, 1], np.float32),), ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=loss,
        input_spec=(X, labels_of((1,), tf.float32)),
    )
    model = tffcl.FlatModel.from_functional(functional)
    assert model.objective.name == "numbers" and model.label_shape == ()
    assert set(declared) == {(tf.float32, 2)}


def of(keras, loss, label, **options):
    return tffcl.FlatModel.from_keras(keras, loss, (X, label), **options)


def one(activation=None):
    return sequential(layers.Dense(1, activation, input_shape=(4,)))


BINARY = losses.BinaryCrossentropy


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: of(one(), BINARY(), labels_of()), "are no probabilities, but .* last layer with activation=.sigmoid"),
        (lambda: of(one("relu"), BINARY(), labels_of()), "are no probabilities"),
        (lambda: of(one("sigmoid"), BINARY(from_logits=True), labels_of()), "leave the sigmoid out"),
        (lambda: of(one(), losses.MeanSquaredError(), labels_of((2,))), "one output for each number of a label"),
        (lambda: of(one(), BINARY(from_logits=True), labels_of(), objective="number"), "did you mean 'numbers'"),
        (
            lambda: of(one(), losses.MeanSquaredError(), labels_of(), class_weight={0: 2.0}),
            "class_weight is for labels",
        ),
        (lambda: of(one("sigmoid"), BINARY(), labels_of(), class_weight={2: 1.0}), "class 2; .* the classes 0 to 1"),
        (lambda: of(one("sigmoid"), BINARY(), labels_of(), class_weight={0: 0, 1: 0}), "gives every class 0"),
        (lambda: of(one("sigmoid"), BINARY(), labels_of(), class_weight={1: -1.0}), "class 1 is -1.0; it must be"),
        (
            lambda: of(one("sigmoid"), BINARY(), labels_of(), metrics=["mse"]),
            "mse is not defined for labels that are classes",
        ),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


A, TRAINING = tffcl.algorithms, tffcl.LocalTraining()
IMAGES = np.zeros([5, 4], np.float32)


@pytest.mark.parametrize(
    "build",
    [
        lambda model: A.build_composed(model, TRAINING, A.ComposedParameters(signature={"name": "label_histogram"})),
        lambda model: A.build_flis_hc(model, TRAINING, A.FLISHCParameters(threshold=0.9), server_images=IMAGES),
        lambda model: A.build_flis_dc(model, TRAINING, A.FLISDCParameters(threshold=0.9), server_images=IMAGES),
        lambda model: A.build_composed(
            model, TRAINING, A.ComposedParameters(signature={"name": "subspace", "per_class": True})
        ),
        lambda model: A.build_ifca(model, TRAINING, A.IFCAParameters(num_clusters=2, choose_by="test_accuracy")),
        lambda model: build_choose(model, "accuracy"),
    ],
)
def test_what_needs_classes_says_so_before_it_trains(build):
    accuracy = "models cannot be chosen by accuracy, as choose_by 'test_accuracy' does"
    classes = "needs labels that are classes; a label of this model is one number"
    with pytest.raises(UserError, match=f"{classes}|{accuracy}"):
        build(own_objectives.model("numbers"))


@pytest.mark.slow
def test_a_vector_of_outputs_is_as_a_column_of_them():
    """The model without the last axis has the losses, with class weights, and answers of the one with it."""
    column = one()
    vector = tf.keras.Sequential([column, layers.Reshape(())])
    loss, more = BINARY(from_logits=True), {"class_weight": {1: 5.0}}
    models = [of(each, loss, labels_of(), name="of_one", **more) for each in (column, vector)]
    outputs, y = tf.constant([0.3, -2.0, 1.0]), tf.constant([0, 1, 1])
    given = outputs[:, tf.newaxis], outputs
    for each in ("loss", "losses"):
        found = [getattr(model.objective, each)(said, y) for model, said in zip(models, given, strict=True)]
        np.testing.assert_allclose(*found, rtol=1e-6)
    for model, said in zip(models, given, strict=True):
        np.testing.assert_array_equal(model.objective.predictions(said), [1, 0, 1])


def test_a_reconstruction_is_of_the_input_of_clients_with_labels():
    autoencoder = own_objectives.keras(*OBJECTIVES["reconstruction"][0])
    population = tffcl.Population.from_arrays({"a": examples("binary")[:2]})
    spec_of_examples, loss = population.example_spec, losses.MeanSquaredError()
    model = tffcl.FlatModel.from_keras(autoencoder, loss, spec_of_examples, objective="reconstruction")
    assert (model.label_shape, model.functional.input_spec["y"]) == ((4,), tf.TensorSpec([None, 4]))


class Headed(tf.keras.Model):
    """A class of one's own, whose last layer begins at zero and cannot be asked for its activation."""

    def __init__(self, outputs, activation=None):
        super().__init__()
        self.head = layers.Dense(outputs, activation, kernel_initializer="zeros")

    def call(self, x):
        return self.head(x)


class Own(losses.Loss):
    """A loss that does not say what it takes."""

    def call(self, labels, outputs):
        return tf.reduce_mean((tf.cast(labels, tf.float32) - outputs) ** 2, axis=-1)


@pytest.mark.parametrize("loss", [BINARY(from_logits=True), Own()])
def test_a_head_that_begins_at_zero_gives_logits(loss):
    model = of(lambda: Headed(1), loss, labels_of(), objective="binary", name="headed")
    np.testing.assert_array_equal(model.objective.predictions(tf.constant([[0.3], [-0.2]])), [1, 0])


def test_a_head_that_begins_at_zero_gives_probabilities():
    model = of(lambda: Headed(1, "sigmoid"), Own(), labels_of(), objective="binary", name="headed")
    np.testing.assert_array_equal(model.objective.predictions(tf.constant([[0.6], [0.3]])), [1, 0])
    with pytest.raises(UserError, match="leave the sigmoid out"):
        of(lambda: Headed(1, "sigmoid"), BINARY(from_logits=True), labels_of(), name="headed")


def test_bools_are_labels_of_zero_and_one():
    model = of(one("sigmoid"), BINARY(), labels_of((), tf.bool))
    assert (model.objective.name, model.example_spec["y"].dtype) == ("binary", tf.int32)


def test_the_spec_of_a_sequence_of_labels_is_one_of_classes():
    keras = sequential(layers.Embedding(12, 4, input_length=9), layers.Dense(12))
    model = tffcl.FlatModel.from_keras(
        keras, losses.SparseCategoricalCrossentropy(from_logits=True), spec([9], tf.int32, 9)
    )
    assert (model.objective.name, model.num_classes, model.label_shape) == ("classes", 12, (9,))


@pytest.mark.parametrize("name, outputs, answers", [
    ("class weights", [[0.1, 0.2, 0.0], [np.nan, 0.0, 1.0], [np.inf, 0.0, 1.0], [-np.inf, 0.0, 1.0], 3 * [-np.inf]],
     [1, -1, -1, 2, -1]),
    ("binary logits", [[2.0], [-2.0], [np.nan], [-np.inf], [0.0]], [1, 0, -1, 0, 0]),
    ("labels", [[2.0, -2.0, 1.0], [np.nan, 2.0, 0.0]], [[1, 0, 1], [-1, 1, 0]]),
])  # fmt: skip
def test_outputs_that_are_not_finite_are_no_answer(name, outputs, answers):
    objective = own_objectives.model(name).objective
    np.testing.assert_array_equal(objective.predictions(tf.constant(outputs)), answers)


def test_a_model_that_gives_no_number_is_not_right_and_not_chosen():
    """Though all labels but one are 0, and the other model may be right of that one only."""
    model, (x, _, _) = own_objectives.model("class weights"), examples("class weights")
    x, zeros, diverged = np.abs(x) + 1, np.zeros(len(x), np.int32), np.full(model.size, np.float32(3e38))
    assert in_graph(build_count_correct(model), diverged, x, zeros)[0] == 0
    zeros[0] = in_graph(build_predict(model), model.initial, x)[0]
    for criterion in ("accuracy", "loss"):
        choice, scores = in_graph(build_choose(model, criterion), np.stack([diverged, model.initial]), x, zeros)
        assert choice == 1 and scores[0] > scores[1]


class Shaken(losses.Loss):
    """A loss that draws."""

    def call(self, y, outputs):
        shaken = outputs + tf.random.normal(tf.shape(outputs))
        return losses.sparse_categorical_crossentropy(y, shaken, from_logits=True)


def drawing(draw):
    """A functional model whose training draws."""

    @tf.function
    def predict_on_batch(weights, x, training):
        outputs = x @ weights[0][0]
        return draw(outputs) if training else outputs

    return tff.learning.models.FunctionalModel(
        initial_weights=((np.ones([4, 3], np.float32),), ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=lambda outputs, y, weights=None: losses.SparseCategoricalCrossentropy(from_logits=True)(y, outputs),
        input_spec=spec([4], tf.float32),
    )


@pytest.mark.parametrize("make, message", [
    (lambda: tffcl.FlatModel.from_functional(drawing(lambda outputs: tf.nn.dropout(outputs, 0.5))),
     r"functional draws random numbers \(RandomUniform\) that do not follow from the run's seed: those of tf.keras"),
    (lambda: tffcl.FlatModel.from_functional(drawing(lambda o: tf.map_fn(lambda r: r * tf.random.normal([]), o))),
     r"functional draws random numbers \(RandomStandardNormal\)"),
    (lambda: tffcl.FlatModel.from_keras(sequential(layers.Dense(3, input_shape=(4,))), Shaken(), spec([4], tf.float32)),
     r"the loss of sequential\w* draws random numbers \(RandomStandardNormal\)"),
])  # fmt: skip
def test_what_draws_by_no_seed_is_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_what_draws_by_a_seed_of_its_own_is_taken():
    fixed = drawing(lambda outputs: outputs + tf.random.stateless_normal(tf.shape(outputs), [1, 2]))
    assert tffcl.FlatModel.from_functional(fixed).size == 12
