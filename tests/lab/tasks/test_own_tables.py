"""A table and folders of pictures in a task file: natural clients by name, no partition, every command."""

import dataclasses
import json
import re

import numpy as np
import pandas
import pytest
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_wine

import tffcl
from tests import digits
from tests.runs.finished_runs import rows_of
from tffcl.errors import UserError
from tffcl.lab.batches import newcomers
from tffcl.lab.cli.main import main
from tffcl.lab.datasets.federated import federated, load_federated
from tffcl.lab.datasets.loaders import scikit_learn
from tffcl.lab.datasets.loaders.own import load_folders, load_table
from tffcl.lab.datasets.partitions.mixed import mixture
from tffcl.lab.tasks import exports
from tffcl.lab.tasks.build import load_data, load_run
from tffcl.lab.tasks.populations import build_population
from tffcl.lab.tasks.resolve import resolve
from tffcl.lab.tasks.task_file import load_task

TASK = """
[dataset]
name = "table"
path = "{path}"
client = "clinic"
label = "diagnosis"
group = "scanner"
[model]
name = "mlp"
hidden = 6
[train]
rounds = 2
clients_per_round = 3
learning_rate = 0.1
[newcomers]
clients = 2
[algorithms.fedavg]
[algorithms.pacfl]
num_clusters = 2
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A CSV of eight clinics with two kinds of scanners, and a task of it."""
    frame = load_breast_cancer(as_frame=True).frame.iloc[:400].copy()
    number, names = np.arange(len(frame)) % 8, frame.columns[:15]
    frame[names] = np.where((number % 2 == 0)[:, None], frame[names], 2 * frame[names].mean() - frame[names])
    frame["diagnosis"] = np.array(["malignant", "benign"])[frame.pop("target")]
    frame = frame.assign(clinic=np.char.add("clinic ", number.astype(str)), scanner=np.array(["A", "B"])[number % 2])
    place = tmp_path_factory.mktemp("tables")
    frame.to_csv(place / "clinics.csv", index=False)
    (place / "clinics.toml").write_text(TASK.format(path=place / "clinics.csv"))
    return place / "clinics.toml"


@pytest.fixture(scope="module")
def compared(table):
    assert main(["compare", str(table), "--out", str(table.parent / "out")]) == 0
    return table.parent / "out"


@pytest.mark.slow
def test_a_comparison_on_a_table_has_the_clinics_by_name(compared):
    rows = (compared / "pacfl" / "seed-0" / "clients.csv").read_text().splitlines()[1:]
    assert len(rows) == 6 and {row.split(",")[0] for row in rows} < {f"clinic {each}" for each in range(8)}
    summary = tffcl.find_runs(compared)[1].summary
    assert summary["label_names"] == ["benign", "malignant"] and summary["clusters"]["ari"] == 1
    assert {(row.split(",")[0], row.split(",")[1]) for row in rows} < {(f"clinic {n}", "AB"[n % 2]) for n in range(8)}
    page = (compared / "report.html").read_text()
    assert re.search(r">A \(\d\)<", page) and re.search(r">B \(\d\)<", page), "the true groups of the two clusters"
    assert "label benign" in page and "features furthest from the mean of all" in page
    described = [name for each in summary["clusters"]["features"].values() for name in each]
    assert len(described) == 6 and set(described) < set(load_breast_cancer().feature_names)


@pytest.mark.slow
def test_newcomers_of_a_table_are_told_by_name(compared):
    run = compared / "pacfl" / "seed-0"
    found = newcomers.join_newcomers(run, show_progress=False)
    took_part = {row["client_id"] for row in rows_of(run / "clients.csv")}
    names = [row["client_id"] for row in found["clients"]]
    assert {*names} == {f"clinic {each}" for each in range(8)} - took_part and len(names) == found["newcomers"] == 2
    assert [row["client_id"] for row in rows_of(run / "newcomers.csv")] == names
    assert names[0] in newcomers.describe(found)
    assert [row["true_cluster"] for row in found["clients"]] == ["AB"[int(name[-1]) % 2] for name in names]


@pytest.mark.slow
def test_show_and_export_take_a_table(table, compared, capsys, monkeypatch):
    assert main(["show", str(table), "--out", str(table.parent / "shown")]) == 0
    told = capsys.readouterr().out
    assert "8 clients, 2 true groups" in told and "  group A: 4 clients" in told
    run, exported = compared / "fedavg" / "seed-0", table.parent / "exported"
    assert main(["export", str(run), "--to", str(exported)]) == 0
    assert "it takes features, not rows of the table: model.features of manifest.json" in capsys.readouterr().out
    told = json.loads((exported / "manifest.json").read_text())["model"]
    assert told["label_names"] == ["benign", "malignant"]
    frame = pandas.read_csv(table.with_suffix(".csv"))[:40]
    x = np.stack([(frame[each["column"]] - each["mean"]) / each["std"] for each in told["features"]], axis=1)
    serve = tf.saved_model.load(str(exported / "saved_model")).signatures["serving_default"]
    served = serve(images=tf.constant(x, tf.float32), cluster=tf.constant(0))["labels"]
    trained = load_run(run)
    answers = trained.predict(trained.population.names[0], trained.population.features_of(frame))
    np.testing.assert_array_equal(served, answers)
    assert 0 < answers.mean() < 1
    for slow in ("_check_computation", "_check_on_task"):  # what runs computations, of which names are no part
        monkeypatch.setattr(exports, slow, lambda *given: [])
    assert main(["export", "--check", str(exported)]) == 0
    assert "clustering/assignments.csv: client_id, cluster, model are the library's" in capsys.readouterr().out


