"""Keras models and functional models as vectors: the same answers, losses and steps as in Keras itself."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tffcl
from tests import own_data
from tests.own_data import CROSS_ENTROPY, layers, sequential, spec
from tests.own_objectives import in_graph
from tests.short_runs import TRAINING, batches_of, cohort_of, train
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.client_work.evaluation import build_choose, build_count_correct, build_mean_loss, build_predict
from tffcl.client_work.local_sgd import build_local_sgd
from tffcl.client_work.training import build_train_and_report
from tffcl.errors import UserError
from tffcl.export.writer import save_models
from tffcl.models.from_keras import keras_with

SparseCE = tf.keras.losses.SparseCategoricalCrossentropy
FEATURES = spec([30], tf.float32)

# By name: the Keras model, the same as FlatModel, the clients' examples.
KERAS = {
    "perceptron": (own_data.keras_perceptron, own_data.perceptron, own_data.clinics),
    "cnn": (own_data.keras_cnn, own_data.cnn, own_data.cameras),
    "letters": (own_data.keras_letters, own_data.letters, own_data.writers),
}


@pytest.fixture(scope="module", params=KERAS)
def pair(request):
    """A Keras model, the same as a FlatModel, and some examples."""
    keras, flat, examples = KERAS[request.param]
    x, y = list(examples()[0].values())[1]
    return keras(), flat(), x, y.astype(np.int32)


def test_a_keras_model_answers_as_in_keras(pair):
    keras, model, x, y = pair
    outputs = keras(x)
    assert model.size == keras.count_params() and model.num_classes == outputs.shape[-1]
    assert model.input_shape == x.shape[1:] and model.label_shape == y.shape[1:]

    def found(vector, x, y):
        mean, answers = build_mean_loss(model)(vector, x, y), build_predict(model)(vector, x)
        return mean, answers, build_count_correct(model)(vector, x, y)

    mean, answers, counted = in_graph(found, model.initial, x, y)
    np.testing.assert_allclose(mean, CROSS_ENTROPY(y, outputs), rtol=1e-5)
    np.testing.assert_array_equal(answers, np.argmax(outputs, axis=-1))
    assert counted == (np.sum(answers == y), y.size)  # of a sequence every label
    assert 0 < np.sum(answers == y) < y.size


def test_a_vector_has_the_weights_of_keras_under_their_names(pair):
    keras, model, _, _ = pair
    for weight, mine, theirs in zip(
        model.weights, model.unravel(model.initial), keras.trainable_variables, strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
        assert weight.name.split("/")[-1] == theirs.name.split("/")[-1].split(":")[0]
    assert list(model.layer_slices().values())[-1].stop == model.size
    assert sum(layer.stop - layer.start for layer in model.layer_slices().values()) == model.size


def test_a_vector_becomes_the_keras_model_that_it_is(pair):
    keras, model, x, _ = pair
    vector = model.draw(5)
    copy = keras_with(model, vector)
    assert copy is not model.keras.model and np.any(copy(x) != keras(x))
    np.testing.assert_array_equal(model.ravel([variable.numpy() for variable in copy.trainable_variables]), vector)
    np.testing.assert_array_equal(np.argmax(copy(x), axis=-1), in_graph(build_predict(model), vector, x))


def test_layers_of_branches_have_their_names():
    given = tf.keras.Input((30,))
    deep = layers.Dense(5, name="deep")(layers.Dense(4, name="first")(given))
    shallow = layers.Dense(3, name="shallow")(given)
    keras = tf.keras.Model(given, layers.Dense(2, name="last")(layers.Concatenate()([shallow, deep])))
    model = tffcl.FlatModel.from_keras(keras, CROSS_ENTROPY, spec([30], tf.float32), "branches")
    kernels = dict(zip((weight.name for weight in model.weights), model.unravel(model.initial), strict=True))
    for name in ("first", "deep", "shallow", "last"):
        np.testing.assert_array_equal(kernels[f"{name}/kernel"], keras.get_layer(name).kernel)
    x = own_data.patients()[0][:5]
    np.testing.assert_array_equal(in_graph(build_predict(model), model.initial, x), np.argmax(keras(x), axis=-1))
    assert repr(model) == "FlatModel(branches: 260 parameters, float32[30] to 2 classes)"


def test_other_initial_weights_are_the_same_numbers_at_other_places(pair):
    _, model, _, _ = pair
    drawn = model.draw(3)
    np.testing.assert_array_equal(drawn, model.draw(3))
    assert np.any(drawn != model.initial) and np.any(drawn != model.draw(4))
    for mine, first in zip(model.unravel(drawn), model.unravel(model.initial)):
        np.testing.assert_array_equal(np.sort(np.ravel(mine)), np.sort(np.ravel(first)))
    with pytest.raises(UserError, match="initialization 'glorot' is for tffcl's own architectures"):
        model.draw(3, "glorot")


def test_weights_that_were_trained_stay_but_for_a_little_noise(tff_worker):
    keras = own_data.keras_perceptron()
    assert not made_of(keras).has_trained_weights
    keras.set_weights(
        [weight + np.float32(0.01) * np.arange(weight.size).reshape(weight.shape) for weight in keras.get_weights()]
    )
    model = made_of(keras)
    assert model.has_trained_weights
    parts = zip(model.unravel(model.draw(3)), model.unravel(model.draw(4)), model.unravel(model.initial))
    for mine, other, given in parts:
        assert 0 < np.std(mine - given) < 0.1 * np.std(given) and np.any(mine != other)


def made_of(keras):
    return tffcl.FlatModel.from_keras(keras, CROSS_ENTROPY, spec([30], tf.float32))


def test_weights_that_are_all_zero_are_drawn_apart():
    """As of TFF's tutorials: places to change there are none, and K equal models would stay equal."""
    keras = own_data.sequential(layers.Dense(2, kernel_initializer="zeros", input_shape=(30,)))
    drawn = [made_of(keras).draw(seed) for seed in (3, 4)]
    assert np.all(drawn[0] != drawn[1]) and np.abs(drawn).max() < 0.3


