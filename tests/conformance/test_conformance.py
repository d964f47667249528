"""One suite for every method of the catalog, so that one which is added is covered; and for a method of a stranger."""

import functools
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from sklearn.neural_network import MLPClassifier

import tffcl
from tests.conformance import checks, strangers
from tests.conformance.conftest import TASK, configured
from tests.conformance.subject import DoesNotApply, Subject
from tffcl.clients.cohort import Cohort
from tffcl.lab.tasks import build, resolve
from tffcl.models.flat import FlatModel
from tffcl.references import load_reference
from tffcl.registry import ALGORITHMS
from tffcl.runs.evaluator import Evaluator

OWN = pathlib.Path(__file__).parents[1] / "lab" / "tasks" / "own"
# What the clients' graphs of a method are known to have that device runtimes lack, by computation.
LACKING = {"pca_km_hc": {"signature": ["SelfAdjointEigV2"]}}
# Methods that fill all clusters with any cohort, so that none is ever missed.
ANEW = {"clove", "rr_cluster"}
# Methods that are known to need each client's upload, or more than a mean for each key; the server of all others does
# with sums.
NOT_SUMMED = {"flis_dc", "stocfl", "solo", "fedsem", "cfl", "flt", "scaffold", "fedgwc"}
# Whose exports are made always: none, and all in the slow tests. One with a signature is looked at in
# tests/export/test_export.py, and one with kept values in test_optimizers.py, where the clients' optimizers are in it.
EXPORTED: set[str] = set()


@pytest.mark.parametrize(
    "check", [*checks.CHECKS, *checks.OWN_CHECKS], ids=lambda check: check.__name__.removeprefix("check_")
)
def test_every_method(subject, name, check):
    more = {"lacking": LACKING[name]} if check is checks.check_device_operations and name in LACKING else {}
    with subject.running():
        try:
            check(subject, **more)
        except DoesNotApply as reason:
            assert str(reason) != checks.ALL_ANEW or name in ANEW
            pytest.skip(str(reason))


def test_sums_take_the_place_of_keyed_means(subject, name):
    assert (subject.method.exports().summed is not None) == (name not in NOT_SUMMED)


@pytest.fixture(scope="module")
def pretrained(data_dir):
    """A user's Keras model with scikit-learn's weights, that knows the task's images in both positions."""
    train = build.load_data(configured("fedavg"), data_dir).train
    x = np.concatenate([train.x, np.rot90(train.x, 2, axes=(1, 2))]) / 255
    found = MLPClassifier([24], random_state=1, max_iter=40, learning_rate_init=0.01, tol=0.01)
    found.fit(x.reshape(len(x), -1), np.tile(train.y, 2))
    layers = tf.keras.layers
    stack = (
        layers.Rescaling(1 / 255, input_shape=(8, 8, 1)),
        layers.Flatten(),
        layers.Dense(24, "relu"),
        layers.Dense(10),
    )
    keras = tf.keras.Sequential(list(stack))
    keras.set_weights([each for pair in zip(found.coefs_, found.intercepts_) for each in pair])
    spec = tf.TensorSpec([None, 8, 8, 1], tf.uint8), tf.TensorSpec([None], tf.int32)
    return tffcl.FlatModel.from_keras(keras, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), spec)


APART = {"ifca", "rr_cluster", "clove", "fedem", "fedrc", "fedsoft"}  # whose models differ at first


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each == "ifca" else pytest.mark.slow) for each in ALGORITHMS], indirect=True
)
def test_trained_weights_are_kept(pretrained, name, clients, data_dir, worker):
    worker.use_local_worker()
    settings = configured(name, train={"learning_rate": 1e-4})
    method = build.build_method(settings, pretrained, build.load_data(settings, data_dir), data_dir)
    population, evaluator = clients[0], Evaluator(pretrained, clients[0])
    before = evaluator.cluster_accuracy(pretrained.initial[np.newaxis], np.zeros(len(population), int)).mean()
    state, _ = method.next(method.initialize(population), Cohort(population, population.client_ids, (1, 1)))
    after = evaluator.cluster_accuracy(
        *method.models_for(method.choose(state, population), population.client_ids)
    ).mean()
    assert before > 0.9 and after > before - 0.03
    assert any("were trained before" in note for note in method.views(state).notes) == (name in APART)


