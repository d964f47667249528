"""Whole runs on a user's own data and models: from clients with text IDs to checkpoints, report, newcomers
and export.
"""

import dataclasses
import functools
import shutil

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tests import own_data
from tests.runs.finished_runs import check_files_agree, rows_of, unfinished_copy
from tests.short_runs import cohort_of, deployed_inputs
from tffcl.algorithms.each_round_parameters import IFCAParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.flt import build_flt
from tffcl.algorithms.ifca import build_ifca
from tffcl.algorithms.parameters import FLISHCParameters, FLTParameters, PACFLParameters
from tffcl.algorithms.presets import build_flis_hc, build_pacfl
from tffcl.algorithms.stocfl import build_stocfl
from tffcl.client_work.training import CHOOSE
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.export.writer import save_models
from tffcl.models.autoencoder import build_autoencoder

TRAINING = tffcl.LocalTraining(epochs=2, batch_size=10, learning_rate=0.1)
METHODS = {
    "pacfl": lambda model: build_pacfl(model, TRAINING, PACFLParameters(num_clusters=2)),
    "ifca": lambda model: build_ifca(model, TRAINING, IFCAParameters(num_clusters=2)),
    "stocfl": lambda model: build_stocfl(model, TRAINING),
    "fedavg": lambda model: build_fedavg(model, TRAINING),
}
PROTOCOL = {"rounds": 2, "clients_per_round": 3, "seed": 1, "evaluate_every": 1, "checkpoint_every": 1}


def run(method, population, out, **more):
    return tffcl.train(method, population, out=out, show_progress=False, **{**PROTOCOL, **more})


@dataclasses.dataclass
class Own:
    """Data of a user: all clients, those who are there at first, the model, and the methods that train it."""

    arrays: tuple
    everyone: Population
    population: Population
    newcomers: Population
    model: object
    method: object  # by name, made when it is first asked for


DATA = {
    "perceptron": (own_data.clinics, own_data.perceptron),
    "cnn": (own_data.cameras, own_data.cnn),
    "letters": (own_data.writers, own_data.letters),
    "client_data": (own_data.clinics, own_data.regression),
}


# In the suite one kind of data has one method; each other kind and method is slow. A functional model is the one of the
# clients of TFF.
QUICK = [("perceptron", "pacfl")]
SLOW = [("letters", "fedavg"), ("cnn", "stocfl"), ("client_data", "ifca")]
# Tests in which each kind of data trains anew: those by default, and the slow ones.
FEW = {
    # A Keras model is exported in test_mixtures.
    "test_computations_on_own_data_are_deployed": ([], ["letters", "client_data"]),
    "test_newcomers_with_text_ids_take_part_from_a_round_on": (["perceptron"], ["letters", "client_data"]),
}


