"""Keras models with more than weights that are trained: the same steps and statistics as in Keras itself."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tffcl
from tests import own_data
from tests.models.test_from_keras import keras_rounds
from tests.own_data import CROSS_ENTROPY, layers, sequential, spec
from tests.short_runs import TRAINING, train
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.errors import UserError
from tffcl.export.writer import save_models
from tffcl.models.autoencoder import build_conv_autoencoder

FEATURES = spec([30], tf.float32)


def made_of(keras, input_spec=FEATURES, **more) -> tffcl.FlatModel:
    return tffcl.FlatModel.from_keras(keras, CROSS_ENTROPY, input_spec, **more)


def frozen_base():
    """A base that stays as it is, its batch normalization too, below layers that are trained and normalized."""
    base = sequential(layers.Dense(8, activation="relu", input_shape=(30,)), layers.BatchNormalization())
    base.layers[1].moving_mean.assign(np.linspace(0, 0.5, 8))
    base.trainable = False
    inputs = tf.keras.Input((30,))
    x = layers.BatchNormalization(momentum=0.5)(layers.Dense(6, "relu", kernel_regularizer="l2")(base(inputs)))
    return tf.keras.Model(inputs, layers.Dense(2, activity_regularizer="l2")(x))


class Scaled(layers.Layer):
    """A layer of a user's own: it counts its calls, and scales by a weight."""

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=shape[-1:], initializer="ones")
        self.calls = tf.Variable(0.0, trainable=False, name="calls")

    def call(self, x, training=None):
        if training:
            self.calls.assign_add(1.0)
        return self.scale * x


class Branching(layers.Layer):
    """A layer of a user's own with `if` on tensors, a table of constants and a metric, and weights made in its call."""

    def __init__(self, **others):
        super().__init__(**others)
        self.table = tf.constant(np.linspace(-1, 1, 300, dtype="f4"))  # too large for TensorFlow to make it a constant

    def call(self, x):
        if tf.reduce_mean(x) > self.table[150]:
            x = 2 * x
        if not hasattr(self, "scale"):
            self.scale = self.add_weight(name="scale", shape=x.shape[-1:], initializer="ones")
        self.add_metric(tf.reduce_mean(x), name="mean")
        return self.scale * x


def constrained():
    """Constraints that the steps meet, of which one is in double precision, and statistics."""
    return sequential(
        layers.BatchNormalization(input_shape=(30,)), layers.Dense(6, "relu", kernel_constraint="non_neg"),
        Branching(), Scaled(), layers.Dense(2, dtype="float64", kernel_constraint=tf.keras.constraints.MaxNorm(0.5)),
    )  # fmt: skip


class Own(tf.keras.Model):
    """A model of a user's own class."""

    def __init__(self, units, **others):
        super().__init__(**others)
        self.inner, self.last = layers.Dense(units), layers.Dense(2)

    def call(self, x):
        return self.last(tf.nn.relu(self.inner(x)))


def own_class():
    tf.keras.utils.set_random_seed(2)
    return Own(5)


@pytest.mark.slow
@pytest.mark.parametrize("build", [own_class, constrained])
def test_two_rounds_of_fedavg_are_those_of_a_loop_in_keras(tff_worker, build):
    """The trained weights, the mean statistics, and the frozen weights, which do not travel."""
    population = tffcl.Population.from_arrays(*own_data.clinics())
    cohorts, keras = ((0, 1), (1, 3)), build()
    keras(np.zeros([1, 30], "f4"))
    model = made_of(own_class if build is own_class else keras)
    first = keras.get_weights()
    state = train(build_fedavg(model, TRAINING), population, cohorts)
    expected = keras_rounds(keras, population, cohorts)
    found = model.keras.with_weights(model.unravel(state.models[0])).get_weights()
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    travels = [number in model.keras.places for number in range(len(first))]
    moved = [np.any(now != before) for now, before in zip(expected, first, strict=True)]
    assert moved == travels and model.size == sum(each.size for each, goes in zip(first, travels, strict=True) if goes)


def half_of_two_directions():
    keras = sequential(layers.Bidirectional(layers.SimpleRNN(3), input_shape=(5, 4)), layers.Dense(2))
    keras.layers[0].forward_layer.trainable = False
    return keras


def queries_of_attention():
    attention, inputs = layers.MultiHeadAttention(2, 3), tf.keras.Input((5, 4))
    keras = tf.keras.Model(inputs, layers.Dense(2)(layers.Flatten()(attention(inputs, inputs))))
    attention._query_dense.trainable = False
    return keras


