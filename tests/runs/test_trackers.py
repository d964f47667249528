"""Trackers: the callbacks of their page with the real MLflow and Weights & Biases, and what TensorBoard
has of a run; and that packages whose typing-extensions is newer than TFF's pin stand beside it."""

import importlib
import pathlib
import re

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tffcl
from tests.runs.finished_runs import rows_of
from tests.short_runs import TRAINING

PAGE = (pathlib.Path(tffcl.__file__).parent / "docs" / "callbacks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["pydantic", "altair", "IPython"])
def test_what_needs_newer_typing_extensions_imports_beside_tff(name):
    import tensorflow_federated  # noqa: F401

    version = importlib.import_module(name).__version__
    assert tuple(map(int, version.split(".")[:2])) >= {"pydantic": (2, 0), "altair": (6, 0), "IPython": (8, 23)}[name]


@pytest.fixture(scope="module")
def trackers(tmp_path_factory):
    """Where MLflow and Weights & Biases have their files."""
    place = tmp_path_factory.mktemp("trackers")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "MLFLOW_TRACKING_URI": (place / "mlflow").as_uri(),
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(place),
            "WANDB_SILENT": "true",
        }.items():
            patch.setenv(name, value)
        yield place


def logged_by_wandb(place):
    """What the offline files have: by the run's ID, rows by step."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found = {}
    for file in sorted(place.glob("wandb/offline-run-*/*.wandb")):
        store, rows = DataStore(), found.setdefault(file.stem.removeprefix("run-"), {})
        store.open_for_scan(str(file))
        while data := store.scan_data():
            record = Record.FromString(data)
            if record.HasField("history"):
                items = {"/".join(each.nested_key) or each.key: each.value_json for each in record.history.item}
                rows[record.history.step.num] = {name: float(text) for name, text in items.items() if name[0] != "_"}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["MLflow", "WandB"])
def test_a_resumed_run_is_one_run_of_a_tracker_with_the_rows_of_rounds_csv(
    trackers, model, population, tmp_path, tracker
):
    names = {}
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"class {tracker}" in each]
    exec(code, names)  # as it stands there, with its imports
    module = names[tracker.lower()]
    method = tffcl.algorithms.build_fedavg(model, TRAINING)
    how = {"rounds": 3, "clients_per_round": 2, "evaluate_every": 2, "show_progress": False, "out": tmp_path / "run"}
    how["callbacks"] = [names[tracker]()]
    assert tffcl.train(method, population, **how, until=2) is None
    result = tffcl.train(method, population, **how, resume=True)
    rows = {
        int(row.pop("round")): {name: float(cell) for name, cell in row.items() if cell}
        for row in rows_of(result.out / "rounds.csv")
    }
    assert len(rows) == 3 and "cluster_accuracy" in rows[2]
    if tracker == "WandB":
        (logged,) = logged_by_wandb(trackers).values()
        assert logged.keys() == rows.keys() and all(logged[at] == pytest.approx(rows[at], rel=1e-8) for at in rows)
        return
    client = module.MlflowClient()
    (tracked,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert tracked.info.status == "FINISHED"
    for name in set().union(*rows.values()):
        history = client.get_metric_history(tracked.info.run_id, name)
        expected = {at: row[name] for at, row in rows.items() if name in row}  # the file has nine digits
        assert {each.step: each.value for each in history} == pytest.approx(expected, rel=1e-8)
    settings = module.artifacts.load_dict(f"{tracked.info.artifact_uri}/config.json")
    assert settings["train"]["rounds"] == 3 and settings["algorithm"] == "fedavg"


def test_tensorboard_has_curves_of_clusters_and_the_pictures_of_the_page(model, population, tmp_path):
    parameters = tffcl.algorithms.PACFLParameters(num_clusters=2)
    method = tffcl.algorithms.build_pacfl(model, TRAINING, parameters)
    result = tffcl.train(
        method, population, rounds=3, clients_per_round=2, evaluate_every=2, show_progress=False, out=tmp_path / "run"
    )
    tffcl.write_report(result.out)
    board = EventAccumulator(str(result.out / "tensorboard")).Reload()
    clients, last = result.clients, {}
    for tag in board.Tags()["tensors"]:
        events = board.Tensors(tag)
        last[tag] = tf.make_ndarray(events[-1].tensor_proto)
        assert "_of_cluster/" not in tag or [each.step for each in events] == [2, 3]
    for cluster, own in clients.groupby("cluster"):
        assert last[f"clients_of_cluster/{cluster}"] == len(own)
        assert last[f"accuracy_of_cluster/{cluster}"] == pytest.approx(own["cluster_accuracy"].mean(), abs=1e-6)
    pictures = EventAccumulator(str(result.out / "figures"), {"images": 0}).Reload()
    shown = {tag: pictures.Images(tag)[0].encoded_image_string for tag in pictures.Tags()["images"]}
    files = {path.stem: path.read_bytes() for path in (result.out / "figures").glob("*.png")}
    assert {tag.rpartition("/")[2]: data for tag, data in shown.items()} == files and "proximity" in files