@pytest.fixture(scope="module")
def built_by(data_dir):
    """`(class) -> a builder of a stranger's method`, with the task's model."""
    settings = configured("fedavg")
    model = build.build_model(settings, build.load_data(settings, data_dir))
    return lambda method: functools.partial(method, model, settings.train.local)


def test_a_strangers_method_conforms(built_by, clients, two_workers):
    assert checks.check_method_conforms(built_by(strangers.ByParity), *clients, two_workers=two_workers) == []


@pytest.mark.slow
@pytest.mark.parametrize("when", [1, "before_training", "as_they_join", "soft"])
def test_a_composition_that_groups_again_or_softly_conforms(data_dir, clients, when):
    signal = {"signal": "signature", "bound": 0.01, "share": 0.1}  # that an export's rehearsal gives no heed to
    how = {"signature": "label_histogram", "when": when, "regroup_every": 1}
    how |= {"regroup_on": signal} if when == 1 else {}  # its flags come from the third round on
    how = {"signature": "label_histogram", "grouping": "soft"} if when == "soft" else how
    settings = resolve.resolve(TASK, "composed", overrides={"algorithms": {"composed": how | {"num_clusters": 2}}})
    federated = build.load_data(settings, data_dir)
    model = build.build_model(settings, federated)
    built = functools.partial(build.build_method, settings, model, federated, data_dir)
    passed_over = ["check_two_workers: there are no two workers"]
    passed_over += ["check_missed_clusters: every client takes part in all models"] if when == "soft" else []
    assert checks.check_method_conforms(built, *clients) == passed_over


@pytest.mark.slow  # one of a class is above
def test_a_method_in_a_file_beside_a_task_conforms(built_by, clients):
    built = built_by(functools.partial(load_reference("my_methods:build_mine", OWN), num_clusters=2))
    passed_over = checks.check_method_conforms(built, *clients)
    assert passed_over == ["check_two_workers: there are no two workers"]


@pytest.mark.parametrize(
    "mistaken, check",
    [
        (strangers.ChangesTheState, checks.check_states_do_not_change),
        (strangers.Remembers, checks.check_resume),
        (strangers.MovesMissedClusters, checks.check_missed_clusters),
        (strangers.CountsTooMuch, checks.check_traffic),
        (strangers.NewcomersReset, checks.check_newcomers),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_a_mistake_is_found(built_by, clients, formed_once, mistaken, check):
    subject = Subject(built_by(mistaken), *clients)
    with subject.running(), pytest.raises(AssertionError):
        check(subject)
    subject.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, statistics",
    [("pacfl", "local"), ("ditto", "local"), ("lg_fedavg", "global"), ("flis_dc", "fedbn"), ("stocfl", "global")],
)
def test_a_method_conforms_with_a_model_that_has_statistics_and_dropout(
    method, statistics, data_dir, clients, two_workers
):
    """Of each kind of method one: groups once, two models a client, what clients keep, a choice among models, and joint
    clusters; one model for all is in tests/models/test_own_statistics.py."""
    settings = configured(method)
    data = build.load_data(settings, data_dir)
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    keras = tf.keras.Sequential([
        layers.Rescaling(1 / 255, input_shape=data.train.x.shape[1:]), layers.Flatten(), layers.Dense(8),
        layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(10),
    ])  # fmt: skip
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = tf.TensorSpec(data.train.x.shape[1:], data.train.x.dtype), tf.TensorSpec([], tf.int32)
    model = FlatModel.from_keras(keras, loss, spec, statistics=statistics)
    built = functools.partial(build.build_method, settings, model, data, data_dir)
    # What a worker sends is the same of any model: one method's rounds are shared by two.
    checks.check_method_conforms(built, *clients, two_workers=two_workers if method == "ditto" else None)
