"""Data, partition, model and aggregation of a user's own in a task file, and what is said when one of them is wrong."""

import importlib.metadata
import pathlib
import shutil
import sys

import numpy as np
import pytest

import tffcl
from tffcl import registry
from tffcl.errors import UserError
from tffcl.lab.batches import newcomers
from tffcl.lab.batches.run import run
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import build, resolve
from tffcl.lab.tasks.exports import check_export, export_run

OWN = pathlib.Path(__file__).parent / "own"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    place = tmp_path_factory.mktemp("parts")
    for name in ("parts.toml", "my_parts.py"):
        shutil.copy(OWN / name, place)
    return place / "parts.toml"


@pytest.fixture(scope="module")
def compared(task):
    assert main(["compare", str(task), "--algorithms", "pacfl", "--out", str(task.parent / "out")]) == 0
    return task.parent / "out"


def test_a_run_has_the_users_data_and_model(compared):
    trained = tffcl.load_run(compared / "pacfl" / "seed-0", trust_builders=True)
    assert repr(trained.method.model).endswith("float32[30] to 2 classes)")
    assert trained.state.models.shape == (2, 30 * 6 + 6 + 6 * 2 + 2)
    assert (compared / "report.html").read_text().count("my_parts:build_net")


@pytest.mark.slow
def test_two_tasks_with_modules_of_one_name_have_their_own(task, tmp_path):
    """As the columns of a study, in two directories."""
    for name in ("parts.toml", "my_parts.py"):
        shutil.copy(OWN / name, tmp_path)
    own = (tmp_path / "my_parts.py").read_text()
    own = own.replace(" / x.std(axis=0)", " / x.std(axis=0) * 0").replace("Dense(hidden,", "Dense(hidden - 2,")
    (tmp_path / "my_parts.py").write_text(own)
    both = [resolve.resolve(each, "fedavg") for each in (task, tmp_path / "parts.toml")]
    data = [build.load_data(each) for each in (*both, both[0])]
    assert [np.abs(each.train.x).max() > 0 for each in data] == [True, False, True]
    sizes = [build.build_model(config, held).size for config, held in zip(both, data)]
    assert sizes == [30 * hidden + hidden + hidden * 2 + 2 for hidden in (6, 4)]


def test_newcomers_find_the_users_files_again(compared, capsys):
    found = newcomers.join_newcomers(compared / "pacfl" / "seed-0", show_progress=False, trust_builders=True)
    assert found["newcomers"] == 2 and "edited" not in capsys.readouterr().err


def test_who_loads_a_run_is_told_that_its_code_was_edited(compared, task, monkeypatch, capsys):
    """As newcomers and exports do, in a process of their own."""
    file, run_of_then = task.parent / "my_parts.py", compared / "pacfl" / "seed-0"
    text = file.read_text()
    monkeypatch.delitem(sys.modules, "my_parts")
    file.write_text(f"{text}\nMORE = 1\n")
    tffcl.load_run(run_of_then, trust_builders=True)
    file.write_text(text)
    told = f"my_parts.py was edited since the run in {run_of_then} began; it goes on with the code of now"
    assert told in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("exported", [False, True])
def test_an_aggregation_of_ones_own_runs_inside_each_cluster(compared, task, tmp_path, exported):
    """And is exported, with the user's files. The number of clusters of PACFL by threshold is known when it has
    clustered.
    """
    asked = resolve.resolve(task, "pacfl", overrides={"aggregation": {"builder": "my_parts:build_inner"}})
    run(asked, tmp_path / "out", show_progress=False)
    runs = (tmp_path / "out", compared / "pacfl" / "seed-0")
    inside, plain = (tffcl.load_run(out, trust_builders=True).state for out in runs)
    np.testing.assert_allclose(inside.models, plain.models, atol=1e-6)
    if not exported:
        return
    export_run(tmp_path / "out", tmp_path / "to", trust_builders=True)
    lines = check_export(tmp_path / "to", trust_builders=True)
    assert any("computations/training/map_reduce: as the whole" in line for line in lines)
    assert any("as the library on clients of the task" in line for line in lines)


def test_its_own_mean_is_what_a_method_takes_by_default(task):
    assert build.build_aggregation(resolve.resolve(task, "fedavg", overrides={"aggregation": {"name": "mean"}})) is None