def with_control_flow(converted: bool) -> tffcl.FlatModel:
    """A softmax regression whose user writes `if` and `for` on tensors in the model and in the loss; or the
    same without.
    """

    @tf.function
    def predict_on_batch(weights, x, training):
        del training
        outputs = x @ weights[0][0] + weights[0][1]
        if not converted:
            return tf.where(tf.reduce_sum(outputs) > 0, 0.5, 2.0) * outputs
        if tf.reduce_sum(outputs) > 0:
            factor = 0.5
        else:
            factor = 2.0
        return factor * outputs

    def loss(output, label, sample_weight=None):
        del sample_weight
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(label, output)
        if not converted:
            return tf.where(tf.reduce_max(each) > 1.0, 2.0, 1.0) * tf.reduce_mean(each)
        total = tf.reduce_mean(each)
        for number in tf.range(tf.size(each)):
            if each[number] > 1.0:
                total = 2.0 * tf.reduce_mean(each)
        return total

    first = ((np.linspace(-1, 1, 60, dtype=np.float32).reshape(30, 2), np.zeros(2, np.float32)), ())
    batch = tf.TensorSpec([None, 30], tf.float32), tf.TensorSpec([None], tf.int32)
    functional = tff.learning.models.FunctionalModel(
        initial_weights=first, predict_on_batch_fn=predict_on_batch, loss_fn=loss, input_spec=batch
    )
    return tffcl.FlatModel.from_functional(functional)


@pytest.mark.slow
def test_control_flow_on_tensors_in_a_users_model_and_loss_is_tensorflows(tff_worker):
    population = tffcl.Population.from_arrays(*own_data.clinics())
    written, plain = (with_control_flow(each) for each in (True, False))
    found, cohort = train(build_fedavg(written, TRAINING), population, [(0, 1)]), cohort_of(population, (0, 1), 1)
    sgd, data = build_local_sgd(plain, TRAINING), [population.train(client) for client in (0, 1)]
    trained = [sgd(plain.initial, each.x, each.y, cohort.client_seed(client))[0] for client, each in enumerate(data)]
    expected = np.average(trained, axis=0, weights=[len(each) for each in data])
    assert np.abs(expected - plain.initial).max() > 1e-3
    np.testing.assert_allclose(found.models[0], expected, atol=1e-6)


