"""The command line as a user types it."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from tffcl.lab.cli.main import main

FEW = ["--rounds", "2", "--set", "evaluation.every=1"]


def fails(capsys, *arguments):
    """Runs a command that a user got wrong; returns its single line."""
    try:
        code = main(list(arguments))
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    lines = [
        line for line in captured.err.splitlines() if line.strip() and "round/s" not in line and "?round" not in line
    ]
    assert code == 2
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("tffcl: ")
    return lines[0]


def test_the_file_that_was_meant_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_task.toml").write_text('extends = "demo_digits"')
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "further.toml").write_text('extends = "base"')
    (tmp_path / "mine" / "base.toml").write_text('extends = "demo_digits"')
    told = "unknown task 'my_task'; did you mean the file my_task.toml?"
    assert told in fails(capsys, "run", "my_task", "--algorithm", "pacfl")
    assert "unknown study 'my_task'; did you mean the file my_task.toml?" in fails(capsys, "study", "my_task")
    assert "did you mean the file base.toml?" in fails(capsys, "run", "mine/further.toml", "--algorithm", "pacfl")


def test_runs_further_down_are_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(5):
        (tmp_path / "runs" / "x" / "pacfl" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "runs" / "x" / "pacfl" / f"seed-{seed}" / "config.toml").touch()
    told = "; further down are runs/x/pacfl/seed-0, runs/x/pacfl/seed-1, runs/x/pacfl/seed-2 and 2 more"
    assert told in fails(capsys, "export", "runs/x", "--to", "new")
    assert told in fails(capsys, "report", "runs/x/pacfl")
    assert told in fails(capsys, "report", "runs")


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["algorithms.pacfl.num_clusters=41", "algorithms.pacfl.threshold=1"],
            "give threshold or num_clusters, not both",
        ),
        (["train.clients_per_round=50"], "train.clients_per_round is 50, but there are only 40 clients"),
        (["train.learning_rate=1e30"], "trained a model that is not finite"),
    ],
)
def test_contradictions_that_the_data_show(capsys, tmp_path, overrides, message):
    options = [part for override in overrides for part in ("--set", override)]
    line = fails(capsys, "run", "demo_digits", "--algorithm", "pacfl", "--out", str(tmp_path / "out"), *options)
    assert message in line


def own_task(tmp_path, partition, **arrays):
    """A task over an npz file of digits; `arrays` replace parts of it."""
    from tests import digits

    x, y = digits.load()
    np.savez(
        tmp_path / "own.npz",
        **{"x_train": x[:300], "y_train": y[:300], "x_test": x[300:400], "y_test": y[300:400], **arrays},
    )
    task = tmp_path / "own.toml"
    task.write_text(
        f'[dataset]\nname = "npz"\npath = "{tmp_path / "own.npz"}"\n[partition]\n{partition}\n[model]\nname = "mlp"\n'
        "[train]\nrounds = 2\nclients_per_round = 2\n[algorithms.pacfl]\nnum_clusters = 9\n[algorithms.fedavg]\n"
    )
    return str(task)


IID = 'name = "iid"\nclients = 4'


@pytest.mark.parametrize("method", ["pacfl", "flhc", "r_dpcfl"])
def test_more_clusters_than_clients(capsys, tmp_path, method):
    """Of FL+HC, too, which groups its clients after ten rounds, this is told before the first one."""
    clusters = f"algorithms.{method}.num_clusters=9"
    line = fails(
        capsys, "run", own_task(tmp_path, IID), "--algorithm", method, "--set", clusters, "--out", str(tmp_path / "out")
    )
    assert "num_clusters is 9; it must be from 1 to the number of clients, 4" in line
    assert not (tmp_path / "out").exists()


def test_a_nan_in_the_data(capsys, tmp_path):
    images = np.random.default_rng(0).random((300, 8, 8, 1))
    images[7, 3, 3, 0] = np.nan
    line = fails(
        capsys, "run", own_task(tmp_path, IID, x_train=images), "--algorithm", "fedavg", "--out", str(tmp_path / "out")
    )
    assert "own.npz: x_train is nan at [7, 3, 3, 0]" in line


def test_a_client_without_examples(capsys, tmp_path):
    task = own_task(tmp_path, 'name = "label_skew"\nclients = 400\nclasses_per_client = 1')
    line = fails(capsys, "run", task, "--algorithm", "fedavg", "--out", str(tmp_path / "out"))
    assert "leaves client 292 without examples" in line and "use fewer clients" in line


@pytest.mark.parametrize(
    "kind, name, lines",
    [
        (
            "algorithms",
            "flt",
            ["[algorithms.flt]", "  latent (128; a whole number from 1): e, size of a code (paper: 128).", "[train]"],
        ),
        ("algorithms", "fedavg", ["no keys of its own", "[train]"]),
        (
            "partitions",
            "rotated",
            [
                "[partition]",
                "  clients (must be given; a whole number from 1): How many clients; a multiple of the number of "
                "rotations.",
            ],
        ),
        ("datasets", "npz", ["[dataset]", "  path (must be given; text): The file."]),
        ("models", "mlp", ["[model]", "  hidden (200; a whole number from 1): Number of hidden units."]),
        ("tasks", "demo_digits", ["[newcomers]", "methods with a table: pacfl, fedavg, solo"]),
    ],
)
def test_list_says_what_a_task_may_set(capsys, kind, name, lines):
    assert main(["list", kind, name]) == 0
    told = capsys.readouterr().out.splitlines()
    assert set(lines) <= set(told)
    assert fails(capsys, "list", kind, f"{name}s").count("did you mean") == 1


def test_a_file_where_a_directory_must_be(capsys, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("")
    assert "taken" in fails(capsys, "show", "demo_digits", "--out", str(taken))
    assert "is a file; it must be a directory" in fails(capsys, "show", "demo_digits", "--out", str(taken))


def test_a_missing_data_set_says_how_to_get_it(capsys, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    line = fails(
        capsys,
        "run",
        "pacfl_fmnist_label_skew_20",
        "--algorithm",
        "pacfl",
        "--set",
        "train.learning_rate=0.02",  # no kept run has it, by which it would be said how long this one takes
        "--data-dir",
        str(empty),
        "--out",
        str(tmp_path / "out"),
    )
    assert "fashion_mnist" in line and str(empty) in line and "--data-dir" in line


def test_a_task_file_that_is_no_toml(capsys, tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text("[dataset\n")
    assert "is no TOML" in fails(capsys, "run", str(broken), "--algorithm", "pacfl")
    broken.write_text('[dataset]\nname = "digits"\n')
    assert "lacks [partition]" in fails(capsys, "run", str(broken), "--algorithm", "pacfl")
    broken.write_text('[datasets]\nname = "digits"\n')
    assert "did you mean 'dataset'" in fails(capsys, "run", str(broken), "--algorithm", "pacfl")


@pytest.mark.slow
def test_run_then_similarity(capsys, tmp_path):
    out = tmp_path / "run"
    assert main(["run", "demo_digits", "--algorithm", "pacfl", "--out", str(out), *FEW]) == 0
    table = capsys.readouterr().out
    assert "pacfl" in table and "1.000" in table
    assert (out / "report.html").is_file()
    assert "did you mean 'subspace'" in fails(capsys, "similarity", "demo_digits", "--signature", "subspac")
    assert main(["similarity", "demo_digits", "--out", str(tmp_path / "similarity")]) == 0
    said, progress = capsys.readouterr()
    assert "clients have signed: 100%" in progress
    assert "adjusted Rand index against the 4 true groups: 1.000" in said
    assert 'by threshold = "self": 4 groups: clearly apart, the nearest two are 1.' in said
    assert "; inside them clients are as far from each other as from themselves, up to chance (" in said
    assert "the next largest is at 4 clusters" in said and "no advice" in said and "as a task says it" not in said
    assert (tmp_path / "similarity" / "dendrogram.png").stat().st_size > 10_000
    with np.load(tmp_path / "similarity" / "proximity.npz") as saved:
        assert saved["proximity"].shape == (40, 40) and saved["tree_unit"] == saved["unit"] == "degrees"


@pytest.mark.slow
def test_similarity_of_clients_of_one_group_says_that_nothing_differs(capsys, tmp_path):
    told = [
        *"--set algorithms.pacfl.threshold=self --set partition.rotations=1 --out".split(),
        str(tmp_path / "similarity"),
    ]
    assert main(["similarity", "demo_digits", *told]) == 0
    said = capsys.readouterr().out
    assert "nothing differs" in said and ": 1 cluster of sizes [40]" in said and "by threshold =" not in said
    with np.load(tmp_path / "similarity" / "proximity.npz") as saved:
        assert (saved["unit"], saved["tree_unit"]) == ("degrees", "self-distances")


@pytest.mark.slow
def test_compare_goes_on_where_it_stopped(capsys, tmp_path):
    command = ["compare", "demo_digits", "--algorithms", "fedavg", "--seeds", "0,1", "--out", str(tmp_path), *FEW]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "±" in first
    summary = tmp_path / "fedavg" / "seed-1" / "summary.json"
    before = summary.read_bytes()
    assert main([*command, "--resume"]) == 0
    assert summary.read_bytes() == before
    said = capsys.readouterr().err
    assert "nothing to do: all 2 runs are there" in said and said.endswith("\nmaking the page of 2 runs\n")
    assert (tmp_path / "table.csv").is_file() and (tmp_path / "report.html").is_file()


@pytest.mark.filterwarnings("error:Setuptools is replacing distutils")
def test_doctor_finds_the_worker(capsys):
    assert main(["doctor", "--check"]) == 0
    said = capsys.readouterr().out
    assert "worker_binary" in said and "6 (right)" in said and "0.87.0" in said


@pytest.mark.slow
def test_a_mistake_is_one_line_in_a_process_of_its_own(tmp_path):
    """Also what libraries say while the interpreter ends would be seen here."""
    command = [sys.executable, *"-m tffcl run demo_digits --algorithm pacfl --out".split(), str(tmp_path / "out")]
    done = subprocess.run([*command, "--set", "train.clients_per_round=50"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "tffcl: train.clients_per_round is 50, but there are only 40 clients\n"


def workers(mark):
    """Process IDs of the workers that somebody with `TFFCL_TEST_MARK=mark` started: others may run on this machine."""
    found = set()
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and "worker_binary" in (entry / "comm").read_text():
                found |= (
                    {entry.name} if f"TFFCL_TEST_MARK={mark}\0".encode() in (entry / "environ").read_bytes() else set()
                )
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_the_demo_in_a_pipe(tmp_path):
    """`tffcl demo | tail -1` ends, finds the groups, and leaves no worker."""
    mark, seen = str(tmp_path), set()
    command = f"{sys.executable} -m tffcl demo --out {tmp_path / 'demo'} 2>/dev/null | tail -1"
    started = subprocess.Popen(
        command, shell=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "TFFCL_TEST_MARK": mark}
    )
    while started.poll() is None:
        seen |= workers(mark)
        time.sleep(0.2)
    last_line, _ = started.communicate()
    assert "report.html" in last_line
    time.sleep(0.5)
    assert seen and not workers(mark)
    from tffcl.lab.reporting.batch_index import find_runs

    runs = {found.method: found for found in find_runs(tmp_path / "demo")}
    cluster = {name: found.number("accuracy", "cluster", "mean") for name, found in runs.items()}
    assert runs["pacfl"].number("clusters", "ari") == 1.0
    assert cluster["pacfl"] > max(cluster["fedavg"], cluster["solo"])
    assert cluster["pacfl"] > runs["fedavg"].number("accuracy", "global", "mean")