@pytest.mark.parametrize(
    "label, overrides, message",
    [
        (
            "solo",
            {"aggregation": {"builder": "my_parts:build_inner"}},
            "solo takes no .aggregation. .*: its clients upload nothing",
        ),
        (
            "flis_dc",
            {"aggregation": {"builder": "my_parts:build_inner"}, "dataset": {"server_examples": 8}},
            "takes no .aggreg",
        ),
        ("fedavg", {"aggregation": {"builder": "my_parts:build_net"}}, "needs|build_net"),
        (
            "fedavg",
            {"aggregation": {"builder": "my_parts:build_nothing"}},
            "aggregation my_parts:build_nothing gave None; it must give an aggregation factory, or",
        ),
        (
            "fedavg",
            {"aggregation": {"builder": "my_parts:build_cancer"}},
            "aggregation is of Dataset; it must be an aggregation",
        ),
        ("fedavg", {"aggregation": {"name": "medain"}}, "unknown aggregation 'medain'"),
        (
            "fedavg",
            {"dataset": {"test_shar": 0.5}},
            "unknown option of dataset my_parts:build_cancer 'test_shar'.*test_share",
        ),
        ("fedavg", {"partition": {"clients": "many"}}, "partition.clients is 'many'; it must be a whole number"),
        ("fedavg", {"model": {"hiden": 3}}, "unknown option of model my_parts:build_net 'hiden'.*hidden"),
        ("fedavg", {"model": {"builder": "my_parts:build_nte"}}, "unknown function in my_parts 'build_nte'.*build_net"),
        (
            "fedavg",
            {"model": {"builder": "my_prats:build_net"}},
            "model.builder names the module my_prats, which is neither",
        ),
        ("fedavg", {"model": {"name": "mlp"}}, "model has name and builder; give one of the two"),
        (
            "fedavg",
            {"model": {"builder": "my_parts:build_cancer", "hidden": resolve.task_file.UNSET}},
            "build_cancer failed: TypeError",
        ),
        (
            "fedavg",
            {"partition": {"builder": "my_parts:build_inner", "clients": resolve.task_file.UNSET}},
            "build_inner failed: TypeError",
        ),
        (
            "fedavg",
            {"dataset": {"builder": "my_parts:build_inner"}},
            "dataset my_parts:build_inner gave MeanFactory; it must give",
        ),
        ("fedavg", {"dataset": {"normalization": "unit"}}, "the examples of cancer are no images"),
    ],
)
def test_what_is_wrong_is_one_line(task, label, overrides, message):
    with pytest.raises(UserError, match=message) as said:
        asked = resolve.resolve(task, label, overrides=overrides)
        federated = build.load_data(asked)
        build.build_method(asked, build.build_model(asked, federated), federated)
    assert "\n" not in str(said.value)


def test_names_that_packages_have_registered(task, monkeypatch):
    resolve.resolve(task, "fedavg")  # the module is known by its name from now on
    registered = {
        "tffcl.models": ("my_net", "my_parts:build_net"),
        "tffcl.datasets": ("cancer", "my_parts:build_cancer"),
        "tffcl.partitions": ("halves", "my_parts:build_halves"),
        "tffcl.aggregations": ("inside", "my_parts:build_inner"),
    }

    def entry_points(group):
        found = [registered[group]] if group in registered else []
        return [importlib.metadata.EntryPoint(name, value, group) for name, value in found]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    registry.registered.cache_clear()
    named = {"builder": resolve.task_file.UNSET}
    overrides = {
        "model": {**named, "name": "my_net"},
        "dataset": {**named, "name": "cancer"},
        "partition": {**named, "name": "halves"},
        "aggregation": {"name": "inside"},
    }
    try:
        asked = resolve.resolve(task, "fedavg", overrides=overrides)
        federated = build.load_data(asked)
        assert (federated.name, build.build_model(asked, federated).size) == ("cancer/halves", 30 * 6 + 6 + 6 * 2 + 2)
        with pytest.raises(UserError, match="unknown model 'my_nett'.*my_net"):
            resolve.resolve(task, "fedavg", overrides={**overrides, "model": {**named, "name": "my_nett"}})
    finally:
        registry.registered.cache_clear()
