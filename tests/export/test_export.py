"""A run as files, and the files run again, by tffcl and by plain TFF."""

import json
import os
import runpy
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tffcl.export import deployment_forms, manifest
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import exports, resolve

SHORT = {
    "train": {"rounds": 2, "clients_per_round": 8, "local_epochs": 1},
    "model": {"hidden": 16},
    "dataset": {"server_examples": 60},
}


def exported(directory, algorithm, **method):
    """A short run of digits and its export: `(OUT, DIR, manifest)`."""
    from tffcl.lab.tasks.exports import export_run

    out, to = directory / "out", directory / "to"
    overrides = {**SHORT, "algorithms": {algorithm: method}}
    tffcl.run(resolve.resolve("demo_digits", algorithm, overrides=overrides), out, show_progress=False)
    return out, to, export_run(out, to)


@pytest.fixture(scope="module")
def pacfl(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("pacfl"), "pacfl")


@pytest.fixture
def copied(pacfl, tmp_path):
    shutil.copytree(pacfl[1], tmp_path / "copy")
    return tmp_path / "copy"


def check_here(to, capsys):
    assert main(["export", "--check", str(to)]) == 0
    return capsys.readouterr().out


def test_what_was_exported_is_checked(pacfl, capsys):
    _, to, contents = pacfl
    lines = check_here(to, capsys).splitlines()
    for name in ("signature", "training", "training_summed"):
        place = to / "computations" / name
        assert any(line.startswith(f"{place}/computation.pb: as the library when it was exported") for line in lines)
        assert any(line.startswith(f"{place}/map_reduce: as the whole computation") for line in lines)
    assert any(
        f"{to}/computations/training/computation.pb: as the library on clients of the task" in line for line in lines
    )
    assert any(line.startswith(f"{to}/saved_model: as the library") for line in lines)
    assert [phase["phase"] for phase in contents["phases"]] == ["signature", "clustering", "training"]


def test_the_sum_takes_the_place_of_the_form_that_tff_cannot_make(pacfl):
    _, _, contents = pacfl
    made = contents["computations"]["training"]["forms"]
    assert "federated_aggregate" in made["distribute_aggregate"]["impossible"]
    assert made["distribute_aggregate"]["instead"] == "training_summed"
    assert "directory" in made["map_reduce"]
    assert "directory" in contents["computations"]["training_summed"]["forms"]["distribute_aggregate"]


def test_the_sum_gives_the_models_of_the_keyed_mean(tff_worker, pacfl):
    _, to, contents = pacfl
    results = []
    for name in ("training", "training_summed"):
        computation = deployment_forms.read_computation(to / "computations" / name / "computation.pb")
        given = deployment_forms.read_value(to / "check" / f"{name}.input.pb", computation.type_signature.parameter)
        results.append(np.asarray(computation(given[0], list(given[1]))[0]["models"]))
    start = np.asarray(given[0]["models"])
    assert np.abs(results[0] - start).max() > 1e-3
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=2e-6)


def test_a_summed_round_silences_a_client_whose_model_is_not_finite(tff_worker):
    import collections

    import tensorflow_federated as tff

    from tffcl.aggregators.clustered_mean import ClusteredMeanFactory
    from tffcl.client_work.client_work import ClientResult, ClientWork, keyed
    from tffcl.rounds.composer import compose
    from tffcl.rounds.server import keyed_server
    from tffcl.rounds.sum_only_form import build_summed_round

    def moves(received, client):
        value = client["moved"] + 0 * received["model"]
        finite = tf.reduce_all(tf.math.is_finite(value))
        report = collections.OrderedDict(examples=client["examples_told"], loss=client["moved"][0], finite=finite)
        return ClientResult({"update": keyed(client["key"], value)}, report)

    fields = {"key": np.int32, "moved": tff.TensorType(np.float32, [2]), "examples_told": np.int32}
    spec = collections.OrderedDict(x=tf.TensorSpec([], tf.float32))
    composed = compose(ClientWork(spec, moves, fields), {"update": ClusteredMeanFactory()}, keyed_server(2))
    nothing = tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=np.zeros(0, np.float32)))

    def client(number, key, moved, weight):
        own = {"key": np.int32(key), "moved": np.array(moved, np.float32), "examples_told": np.int32(weight)}
        known = {"examples": nothing, "client_id": np.int32(number), "seed": np.zeros(2, np.int32)}
        return collections.OrderedDict({**known, **own})

    clients = [client(0, 0, [1, 2], 1), client(1, 0, [4, 5], 2), client(2, 2, [np.inf, np.nan], 5)]
    state, told = build_summed_round(composed, 3)({"models": np.ones([3, 2], np.float32)}, clients)
    np.testing.assert_allclose(state["models"], [[4, 5], [1, 1], [1, 1]])
    assert told["clients"].tolist() == [2, 0, 1] and told["weight"].tolist() == [3, 0, 0]
    assert told["loss"] == pytest.approx(3)