@pytest.mark.slow
@pytest.mark.parametrize("build", [half_of_two_directions, queries_of_attention])
def test_a_part_of_a_layer_may_be_frozen(build):
    """Keras lists the trained weights of a layer first, so that freezing a part changes their order."""
    keras = build()
    model = made_of(keras, spec([5, 4], tf.float32))
    x = np.random.default_rng(0).normal(size=(6, 5, 4)).astype("f4")
    again = model.keras.with_weights(model.unravel(model.initial))
    np.testing.assert_allclose(again(x), keras(x), atol=1e-6)


def test_statistics_of_a_step_are_means_and_variances_of_its_batch():
    keras = sequential(layers.BatchNormalization(momentum=0.9, fused=False, input_shape=(30,)), layers.Dense(2))
    model, (x, y) = made_of(keras), own_data.patients()
    x, training = 3 * x[:20] + 1, LocalTraining(epochs=1, batch_size=20, weight_decay=0.5, proximal_weight=1.0)
    vector, _ = build_local_sgd(model, training)(
        model.initial, x, y[:20].astype("i4"), tf.constant([1, 2]), centre=tf.zeros(model.size)
    )
    trained, statistics = model.parted(model.unravel(vector))
    np.testing.assert_allclose(statistics[0], 0.1 * x.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(statistics[1], 0.9 + 0.1 * x.var(axis=0), rtol=1e-5)
    assert [weight.kind for weight in model.weights] == 2 * ["trained"] + 2 * ["statistic"] + 2 * ["trained"]
    assert np.all(trained[0] < 1)  # which decay and the centre have pulled


class Block(layers.Layer):
    """Layers in a layer, whose statistics Keras puts behind all their trained weights."""

    def __init__(self, **more):
        super().__init__(**more)
        dense = functools.partial(layers.Dense, name="dense")
        self.inner = [dense(5), layers.BatchNormalization(name="scaling"), dense(4)]

    def call(self, x, training=None):
        first, scaling, last = self.inner
        return last(scaling(first(x), training=training))


@functools.cache
def with_layers_of_one_name():
    def build():
        base = tf.keras.Sequential([layers.Dense(6, input_shape=(30,), name="dense"), Block(name="block")], name="base")
        return tf.keras.Sequential([base, layers.Dense(2, name="dense")])

    return made_of(build)


@pytest.mark.slow
def test_layers_of_one_name_are_layers_of_their_own():
    """Each has its own name and its own part of the vector, also where Keras puts the weights of several together."""
    model = with_layers_of_one_name()
    slices, (base, head) = model.layer_slices(), model.keras.model.layers
    assert list(slices) == ["base.dense", "base.block.dense", "scaling", "base.block.dense_2", "dense"]
    assert [each.start for each in slices.values()] == [0, *(each.stop for each in list(slices.values())[:-1])]
    for name, layer in (("base.dense", base.layers[0]), ("scaling", base.layers[1].inner[1]), ("dense", head)):
        own = np.concatenate([np.ravel(each) for each in layer.get_weights()])
        np.testing.assert_array_equal(model.initial[slices[name]], own)


def test_a_negative_variance_is_0_in_keras_too():
    model, x = with_layers_of_one_name(), own_data.patients()[0][:5].astype(np.float32)
    tensors = [tensor - 2 if "variance" in weight.name else tensor
               for weight, tensor in zip(model.weights, model.functional.initial_weights[0], strict=True)]  # fmt: skip
    found = model.keras.with_weights(tensors)(x)
    np.testing.assert_allclose(found, model.logits(list(map(tf.constant, tensors)), x, None), rtol=1e-4)
    assert np.isfinite(found).all()


def drawing_always():
    given = tf.keras.Input((30,))
    return tf.keras.Model(given, layers.Dense(2)(layers.Dropout(0.5)(given, training=True)))


def first_round(build, **more):
    model = made_of(sequential(layers.BatchNormalization(momentum=0.5, input_shape=(30,)), layers.Dense(2)))
    population = tffcl.Population.from_arrays(*own_data.clinics())
    state = train(build(model, TRAINING, **more), population, [(0, 3, 5)])
    return model.parted(model.unravel(state.models[0]))


@pytest.mark.slow
def test_no_step_of_a_server_touches_the_mean_of_statistics(tff_worker):
    """Nor what clients normalize or correct; in the first round, local trainings are those of FedAvg."""
    trained, statistics = first_round(build_fedavg)
    faster = tffcl.algorithms.ScaffoldParameters(server_learning_rate=3, weighting="examples")
    for build, more in (
        (tffcl.algorithms.build_fednova, {}),
        (tffcl.algorithms.build_scaffold, {"parameters": faster}),
        (build_fedavg, {"optimizer": tff.learning.optimizers.build_adam(0.1)}),
    ):
        other, same = first_round(build, **more)
        np.testing.assert_allclose(np.concatenate(same), np.concatenate(statistics), rtol=1e-5, atol=1e-6)
        assert any(np.any(np.abs(mine - theirs) > 1e-4) for mine, theirs in zip(other, trained, strict=True))


@pytest.mark.slow
def test_statistics_that_are_reset_do_not_travel():
    keras = frozen_base()
    model, whole = made_of(keras, statistics="reset"), made_of(keras)
    assert model.size == whole.size - 12 and not model.has_statistics
    x, y, seed = own_data.patients()[0][:20], own_data.patients()[1][:20].astype("i4"), tf.constant([1, 2])
    one, other = (build_local_sgd(each, TRAINING)(each.initial, x, y, seed)[0] for each in (model, whole))
    for mine, theirs in zip(model.unravel(one), whole.parted(whole.unravel(other))[0], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    answers = model.keras.with_weights(model.unravel(one))
    np.testing.assert_array_equal(answers.layers[3].moving_mean, keras.layers[3].moving_mean)


@pytest.mark.slow
@pytest.mark.parametrize("name, is_noted", [("secure_sum", True), ("uniform_mean", False)])
def test_a_run_notes_that_statistics_are_clipped_with_the_updates(tff_worker, tmp_path, name, is_noted):
    train, test = own_data.clinics()
    far = tffcl.Population.from_arrays({client: (1000 * x, y) for client, (x, y) in train.items()}, test)
    model = made_of(sequential(layers.BatchNormalization(momentum=0.0, input_shape=(30,)), layers.Dense(2)))
    method = build_fedavg(model, TRAINING, aggregation=tffcl.aggregation(name))
    result = tffcl.train(method, far, rounds=1, clients_per_round=6, out=tmp_path / "run")
    _, (_, variance) = model.parted(model.unravel(result.model_of("clinic_0")))
    assert (np.median(variance) < 100) == is_noted
    assert any("the updates are clipped, and the model's statistics" in each for each in result.summary["notes"]) == (
        is_noted
    )


@pytest.mark.slow
def test_other_starts_have_the_statistics_of_the_model():
    keras = frozen_base()
    keras.layers[3].moving_variance.assign(np.arange(1.0, 7.0))
    model = made_of(keras)
    (drawn, mine), (first, given) = (model.parted(model.unravel(each)) for each in (model.draw(3), model.initial))
    assert any(np.any(one != other) for one, other in zip(drawn, first, strict=True))
    np.testing.assert_array_equal(np.concatenate(mine), np.concatenate(given))


def with_dropout():
    return sequential(
        layers.Dropout(0.3, input_shape=(30,)), layers.Dense(8, "relu"), layers.GaussianNoise(0.1), layers.Dropout(0.5),
        layers.Dense(2),
    )  # fmt: skip


@pytest.mark.slow
def test_dropout_follows_from_the_seed_also_across_resume(tff_worker, tmp_path):
    clients = tffcl.Population.from_arrays(*own_data.clinics())
    method = tffcl.algorithms.build_fedavg(made_of(with_dropout()), TRAINING)

    def run(place, rounds, seed=1, **more):
        result = tffcl.train(
            method, clients, rounds=rounds, clients_per_round=3, seed=seed, out=tmp_path / place, **more
        )
        return result.model_of("clinic_0")

    whole, again, other = run("whole", 2), run("again", 1), run("other", 2, seed=2)
    again = run("again", 2, resume=True)
    np.testing.assert_array_equal(whole, again)
    assert np.any(whole != other)


def test_masks_of_two_layers_and_of_two_seeds_differ():
    model = made_of(sequential(layers.Dropout(0.5, input_shape=(30,)), layers.Dropout(0.5), layers.Dense(30)))
    tensors = [tf.eye(30), tf.zeros(30)]
    answers = [
        model.logits(tensors, tf.ones([200, 30]), seed and tf.constant(seed)).numpy() for seed in ((1, 1), (1, 2), None)
    ]
    assert set(np.unique(answers[0])) == {0.0, 4.0} and abs(np.mean(answers[0] > 0) - 0.25) < 0.05
    assert np.any(answers[0] != answers[1]) and np.all(answers[2] == 1)


def of_two_inputs():
    numbers, codes = tf.keras.Input((4,), name="numbers"), tf.keras.Input((3,), name="codes", dtype="int32")
    embedded = layers.Flatten()(layers.Embedding(9, 2)(codes))
    answers = layers.Dense(2)(layers.Concatenate()([numbers, embedded]))
    return tf.keras.Model({"numbers": numbers, "codes": codes}, answers)


def wards():
    """Clients with rows of numbers and codes."""
    clients = {}
    for ward in range(4):
        rng = np.random.default_rng(ward)
        x = {"numbers": rng.normal(size=(25 + ward, 4)).astype("f4"), "codes": rng.integers(0, 9, (25 + ward, 3), "i4")}
        clients[f"ward {ward}"] = x, (x["numbers"][:, 0] > 0).astype(np.int64)
    return clients


TWO = {"x": {"numbers": tf.TensorSpec([None, 4]), "codes": tf.TensorSpec([None, 3], tf.int32)}}
TWO["y"] = tf.TensorSpec([None], tf.int32)


@functools.cache
def of_numbers_and_codes():
    return made_of(of_two_inputs(), TWO, name="two")


def grouped(method, directory, **more):
    """A run of clients of two inputs, of which an export can be made."""
    made = getattr(tffcl.algorithms, f"build_{method}")(of_numbers_and_codes(), TRAINING, **more)
    clients = wards()
    population = tffcl.Population.from_arrays(clients, clients)
    result = tffcl.train(made, population, rounds=2, clients_per_round=4, out=directory / "run")
    assert result.summary["accuracy"]["cluster"]["mean"] > 0.5
    tffcl.export_result(result, directory / "export")
    return result


def test_a_model_of_two_inputs_is_trained_saved_and_asked_and_its_clients_grouped(tff_worker, tmp_path, without_forms):
    """By all numbers of an example side by side."""
    model, clients = of_numbers_and_codes(), wards()
    assert repr(model) == "FlatModel(two: 40 parameters, codes: int32[3], numbers: float32[4] to 2 classes)"
    parameters = tffcl.algorithms.PACFLParameters(num_clusters=2, threshold=None)
    result = grouped("pacfl", tmp_path, parameters=parameters)
    bases = result.trained.state.signatures["basis"]
    assert len(bases) == len(clients)
    for basis, (x, _) in zip(bases, clients.values(), strict=True):
        data = np.concatenate([x["codes"].astype("f4"), x["numbers"]], axis=1).T  # in the order of their names
        np.testing.assert_allclose(np.abs(basis.T @ np.linalg.svd(data)[0][:, :3]), np.eye(3), atol=1e-4)
    x = clients["ward 1"][0]
    outputs = result.keras_model_of("ward 1")(x).numpy()
    np.testing.assert_array_equal(result.predict("ward 1", x), outputs.argmax(axis=-1))
    save_models(tmp_path / "saved", model, result.model_of("ward 1")[np.newaxis])
    serve = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    answers = serve(**{name: tf.constant(values) for name, values in x.items()}, cluster=tf.constant(0))
    np.testing.assert_allclose(answers["probabilities"], tf.nn.softmax(outputs), atol=1e-6)
    with pytest.raises(UserError, match="must be arrays by the names of the model's inputs: codes, numbers"):
        result.predict("ward 1", x["numbers"])


OF_WARDS = wards()["ward 0"][0]
SERVER = {"server_images": {"numbers": OF_WARDS["numbers"].astype("f8"), "codes": OF_WARDS["codes"].astype("i8")}}


@pytest.mark.slow  # of PACFL it is so always
@pytest.mark.parametrize(
    "method, more",
    [
        ("ifca", {"parameters": tffcl.algorithms.IFCAParameters(num_clusters=2)}),
        ("pca_km_hc", {"parameters": tffcl.algorithms.PCAKMHCParameters(num_clusters=2)}),
        ("flis_dc", SERVER | {"parameters": tffcl.algorithms.FLISDCParameters(answered_by="server")}),
    ],
)
def test_methods_group_clients_of_two_inputs(tff_worker, tmp_path, without_forms, method, more):
    """By all their numbers side by side, or by what models answer on a server's examples of the same inputs."""
    grouped(method, tmp_path, **more)


@pytest.mark.parametrize(
    "images, message",
    [
        (OF_WARDS["numbers"], "must be arrays by the names of the model's inputs: codes, numbers"),
        ({**OF_WARDS, "codes": OF_WARDS["codes"][:5]}, "of unequal numbers: 5 codes, 25 numbers"),
        ({**OF_WARDS, "codes": OF_WARDS["codes"][:, :2]}, r"input codes are int32 of shape \[25, 2\]; they must"),
        ({name: values[:0] for name, values in OF_WARDS.items()}, "are none; there must be 1 or more"),
    ],
)
def test_a_servers_examples_of_other_inputs_are_refused(images, message):
    with pytest.raises(UserError, match=f"the server's images.* {message}"):
        tffcl.algorithms.build_flis_dc(of_numbers_and_codes(), TRAINING, server_images=images)


def test_examples_of_two_inputs_are_not_normalized():
    """No step before the model is known, as of one input: angles would silently be those of examples as they are."""
    with pytest.raises(UserError, match='preprocess is \'normalized\'; .* it must be "raw" or "centred"'):
        how = tffcl.algorithms.PACFLParameters(preprocess="normalized")
        tffcl.algorithms.build_pacfl(of_numbers_and_codes(), TRAINING, how)


def of_images(*names):
    """A model of images and a number, and clients with such examples."""
    images = [tf.keras.Input((8, 8, 1), name=name, dtype="uint8") for name in names]
    number = tf.keras.Input((1,), name="number")
    flat = [layers.Flatten()(layers.Rescaling(1 / 255)(each)) for each in images]
    inputs = {"number": number, **dict(zip(names, images, strict=True))}
    keras = tf.keras.Model(inputs, layers.Dense(2)(layers.Concatenate()([number, *flat])))
    x_spec = {name: tf.TensorSpec([None, *each.shape[1:]], each.dtype) for name, each in inputs.items()}
    clients = {}
    for client in range(4):
        rng = np.random.default_rng(client)
        x = {name: rng.integers(0, 60, (14, 8, 8, 1), "u1") + np.uint8(120 * (client % 2)) for name in names}
        clients[f"c{client}"] = {**x, "number": rng.normal(size=(14, 1)).astype("f4")}, rng.integers(0, 2, 14)
    return made_of(keras, {"x": x_spec, "y": tf.TensorSpec([None], tf.int32)}), clients


@pytest.mark.parametrize(
    "names, message",
    [
        (("scan", "photo"), r"of which each example has 2 \(number: float32 of 1, photo: uint8 of 8x8x1, scan: .*one$"),
        ((), r"the clients' are number: float32 of 1; train one on such images"),
    ],
)
def test_an_encoder_must_take_one_input(names, message):
    encoder = build_conv_autoencoder((8, 8, 1))
    model = of_images(*names)[0] if names else of_numbers_and_codes()
    message = message if names else r"the clients' are codes: int32 of 3, numbers: float32 of 4; train one"
    with pytest.raises(UserError, match=rf"the encoder takes uint8 images of 8x8x1, {message}"):
        tffcl.algorithms.build_flt(model, TRAINING, encoder=(encoder, encoder.initial))


class Unnamed(layers.Layer):
    """A layer that Keras cannot build again: it does not say what it was given."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


class Drawing(layers.Layer):
    """A layer that draws by what it is given."""

    def __init__(self, draw, **others):
        super().__init__(**others)
        self.draw = draw

    def get_config(self):
        return {**super().get_config(), "draw": self.draw}

    def call(self, x, training=None):
        return self.draw(x) if training else x


class Setting(layers.Dense):
    """A layer that sets its own weights."""

    def call(self, x):
        self.kernel.assign(tf.math.l2_normalize(self.kernel))
        return super().call(x)


def drawing(draw):
    return lambda: sequential(layers.Dense(2, input_shape=(30,)), Drawing(draw, name="noise"))


class Late(layers.Layer):
    """A layer that makes its weight when it is called the second time."""

    def call(self, x):
        if not hasattr(self, "seen"):
            self.seen = True
        elif not hasattr(self, "scale"):
            self.scale = self.add_weight(name="scale", shape=(2,), initializer="ones")
        return x


def late():
    model = sequential(layers.Dense(2, input_shape=(30,)), Late())
    model(np.zeros([1, 30], "f4"))
    return model


def all_frozen():
    model = sequential(layers.Dense(2, input_shape=(30,)))
    model.trainable = False
    return model


@pytest.mark.parametrize(
    "build, message",
    [
        (
            lambda: sequential(layers.Dense(2, input_shape=(30,)), Unnamed(lambda x: 2 * x)),
            "cannot be built again .*a function that builds it",
        ),
        (late, "has other weights when it is built again, .* a function that builds it and calls it once"),
        (all_frozen, "has no trainable weights: all its layers are frozen"),
        (lambda: Own(5), r"the Keras model own\w* has no weights yet"),
        (drawing(lambda x: tf.nn.dropout(x, 0.5)), r"draws random numbers \(RandomUniform, noise\) .* run's seed"),
        (
            drawing(functools.partial(tf.map_fn, lambda x: tf.random.normal([2]))),
            r"draws random numbers \(RandomStandardNormal.* run's seed",
        ),
        (drawing(lambda x: x + tf.random.get_global_generator().normal([2])), "variables that are no weights .* table"),
        (drawing_always, r"\(type Dropout\): it draws random numbers at inference too; leave .* out of its call$"),
        (lambda: sequential(Setting(2, input_shape=(30,))), "sets its trained weight setting/kernel when it is called"),
        (
            lambda: sequential(layers.SpectralNormalization(layers.Dense(2), input_shape=(30,))),
            r"computed on its input: layer 'spectral_normalization' \(type SpectralNormalization\): Using a symbolic",
        ),
    ],
)
def test_what_cannot_be_built_again_is_refused_in_one_line(build, message):
    with pytest.raises(UserError, match=message) as raised:
        made_of(build())
    assert "\n" not in str(raised.value)


class Gain(layers.Dense):
    """A layer whose configuration does not say with which gain it was made."""

    def __init__(self, units, gain=1.0, **others):
        super().__init__(units, **others)
        self.gain = gain

    def call(self, x):
        return self.gain * super().call(x)


class Tempered(tf.keras.Sequential):
    """A sequential model with a call of its own, which a copy by its layers does not have."""

    def call(self, inputs, training=None, mask=None):
        return 10.0 * super().call(inputs, training=training)


def tempered():
    return Tempered([layers.Dense(2, input_shape=(30,))])


def regularized(of="layer"):
    model = sequential(layers.Dense(4, input_shape=(30,)), layers.Dense(2))
    if of == "layer":
        model.layers[0].add_loss(lambda: tf.reduce_sum(model.layers[0].kernel ** 2))
    elif of == "model":
        model.add_loss(lambda: tf.reduce_sum(model.layers[0].kernel ** 2))
    elif of == "later":
        model.layers[0].kernel_regularizer = tf.keras.regularizers.L2(1.0)
    return model


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: sequential(Gain(2, gain=5.0, input_shape=(30,))), "gives other outputs when it is built again"),
        (tempered, "gives other outputs when it is built again"),
        (regularized, "adds other losses when it is built again, 0 where it adds"),
        (functools.partial(regularized, "model"), "adds other losses when it is built again, 0 where it adds"),
        (functools.partial(regularized, "later"), "adds other losses when it is built again, .* where it adds 0"),
    ],
)
def test_what_is_another_model_when_it_is_built_again_is_refused_and_a_function_that_builds_it_is_taken(build, message):
    with pytest.raises(UserError, match=f"{message}.*give from_keras, .* a function that builds it") as raised:
        made_of(build())
    assert "\n" not in str(raised.value)
    tf.keras.utils.set_random_seed(1)
    model = made_of(build)
    x = np.random.default_rng(0).normal(size=(5, 30)).astype(np.float32)
    outputs, penalty, _ = model.keras.forward(model.unravel(tf.constant(model.initial)), tf.constant(x), None)
    np.testing.assert_allclose(outputs, model.keras.model(x), rtol=1e-4, atol=1e-5)
    assert float(penalty) == pytest.approx(float(sum(model.keras.model.losses)), rel=1e-5)


def test_half_precision_is_the_same_model_when_it_is_built_again():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        made_of(sequential(layers.Dense(64, activation="relu", input_shape=(30,)), layers.BatchNormalization(),
                           layers.Dense(2, dtype="float32")))  # fmt: skip
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


@pytest.mark.slow
def test_a_run_does_not_start_after_frozen_weights_were_set():
    keras = frozen_base()
    model = made_of(keras)
    keras.layers[1].layers[0].bias.assign(np.ones(8))
    with pytest.raises(UserError, match="has got other weights since FlatModel.from_keras"):
        build_fedavg(model, TRAINING)