def test_so_it_is_in_a_training_of_ones_own(tff_worker, digit_clients, model):
    """Of a method of a stranger: a function that this library calls from its own, and that is no tf.function."""
    population = digit_clients([31, 40, 25])

    def halved(vector, x, y, seed, centre=None):
        for _ in tf.range(tf.size(y)):
            if tf.reduce_max(tf.abs(vector)) > 0.01:
                vector = vector / 2.0
        return vector, tf.constant(0.0)

    local = population.train(0).dataset.batch(99).get_single_element()
    client = {"examples": local, "client_id": tf.constant(0), "seed": tf.constant([1, 2])}
    trained, _ = build_train_and_report(model, TRAINING, local_sgd=halved)(tf.constant(model.initial), client)
    assert 0.005 < np.abs(trained).max() <= 0.01 < np.abs(model.initial).max()


def keras_rounds(keras, population, cohorts, kept=frozenset(), own=None):
    """FedAvg by hand: SGD in Keras on every client's batches, then the mean of the weights by number of examples.

    Clients go on with their own weights at the places `kept`; `own` gets what each of them trained last."""
    first, own = keras.get_weights(), {} if own is None else own
    weights = first
    for number, clients in enumerate(cohorts, 1):
        cohort, trained = cohort_of(population, clients, number), []
        for client in clients:
            mine = own.get(client, first)
            keras.set_weights([mine[place] if place in kept else each for place, each in enumerate(weights)])
            optimizer = tf.keras.optimizers.legacy.SGD(TRAINING.learning_rate, TRAINING.momentum)
            for x, y in batches_of(population, cohort, client):
                with tf.GradientTape() as tape:
                    loss = CROSS_ENTROPY(y, keras(x, training=True)) + sum(keras.losses)
                optimizer.apply_gradients(
                    zip(tape.gradient(loss, keras.trainable_variables), keras.trainable_variables, strict=True)
                )
            own[client] = keras.get_weights()
            trained.append(own[client])
        weights = [np.average(same, axis=0, weights=cohort.sizes) for same in zip(*trained)]
    return weights


def test_a_functional_model_keeps_what_it_does_not_train():
    model, x = own_data.regression(), own_data.patients()[0][:20]
    assert [weight.name for weight in model.weights] == ["weight_0", "weight_1"] and model.size == 62
    kernel, bias = model.unravel(model.initial)
    np.testing.assert_array_equal(
        in_graph(build_predict(model), model.initial, x), np.argmax(x @ kernel * 0.5 + bias, axis=1)
    )


def test_outputs_that_are_probabilities_stay_as_they_are():
    keras = sequential(layers.Dense(2, activation="softmax", input_shape=(30,)))
    model = tffcl.FlatModel.from_keras(keras, tf.keras.losses.SparseCategoricalCrossentropy(), spec([30], tf.float32))
    outputs = tf.constant([[0.2, 0.8]])
    np.testing.assert_array_equal(model.objective.probabilities(outputs), outputs)
    np.testing.assert_allclose(tf.reduce_sum(own_data.perceptron().objective.probabilities(outputs)), 1, rtol=1e-6)


@pytest.mark.parametrize("constant", [0.5, 0.0])
def test_logits_that_look_like_probabilities_are_logits(constant):
    """The last layer decides: these numbers are from 0, and sum to 1."""
    linear = two(kernel_initializer="zeros", bias_initializer=tf.keras.initializers.Constant(constant))
    model = of_keras(linear)
    np.testing.assert_allclose(model.objective.probabilities(tf.constant([[3.0, 3.0]])), [[0.5, 0.5]])


class Weighted(tf.keras.losses.Loss):
    """Cross-entropy in which a class counts as much as its weight, as users write it."""

    def __init__(self, *weights):
        super().__init__()
        self.weights = weights

    def call(self, y, outputs):
        each = tf.keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
        return each * tf.gather(tf.constant(self.weights, tf.float32), tf.cast(y, tf.int32))