def pytest_generate_tests(metafunc):
    if "finished" in metafunc.fixturenames:
        combinations = [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)]
        metafunc.parametrize("own, finished", combinations, indirect=True, scope="module")
    elif "own" in metafunc.fixturenames:
        quick, slow = FEW[metafunc.definition.name]
        kinds = [*quick, *(pytest.param(data, marks=pytest.mark.slow) for data in slow)]
        metafunc.parametrize("own", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def own(request):
    examples, build = DATA[request.param]
    train, test = examples()
    # The first two in the alphabet come later: their numbers must not be those of others.
    names = sorted(train)[2:]
    first = [{name: arrays[name] for name in names} for arrays in (train, test)]
    if request.param == "client_data":
        train, test, *first = map(own_data.client_data, (train, test, *first))
        population = Population.from_client_data(*first)
        everyone = Population.from_client_data(train, test, known=population)
    else:
        population = Population.from_arrays(*first)
        everyone = Population.from_arrays(train, test, known=population)
    newcomers, model = everyone.restricted([4, 5]), build()
    return Own(examples(), everyone, population, newcomers, model, functools.cache(lambda name: METHODS[name](model)))


@pytest.fixture(scope="module")
def finished(request, own, tmp_path_factory):
    method = own.method(request.param)
    return run(method, own.population, tmp_path_factory.mktemp(request.param) / "run")


def test_a_run_on_own_data_tells_clients_by_their_names(own, finished):
    check_files_agree(finished.out, finished.summary)
    names = sorted(own.arrays[0])[2:]
    assert (
        finished.clients["client_id"].tolist()
        == names
        == [row["client_id"] for row in rows_of(finished.out / "clients.csv")]
    )
    assert finished.clients["examples"].tolist() == [len(own.arrays[0][name][1]) for name in names]
    for wrong in (finished.model_of, finished.trained.cluster_of):
        with pytest.raises(UserError, match="client 0 is not known; client IDs are text, e.g. '"):
            wrong(0)
    assert sum(finished.clients["rounds_trained"]) == 2 * 3 and np.isfinite(finished.rounds["train_loss"]).all()
    start, vectors = own.model.initial, [finished.model_of(name) for name in names]
    assert all(vector.shape == start.shape for vector in vectors) and any(np.any(vector != start) for vector in vectors)
    for row, name in enumerate(names):
        x, y = own.arrays[1][name]
        answers = finished.predict(name, x)
        assert answers.shape == y.shape  # of a sequence every label counts
        assert np.mean(answers == y) == pytest.approx(finished.clients["cluster_accuracy"][row])
        assert finished.trained.cluster_of(name) == finished.clients["cluster"][row]


def test_a_run_on_own_data_goes_on_from_a_checkpoint_and_ends_alike(own, finished, tmp_path):
    unfinished_copy(finished.out, tmp_path / "again", saved=1)
    again = run(finished.trained.method, own.population, tmp_path / "again", resume=True)
    for key in ("accuracy", "clusters", "traffic"):
        assert again.summary[key] == finished.summary[key]
    for name in own.population.names:
        np.testing.assert_array_equal(again.model_of(name), finished.model_of(name))


def test_newcomers_with_text_ids_join(own, finished):
    method, state = finished.trained.method, finished.trained.state
    joined = method.admit(state, own.newcomers)
    after = dataclasses.replace(finished.trained, state=joined, population=own.everyone)
    names = sorted(own.arrays[0])
    assert own.newcomers.names.tolist() == names[:2] and own.newcomers.client_ids.tolist() == [4, 5]
    for name in names[2:]:
        assert after.cluster_of(name) == finished.trained.cluster_of(name)
        np.testing.assert_array_equal(after.model_of(name), finished.model_of(name))
    for name in names[:2]:
        x, y = own.arrays[1][name]
        assert after.predict(name, x).shape == y.shape
        alone = dataclasses.replace(after, population=own.newcomers)  # rows of a population are not the state's
        assert alone.cluster_of(name) == after.cluster_of(name)
        with pytest.raises(UserError, match=f"unknown client '{name}'"):
            finished.model_of(name)


def test_newcomers_with_text_ids_take_part_from_a_round_on(own, tmp_path):
    name = "stocfl" if own.model.label_shape else "pacfl"
    result = run(own.method(name), own.population, tmp_path / "later", later={2: own.everyone}, clients_per_round=4)
    assert result.clients["client_id"].tolist() == own.everyone.names.tolist()
    last = sorted(row["client_id"] for row in rows_of(tmp_path / "later" / "clients.csv"))
    assert last == sorted(own.arrays[0])
    assert sum(result.clients["rounds_trained"]) == 2 * 4


def test_the_report_names_clients(finished, tmp_path):
    shutil.copytree(finished.out, tmp_path / "run")
    page = tffcl.write_report(tmp_path / "run")
    written = (tmp_path / "run" / "report.html").read_text(encoding="utf-8").replace("<wbr>", "")
    assert "report.html" in str(page) and finished.summary["algorithm"] in written
    assert all(f">{row['client_id']}<" in written for row in rows_of(tmp_path / "run" / "clients.csv"))


def test_computations_on_own_data_are_deployed(request, tff_worker, through_map_reduce, own):
    """The exported round, and what TFF rebuilds of its MapReduceForm, move models as the run does."""
    # Clients that choose among models are tried once, on data that come from TFF; the others are given the key of
    # theirs.
    chooses = request.node.callspec.params["own"] == "client_data"
    fields = {"forced": np.full(3, CHOOSE, np.int32)} if chooses else {"key": np.zeros(3, np.int32)}
    computations = own.method("ifca" if chooses else "pacfl").exports().build()
    assert {"training", "initialize"} <= set(computations) and ("signature" in computations) == (not chooses)
    state, inputs = computations["initialize"](), deployed_inputs(cohort_of(own.population, [0, 1, 2], 1), **fields)
    whole, _ = computations["training"](state, inputs)
    again, _ = through_map_reduce(computations["training"], state, inputs)
    assert np.abs(whole["models"] - state["models"]).max() > 1e-3
    np.testing.assert_allclose(again["models"], whole["models"], rtol=0, atol=2e-6)


def test_saved_models_answer_as_the_result(own, finished, tmp_path):
    name = own.population.names[0]
    save_models(tmp_path / "saved", own.model, finished.model_of(name)[np.newaxis])
    x, _ = own.arrays[1][name]
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    answers = served(images=tf.constant(x), cluster=tf.constant(0))
    np.testing.assert_array_equal(answers["labels"], finished.predict(name, x))
    np.testing.assert_allclose(np.sum(answers["probabilities"], axis=-1), 1, rtol=1e-5)


def test_a_clients_model_is_a_keras_model_again(own, finished):
    if own.model.keras is None:
        with pytest.raises(
            UserError, match="regression was not made by FlatModel.from_keras; model_of gives its weights"
        ):
            finished.keras_model_of(own.population.names[0])
        return
    before = [variable.numpy() for variable in own.model.keras.model.trainable_variables]
    for name in own.population.names[:2]:
        x, _ = own.arrays[1][name]
        keras = finished.keras_model_of(name)
        outputs = keras(x).numpy()
        np.testing.assert_array_equal(np.argmax(outputs, axis=-1), finished.predict(name, x))
        found = finished.predict(name, x, probabilities=True)
        np.testing.assert_allclose(found, tf.nn.softmax(outputs), atol=1e-5)
        assert found.dtype == np.float32 and found.shape == outputs.shape
    for kept, variable in zip(before, own.model.keras.model.trainable_variables, strict=True):
        np.testing.assert_array_equal(kept, variable)  # the user's own is left alone


@pytest.fixture(scope="module")
def clinics():
    return own_data.clinics()


@pytest.fixture(scope="module")
def regression():
    return own_data.regression()


@pytest.mark.slow
@pytest.mark.parametrize("layer, method", [("SimpleRNN", "fedavg"), ("GRU", "ifca"), ("LSTM", "pacfl")])
def test_recurrent_models_are_trained(layer, method, tmp_path):
    """Their layers lose the shape of what they give, and in a round without an evaluation there are no test
    examples.
    """
    model = own_data.recurrent(getattr(own_data.layers, layer))
    train, test = own_data.series()
    result = run(METHODS[method](model), Population.from_arrays(train, test), tmp_path / "run", evaluate_every=2)
    assert np.isfinite(result.rounds["train_loss"]).all() and result.summary["accuracy"]["cluster"]["mean"] > 0
    assert result.predict("sensor 1", test["sensor 1"][0]).shape == (6,)


@pytest.mark.slow
def test_without_test_examples_a_run_has_no_accuracy(regression, clinics, tmp_path, recwarn):
    result = run(build_fedavg(regression, TRAINING), Population.from_arrays(clinics[0]), tmp_path / "run")
    assert (
        result.summary["accuracy"]["cluster"]["mean"] is None and result.summary["accuracy"]["global"]["mean"] is None
    )
    assert (
        "fedavg after 2 rounds: no accuracies; 1 cluster;" in repr(result)
        and result.clients["test_examples"].tolist() == [0] * 6
    )
    tffcl.write_report(tmp_path / "run")
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]


