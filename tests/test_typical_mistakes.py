"""Mistakes that users of Python make: each is told in one line, which says what is wrong and what is wanted."""

import types

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tffcl
from tests.own_data import CROSS_ENTROPY, layers, sequential
from tffcl import algorithms as methods
from tffcl.errors import RESUME, UserError
from tffcl.lab.cli.main import main

LOSSES = tf.keras.losses
PROTOCOL = {"rounds": 1, "clients_per_round": 2, "show_progress": False}


def net(*more, units=2):
    return sequential(layers.Dense(units, *more, input_shape=(4,)))


@pytest.fixture(scope="module")
def here(tmp_path_factory, worker):
    """Clients, a model, a method and a finished run."""
    rng, place = np.random.default_rng(0), tmp_path_factory.mktemp("mistakes")
    raw = {f"c{each}": (rng.normal(size=(8, 4)).astype("f4"), rng.integers(0, 2, 8)) for each in range(4)}
    clients, training = tffcl.Population.from_arrays(raw, raw), tffcl.LocalTraining(batch_size=4)
    model = tffcl.FlatModel.from_keras(net(), CROSS_ENTROPY, clients.example_spec)
    method = methods.build_fedavg(model, training)
    done = tffcl.train(method, clients, out=place / "done", **PROTOCOL)
    (place / "file").touch()

    def train(method=method, population=clients, **more):
        return tffcl.train(method, population, **{**PROTOCOL, "out": place / "new", **more})

    frame = pd.DataFrame({"who": list("aabb"), "a": [0.0, 1.0, 2.0, 3.0], "y": [0, 1, 0, 1]})
    return types.SimpleNamespace(**locals())


def keras(model=net, loss=CROSS_ENTROPY, **more):
    return lambda here: tffcl.FlatModel.from_keras(model(), loss, here.clients.example_spec, **more)


def arrays(examples, *more):
    return lambda here: tffcl.Population.from_arrays(examples, *more)


def compare(what, **more):
    return lambda here: tffcl.compare(what(here), here.clients, **{**PROTOCOL, "out": here.place / "new", **more})