def answers_here(saved, images, models):
    serve = tf.saved_model.load(str(saved)).signatures["serving_default"]
    return [serve(images=tf.constant(images), cluster=tf.constant(row))["labels"].numpy() for row in range(models)]


def answers_in_a_process_without_tffcl(saved, images, models):
    script = (
        "import sys, numpy as np, tensorflow as tf\n"
        "serve = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
        "images = tf.constant(np.load(sys.argv[2]))\n"
        "rows = [serve(images=images, cluster=tf.constant(row))['labels'].numpy() for row in range(int(sys.argv[3]))]\n"
        "assert not [name for name in sys.modules if 'tffcl' in name or 'federated' in name]\n"
        "np.save(sys.argv[4], rows)\n"
    )
    out = saved.parent.parent / "out"
    np.save(out / "images.npy", images)
    given = [str(each) for each in (saved, out / "images.npy", models, out / "answers.npy")]
    subprocess.run([sys.executable, "-c", script, *given], check=True)
    return np.load(out / "answers.npy")


@pytest.mark.parametrize(
    "answers",
    [answers_here, pytest.param(answers_in_a_process_without_tffcl, marks=pytest.mark.slow)],
    ids=["here", "own process"],
)
def test_the_saved_model_answers_in_plain_tensorflow(pacfl, answers):
    out, to, contents = pacfl
    run = tffcl.load_run(out)
    images, models = run.federated.test.x[:40], contents["model"]["models"]
    assert models == 4
    found = np.asarray(answers(to / "saved_model", images, models))
    for client in run.state.client_ids[:6]:
        np.testing.assert_array_equal(found[run.cluster_of(int(client))], run.predict(int(client), images))
    assert len(np.unique(found, axis=0)) > 1


def test_clients_graphs_need_nothing_that_devices_lack(pacfl):
    described = pacfl[2]["computations"]
    for name in ("signature", "training", "training_summed"):
        assert not described[name]["device_operations"]["not_in_tflite_select_ops"], name


def test_the_script_is_short_and_of_plain_tff(tff_worker, pacfl, capsys):
    script = pacfl[1] / "run_one_round.py"
    source = script.read_text()
    assert "tffcl" not in source and len(source.splitlines()) < 48
    runpy.run_path(str(script))["main"]()
    assert "4 clients moved 4 models by 0." in capsys.readouterr().out