def test_what_a_task_measures_of_its_clients_reaches_the_population_of_its_runs(table):
    """So that a run's ledger counts it."""
    asked = {"name": "table", "path": str(table.with_suffix(".csv")), "client": "clinic", "label": "diagnosis"}
    asked["features"] = ["mean radius", "mean area"]
    noised = {"bounds": {"mean radius": [5, 30], "mean area": [100, 2500]}, "noise_multiplier": 0.5}
    for options, noise in (({}, 0.0), (noised, 0.5), ({"standardize": False}, None)):
        found = load_federated({**asked, **options}, {"name": "by_owner"}, seed=0)
        assert build_population(found).measured_noise == noise
    dealt = load_federated({**asked, **noised}, {"name": "iid", "clients": 4}, seed=0)
    assert build_population(dealt).measured_noise == 0  # its noise is for a clinic, and clients have rows of several


def test_folders_in_a_task_have_the_clients_and_labels_of_the_tree(tmp_path):
    x, y = digits.load()
    for row in range(60):
        folder = tmp_path / "scans" / f"office {row % 2}" / f"digit {y[row]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[row].squeeze(-1)).save(folder / f"{row}.png")
    asked = {"name": "folders", "path": str(tmp_path / "scans"), "image_size": 16, "validation": 0.1}
    found = load_federated(asked, {"name": "by_owner"}, seed=0)
    assert found.client_names == ("office 0", "office 1") and found.class_names[3] == "digit 3"
    assert found.train.x.shape[1:] == (16, 16, 1) and found.num_classes == 10 and 0 < found.mean[0] < 1
    assert [len(each) for each in found.validation_indices] == [2, 2] and found.measured_noise == 0.0
    unit = load_federated({**asked, "normalization": "unit"}, {"name": "by_owner"}, seed=0)
    assert unit.measured_noise is None
    own = load_folders(path=str(tmp_path / "scans"), image_size=8)
    for others, noise in ((own, 0.0), (scikit_learn.load_digits(), None)):
        assert mixture([scikit_learn.load_digits(), others], labels="apart").measured_noise == noise
    held = tffcl.Population.from_folders(tmp_path / "scans", image_size=16)
    for client in range(2):
        np.testing.assert_array_equal(found.test.x[found.test_indices[client]], held.test(client).x)