MISTAKES = [
    # Builders
    (lambda here: methods.build_fedavg(net(), here.training), "is of Sequential; .* FlatModel.from_keras makes one"),
    (lambda here: methods.build_fedavg(here.model), r"build_fedavg\(model, training, .*: missing .* 'training'"),
    (lambda here: methods.build_fedavg(here.model, {"epochs": 2}), r"training is of dict; .* LocalTraining\(...\)"),
    (lambda here: methods.build_pacfl(here.model, here.training, methods.IFCAParameters()), r"a PACFLParameters"),
    (lambda here: methods.build_pacfl(here.model, here.training, {"num_clusters": 2}), r"dict; .* PACFLParameters"),
    (
        lambda here: methods.build_pacfl(here.model, here.training, num_clusters=2),
        r"unexpected .* 'num_clusters'; it is one of the parameters: PACFLParameters\(num_clusters=...\)",
    ),
    (lambda here: methods.build_fedavg(here.model, here.training, aggregation="dp"), r'tffcl.aggregation\("dp"\)'),
    (lambda here: tffcl.aggregation("secure"), "did you mean 'secure_sum'"),
    (lambda here: tffcl.aggregation("dp", clipp=1), "'clipp'; did you mean 'clip'"),
    (
        lambda here: tffcl.LocalTraining(optimizer=tf.keras.optimizers.Adam()),
        "it must be sgd, adam, adamw, rmsprop or a tff.learning.optimizers object",
    ),
    (
        lambda here: tffcl.LocalTraining(class_weight={0: 2}),
        r"no class_weight: FlatModel.from_keras\(..., class_weight=",
    ),
    (lambda here: tffcl.LocalTraining(optimizer="adamm"), "did you mean 'adam'"),
    (lambda here: tffcl.LocalTraining(learning_rate="0.1"), "learning_rate is '0.1'; it must be a number above 0"),
    (lambda here: tffcl.LocalTraining(epochs=0.5), "epochs is 0.5; it must be a whole number"),
    (lambda here: methods.IFCAParameters(num_clusters=0), "num_clusters is 0; it must be a whole number from 1"),
    (lambda here: methods.PACFLParameters(num_clusters=2, threshold=5.0), "give threshold or num_clusters, not both"),
    # Runs
    (lambda here: here.train(population=here.raw), "population is of dict; .* Population.from_arrays makes one"),
    (lambda here: here.train(population=here.frame), "population is of DataFrame; .* tffcl.Population"),
    (lambda here: here.train(method=here.model), "FlatModel is no method"),
    (lambda here: here.train(method=None), "None is no method; a function that builds one returns it"),
    (lambda here: here.train(method=type(here.method)), "is a class, and no method: make one of it"),
    (lambda here: here.train(method=methods.build_fedavg), r"call it, build_fedavg\(model, training\)"),
    (lambda here: here.train(method=here.clients, population=here.method), "Population is no method"),
    (lambda here: here.train(rounds=2.5), "rounds is 2.5; it must be a whole number from 1"),
    (lambda here: here.train(clients_per_round=9), "^clients_per_round is 9, but there are only 4 clients"),
    (lambda here: here.train(clients_per_round=0.5), "clients_per_round is 0.5; it must be a whole number"),
    (lambda here: here.train(seed=None), "seed is None; it must be a whole number from 0"),
    (lambda here: here.train(out=here.place / "file"), "is a file; a run needs a directory"),
    (lambda here: here.train(out=here.place / "done"), "; resume=True goes on with it, overwrite=True starts anew"),
    (
        lambda here: here.train(
            method=methods.build_fedavg(here.model, tffcl.LocalTraining(batch_size=5)),
            out=here.place / "done",
            resume=True,
        ),
        "batch_size is 4, not 5; resume with its own settings, start anew with overwrite=True",
    ),  # fmt: skip
    (lambda here: here.train(callbacks=tffcl.EarlyStopping("cluster_accuracy", 3)), "must be a list of callbacks"),
    (lambda here: here.train(callbacks=[print]), "one of callbacks .* derives from tffcl.Callback"),
    (lambda here: tffcl.EarlyStopping("accuracy", 3), "unknown metric 'accuracy'; did you mean"),
    (lambda here: here.train(later={"two": here.clients}), "a round of later is 'two'"),
    (lambda here: here.train(later={1: here.raw}), r"later\[1\] is of dict; it must be a tffcl.Population"),
    (lambda here: here.train(later=[{}]), "later is of list; it must be a mapping of rounds"),
    (lambda here: here.train(later={9: here.clients}), "later is from round 9 on, and the run has 1;"),
    (lambda here: here.train(out=3), "out is of int; it must be the name of a directory"),
    (lambda here: here.train(settings=[1]), "settings is of list; it must be nested tables"),
    (lambda here: here.train(settings={"a": 1}), "settings lack task or algorithm, which name"),
    (lambda here: here.train(privacy=8.0), "privacy is 8.0; it must be a table or PrivacySettings of epsilon, delta"),
    (lambda here: here.train(workers="localhost:10000"), "workers is of str; .* RemoteWorkers.parse"),
    (lambda here: tffcl.RemoteWorkers(("localhost:10000",)), r"addresses is .*10000.*; RemoteWorkers.parse"),
    # Several runs
    (compare(lambda here: [here.method]), r'is a list of methods; it must be a dict of what .*, \{"PACFL": method'),
    (compare(lambda here: here.method), "methods is of OneModel; it must be a dict .* tffcl.resolve"),
    (compare(lambda here: {"a": "fedavg"}), r"methods\['a'\] is of str; it must be a method"),
    (compare(lambda here: {"a": here.method}, seeds=3), r"seeds is 3; .* whole numbers, e.g. \[0, 1, 2\]"),
    (
        lambda here: tffcl.sweep(here.method, {"epochs": [1, 2]}, here.clients, **PROTOCOL),
        "method is of .*; it must be a function of epochs that returns a method",
    ),
    (
        lambda here: tffcl.search(
            lambda epochs: here.method, {"epochs": [1, 2]}, here.clients, **PROTOCOL, out=here.place / "new"
        ),
        r"^select needs validation examples, .*: clients.with_validation\(0.1\)",
    ),
    (
        lambda here: tffcl.sweep(
            lambda rate: here.method, {"rate": ["0.01..0.1", 1.0]}, here.clients, **PROTOCOL, out=here.place / "new"
        ),
        "over rate: a range, 0.01..0.1, is for tffcl.search$",
    ),
    # Clients
    (lambda here: tffcl.Population.from_arrays(here.frame), "Population.from_frame.* takes tables"),
    (arrays([1, 2]), r'must be a mapping of client IDs to \(x, y\), \{"clinic": \(x, y\), ...\}'),
    (arrays({}), "there are no clients"),
    (arrays({"a": np.zeros([3, 4])}), r"must be a pair \(x, y\)"),
    (arrays({"a": (np.zeros([3, 4]), np.zeros(2))}), r"\[3, 4\] and 2 labels; they do not fit"),
    (arrays({"a": (np.zeros([1, 4]), [0]), "b": (np.zeros([1, 5]), [0])}), "client b are .*5., .* must be alike"),
    (arrays({"a": (np.array([[{}]]), [0])}), r'they must be numbers .*astype\("float32"\)'),
    (arrays({"a": (np.zeros([2, 4]), [0, np.nan])}), "labels of client a have NaN .* in 1 of 2 rows"),
    (arrays({"a": tf.data.Dataset.from_tensor_slices(np.zeros([3, 4]))}), r'must be \(x, y\) or \{"x"'),
    (arrays({"a": (np.zeros([1, 4]), [0])}, {"z": (np.zeros([1, 4]), [0])}), "client z has test examples, but no"),
    (lambda here: tffcl.Population.from_frame(here.frame, client="hospital", label="y"), "unknown column 'hospital'"),
    (lambda here: tffcl.Population.from_frame("no.csv", client="who", label="y"), "there is no table /.*no.csv"),
    (lambda here: tffcl.Population.from_folders("/nowhere"), "ROOT/CLIENT/LABEL/NAME.png"),
    # Models
    (keras(lambda: tf.keras.Sequential([layers.Dense(2)])), "give its first layer an input shape, or call build"),
    (keras(loss="sparse_categorical_crossentropy"), "loss is of str; it must be a tf.keras.losses.Loss"),
    (keras(lambda: net("softmax")), "leave the softmax out, or use from_logits=False"),
    (keras(loss=LOSSES.SparseCategoricalCrossentropy()), "use from_logits=True, or a last layer with .*softmax"),
    (keras(lambda: net(units=1)), "of one output BinaryCrossentropy is the loss"),
    (lambda here: tffcl.FlatModel.from_keras(CROSS_ENTROPY, net(), here.clients.example_spec), "a tf.keras.Model"),
    (lambda here: tffcl.FlatModel.from_keras(net(), CROSS_ENTROPY, (4,)), r"must be two tf.TensorSpec, \(x, y\)"),
    (keras(metrics=["accurracy"]), "did you mean 'accuracy'"),
    (keras(metrics=["mse"]), "metric mse is not defined for labels that are classes"),
    (keras(metrics=[tf.keras.metrics.AUC()]), r"AUC adds up what it is given.* a function \(labels, outputs\)"),
    (keras(statistics="fedBN"), "did you mean 'fedbn'"),
    # Results
    (lambda here: here.done.model_of("c9"), "unknown client 'c9'"),
    (lambda here: here.done.predict("c0", np.zeros([2, 9], "f4")), r"must be float32 of shape \[n, 4\]"),
    (lambda here: tffcl.export_result(str(here.place / "done"), here.place / "to"), "must be what tffcl.train or"),
    (lambda here: tffcl.write_report(here.done), "must be the directory of a run, e.g. result.out"),
    (lambda here: tffcl.load_run(here.place / "done"), r"tffcl.train\(..., resume=True\) with them gives its result"),
    (lambda here: tffcl.run("demo_digits", here.place / "new"), r"what tffcl.resolve\(task, algorithm\) returns"),
    (lambda here: tffcl.resolve("demo_digit", "pacfl"), "did you mean 'demo_digits'"),
    (lambda here: tffcl.similarity(here.clients), "model is of NoneType; it must be a tffcl.FlatModel"),
    # Objects in the place of paths and names, and arguments of a neighbour
    (lambda here: tffcl.load_run(here.done), "is of Result; it must be the directory of a run, e.g. result.out"),
    (lambda here: tffcl.find_runs(None), "is of NoneType; it must be the directory of a run"),
    (lambda here: tffcl.join_newcomers(here.done), "it must be the directory of a run, e.g. result.out"),
    (lambda here: tffcl.export_result(here.done, None), "to is of NoneType; it must be the path of a directory"),
    (lambda here: tffcl.export_result(here.done, here.place / "done"), "something already; give to a new directory"),
    (lambda here: tffcl.write_report(here.done.out, formats="svg"), "it must be a list of some of csv, latex, md"),
    (lambda here: tffcl.load_task({"dataset": {}}), "task is of dict; it must be the name of one"),
    (lambda here: tffcl.load_data("demo_digits"), r"it must be what tffcl.resolve\(task, algorithm\) returns"),
    (lambda here: tffcl.resolve("demo_digits", ["pacfl", "fedavg"]), "one name .*; tffcl.compare takes several"),
    (lambda here: tffcl.resolve("demo_digits", "pacfl", overrides="rounds=3"), r'nested tables, e.g. {"train": {"ro'),
    (lambda here: tffcl.RemoteWorkers(["localhost:10000"]), 'RemoteWorkers.parse\("10.0.0.5:10000,.*makes them'),
    (lambda here: tffcl.Dataset.from_arrays("mine", np.zeros([3, 4]), np.zeros(3)), r"a pair \(x, y\)"),
    (lambda here: tffcl.Population.from_folders(5), "root is of int; it must be the path of a folder"),
    (
        lambda here: tffcl.Population.from_frame(here.frame, client=here.frame.who, label="y"),
        "client is of Series; it must be the name of a column",
    ),
    (
        lambda here: tffcl.Population.from_frame(here.frame, client="who", label="y", known=here.raw),
        "known= of from_frame is a population that it has made",
    ),
    (lambda here: here.clients.map(lambda x: x / 255), r"examples and labels, as in clients.map\(lambda x, y: "),
    (lambda here: here.done.admit(None), "population is of NoneType; it must be a tffcl.Population"),
    (
        lambda here: tffcl.FlatModel.from_keras(
            net("softmax", units=1), tf.keras.losses.BinaryCrossentropy(), here.clients.example_spec
        ),
        'gives 1 for every example; one output needs activation="sigmoid"',
    ),
    (lambda here: here.done.predict("c0", np.full((1, 4), "a")), "examples are <U1 of shape"),
    (lambda here: here.clients.train(99), "client 99 is not known; there are 4 clients"),
    (lambda here: tffcl.similarity(here.clients, 3, model=here.model), "signature is of int; it must be a name, a tab"),
    (
        lambda here: tffcl.similarity(here.clients, model=here.model, training={"epochs": 1}),
        r"training is of dict; it must be a tffcl.LocalTraining\(...\)",
    ),
    (
        lambda here: tffcl.similarity(here.clients, model=here.model, num_clusters=2),
        r"num_clusters is one of the parameters: similarity\(clients, ComposedParameters\(num_clusters=...\)\)",
    ),
    (lambda here: compare(lambda here: {"a": here.method}, targets=["cluster"])(here), "^target 'cluster' is not MET"),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_it_is_told_in_one_line_with_the_cure(here, number):
    mistake, told = MISTAKES[number]
    with pytest.raises(UserError, match=told) as caught:
        mistake(here)
    assert "\n" not in str(caught.value) and "--" not in str(caught.value)
    assert not (here.place / "new").exists()


def test_names_that_are_not_there_have_a_neighbour():
    with pytest.raises(AttributeError, match="has no attribute 'trian'; did you mean 'train'?"):
        tffcl.trian
    with pytest.raises(AttributeError, match="did you mean 'PACFLParameters'?"):
        methods.PACFLParameter


def test_the_command_line_names_its_options(here, capsys):
    (here.place / "other").mkdir(exist_ok=True)
    task = ["run", "demo_digits", "--algorithm", "fedavg", "--out", str(here.place / "done")]
    assert main(task) == 2
    assert "--resume goes on with it, --overwrite starts anew" in capsys.readouterr().err
    assert str(RESUME) == "resume=True"  # in Python again
