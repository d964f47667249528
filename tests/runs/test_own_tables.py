"""Whole runs on a table: clinics of scikit-learn's breast_cancer, text labels, newcomers, resume and export."""

import dataclasses
import json

import numpy as np
import pandas
import pytest
import tensorflow as tf
from sklearn.datasets import load_breast_cancer

import tffcl
from tests import own_data
from tests.own_data import layers, sequential
from tests.runs.finished_runs import unfinished_copy
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.errors import UserError
from tffcl.runs.privacy import epsilon_of

TRAINING = tffcl.LocalTraining(epochs=2, batch_size=10, learning_rate=0.1)
PROTOCOL = {"rounds": 2, "clients_per_round": 3, "seed": 1, "evaluate_every": 1, "checkpoint_every": 1}


def clinics():
    """Eight clinics, of which every other one measures half of the features the other way round."""
    frame = load_breast_cancer(as_frame=True).frame.iloc[:400].copy()
    number = np.arange(len(frame)) % 8
    names = frame.columns[:15]
    turned = 2 * frame[names].mean() - frame[names]
    frame[names] = np.where((number % 2 == 0)[:, None], frame[names], turned)
    frame["diagnosis"] = np.array(["malignant", "benign"])[frame.pop("target")]
    return frame.assign(clinic=np.char.add("clinic ", number.astype(str)), scanner=np.array(["A", "B"])[number % 2])


def read(frame, **options):
    return tffcl.Population.from_frame(
        frame, client="clinic", label="diagnosis", group="scanner", validation=0.2, **options
    )


@pytest.fixture(scope="module")
def population():
    frame = clinics()
    return read(frame[frame["clinic"] < "clinic 6"])


@pytest.fixture(scope="module")
def method():
    return build_pacfl(own_data.perceptron(), TRAINING, PACFLParameters(num_clusters=2))


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("tables") / "seed-1"


@pytest.fixture(scope="module")
def result(population, method, out):
    return tffcl.train(method, population, out=out, show_progress=False, **PROTOCOL)


@pytest.fixture(scope="module")
def page(result):
    return tffcl.write_report(result.out).read_text()


def test_standardised_clinics_are_clustered_and_reports_have_the_labels_names(result, page):
    assert result.summary["clusters"]["ari"] == 1 and result.summary["label_names"] == ["benign", "malignant"]
    assert result.summary["accuracy"]["cluster"]["mean"] > 0.6
    assert any("standardised" in note for note in result.summary["notes"])
    assert "label benign" in page and "label 0" not in page


def test_clusters_are_described_by_the_features_that_are_furthest_apart(result, population, page):
    told, clusters = result.summary["clusters"]["features"], result.client_columns["cluster"]
    examples = [np.asarray(population.train(client).x, np.float64) for client in population.client_ids]
    everyone = np.concatenate(examples)
    for cluster in np.unique(clusters):
        own = np.concatenate([x for x, each in zip(examples, clusters) if each == cluster])
        apart = (own.mean(axis=0) - everyone.mean(axis=0)) / everyone.std(axis=0)
        names = [population.feature_names[each] for each in np.argsort(-np.abs(apart))[:3]]
        assert list(told[str(cluster)]) == names
        np.testing.assert_allclose(list(told[str(cluster)].values()), np.sort(np.abs(apart))[::-1][:3] * np.sign(
            [apart[population.feature_names.index(name)] for name in names]), rtol=1e-6)  # fmt: skip
    assert "features furthest from the mean of all" in page and names[0] in page


def test_a_run_is_resumed_with_the_same_table_only(method, result, out, tmp_path):
    frame = clinics()
    held = frame["clinic"] < "clinic 6"
    for name in ("same", "other"):
        unfinished_copy(out, tmp_path / name, 1)
    again = tffcl.train(method, read(frame[held]), out=tmp_path / "same", resume=True, show_progress=False, **PROTOCOL)
    assert json.dumps(again.summary["accuracy"]) == json.dumps(result.summary["accuracy"])
    renamed = read(frame[held].replace({"diagnosis": {"benign": "a", "malignant": "b"}}))
    with pytest.raises(UserError, match="the data have changed since the run in .*: names of labels differ"):
        tffcl.train(method, renamed, out=tmp_path / "other", resume=True, show_progress=False, **PROTOCOL)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [None, 2.0])
def test_what_standardises_features_is_a_release_of_a_private_run(noise, tmp_path):
    """The same run on a table whose means have noise, or none."""
    frame = clinics()
    frame = frame[frame["clinic"] < "clinic 6"].drop(columns=frame.columns[5:30])
    bounds = {name: (0, 3 * frame[name].max()) for name in frame.columns[:5]}
    noised = {} if noise is None else {"bounds": bounds, "noise_multiplier": noise}
    clients = read(frame, **noised)
    keras = sequential(layers.Dense(2, input_shape=(5,)))
    model = tffcl.FlatModel.from_keras(keras, own_data.CROSS_ENTROPY, clients.example_spec)
    private = tffcl.algorithms.build_fedavg(model, TRAINING, aggregation=tffcl.aggregation("dp", noise_multiplier=2.0))
    protocol = {**PROTOCOL, "clients_per_round": 6}
    if noise is None:
        with pytest.raises(
            UserError, match="no noise is counted on what features are standardised by; bounds and a noise_mult"
        ):
            tffcl.train(
                private, clients, out=tmp_path / "budget", privacy=tffcl.PrivacySettings(epsilon=9.0), **protocol
            )
    later = {2: clients if noise is None else dataclasses.replace(clients, measured_noise=3.0)}  # of another table
    found = tffcl.train(private, clients, out=tmp_path / "told", later=later, show_progress=False, **protocol).summary
    one = {(2.0, -1.0, 6.0, 6.0): 2}
    if noise is None:
        assert found["privacy"]["epsilon"] is None and found["privacy"]["open_releases"] == 1
        assert any(note.startswith("not private: 1 release came without noise") for note in found["notes"])
    else:
        both = {**one, (2.0, 1.0, 0.0, 0.0): 1, (3.0, 1.0, 0.0, 0.0): 1}
        assert found["privacy"]["epsilon"] == epsilon_of(both, found["privacy"]["delta"])
        assert found["privacy"]["releases"] == 4


