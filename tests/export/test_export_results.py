"""What `tffcl.train` gave, exported: also a method, a model and data of one's own, of which no file tells."""

import dataclasses
import errno
import json
import os
import pathlib
import signal

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tffcl
from tests.lab.tasks.own.my_methods import Histograms
from tests.short_runs import TRAINING
from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.ifca import build_ifca
from tffcl.errors import UserError
from tffcl.export import deployment_forms, writer
from tffcl.export.writer import check_free, first_value, save_models
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import exports, resolve
from tffcl.lab.tasks.exports import check_export
from tffcl.runs.run import Interrupted


def trained(method, population, out):
    return tffcl.train(method, population, rounds=2, clients_per_round=2, seed=3, out=out, show_progress=False)


@pytest.mark.slow
def test_a_method_of_ones_own(tff_worker, model, population, tmp_path, without_forms):
    """Clients are called in the table as their owner calls them; of a run in its place nothing is exported."""
    population = dataclasses.replace(population, names=np.array(["ann", "bob", "cy", "dee", "=eve"]))
    method = Histograms(build_clustered_training(model, TRAINING), 2, seed=0)
    result = trained(method, population, tmp_path / "run")
    summary = tmp_path / "run" / "summary.json"
    told = json.loads(summary.read_text())
    summary.write_text(
        json.dumps({**told, "seconds": {**told["seconds"], "total": 999.0}})
    )  # as a run that is read again
    manifest = tffcl.export_result(result, tmp_path / "to")
    assert manifest["algorithm"] == "histograms" and manifest["rounds"] == 2 and manifest["seed"] == 3
    np.testing.assert_array_equal(np.load(tmp_path / "to" / "state" / "models.npy"), result.trained.state.models)
    rows = (tmp_path / "to" / "clustering" / "assignments.csv").read_text().split()
    assert [row.split(",")[0] for row in rows] == ["client_id", "ann", "bob", "cy", "dee", "'=eve"]
    *checked, told, last = check_export(tmp_path / "to")
    assert len(checked) >= 2 and told.startswith(
        "it is of tffcl.train, whose method and data no file holds: not compared"
    )
    left = ["clustering/assignments.csv", "clustering/state.npz", "config.toml", "state/models.npy", "state/trained.pb"]
    assert last == f"taken as they are: {', '.join(left)}"
    with pytest.raises(UserError, match="holds something already"):
        tffcl.export_result(result, tmp_path / "to")
    with pytest.raises(UserError, match=r"is of tffcl.train, .*resume=True.*export_result"):
        tffcl.load_run(tmp_path / "run")
    tffcl.train(
        method, population, rounds=1, clients_per_round=2, out=tmp_path / "run", overwrite=True, show_progress=False
    )
    with pytest.raises(UserError, match="run holds another run since this result was made"):
        tffcl.export_result(result, tmp_path / "again")


@pytest.mark.slow
def test_tffs_own_differential_privacy_is_resumed_exported_and_checked(tff_worker, model, population, tmp_path):
    """Its state says in texts what noise there is. Without noise, and with a clip that nothing meets, what it gives is
    the sum over the number of clients that was expected."""
    gaussian = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed

    def run(place, aggregation, **more):
        method = build_fedavg(model, TRAINING, aggregation=aggregation)
        return tffcl.train(method, population, rounds=4, clients_per_round=2, out=place, show_progress=False, **more)

    whole = run(tmp_path / "whole", gaussian(0.0, 2.0, 1000.0))
    run(tmp_path / "cut", gaussian(0.0, 2.0, 1000.0), until=2)
    cut = run(tmp_path / "cut", gaussian(0.0, 2.0, 1000.0), resume=True)
    plain = run(tmp_path / "plain", tffcl.aggregation("uniform_mean"))
    np.testing.assert_array_equal(cut.trained.state.models, whole.trained.state.models)
    np.testing.assert_allclose(whole.trained.state.models, plain.trained.state.models, atol=1e-5)
    noisy = run(tmp_path / "noisy", tff.learning.dp_aggregator(0.5, 100.0))
    tffcl.export_result(noisy, tmp_path / "to")
    assert any("noise drawn anew" in line for line in check_export(tmp_path / "to"))