def test_double_precision_is_taken_where_the_model_takes_floats(regression, clinics, tmp_path):
    train, test = ({name: (x.astype(np.float64), y) for name, (x, y) in arrays.items()} for arrays in clinics)
    result = run(build_fedavg(regression, TRAINING), Population.from_arrays(train, test), tmp_path / "run", rounds=1)
    x = test["clinic_3"][0]
    np.testing.assert_array_equal(result.predict("clinic_3", x), result.predict("clinic_3", x.astype(np.float32)))
    whole = np.rint(x)
    np.testing.assert_array_equal(result.predict("clinic_3", whole.astype(int)), result.predict("clinic_3", whole))
    with pytest.raises(UserError, match=r"are float64 of shape \[10, 29\]; they must be float32 of shape \[n, 30\]"):
        result.predict("clinic_3", x[:, :29])
    for wrong, message in (
        (
            np.where(np.arange(10)[:, None] * 30 + np.arange(30) == 95, np.nan, x),
            "in 1 of 10 rows, first in row 3, column 5",
        ),
        (np.ma.masked_greater(x, 2), "the examples are a masked array with"),
    ):
        with pytest.raises(UserError, match=message):
            result.predict("clinic_3", wrong, probabilities=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "texts"])
def test_whole_numbers_are_taken_as_the_models_type(tmp_path, kind):
    """NumPy's default for texts, and images for a model of floats: the same run as with the model's own type."""
    model, examples, dtype = {
        "images": lambda: (small_images(), own_data.cameras(), np.uint8),
        "texts": lambda: (own_data.letters(), own_data.writers(), np.int64),
    }[kind]()
    own, results = model.example_spec["x"].dtype.as_numpy_dtype, []
    for each in (dtype, own):
        train, test = ({name: (x.astype(each), y) for name, (x, y) in arrays.items()} for arrays in examples)
        clients = Population.from_arrays(train, test)
        results.append(run(build_fedavg(model, TRAINING), clients, tmp_path / np.dtype(each).name, rounds=1))
    for name, (x, _) in examples[1].items():
        np.testing.assert_array_equal(*(each.model_of(name) for each in results))
        np.testing.assert_array_equal(
            results[0].predict(name, x.astype(dtype)), results[1].predict(name, x.astype(own))
        )
    assert results[0].summary["accuracy"] == results[1].summary["accuracy"]