def test_a_partition_may_be_left_out_for_natural_clients_only(tmp_path):
    (tmp_path / "own.toml").write_text('[dataset]\nname = "folders"\npath = "x"\n[model]\nname = "mlp"\n')
    assert load_task(tmp_path / "own.toml").contents["partition"] == {"name": "by_owner"}
    (tmp_path / "own.toml").write_text('[dataset]\nname = "digits"\n[model]\nname = "mlp"\n')
    with pytest.raises(UserError, match=r"own.toml lacks \[partition\]"):
        load_task(tmp_path / "own.toml")


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["dataset.lable=x"], "unknown option of dataset table 'lable'; did you mean 'label'"),
        (["dataset.test=2.5"], "test is 2.5"),
        (["dataset.missing=zero"], "unknown dataset.missing 'zero'"),
        (["dataset.path=nowhere.csv"], "there is no table /.*nowhere.csv"),
        (["model.name=lenet5", "model.hidden="], "lenet5 needs images of height x width x channels, not 3"),
    ],
)
def test_mistakes_of_a_table_are_told_in_one_line(table, tmp_path, overrides, message, capsys):
    given = [each for pair in overrides for each in ("--set", pair)]
    assert main(["run", str(table), "--algorithm", "fedavg", "--out", str(tmp_path / "out"), *given]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert re.search(message, said[0]), said


def test_whole_numbers_stay_for_models_that_take_them(tmp_path):
    frame = load_wine(as_frame=True).frame.astype(int).assign(who=np.arange(178) % 3)
    frame.to_csv(tmp_path / "wine.csv", index=False)
    found = load_table(path=str(tmp_path / "wine.csv"), client="who", label="target", standardize=False)
    assert found.train.x.dtype == np.int32 and found.num_classes == 3 and found.owner_names == ("0", "1", "2")
    with pytest.raises(UserError, match="is no folder; the pictures of a client"):
        load_folders(path=str(tmp_path / "none"))


def test_what_is_measured_is_of_training_clients_training_examples_alone(table):
    """Means, deviations and categories of those that take part from the first round on, without validation examples."""
    frame = pandas.read_csv(table.with_suffix(".csv"))
    frame["ward"] = np.where(frame["clinic"] == "clinic 5", "own", np.array(["a", "b"])[np.arange(len(frame)) % 2])
    frame.loc[::9, "mean area"] = np.nan
    path = table.parent / "wards.csv"
    frame.to_csv(path, index=False)
    features = ["mean radius", "mean area", "ward"]
    asked = {"name": "table", "path": str(path), "client": "clinic", "label": "diagnosis", "features": features}
    asked |= {"missing": "mean", "validation": 0.25, "group": "scanner"}
    found = load_federated(
        asked, {"name": "by_owner"}, seed=0, participants=lambda clients: np.delete(np.arange(clients), [2, 5])
    )
    assert found.table.rules.columns["ward"].categories == ("a", "b")  # its own ward only a newcomer has
    assert found.table.rules.groups == ("A", "B")
    trained = np.concatenate([found.train_indices[each] for each in (0, 1, 3, 4, 6, 7)])
    rows = found.train.x[trained]
    there = rows[:, 1] != 0  # which the mean becomes
    assert 0.8 < there.mean() < 0.95
    np.testing.assert_allclose([rows[:, 0].mean(), rows[there, 1].mean()], 0, atol=1e-5)
    np.testing.assert_allclose([rows[:, 0].std(), rows[there, 1].std()], 1, atol=1e-5)
    # The same as a stranger's table by the rules of these clients' rows.
    plain = load_federated({**asked, "validation": 0.0}, {"name": "by_owner"}, seed=0)
    assert plain.table.rules.columns["mean radius"].mean != found.table.rules.columns["mean radius"].mean
    np.testing.assert_array_equal(plain.train.y, found.train.y)
    known = tffcl.Population.from_frame(
        frame[~frame["clinic"].isin(["clinic 2", "clinic 5"])], client="clinic", label="diagnosis", features=features,
        missing="mean",
    )  # fmt: skip
    joined = load_federated(
        {**asked, "validation": 0.0}, {"name": "by_owner"}, seed=0,
        participants=lambda clients: np.delete(np.arange(clients), [2, 5]),
    )  # fmt: skip
    new = tffcl.Population.from_frame(
        frame[frame["clinic"] == "clinic 5"], client="clinic", label="diagnosis", known=known
    )
    np.testing.assert_array_equal(new.train("clinic 5").x, joined.train.x[joined.train_indices[5]])
    np.testing.assert_array_equal(known.test("clinic 0").x, joined.test.x[joined.test_indices[0]])


def test_pictures_of_ones_own_are_measured_where_they_train(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 100, (40, 4, 4, 1)).astype(np.uint8)
    x[30:] += 150
    np.savez(
        tmp_path / "own.npz", x_train=x, y_train=np.arange(40) % 2, x_test=x, y_test=np.arange(40) % 2,
        client_train=np.arange(40) // 10, client_test=np.arange(40) // 10,
    )  # fmt: skip
    asked = {"name": "npz", "path": str(tmp_path / "own.npz")}
    found = load_federated(asked, {"name": "by_owner"}, seed=0, participants=lambda clients: np.arange(clients - 1))
    np.testing.assert_allclose(found.mean, x[:30].mean() / 255, rtol=1e-6)
    whole = load_federated(asked, {"name": "by_owner"}, seed=0)
    np.testing.assert_allclose(whole.mean, x.mean() / 255, rtol=1e-6)


def test_a_file_that_is_written_anew_is_read_anew(table, tmp_path):
    """As in a notebook, whose process goes on; of the runs of a comparison it is read once."""
    (tmp_path / "clinics.toml").write_text(TASK.format(path=tmp_path / "clinics.csv"))
    config, frame = resolve(tmp_path / "clinics.toml", "fedavg"), pandas.read_csv(table.parent / "clinics.csv")
    frame.to_csv(tmp_path / "clinics.csv", index=False)
    before = load_data(config)
    assert load_data(config) is before
    frame.iloc[::2].to_csv(tmp_path / "clinics.csv", index=False)
    assert len(load_data(config).train) < len(before.train)


def test_data_of_another_directory_are_read_anew(table, monkeypatch, tmp_path):
    config = resolve(table, "fedavg")
    before = load_data(config)
    monkeypatch.setenv("TFFCL_DATA_DIR", str(tmp_path))
    assert load_data(config) is not before


def test_what_a_builder_of_ones_own_has_measured_stays():
    x, y = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2
    own = dataclasses.replace(tffcl.Dataset.from_arrays("own", (x, y), (x, y)), measured_noise=0.0)
    found = federated(own, tffcl.Partition((np.arange(10), np.arange(10, 20)), (np.arange(5),) * 2), "halves")
    np.testing.assert_array_equal(found.train.x, x)
    assert build_population(found).measured_noise == 0.0