def test_a_simulation_is_exported_as_it_would_be_deployed(tff_worker, tmp_path, capsys):
    """Of tffcl.run: no seed of its noise, of updates and of signatures, and no attack; and what it costs is said."""
    overrides = {
        "train": {"rounds": 1, "local_epochs": 1, "clients_per_round": 4},
        "partition": {"clients": 4},
        "model": {"hidden": 4},
        "algorithms": {
            "composed": {"num_clusters": 2, "signature": {"name": "label_histogram", "noise_multiplier": 0.5}}
        },
        "aggregation": {"name": "dp", "noise_multiplier": 0.5},
        "attack": {"share": 0.25},
    }
    result = tffcl.run(
        resolve.resolve("demo_digits", "composed", overrides=overrides), tmp_path / "run", show_progress=False
    )
    assert type(result.trained.method.engine.round_for(2).uploads["update"]).__name__ == "AttackedFactory"
    manifest = tffcl.export_result(result, tmp_path / "to")
    for name, about in manifest["computations"].items():
        written = (tmp_path / "to" / about["file"]).read_bytes()
        assert "own_noise" not in about["type"] and (b"StatelessRandomNormal" not in written or name == "signature")
        assert ("noise" in about.get("check", {})) == (name in ("training", "signature"))
    told = {(each["what"], each["when"]): each["noise_multiplier"] for each in manifest["privacy"]["releases"]}
    assert told == {("a round", "every round"): 0.5, ("the signatures", "once for each client"): 0.5}
    assert manifest["privacy"]["spent_by_this_run"]["epsilon"] == result.summary["privacy"]["epsilon"] > 0
    assert main(["export", "--check", str(tmp_path / "to")]) == 0
    said = capsys.readouterr().out
    assert said.count("noise drawn anew") >= 4 and f"{tmp_path}/to/state/trained.pb: as the library" in said
    assert said.strip().splitlines()[-1] == "taken as they are: clustering/state.npz, config.toml"


def test_what_private_rounds_hide_is_in_no_file_of_an_export(tff_worker, model, population, tmp_path, without_forms):
    """IFCA's clients choose themselves, and a simulation asks them; built by hand, with a seed for the noise."""
    method = build_ifca(model, TRAINING, aggregation=tffcl.aggregation("dp", noise_multiplier=0.5, seed=1))
    result = trained(method, population, tmp_path / "run")
    state = dataclasses.replace(result.trained.state, assignment=np.arange(len(population), dtype=np.int32) % 2)
    result = dataclasses.replace(result, trained=dataclasses.replace(result.trained, state=state))
    manifest = tffcl.export_result(result, tmp_path / "to")
    assert "clustering/assignments.csv" not in manifest["files"]
    assert "not written" in manifest["privacy"]["clustering/assignments.csv"]
    with np.load(tmp_path / "to" / "clustering" / "state.npz") as saved:
        assert not saved["state.assignment"].any()
    written = (tmp_path / "to" / manifest["computations"]["training"]["file"]).read_bytes()
    assert b"StatelessRandomNormal" not in written


@pytest.mark.parametrize("multiplier", [0.0, 0.5])
def test_noise_is_told_where_some_comes_of_what_is_drawn(tff_worker, tmp_path, multiplier):
    """A noise multiplier of 0 leaves the operations in the graph, and numbers that a check can compare."""
    models = tff.to_type([("models", tff.TensorType(np.float32, [2]))])
    clients = tff.to_type([("update", tff.TensorType(np.float32, [2]))])

    @tff.tensorflow.computation(models, clients)
    def moved(state, total):
        return {"models": state["models"] + total["update"] + multiplier * tf.random.normal([2])}

    @tff.federated_computation(tff.FederatedType(models, tff.SERVER), tff.FederatedType(clients, tff.CLIENTS))
    def training(state, given):
        return tff.federated_map(moved, (state, tff.federated_sum(given))), tff.federated_value((), tff.SERVER)

    ones = {name: np.ones(2, np.float32) for name in ("models", "update")}
    given = {"models": ones["models"]}, [{"update": ones["update"]}]
    described = writer._write_computation(tmp_path, "training", training, given, False)
    assert deployment_forms.draws_noise(training) and ("noise" in described["check"]) == bool(multiplier)


def test_an_input_that_is_called_as_the_row_of_the_models_is_refused(tmp_path):
    keras = tf.keras.layers
    inputs = {name: keras.Input([2], name=name) for name in ("age", "cluster")}
    network = tf.keras.Model(inputs, keras.Dense(3)(keras.Concatenate()(list(inputs.values()))))
    spec = {"x": {name: tf.TensorSpec([None, 2]) for name in inputs}, "y": tf.TensorSpec([None], tf.int32)}
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    flat = tffcl.FlatModel.from_keras(network, loss, spec)
    with pytest.raises(UserError, match="an input of the model is called 'cluster', as what .* takes .*; rename it"):
        save_models(tmp_path / "to", flat, flat.initial[None])


