"""Damaged files of a run: the report names the file in a line."""

import json
import os
import random
import shutil

import numpy as np
import pytest

from tffcl.errors import UserError
from tffcl.lab.reporting import batch_index, newcomers_table, report, results_page, study_table, sweeps
from tffcl.lab.reporting.batch_index import write_index
from tffcl.lab.reporting.study_results import measured
from tffcl.lab.tasks.resolve import load_run_config
from tffcl.runs import run_files


def refused(read, path) -> str:
    with pytest.raises(UserError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("contents", ["", f"a = {'[' * 3000}", f"a = 1{'0' * 5000}", "\0"])
def test_a_damaged_configuration(run_path, contents):
    (run_path / "config.toml").write_text(contents)
    assert "config.toml is damaged" in refused(run_files.read_run, run_path)


@pytest.mark.parametrize("accuracy", [{}, 3, {"cluster": {"mean": 1.0}}])
def test_a_summary_without_accuracies(run_path, accuracy):
    summary = json.loads((run_path / "summary.json").read_text())
    (run_path / "summary.json").write_text(json.dumps({**summary, "accuracy": accuracy}))
    assert "summary.json is damaged: there is no accuracy." in refused(run_files.read_run, run_path)


@pytest.mark.parametrize("clusters", [None, 3, {"ari": 1.0}])
def test_a_summary_without_clusters(run_path, clusters):
    summary = json.loads((run_path / "summary.json").read_text())
    (run_path / "summary.json").write_text(json.dumps({**summary, "clusters": clusters}))
    assert "summary.json is damaged: there is no clusters.count" in refused(run_files.read_run, run_path)


def test_a_summary_nested_too_deep(run_path):
    (run_path / "summary.json").write_text("[" * 100_000)
    assert "summary.json is damaged" in refused(run_files.read_run, run_path)


@pytest.mark.parametrize("directory", ["/etc", "../other", "a/../../b"])
def test_a_sweep_with_a_directory_outside(tmp_path, directory):
    about = {"task": "t", "algorithm": "a", "keys": ["train.rounds"], "labels": ["rounds"], "seeds": [0]}
    write_index(tmp_path, "sweep", {**about, "points": [{"values": [1], "directory": directory}]})
    assert "it must be inside its own" in refused(sweeps.read_sweep, tmp_path)


@pytest.mark.parametrize("name", ["config.toml", "summary.json", "rounds.csv", "clients.csv", "clustering.npz"])
def test_a_pipe_or_a_device_in_place_of_a_file_is_not_read(run_path, name):
    (run_path / name).unlink()
    os.mkfifo(run_path / name)
    assert f"{name} is not a file" in refused(run_files.read_run, run_path)
    (run_path / name).unlink()
    (run_path / name).symlink_to("/dev/zero")
    assert f"{name} is not a file" in refused(run_files.read_run, run_path)


@pytest.fixture
def compared(comparison_path, tmp_path):
    """A comparison that tests may damage."""
    path = shutil.copytree(comparison_path, tmp_path / "compared")
    write_index(path, "comparison", {"algorithms": ["fedavg", "pacfl"], "targets": []})
    return path


def unreadable(path):
    """Puts a directory in the place of another that cannot be read, whoever the user is."""
    shutil.rmtree(path, ignore_errors=True)
    path.symlink_to(path)


def test_a_method_whose_runs_cannot_be_read_is_told_and_not_left_out(compared):
    unreadable(compared / "lost+found")  # is none that was asked for
    assert len(report.read_tables(compared)[2]) == 4
    unreadable(compared / "fedavg")
    for _ in range(2):
        for read in (report.read_tables, report.write_table, batch_index.find_runs, batch_index.find_failures):
            assert f"{compared / 'fedavg'} cannot be read: Too many levels" in refused(read, compared)
        (compared / batch_index.INDEX).unlink(missing_ok=True)  # as where runs were put beside each other by hand


def instead_of(file):
    """Puts a directory in the place of a file."""
    file.unlink(missing_ok=True)
    file.mkdir()


def test_a_directory_in_place_of_a_file_of_a_comparison_is_told_and_nothing_left_out(compared):
    place = compared / "fedavg" / "seed-0"
    for name, read in (("newcomers.json", newcomers_table.newcomer_rows), ("summary.json", report.read_tables)):
        instead_of(place / name)
        assert f"{place / name} is not a file" in refused(read, compared)
    (place / "summary.json").rmdir()
    instead_of(place / "config.toml")
    assert batch_index.unfinished_runs(compared) == [place]
    instead_of(place / "failed.json")
    assert refused(report.read_tables, compared) == f"{place / 'failed.json'} is not a file"
    instead_of(compared / "batch.json")
    assert refused(report.read_tables, compared) == f"{compared / 'batch.json'} is not a file"


def test_a_directory_in_place_of_a_file_of_a_run_is_told(run_path):
    instead_of(run_path / "published.json")
    assert "published.json is not a file" in refused(
        lambda path: study_table.published_to_page([run_files.read_run(path)]), run_path
    )
    instead_of(run_path / "config.toml")
    assert refused(load_run_config, run_path) == f"{run_path / 'config.toml'} is not a file"
    instead_of(run_path / "summary.json")
    assert refused(batch_index.find_runs, run_path) == f"{run_path / 'config.toml'} is not a file"


def test_what_the_system_does_not_let_be_read_is_not_said_to_be_damaged(run_path, monkeypatch):
    unreadable(run_path / "history")
    assert "history cannot be read: Too many levels" in refused(run_files.read_run, run_path)

    def locked(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(run_files, "opened", locked)
    told = f"{run_path / 'clustering.npz'} cannot be read: Permission denied"
    assert refused(lambda path: run_files.read_arrays(path / "clustering.npz", dict), run_path) == told


def test_kept_results_that_cannot_be_read_are_not_left_out(tmp_path):
    unreadable(tmp_path / "study")
    assert f"{tmp_path / 'study'} cannot be read: Too many levels" in refused(results_page.read_studies, tmp_path)
    (tmp_path / "study").unlink()
    instead_of(tmp_path / "NOTES.md")
    assert (
        refused(lambda path: results_page.results_page(path, []), tmp_path) == f"{tmp_path / 'NOTES.md'} is not a file"
    )


def test_a_report_is_written_through_no_link_and_into_no_pipe(run_path, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "page.html").write_text("mine")
    for name, target in (("figures", own), ("report.html", own / "page.html")):
        (run_path / name).symlink_to(target)
        assert f"{name} is a link" in refused(report.write_report, run_path)
        (run_path / name).unlink()
    os.mkfifo(run_path / "report.html")
    assert "report.html is not a file" in refused(report.write_report, run_path)
    assert [path.name for path in own.iterdir()] == ["page.html"] and (own / "page.html").read_text() == "mine"


FORGED = {
    "notes that are no list": {"notes": None},
    "no number of rounds": {"rounds": None},
    "an accuracy that is no share": {"accuracy": {kind: {"mean": 1e20} for kind in ("cluster", "local", "global")}},
    "infinite bytes": {"traffic": {"up_bytes": float("inf")}},
}


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED)
def test_values_that_no_run_writes_are_told(run_path, changes):
    summary = json.loads((run_path / "summary.json").read_text())
    (run_path / "summary.json").write_text(json.dumps(summary | changes))
    assert f"summary.json is damaged: {[*changes][0]}" in refused(report.write_report, run_path)


@pytest.mark.parametrize(
    "key, value", [("seed", "0"), ("seed", 77), ("task", "other"), ("algorithm", "fedavg"), ("task", None)]
)
def test_newcomers_of_another_run_are_told(run_path, key, value):
    run = run_files.read_run(run_path)
    contents = {"task": run.task, "algorithm": run.algorithm, "seed": run.seed, key: value}
    (run_path / "newcomers.json").write_text(json.dumps(contents))
    told = f"newcomers.json is damaged: its {key} is {value!r}, the run's is"
    assert told in refused(report.write_report, run_path)
    with pytest.raises(UserError, match=told):
        measured(run, {"measure": "unseen_cluster"})


@pytest.mark.parametrize("change", [(0, -7), (2, np.nan), (3, 9), (1, 0.5), (0, 1e300)])
def test_merges_that_are_no_tree_are_told(run_path, change):
    """SciPy would read outside of its memory."""
    with np.load(run_path / "clustering.npz") as archive:
        arrays = dict(archive)
    arrays["merges"][-1, change[0]] = change[1]
    np.savez(run_path / "clustering.npz", **arrays)
    assert "clustering.npz is damaged: merges is no tree of the clients" in refused(run_files.read_run, run_path)


def test_flipped_bits_end_in_a_line_or_in_a_run(run_path):
    rng = random.Random(0)
    for name in ("config.toml", "summary.json", "rounds.csv", "clients.csv", "clustering.npz"):
        whole, refusals = (run_path / name).read_bytes(), 0
        for _ in range(40):
            flipped = bytearray(whole)
            flipped[rng.randrange(min(len(whole), rng.choice([200, len(whole)])))] ^= 1 << rng.randrange(8)
            (run_path / name).write_bytes(flipped)
            try:
                run_files.read_run(run_path)
            except UserError as error:
                assert "\n" not in str(error)
                refusals += 1
        assert refusals, f"no damage of {name} was found"
        (run_path / name).write_bytes(whole)


@pytest.mark.parametrize(
    "name, arrays, why",
    [
        ("samples", {"images": np.zeros((2, 4, 4, 1)), "labels": [0, 1], "clusters": [0, 0]}, "it must be uint8"),
        (
            "samples",
            {"images": np.zeros((2, 4, 4, 1), np.uint8), "labels": [0], "clusters": [0, 0]},
            "1 labels and 2 clusters",
        ),
        ("samples", {"labels": [0], "clusters": [0]}, "there is no 'images'"),
    ],
)
def test_damaged_arrays(run_path, name, arrays, why):
    np.savez(run_path / f"{name}.npz", **arrays)
    message = refused(run_files.read_run, run_path)
    assert f"{name}.npz is damaged" in message and why in message


@pytest.mark.parametrize("contents", ["{", "[]", '{"cells": [{}]}', '{"cells": [3]}', "\0"])
def test_damaged_published_numbers(run_path, contents):
    (run_path / "published.json").write_text(contents)
    assert "published.json is damaged" in refused(
        lambda path: study_table.published_to_page([run_files.read_run(path)]), run_path
    )