@pytest.mark.slow
@pytest.mark.parametrize("loss, ignored", [(Weighted(0.0, 1.0, 2.0, 0.0), (0, 3)), (Weighted(0.1, 1.0, 2.0, 3.0), ())])
def test_labels_that_a_loss_leaves_out_do_not_count(loss, ignored):
    model = of_keras(layers.Dense(4, input_shape=(30,)), loss=loss)
    x, y = own_data.patients()[0][:60], np.arange(60, dtype=np.int32) % 4
    counts = ~np.isin(y, ignored)

    def found(models, x, y):
        answers, counted = build_predict(model)(models[0], x), build_count_correct(model)(models[0], x, y)
        return answers, counted, build_choose(model, "accuracy")(models, x, y)[1]

    answers, counted, scores = in_graph(found, np.stack([model.initial, model.draw(1)]), x, y)
    right = (answers == y) & counts
    assert model.objective.ignored == ignored and 0 < right.sum() < counts.sum()
    assert counted == (right.sum(), counts.sum())
    np.testing.assert_allclose(scores[0], 1 - right.sum() / counts.sum(), rtol=1e-6)


@pytest.mark.slow
def test_no_label_of_many_is_left_out_by_rounding():
    """Among so many classes one label's loss is the same to the last bit under outputs that differ."""
    assert of_keras(layers.Dense(5000, input_shape=(30,)), loss=Weighted(*np.ones(5000))).objective.ignored == ()


def test_saved_models_answer_as_keras(pair, tmp_path):
    keras, model, x, _ = pair
    save_models(tmp_path, model, np.stack([model.draw(1), model.initial]))
    answers = tf.saved_model.load(str(tmp_path)).signatures["serving_default"](
        images=tf.constant(x), cluster=tf.constant(1)
    )
    expected = tf.nn.softmax(keras(x))
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)
    np.testing.assert_array_equal(answers["labels"], np.argmax(expected, axis=-1))


@pytest.mark.parametrize("cluster", [-1, 2])
def test_saved_models_refuse_a_cluster_that_is_not_there(tmp_path, cluster):
    model = own_data.perceptron()
    save_models(tmp_path, model, np.stack([model.initial, model.initial]))
    served = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"cluster must be from 0 to 1, but is.*\n?.*{cluster}"):
        served(images=tf.constant(own_data.patients()[0][:2]), cluster=tf.constant(cluster))


@pytest.mark.slow
def test_saved_models_need_nothing_but_tensorflow(tmp_path):
    model, (x, _) = own_data.letters(), own_data.writers(1)[0]["writer 0"]
    save_models(tmp_path / "saved", model, model.initial[np.newaxis])
    np.save(tmp_path / "x.npy", x)
    script = (
        "import sys, numpy as np, tensorflow as tf\n"
        "serve = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
        "given = serve(images=tf.constant(np.load(sys.argv[2])), cluster=tf.constant(0))\n"
        "assert not [name for name in sys.modules if 'tffcl' in name or 'federated' in name]\n"
        "np.save(sys.argv[3], given['labels'])\n"
    )
    files = [str(tmp_path / name) for name in ("saved", "x.npy", "answers.npy")]
    subprocess.run([sys.executable, "-c", script, *files], check=True)
    np.testing.assert_array_equal(np.load(files[2]), in_graph(build_predict(model), model.initial, x))


def of_keras(*stack, loss=CROSS_ENTROPY, input_spec=FEATURES):
    return tffcl.FlatModel.from_keras(sequential(*stack), loss, input_spec)


def two(**more):
    return layers.Dense(2, input_shape=(30,), **more)


def functional_of(probabilities):
    return tffcl.FlatModel.from_functional(own_data.functional(), probabilities=probabilities)


def of_two_heads(*units):
    x = tf.keras.Input([30])
    model = tf.keras.Model(x, [layers.Dense(each)(x) for each in units])
    return tffcl.FlatModel.from_keras(model, SparseCE(from_logits=True), spec([30], tf.float32))


class OfNothing(tf.keras.losses.Loss):
    """A loss that no labels have."""

    def call(self, y, outputs):
        return tf.strings.length(outputs)