def test_where_an_export_cannot_be_written_is_said_before_it_is_made(tmp_path, monkeypatch):
    new, full, empty, link = (tmp_path / name for name in ("new", "full", "empty", "link"))
    (full / "inside").mkdir(parents=True), empty.mkdir(), link.symlink_to(empty), os.mkfifo(tmp_path / "pipe")
    for free in (new, empty):
        check_free(free)
    for holds in (full, tmp_path / "pipe"):
        with pytest.raises(UserError, match="holds something already; give to a new directory"):
            check_free(holds)
    with pytest.raises(UserError, match="link is a link, and nothing is written through one"):
        check_free(link)
    monkeypatch.chdir(empty)
    for here in (pathlib.Path("."), empty):
        with pytest.raises(UserError, match="is the directory that you are in, .* give to a new directory"):
            check_free(here)
    (tmp_path / "new.partial").touch()
    with pytest.raises(UserError, match="new.partial exists, where .* written first; remove what a killed export"):
        check_free(new)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file/to cannot be written: Not a directory"):
        writer.write_export(None, {}, tmp_path / "file" / "to", None)


@pytest.mark.parametrize("asking", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_export_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch, asking):
    def interrupted(partial, *given):
        (partial / "half").touch()
        os.kill(os.getpid(), asking)

    handler = signal.default_int_handler if asking == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(asking, handler)
    monkeypatch.setattr(writer, "_write", interrupted)
    try:
        with pytest.raises(Interrupted, match="stopped; .*to was not written"):
            writer.write_export(None, {}, tmp_path / "to", None)
    finally:
        signal.signal(asking, before)
    assert not list(tmp_path.iterdir())


def full(*given, **more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_for_tensorflow(*given, **more):
    raise tf.errors.ResourceExhaustedError(
        None, None, "{{node}} to/part.tempstate1; No space left on device [Op:SaveV2]"
    )


@pytest.mark.parametrize("place, failing", [(np, full), (tf.saved_model, full_for_tensorflow)])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, model, place, failing):
    """TensorFlow's errors are not Python's."""
    monkeypatch.setattr(place, "save", failing)

    def written(partial, *given):
        save_models(partial / "saved_model", model, model.initial[np.newaxis])
        np.save(partial / "models.npy", model.initial)

    monkeypatch.setattr(writer, "_write", written)
    with pytest.raises(UserError, match=r"to\S* cannot be written: No space left on device"):
        writer.write_export(None, {}, tmp_path / "to", None)
    assert not list(tmp_path.iterdir())


def test_a_check_without_the_data_says_why_there_are_none(tmp_path, monkeypatch):
    def damaged(*_):
        raise UserError("mine.npz is damaged")

    monkeypatch.setattr(exports.build, "load_data", damaged)
    config = resolve.resolve("demo_digits", "fedavg")
    assert exports._check_with_library(tmp_path, {}, config, None, {}) == [
        "not compared with the library on real clients: no data of task demo_digits (mine.npz is damaged)"
    ]


def test_the_first_value_has_as_many_models_as_the_last():
    one, two = np.ones([1, 3]), np.zeros([2, 3])
    start = {"models": one, "controls": one, "scale": np.ones(1), "aggregators": one}
    found = first_value(start, {"models": two})
    assert [np.shape(each) for each in found.values()] == [(2, 3), (2, 3), (1,), (1, 3)]
    assert first_value({"models": two}, {"models": np.ones([2, 3])})["models"] is two


@pytest.mark.slow
def test_a_first_state_that_is_another_each_time_is_not_compared(
    tff_worker, model, population, tmp_path, without_forms
):
    """That of TFF's tree aggregation, whose seed is the time; the server's optimizer has named tuples in its state."""
    tree = tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation
    aggregation = tree(0.1, 2.0, 1.0, record_specs=tf.TensorSpec([model.size]))
    adafactor = tff.learning.optimizers.build_adafactor(0.01)
    method = build_fedavg(model, TRAINING, aggregation=aggregation, optimizer=adafactor)
    tffcl.export_result(trained(method, population, tmp_path / "run"), tmp_path / "to")
    checked = list(check_export(tmp_path / "to"))
    assert any("not compared, since initialize gives other numbers each time" in line for line in checked)
