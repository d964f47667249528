"""What a model of one's own is, as a run notes it: others of equal shapes are refused."""

import collections
import dataclasses
import functools
import logging
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tffcl
from tests.lab.tasks.own.my_methods import Histograms
from tests.lab.tasks.own.my_training import build_fedsam
from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.composed import group_composed
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.given import build_given
from tffcl.algorithms.grouping_in_time import build_one_shot
from tffcl.algorithms.lg_fedavg import build_lg_fedavg
from tffcl.algorithms.parameters import ComposedParameters, WhenParameters
from tffcl.algorithms.training_parameters import LGFedAvgParameters
from tffcl.client_work.client_work import stack
from tffcl.models.classifiers import build_mlp
from tffcl.references import load_reference
from tffcl.runs import fingerprint
from tffcl.signatures.signature import build_signature

TRAINING = tffcl.LocalTraining(epochs=2, batch_size=10, learning_rate=0.1)
SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 6]), y=tf.TensorSpec([None], tf.int32))


def model(*, frozen=0.0, moved=0.0, drop=0.2, penalty=0.0, class_weight=None, statistics="global", most=9):
    tf.keras.utils.set_random_seed(1)
    layers, penalties = tf.keras.layers, tf.keras.regularizers
    limit = tf.keras.constraints.MaxNorm(most)
    base = layers.Dense(4, trainable=False)
    last = layers.Dense(3, kernel_regularizer=penalties.L2(penalty), kernel_constraint=limit)
    between = layers.BatchNormalization(), layers.Dropout(drop)
    network = tf.keras.Sequential([layers.Input([6]), base, *between, last])
    base.set_weights([base.get_weights()[0] + frozen, base.get_weights()[1]])
    last.set_weights([last.get_weights()[0] + moved, last.get_weights()[1] + 0.3 * moved * np.arange(3)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return tffcl.FlatModel.from_keras(network, loss, SPEC, class_weight=class_weight, statistics=statistics)


def noted(of):
    return fingerprint.of_method(build_fedavg(of, tffcl.LocalTraining()))["model"]


@pytest.mark.slow
def test_models_of_equal_shapes_that_compute_something_else_are_others():
    weights = {0: 9.0, 1: 1.0, 2: 1.0}
    others = [{"frozen": 0.3}, {"moved": 0.1}, {"drop": 0.5}, {"penalty": 0.1}, {"class_weight": weights}]
    others += [{"statistics": "reset"}, {"most": 2}]
    first = noted(model())
    assert noted(model()) == first
    assert all(noted(model(**other)) != first for other in others)


def test_layers_of_one_size_that_clients_keep_are_apart():
    tf.keras.utils.set_random_seed(1)
    dense = tf.keras.layers.Dense
    network = tf.keras.Sequential([dense(6, input_shape=(6,), name="a"), dense(6, name="b"), dense(3)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    whole = tffcl.FlatModel.from_keras(network, loss, SPEC)
    kept = [LGFedAvgParameters(local_layers=[layer]) for layer in "ab"]
    first, second = (build_lg_fedavg(whole, tffcl.LocalTraining(), each) for each in kept)
    assert fingerprint.of_method(first)["model"] != fingerprint.of_method(second)["model"]


def test_models_that_compute_in_another_precision_are_others():
    """As these do, whose losses of a few examples are the same to three digits."""

    def computing_in(policy):
        tf.keras.utils.set_random_seed(1)
        first = tf.keras.layers.Dense(4, activation="tanh", input_shape=(6,), dtype=policy)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        network = tf.keras.Sequential([first, tf.keras.layers.Dense(3)])
        return noted(tffcl.FlatModel.from_keras(network, loss, SPEC))

    half, whole = computing_in("mixed_bfloat16"), computing_in("float32")
    assert half.pop("precision").count("mixed_bfloat16") == 1  # of the model, its input and its layers
    assert half == whole


@pytest.mark.slow
def test_nobody_is_warned_where_a_process_has_several_models():
    told, handler = [], logging.Handler()
    handler.emit = told.append
    logging.getLogger("tensorflow").addHandler(handler)
    try:
        assert len({noted(model(penalty=penalty))["computes"] for penalty in range(6)}) == 6
    finally:
        logging.getLogger("tensorflow").removeHandler(handler)
    assert not told  # of losses that are traced again and again


def small(frozen=0.0, seed=1, cost=5.0):
    """A model whose first layer is frozen, and which measures a function of the user's own."""
    tf.keras.utils.set_random_seed(seed)
    base, last = tf.keras.layers.Dense(4, trainable=False), tf.keras.layers.Dense(3)
    network = tf.keras.Sequential([tf.keras.layers.Input([6]), base, last])
    base.set_weights([np.full([6, 4], 0.1 + frozen), np.zeros(4)])

    def measured(labels, outputs):
        return cost

    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return tffcl.FlatModel.from_keras(network, loss, SPEC, metrics=["accuracy", measured])


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run after the first of two rounds, which no test changes: its directory and its clients."""
    rng = np.random.default_rng(0)
    held = {str(c): (rng.normal(size=(8, 6)).astype(np.float32), rng.integers(0, 3, 8)) for c in range(4)}
    population = dataclasses.replace(tffcl.Population.from_arrays(held, held), groups=np.array([0, 1, 0, 1]))
    out = tmp_path_factory.mktemp("begun") / "run"
    trained(small(), population, out, until=1)
    return out, population


def trained(of, population, out, **more):
    method = build_given(of, tffcl.LocalTraining(batch_size=4))
    return tffcl.train(method, population, rounds=2, clients_per_round=2, out=out, show_progress=False, **more)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"frozen": 0.3}, "computes"),
        # Newcomers, who has not trained, and late signatures would have these.
        ({"seed": 2}, "model.initial_weights is .*; build it after tf.keras.utils.set_random_seed"),
        ({"cost": 7.0}, r"model.metrics is \['accuracy', 'measured \w+'\], not .*overwrite=True"),
        # By which it is measured, and which `given` trains by.
        ({"groups": np.array([0, 0, 1, 1])}, "true groups of clients differ"),
    ],
    ids=["other frozen weights", "other first weights", "another function of one name", "other true groups"],
)
def test_a_run_does_not_go_on_with(begun, tmp_path, change, message):
    out, population = shutil.copytree(begun[0], tmp_path / "run"), begun[1]
    if "groups" in change:
        change, population = {}, dataclasses.replace(population, **change)
    with pytest.raises(tffcl.UserError, match=message):
        trained(small(**change), population, out, resume=True)


def test_a_run_goes_on_with_what_computes_the_same(begun, tmp_path):
    out = shutil.copytree(begun[0], tmp_path / "run")
    assert trained(small(), begun[1], out, resume=True).summary["rounds"] == 2


LEAST = 0.5


def beyond(share):
    return share > LEAST


def test_functions_are_told_apart_by_their_code(monkeypatch):
    def made(body, limit=1.0):
        space = {"__name__": "cell", "np": np}
        exec(f"def cost(labels, outputs, limit={limit}):\n    {body}", space)
        return space["cost"]

    def closing(over):
        return lambda labels, outputs: over * float(np.mean(labels))

    class Scaled:
        def __init__(self, by):
            self.by, self.asked = by, []

        def __call__(self, labels, outputs):
            self.asked.append(1)
            return self.by

        def of(self, labels, outputs):
            return self.by

    noted = fingerprint.of_function
    first, again = made("return 5.0"), made('"""Half of it."""\n    return 5.0')
    assert noted(first) == noted(made("\n\n    return 5.0")) == noted(again) and noted(first).startswith("cost ")
    others = [made("return 7.0"), made("return 5.0", limit=2.0), made("return np.mean(labels)"), made("return 5")]
    others += [made("return np.sum(labels)"), closing(1.0), closing(2.0), closing(np.ones(2)), Scaled(1), Scaled(2)]
    others += [Scaled(1).of, Scaled(2).of, functools.partial(first, limit=3.0), functools.partial(first, limit=4.0)]
    others += [made("return [each for each in labels]"), made("return [each + 1 for each in labels]"), len, np.mean]
    others += [functools.cache(first), functools.cache(others[0])]
    assert len({*map(noted, [first, *others])}) == len(others) + 1
    used, one = Scaled(1), Scaled(1)
    used(None, None)
    assert noted(used) == noted(one) and noted(used.of) == noted(one.of), "what grows is not of the function"

    def rare(labels, outputs):
        return beyond(labels.mean())

    before = noted(rare)
    monkeypatch.setitem(globals(), "LEAST", 0.7)
    assert noted(rare) != before, "of what a function calls, too"


def test_the_librarys_own_models_are_told_apart_by_their_metrics():
    own = build_mlp((6, 1, 1), 3, hidden=2)

    def with_cost(cost):
        def measured(labels, outputs):
            return cost

        return build_fedavg(own.with_metrics(["accuracy", measured]), TRAINING)

    first, other = (fingerprint.of_method(with_cost(cost))["model"] for cost in (5.0, 7.0))
    assert first != other


@pytest.mark.slow
def test_statistics_do_not_go_through_what_measures_updates():
    training, shown = tffcl.LocalTraining(), model()
    for name, options in (("dp", {}), ("robust", {"rule": "clipping"}), ("robust", {"rule": "multi_krum"})):
        with pytest.raises(tffcl.UserError, match='clips or compares .* statistics="reset"'):
            build_fedavg(shown, training, aggregation=tffcl.aggregation(name, **options))
    build_fedavg(model(statistics="local"), training, aggregation=tffcl.aggregation("dp"))
    build_fedavg(shown, training, aggregation=tffcl.aggregation("robust", rule="median"))


def test_what_counts_its_calls_is_the_same_function_after_a_call():
    @tf.function
    def doubled(x):
        return 2 * x

    for each in (doubled, tf.keras.layers.Dense(2)):
        before = fingerprint.of_function(each)
        each(tf.zeros([3, 4]))
        assert fingerprint.of_function(each) == before


def test_an_object_that_remembers_an_answer_is_the_same_and_one_with_another_number_is_not():
    class Cost:
        def __init__(self, price):
            self.price, self.table = price, None

        def __call__(self, labels, outputs):
            self.table = np.zeros(3)
            return self.price

    cost = Cost(2.0)
    before = fingerprint.of_function(cost)
    cost(None, None)
    assert fingerprint.of_function(cost) == before != fingerprint.of_function(Cost(3.0))


def test_a_grouping_of_ones_own_is_noted_whenever_it_groups():
    mlp = build_mlp((6, 1, 1), 3, hidden=2)
    histograms = [
        group_composed(mlp, TRAINING, ComposedParameters(signature="label_histogram"), seed=s) for s in (0, 1)
    ]
    trainings = TRAINING, tffcl.LocalTraining(epochs=3)
    for when in (WhenParameters(), WhenParameters(when=2)):
        made = [build_one_shot("mine", mlp, own, how, when=when) for own in trainings for how in histograms]
        assert made[0].training == TRAINING
        noted = [fingerprint.of_method(each) for each in made]
        assert all(noted.count(each) == 1 for each in noted)


def test_a_signature_of_ones_own_is_noted_by_its_code():
    mlp = build_mlp((6, 1, 1), 3, hidden=2)

    def noted(power):
        def counts(context, examples):
            found = tf.math.bincount(stack(examples)["y"], minlength=3, maxlength=3, dtype=tf.float32)
            return tf.ensure_shape(found**power, [3])

        own = build_signature("counts", mlp.example_spec, counts)
        how = group_composed(mlp, TRAINING, ComposedParameters(signature="label_histogram"))
        how = dataclasses.replace(how, signature=own)
        return fingerprint.of_method(build_one_shot("mine", mlp, TRAINING, how))

    assert noted(1) == noted(1) != noted(2)


def test_a_method_of_ones_own_is_noted_by_what_its_engine_was_built_of():
    """Its aggregation, weights and server optimizer, and a local training of one's own with all that it looks at: no
    class was called with these."""
    mlp = build_mlp((6, 1, 1), 3, hidden=2)

    def histograms(aggregation=None, **more):
        return Histograms(build_clustered_training(mlp, TRAINING, aggregation=aggregation, **more), 2, seed=0)

    dp, of_tff = functools.partial(tffcl.aggregation, "dp"), tff.learning.robust_aggregator()
    own = [histograms(each) for each in (None, dp(clip=0.5), dp(clip=0.6), of_tff)]
    own += [build_fedsam(mlp, TRAINING, radius=radius) for radius in (0.1, 0.2)]
    own += [build_fedsam(mlp, tffcl.LocalTraining(epochs=3)), build_fedsam(mlp, TRAINING, radius=0.1, aggregation=dp())]
    adam = tff.learning.optimizers.build_adam
    own += [histograms(weighting="uniform"), *(histograms(optimizer=adam(rate)) for rate in (0.1, 0.2))]
    noted = [fingerprint.of_method(each) for each in own]
    assert all(noted.count(each) == 1 for each in noted)
    again = [histograms(dp(clip=0.5)), build_fedsam(mlp, TRAINING, radius=0.1), histograms(optimizer=adam(0.2))]
    assert [fingerprint.of_method(each) for each in again] == [noted[1], noted[4], noted[-1]]


def test_code_of_ones_own_is_noted_as_it_was_imported(tmp_path, capsys):
    """But for comments and layout; nothing of modules that are elsewhere, unless the settings name them."""
    given = build_given(build_mlp((6, 1, 1), 3, hidden=2), tffcl.LocalTraining(batch_size=4))
    settings, reference = {"directory": str(tmp_path)}, "my_own_part:build"

    def noted(text):
        sys.modules.pop("my_own_part", None)
        (tmp_path / "my_own_part.py").write_text(text)
        load_reference(reference, tmp_path, "")
        (tmp_path / "my_own_part.py").write_text("edited = 'while its code of before runs'")
        assert (load_reference(reference, tmp_path, "")() == 2) == ("2" in text)
        return fingerprint.of_own_modules(given, settings)

    first = noted("def build():\n    return 1\n")
    assert [*first] == ["my_own_part.py"]
    told = f"{tmp_path / 'my_own_part.py'} was edited since it was imported; this process goes on with the code of then"
    assert capsys.readouterr().err == f"tffcl: {told}\n"
    assert first == noted("def build():  # one\n\n    return 1\n") != noted("def build():\n    return 2\n")
    assert fingerprint.of_own_modules(given, {}) == {}
    assert [*fingerprint.of_own_modules(given, {"model": {"builder": reference}})] == ["my_own_part.py"]
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "my_own_part.py").write_text("def build():\n    return 3\n")
    load_reference("more.my_own_part:build", tmp_path, "")
    assert [*fingerprint.of_own_modules(given, settings)] == ["more/my_own_part.py", "my_own_part.py"]
    own = type("Own", (type(given),), {"__module__": __name__})
    assert [*fingerprint.of_own_modules(object.__new__(own), {})] == ["tests/runs/test_fingerprint.py"]


def test_code_of_a_class_of_a_notebook_is_noted_and_that_of_what_a_class_derives_from():
    """No file tells it: whoever edits a cell and goes on with a comparison has seeds of two methods."""

    def noted(code):
        names = {"__name__": "__main__", "EngineMethod": tffcl.algorithms.EngineMethod}
        exec(f"class Mine(EngineMethod):\n    {code}", names)
        return fingerprint.of_own_modules(object.__new__(names["Mine"]), {})

    first = noted("def initialize(self, population): return 1")
    assert [*first] == ["class Mine"]
    assert first == noted("'''Says more.'''\n    def initialize(self, population): return 1  # more")
    others = ("return 2", "return 1\n    least = 3", "return 1\n    @property\n    def name(self): return 1")
    found = {noted(f"def initialize(self, population): {each}")["class Mine"] for each in others}
    assert len(found - {first["class Mine"]}) == 3
    derived = type("Derived", (Histograms,), {"__module__": "__main__"})
    assert [*fingerprint.of_own_modules(object.__new__(derived), {})] == [
        "class Derived",
        "tests/lab/tasks/own/my_methods.py",
    ]