@pytest.mark.slow
def test_the_script_runs_a_round_with_plain_tff(pacfl, tmp_path):
    """Also where the machine has a proxy for HTTP."""
    _, to, contents = pacfl
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["http_proxy"] = "http://127.0.0.1:9"
    said = tmp_path / "said"  # a file: TFF's worker would keep a pipe open if it stayed
    with open(said, "w") as file:
        command = [sys.executable, str(to / "run_one_round.py")]
        done = subprocess.run(command, stdout=file, stderr=file, env=environment, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, said.read_text()
    assert "4 clients moved 4 models by 0." in said.read_text()


def test_assignments_signatures_and_what_the_manifest_tells_are_the_runs(pacfl):
    out, to, contents = pacfl
    run = tffcl.load_run(out)
    rows = (to / "clustering" / "assignments.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[1]) for row in rows] == run.state.assignment.tolist()
    with np.load(to / "clustering" / "state.npz") as saved:
        for key in ("proximity", "merges", "threshold"):
            np.testing.assert_array_equal(saved[f"state.{key}"], getattr(run.state, key))
        for key in ("basis", "mask"):
            np.testing.assert_array_equal(saved[f"state.signatures.{key}"], run.state.signatures[key])
    np.testing.assert_array_equal(np.load(to / "state" / "models.npy"), run.state.models)
    assert [contents[key] for key in ("task", "algorithm", "seed", "rounds")] == ["demo_digits", "pacfl", 0, 2]
    about, vector = contents["model"], run.state.models[0]
    assert [about[key] for key in ("parameters", "models", "classes")] == [len(vector), len(run.state.models), 10]
    for part, place in zip(run.method.model.unravel(vector), about["tensors"], strict=True):
        np.testing.assert_array_equal(vector[place["start"] :][: np.size(part)].reshape(place["shape"]), part)
    fields, kind = contents["fields"], contents["computations"]["training"]["type"]
    assert {"models"} <= fields["server"].keys() and {"examples", "key", "seed"} <= fields["clients"].keys()
    assert all(f"{name}=" in kind for name in {**fields["server"], **fields["clients"]})


def refused(capsys, directory):
    assert main(["export", "--check", str(directory)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("tffcl: ")
    return line


def test_a_damaged_file_is_refused_by_name(capsys, copied):
    file = copied / "computations" / "training" / "map_reduce" / "work.pb"
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)
    assert refused(capsys, copied) == f"tffcl: {file} is damaged: its SHA-256 is not the manifest's"


def test_a_missing_and_a_foreign_file_are_refused_by_name(capsys, copied):
    foreign = copied / "computations" / "other.pb"
    foreign.write_bytes(b"x")
    assert refused(capsys, copied) == f"tffcl: {foreign} is foreign: the manifest does not list it"
    foreign.unlink()
    (copied / "state" / "trained.pb").unlink()
    assert refused(capsys, copied) == f"tffcl: {copied / 'state' / 'trained.pb'} is missing"


def test_another_manifest_is_refused(capsys, copied, tmp_path):
    path = copied / "manifest.json"
    contents = json.loads(path.read_text())
    path.write_text(json.dumps({**contents, "format": "tffcl export 0"}))
    assert "is of the format 'tffcl export 0'; this tffcl reads 'tffcl export 1'" in refused(capsys, copied)
    path.write_text(json.dumps({**contents, "seed": 7}))
    assert f"{path} is damaged" in refused(capsys, copied)
    path.write_text("{")
    assert f"{path} is damaged" in refused(capsys, copied)
    path.unlink()
    assert refused(capsys, copied) == f"tffcl: {copied} holds no export: there is no manifest.json in it"


@pytest.mark.parametrize("what", ["other numbers", "no computation", "another type"])
def test_a_file_with_right_checksums_and_wrong_contents_is_refused(capsys, tff_worker, copied, what):
    contents = manifest.read_manifest(copied)
    place = copied / "computations" / "training"
    if what == "other numbers":
        output = copied / "check" / "training.output.pb"
        kind = deployment_forms.read_computation(place / "computation.pb").type_signature
        state, clients = deployment_forms.read_value(copied / "check" / "training.input.pb", kind.parameter)
        _, reports = deployment_forms.read_value(output, kind.result)
        deployment_forms.write_value(output, (state, reports), kind.result)
        expected = "gives other numbers than the library when it was exported"
    elif what == "no computation":
        (place / "computation.pb").write_bytes(b"something else")
        expected = f"{place / 'computation.pb'} holds no computation of this TFF"
    else:
        shutil.copy(copied / "computations" / "signature" / "computation.pb", place / "computation.pb")
        expected = f"{place / 'computation.pb'} is a computation of type"
    manifest.write_manifest(copied, {key: value for key, value in contents.items() if key not in ("files", "sha256")})
    assert expected in refused(capsys, copied)


def replaced_script(copied, contents):
    (copied / "run_one_round.py").write_text("print('other')\n")
    return "run_one_round.py is not the script that this tffcl writes"


def other_values(copied, contents):
    shutil.copy(copied / "state" / "initial.pb", copied / "state" / "trained.pb")
    return "state/trained.pb gives other numbers than the library by clustering/state.npz"


def other_start(copied, contents):
    shutil.copy(copied / "state" / "trained.pb", copied / "state" / "initial.pb")
    return "state/initial.pb gives other numbers than what initialize gives"


def other_assignments(copied, contents):
    file = copied / "clustering" / "assignments.csv"
    first, *rows = file.read_text().splitlines()
    file.write_text("\n".join([first, *rows[1:], rows[0]]) + "\n")
    return "clustering/assignments.csv, line 2, tells something else than the library's"


def other_models(copied, contents):
    models = np.load(copied / "state" / "models.npy")
    np.save(copied / "state" / "models.npy", models + 1)
    return "saved_model gives other numbers than the parameters in state/models.npy"


def models_of_objects(copied, contents):
    np.save(copied / "state" / "models.npy", np.array([{}], object), allow_pickle=True)
    return "state/models.npy is damaged, or holds other things than numbers"


def state_of_objects(copied, contents):
    np.savez(copied / "clustering" / "state.npz", structure=np.array([{}], object))
    return "clustering/state.npz is damaged, or holds other things than numbers"


def no_computations(copied, contents):
    del contents["computations"]
    return "manifest.json is damaged: it names no computations"


def no_versions(copied, contents):
    contents["versions"] = "0.1.0"
    return "manifest.json is damaged: versions must be a table"


def no_check(copied, contents):
    del contents["computations"]["training"]["check"]
    return "manifest.json is damaged: the computation training takes values, and there is no check of it"


def no_training(copied, contents):
    del contents["computations"]["training"]
    return "it has values of the computation training, and not the computation"


@pytest.mark.parametrize(
    "forge",
    [
        replaced_script,
        other_values,
        other_start,
        other_assignments,
        other_models,
        models_of_objects,
        state_of_objects,
        no_computations,
        no_versions,
        no_check,
        no_training,
    ],
)
def test_whatever_is_exchanged_is_found_though_all_checksums_are_right(capsys, tff_worker, copied, monkeypatch, forge):
    if forge is not no_check:  # that computations run is tested above, and takes seconds
        monkeypatch.setattr(exports, "_check_computation", lambda *given: [])
    contents = {key: value for key, value in manifest.read_manifest(copied).items() if key not in ("files", "sha256")}
    expected = forge(copied, contents)
    manifest.write_manifest(copied, contents)
    assert expected in refused(capsys, copied)


def test_no_clients_examples_are_written(pacfl):
    """The check's clients are random: none of their images is of the data."""
    out, to, _ = pacfl
    computation = deployment_forms.read_computation(to / "computations" / "training" / "computation.pb")
    _, clients = deployment_forms.read_value(to / "check" / "training.input.pb", computation.type_signature.parameter)
    written = np.stack([each["x"] for client in clients for each in client["examples"].as_numpy_iterator()])
    data = tffcl.load_run(out).federated.train.x
    assert not (written.reshape(len(written), 1, -1) == data.reshape(1, len(data), -1)).all(-1).any()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["export"], "tffcl export needs OUT and --to DIR, or --check DIR"),
        (["export", "nowhere", "--to", "somewhere"], "nowhere is not a directory"),
        (["export", "OUT", "--to", "TO"], "holds something already"),
        (["export", "OUT", "--check", "TO"], "give --check DIR alone"),
        (["export", "--check", "nowhere"], "nowhere holds no export"),
    ],
)
def test_one_line_for_a_mistake(capsys, pacfl, arguments, message):
    given = [{"OUT": str(pacfl[0]), "TO": str(pacfl[1])}.get(each, each) for each in arguments]
    assert main(given) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("tffcl: ") and message in line


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm, how",
    [
        ("pacfl", {"when": "as_they_join"}),  # a client whom the rehearsal is the first to meet may found a cluster
        ("composed", {"signature": "partial_weights", "num_clusters": 2, "when": 1, "regroup_every": 1}),
        ("stocfl", {"global_order": "sequential"}),
    ],
)
def test_methods_that_meet_clients_or_change_in_the_middle_are_exported(tff_worker, tmp_path, capsys, algorithm, how):
    _, to, _ = exported(tmp_path, algorithm, **how)
    assert "training/computation.pb: as the library" in check_here(to, capsys)