def test_padding_counts_in_no_accuracy(tmp_path):
    """Sentences of unequal lengths, filled up with the label 0, which the loss leaves out; one model has the accuracy
    that it has on all tests together."""
    keras = own_data.sequential(
        own_data.layers.Embedding(own_data.LETTERS, 4, input_length=9), own_data.layers.Dense(13)
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model = tffcl.FlatModel.from_keras(keras, loss, own_data.spec([9], tf.int32, 9))

    def padded(arrays):
        x, y = arrays
        return x, np.where(np.arange(9) < 2 + np.arange(len(y))[:, None] % 6, y + 1, 0)

    train, test = ({name: padded(arrays) for name, arrays in each.items()} for each in own_data.writers())
    test["writer 0"] = tuple(part[:3] for part in test["writer 0"])
    clients = Population.from_arrays(train, test | {"writer 5": (test["writer 5"][0], np.zeros((6, 9), int))})
    training = tffcl.LocalTraining(epochs=5, batch_size=5, learning_rate=1.0)
    result = run(build_fedavg(model, training), clients, tmp_path / "run", rounds=1, clients_per_round=6)
    right, counted = 0, 0
    for row, name in enumerate(list(test)[:5]):
        x, y = test[name]
        answers = result.predict(name, x)
        right, counted = right + np.sum((answers == y) & (y > 0)), counted + np.sum(y > 0)
        assert (
            result.clients["cluster_accuracy"][row]
            == pytest.approx(np.mean((answers == y)[y > 0]))
            != np.mean(answers == y)
        )
        share = result.clients["local_accuracy"][row] * np.sum(y > 0)
        assert share == pytest.approx(round(share)) and share > 0  # right labels of those that count
    assert np.isnan(result.clients["cluster_accuracy"][5]) and np.isnan(result.clients["local_accuracy"][5])
    found = result.summary["accuracy"]
    assert found["global"]["mean"] == pytest.approx(right / counted) == found["cluster"]["pooled"]
    assert found["cluster"]["pooled"] != pytest.approx(found["cluster"]["mean"])


@pytest.mark.slow
def test_weights_that_a_keras_model_gets_later_are_told_of(tmp_path, clinics):
    model, clients = own_data.new_perceptron(), Population.from_arrays(*clinics)
    method = build_fedavg(model, TRAINING)
    result = run(method, clients, tmp_path / "before", rounds=1)
    model.keras.model.set_weights([tensor + 1 for tensor in model.keras.model.get_weights()])
    for call in (lambda: run(method, clients, tmp_path / "run"), lambda: build_fedavg(model, TRAINING)):
        with pytest.raises(
            UserError, match="has got other weights since FlatModel.from_keras was called; call it again"
        ):
            call()
    assert not (tmp_path / "run" / "config.toml").exists()
    x, y = clinics[1]["clinic_1"]  # what was trained before serves on, and goes on
    assert result.predict("clinic_1", x).shape == y.shape
    assert run(method, clients, tmp_path / "before", resume=True).summary["rounds"] == 2


def with_token(arrays, client, token):
    x, y = arrays[client]
    return {**arrays, client: (np.where((np.arange(len(x)) == 3)[:, None] & (np.arange(9) == 2), token, x), y)}


@pytest.mark.slow
def test_a_token_that_no_embedding_has_is_told_by_client(tmp_path):
    train, test = own_data.writers()
    method, known = build_fedavg(own_data.letters(), TRAINING), Population.from_arrays(train, test)
    for clients, later, message in (
        (
            Population.from_arrays(with_token(train, "writer 2", 99), test),
            {},
            "client writer 2 has the token 99; .* takes tokens from 0 to 11",
        ),
        (Population.from_arrays(train, with_token(test, "writer 4", -1)), {}, "client writer 4 has the token -1"),
        (
            known,
            {2: Population.from_arrays(with_token(train, "writer 0", 12), test, known=known)},
            "client writer 0 has the token 12",
        ),
    ):
        with pytest.raises(UserError, match=message) as told:
            run(method, clients, tmp_path / "run", later=later)
        assert "\n" not in str(told.value) and not (tmp_path / "run").exists()
    result = run(method, known, tmp_path / "run", rounds=1)
    for probabilities in (False, True):
        with pytest.raises(UserError, match="one of the examples has the token 12; .* takes tokens from 0 to 11"):
            result.predict("writer 1", np.full([2, 9], 12), probabilities=probabilities)


def small_images():
    layers = own_data.layers
    keras = own_data.sequential(layers.Flatten(input_shape=(8, 8, 1)), layers.Dense(10))
    return tffcl.FlatModel.from_keras(keras, own_data.CROSS_ENTROPY, own_data.spec([8, 8, 1], tf.float32))


def test_flis_compares_models_on_floats(regression, clinics, tmp_path):
    server = own_data.patients()[0][400:440]
    method = build_flis_hc(regression, TRAINING, FLISHCParameters(num_clusters=2), server_images=server)
    result = run(method, Population.from_arrays(*clinics), tmp_path / "run", rounds=1)
    assert result.summary["clusters"]["count"] == 2
    clusters = result.clients["cluster"]
    assert len(set(clusters[0::2])) == len(set(clusters[1::2])) == 1, "every other clinic has other features"


def test_flt_refuses_what_is_no_image_in_one_line(regression):
    autoencoder = build_autoencoder((8, 8, 1), latent=2)
    with pytest.raises(
        UserError, match="the encoder takes uint8 images of 8x8x1, the clients' are float32 of 30"
    ) as raised:
        build_flt(regression, TRAINING, FLTParameters(), encoder=(autoencoder, autoencoder.initial))
    assert "\n" not in str(raised.value)


def relabelled(arrays, client, label):
    x, y = arrays[client]
    return {**arrays, client: (x, np.where(np.arange(len(y)) == 2, label, y))}


def test_data_that_do_not_fit_the_model_are_refused_before_anything_is_written(regression, clinics, tmp_path):
    train, test = clinics
    method, good = build_fedavg(regression, TRAINING), Population.from_arrays(train, test)
    wide = {name: (np.zeros([3, 31], np.float32), y[:3]) for name, (_, y) in train.items()}
    early = Population.from_arrays({"an early name": train["clinic_0"], **train})
    for population, more, message in (
        (relabelled(train, "clinic_3", 2), {}, "client clinic_3 has the label 2; the model knows the classes 0 to 1"),
        (wide, {}, r"the clients' examples are float32\[31\]; the model takes float32\[30\]"),
        (
            train,
            {"later": {2: Population.from_arrays(relabelled(train, "clinic_1", 7))}},
            "client clinic_1 has the label 7",
        ),
        (train, {"later": {2: early}}, "client clinic_0 is called an early name in it; build it with known="),
    ):
        with pytest.raises(UserError, match=message) as raised:
            run(method, Population.from_arrays(population), tmp_path / "run", **more)
        assert "\n" not in str(raised.value) and not (tmp_path / "run").exists()
    state = method.initialize(good)
    with pytest.raises(UserError, match="client new is no newcomer: .* build newcomers with known="):
        method.admit(state, Population.from_arrays({"new": train["clinic_0"]}))


@pytest.mark.slow
def test_what_is_odd_about_clients_is_said_in_the_notes(regression, tmp_path, tff_worker):
    """Of a run that groups by subspaces, also where clients are asked as they join: data that are all zero, labels that
    count from 1, and fewer examples than a signature has vectors."""
    rng = np.random.default_rng(0)
    data = {f"clinic {each}": (rng.random([12, 30]).astype(np.float32), np.ones(12, int)) for each in range(4)}
    data["clinic 3"] = data["clinic 3"][0][:1], data["clinic 3"][1][:1]
    data["clinic 2"] = np.zeros_like(data["clinic 2"][0]), data["clinic 2"][1]
    clients = tffcl.Population.from_arrays(data, data)
    for when in ("before_training", "as_they_join"):
        method = build_pacfl(regression, TRAINING, PACFLParameters(num_vectors=2, threshold=60.0, when=when))
        result = tffcl.train(method, clients, rounds=1, clients_per_round=4, out=tmp_path / when, show_progress=False)
        assert result.summary["notes"] == [
            "no client has training examples of class 0",
            "1 of 4 clients have fewer than 2 examples, and a thin signature subspace that says little of them: "
            "clinic 3",
            "clients whose data are all zero: clinic 2; they count as 90 degrees from all others and 0 from each other",
        ]