class OwnStep(tf.keras.Sequential):
    """A model that is trained otherwise than by its loss."""

    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: of_keras(layers.Dense(2)),
            r"the Keras model sequential\w* has no weights yet; give its first layer "
            r"an input shape",
        ),
        (
            lambda: tffcl.FlatModel.from_keras(OwnStep([two()]), SparseCE(from_logits=True), spec([30], tf.float32)),
            "has a train_step of its own, which clients do not run",
        ),
        (
            lambda: of_keras(layers.Dense(8, dtype="mixed_float16", input_shape=(30,)), layers.Dense(2)),
            r"dense\w* of the Keras model sequential\w* computes in float16, .*mixed_bfloat16",
        ),
        (
            lambda: of_keras(layers.Dense(2, batch_input_shape=(12, 30))),
            "takes batches of 12 alone; .* leave batch_input_shape",
        ),
        (lambda: of_two_heads(2, 2), r"has 2 outputs; .*: tf.keras.Model\(model.inputs, model.outputs\[0\]\) is"),
        (lambda: of_two_heads(2, 3), r"has 2 outputs; .*: tf.keras.Model\(model.inputs, model.outputs\[0\]\) is"),
        (
            lambda: of_keras(layers.Dense(1, input_shape=(30,))),
            r"gives floats of shape \[n, 1\] .* \[n, classes\] with two or more classes; of one output BinaryCross",
        ),
        (
            lambda: of_keras(layers.Reshape((30, 1), input_shape=(30,)), layers.Dense(2)),
            r"gives floats of shape \[n, 30, 2\] .*; it must .* \[n, classes\]",
        ),
        (
            lambda: of_keras(two(), input_spec=spec([30], tf.float32, 4)),
            r"gives floats of shape \[n, 2\] .*; it must .* \[n, L, classes\]",
        ),
        (
            lambda: of_keras(layers.Dense(2, input_shape=(31,))),
            r"cannot be computed on its input: .*expected "
            r"shape=\(None, 31\)",
        ),
        (
            lambda: of_keras(two(), loss=SparseCE(from_logits=True, reduction="none")),
            r"the loss of .* is float32\[3\] "
            r"for a batch",
        ),
        (
            lambda: of_keras(two(), loss=SparseCE(from_logits=True, reduction="sum")),
            "the loss of .* is no mean for a batch",
        ),
        (
            lambda: of_keras(two(), loss=tf.keras.losses.KLDivergence()),
            'gives numbers that are no probabilities, but its loss takes these .* last layer with activation="softmax"',
        ),
        (
            lambda: of_keras(two(), loss=OfNothing()),
            "the loss of .* cannot be computed of integer labels: .*; SparseCategoricalCrossentropy can, or a Loss of",
        ),
        (
            lambda: of_keras(two(), loss=tf.keras.losses.MeanSquaredError()),
            "where a label is one number or several, there must be one output for each number",
        ),
        (
            lambda: of_keras(two(), loss="mse"),
            "loss is of str; it must be a tf.keras.losses.Loss, .* or a subclass of your own with call",
        ),
        (
            lambda: of_keras(two(), loss=SparseCE(from_logits=True, ignore_class=0, reduction="sum")),
            "the loss of .* is no mean for a batch",
        ),
        (
            lambda: of_keras(two(), loss=SparseCE()),
            r"gives numbers that are no probabilities, but .*: use "
            r"from_logits=True, or a last layer",
        ),
        (
            lambda: of_keras(two(activation="tanh"), loss=SparseCE()),
            "gives numbers that are no probabilities, but its loss takes these",
        ),
        (
            lambda: of_keras(two(activation="sigmoid"), loss=SparseCE()),
            "gives numbers that are no probabilities, but its loss takes these",
        ),
        (
            lambda: of_keras(two(activation="softmax")),
            r"gives probabilities, but its loss takes logits .*: leave the "
            r"softmax out, or use",
        ),
        (
            lambda: of_keras(two(), layers.Softmax(), layers.Reshape([2])),
            "gives probabilities, but its loss takes logits",
        ),
        (
            lambda: functional_of(tf.nn.relu),
            "what probabilities= gives for functional are none; they must be from 0 and sum to 1",
        ),
        (lambda: of_keras(two(), input_spec=None), "input_spec is None; it must be two tf.TensorSpec"),
        (
            lambda: of_keras(two(), input_spec=(tf.TensorSpec([None, 30]),)),
            "input_spec is .* it must be two tf.TensorSpec",
        ),
        (
            lambda: of_keras(two(), input_spec=([tf.TensorSpec([None, 30])] * 2, tf.TensorSpec([None], tf.int32))),
            "input_spec of x is .* several inputs are given by their names",
        ),
        (
            lambda: of_keras(two(), input_spec=(tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int32))),
            "only its leading batch dimension",
        ),
        (
            lambda: of_keras(two(), input_spec=(tf.TensorSpec([None, 1], tf.string), tf.TensorSpec([None], tf.int32))),
            "examples are string; they must be numbers, those of texts tokens",
        ),
        (
            lambda: of_keras(two(), input_spec=(tf.TensorSpec([None, 30]), tf.TensorSpec([None, 2], tf.int32))),
            r"for labels of int32\[n, 2\]; .* two or more classes; of one-hot rows y.argmax\(axis=1\) makes labels",
        ),
        (
            lambda: tffcl.FlatModel.from_keras(two, CROSS_ENTROPY, spec([30], tf.float32)),
            "the function in the place of a Keras model gives Dense, no Keras model",
        ),
        (
            lambda: tffcl.FlatModel.from_keras("dense", CROSS_ENTROPY, spec([30], tf.float32)),
            "keras_model is of str; it must be a tf.keras.Model, or a function that builds one",
        ),
        (
            lambda: tffcl.FlatModel.from_functional(own_data.keras_perceptron()),
            "functional is of Sequential; it must be a tff.learning",
        ),
        (
            lambda: tffcl.FlatModel.from_functional(own_data.functional(), CROSS_ENTROPY),
            "name is of SparseCategoricalCrossentropy; it must be a text; the loss is the functional model's own",
        ),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("names, kind, message", [
    ((), np.float32, "functional has no trainable weights; is it built?"),
    (("a/kernel", "b/kernel", "a/bias"), np.float32,
     "weight_names name the layer a in 2 places; its weights must stand together"),
    (("a/kernel", "a/bias"), np.int32, "functional: the trainable weights a/kernel, a/bias are whole numbers, which"),
])  # fmt: skip
def test_a_functional_model_whose_weights_cannot_be_trained_is_refused(names, kind, message):
    given = own_data.functional()
    wrong = tff.learning.models.FunctionalModel(
        initial_weights=(tuple(np.zeros(2, kind) for _ in names), ()),
        predict_on_batch_fn=given.predict_on_batch,
        loss_fn=given.loss,
        input_spec=given.input_spec,
    )
    with pytest.raises(UserError, match=message):
        tffcl.FlatModel.from_functional(wrong, weight_names=names)