def test_newcomers_join_by_the_rules_of_the_known(population, result):
    frame = clinics()
    everyone = read(frame, known=population)
    joined = result.admit(everyone)
    assert [joined.cluster_of(f"clinic {each}") == result.trained.cluster_of("clinic 0") for each in (6, 7)] == [1, 0]
    same = result.admit(read(frame[frame["clinic"] >= "clinic 6"], known=population))  # the newcomers alone
    rows = frame[frame["clinic"] == "clinic 7"].drop(columns=["diagnosis", "clinic", "scanner"])
    answers = joined.predict("clinic 7", everyone.features_of(rows))
    np.testing.assert_array_equal(answers, same.predict("clinic 7", everyone.features_of(rows)))
    np.testing.assert_array_equal(joined.model_of("clinic 7"), result.model_of("clinic 1"))
    ninth = rows.assign(clinic="clinic 9", diagnosis="benign", scanner="A")
    all_so_far = same.admit(read(pandas.concat([frame, ninth]), known=everyone))  # the first of whom it knew no more
    assert all_so_far.cluster_of("clinic 9") == all_so_far.cluster_of("clinic 1") != all_so_far.cluster_of("clinic 0")
    for wrong, message in (
        (population, "these clients have taken part; admit lets those join that are new"),
        (read(frame), "these clients cannot join: it has other rules of columns; build it with known="),
    ):
        with pytest.raises(UserError, match=message):
            result.admit(wrong)
    with pytest.raises(UserError, match="clinic 7"):
        result.predict("clinic 7", everyone.features_of(rows))


def test_rows_of_a_table_are_predicted_by_the_rules_of_the_population(result, population):
    """A model of Keras and rules of the population are all that serves a new patient."""
    frame = clinics()
    own = frame[frame["clinic"] == "clinic 0"]
    rows = own.drop(columns=["diagnosis", "clinic", "scanner"])
    x = population.features_of(rows)
    held = [getattr(population, kind)(0).x for kind in ("train", "test", "validation")]
    np.testing.assert_array_equal(np.sort(x, axis=0), np.sort(np.concatenate(held), axis=0))
    answers = result.predict("clinic 0", x)
    keras = result.keras_model_of("clinic 0")
    np.testing.assert_array_equal(answers, tf.argmax(keras(x), axis=-1))
    assert np.mean(np.array(population.label_names)[answers] == own["diagnosis"]) > 0.8
    for wrong, message in (
        (
            rows.drop(columns="mean area"),
            "the table lacks column 'mean area', which .* made of; did you mean 'mean radius'",
        ),
        (
            rows.assign(**{"mean area": np.nan}),
            f"mean area has no value in {len(rows)} of {len(rows)} rows, first in row 0",
        ),
        (rows.assign(**{"mean area": "large"}), "mean area holds text; that of the known clients holds numbers"),
    ):
        with pytest.raises(UserError, match=message):
            population.features_of(wrong)
    with pytest.raises(UserError, match=r"the examples are .*; .* clients.features_of\(frame\) makes examples"):
        result.predict("clinic 0", own)
    with pytest.raises(UserError, match="these clients are of no table"):
        tffcl.Population.from_arrays({"a": (x, answers)}).features_of(rows)


def test_validation_examples_may_be_held_out_later(population):
    """Of a table, whose groups, rules and names stay."""
    frame = clinics()
    whole = tffcl.Population.from_frame(frame, client="clinic", label="diagnosis", group="scanner")
    found = whole.with_validation(0.25)
    for client in whole.client_ids:
        parts = found.train(client), found.validation(client)
        assert len(parts[1]) == round(0.25 * len(whole.train(client)))
        rows = np.concatenate([each.x for each in parts])
        np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(whole.train(client).x, axis=0))
        np.testing.assert_array_equal(found.test(client).x, whole.test(client).x)
    assert found.groups.tolist() == whole.groups.tolist() and found.feature_names == whole.feature_names
    assert "training clients' training examples; what is measured is of validation examples, too" in found.note
    assert found.label_names == whole.label_names and found.sizes.tolist() == [
        len(found.train(each)) for each in range(8)
    ]
    with pytest.raises(UserError, match="the clients hold validation examples already"):
        population.with_validation(0.1)
    with pytest.raises(UserError, match="share is 0.001, which is no example of any client"):
        whole.with_validation(0.001)


@pytest.mark.slow
def test_columns_of_what_is_predicted_are_in_the_clients_order(tff_worker, tmp_path):
    x = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 2)).astype("f4"), columns=["age", "dose"])
    clients = tffcl.Population.from_arrays({name: (x, (x["age"] > 0).astype(int)) for name in "ab"})
    keras = sequential(layers.Dense(2, input_shape=(2,)))
    model = tffcl.FlatModel.from_keras(keras, own_data.CROSS_ENTROPY, clients.example_spec)
    method = tffcl.algorithms.build_fedavg(model, TRAINING)
    result = tffcl.train(method, clients, rounds=1, clients_per_round=2, out=tmp_path, show_progress=False)
    np.testing.assert_array_equal(result.predict("a", x), result.predict("a", x.to_numpy()))
    with pytest.raises(UserError, match="columns of the examples are dose, age, those of the clients age, dose"):
        result.predict("a", x[["dose", "age"]])