@pytest.mark.parametrize("dtype", [tf.float64, tf.bfloat16])
def test_a_functional_model_of_another_precision_is_trained_as_one_of_float32(dtype):
    """Its weights come as it has them, and its outputs leave it as float32, in which they are told to the loss."""
    plain, kind = own_data.functional(), dtype.as_numpy_dtype

    @tf.function
    def predict(weights, x, training):
        ((kernel, bias), _), scale = weights, tf.constant(0.5, dtype)
        assert kernel.dtype == bias.dtype == dtype
        return tf.matmul(tf.cast(x, dtype) * scale, kernel) + bias

    other = tff.learning.models.FunctionalModel(
        initial_weights=(tuple(each.astype(kind) for each in plain.initial_weights[0]), ()),
        predict_on_batch_fn=predict,
        loss_fn=plain.loss,
        input_spec=plain.input_spec,
    )
    x, y = own_data.clinics()[0]["clinic_0"]
    models = tffcl.FlatModel.from_functional(other), tffcl.FlatModel.from_functional(plain)
    given = x, y.astype(np.int32), np.array([1, 2], np.int32)
    found, expected = (build_local_sgd(model, TRAINING)(models[1].initial, *given)[0] for model in models)
    assert np.abs(expected - models[1].initial).max() > 0.05
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if dtype == tf.float64 else 5e-3)


def test_a_model_that_was_called_on_a_batch_takes_batches_of_any_size():
    """Keras infers its inputs, of that batch's size, where no layer names a shape."""
    called = tf.keras.Sequential([layers.Dense(3, activation="relu"), layers.Dense(2)])
    called(tf.zeros([5, 30]))
    assert called.inputs[0].shape[0] == 5
    assert tffcl.FlatModel.from_keras(called, SparseCE(from_logits=True), spec([30], tf.float32)).size == 93 + 8
