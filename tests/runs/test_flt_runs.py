"""Whole runs of FLT and its baselines on digits."""

import re

import numpy as np
import pytest
from scipy.spatial.distance import squareform

import tffcl
from tests.runs.finished_runs import check_files_agree, check_newcomers_and_models, check_resume
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import resolve

FLT = {"encoder": "digits", "encoder_examples": 300, "encoder_epochs": 2, "fine_tune_epochs": 0}
METHODS = {
    "flt": {**FLT, "clusters": "joint"},
    "flt_disjoint": {**FLT, "clusters": "disjoint", "num_clusters": 4},
    "fedsem": {"num_clusters": 4},
}
SHORT = {
    "train": {"rounds": 4, "local_epochs": 1},  # as in test_changes_in_a_run, of the same process
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2},
    "newcomers": {"clients": 4, "epochs": 1},
}


def resolved(name):
    algorithm = "flt" if name.startswith("flt") else name
    return resolve.resolve("demo_digits", algorithm, overrides={**SHORT, "algorithms": {algorithm: METHODS[name]}})


# One that forms disjoint clusters is in test_changes_in_a_run.
@pytest.fixture(params=["flt", "fedsem"])
def finished(request, finished_run):
    return finished_run(request.param)


@pytest.mark.slow
def test_a_run_its_newcomers_and_its_models(finished, kept):
    _, out, summary = finished
    assert 0.1 < summary["accuracy"]["local"]["mean"] <= 1
    check_files_agree(out, summary)
    check_newcomers_and_models(out, 4, kept)


@pytest.mark.slow
def test_a_resumed_run_ends_as_the_whole_one(finished, kept, tmp_path):
    name, out, whole = finished
    check_resume(resolved(name), out, whole, tmp_path / "again", kept)


@pytest.mark.slow
def test_the_report_shows_relations_and_centres(finished):
    name, out, _ = finished
    assert main(["report", str(out)]) == 0
    shown = {path.stem for path in (out / "figures").glob("*.png")}
    assert {"relatedness", "centres"} <= shown if name.startswith("flt") else "relatedness" not in shown
    if name.startswith("flt"):
        with np.load(out / "clustering.npz") as saved:
            assert saved["relatedness"].shape == squareform(saved["proximity"]).shape == (36, 36)


@pytest.mark.slow
def test_similarity_by_embeddings_is_what_a_run_starts_from(kept, tmp_path):
    name = "flt_disjoint"
    settings = [f"algorithms.flt.{key}={value}" for key, value in METHODS[name].items()] + ["newcomers.clients=0"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    shown = tmp_path / "similarity"
    command = [*"similarity demo_digits --signature embedding --map --data-dir".split(), kept, "--out", str(shown)]
    assert main([*command, *arguments]) == 0
    with np.load(shown / "proximity.npz") as found:
        assert found["proximity"].shape == (40, 40) and len(set(found["labels"])) <= 4
        resolved_again = resolve.resolve(
            "demo_digits", "flt", overrides={"train": {"rounds": 1}, "algorithms": {"flt": METHODS[name]}}
        )
        tffcl.run(resolved_again, tmp_path / "run", data_dir=kept, show_progress=False)
        with np.load(tmp_path / "run" / "clustering.npz") as clustering:
            np.testing.assert_array_equal(found["proximity"], squareform(clustering["proximity"]))
            for key in ("labels", "merges", "threshold"):
                np.testing.assert_array_equal(found[key], clustering[key])
    assert (shown / "dendrogram.png").stat().st_size > 10_000 and (shown / "umap.png").stat().st_size > 5_000


@pytest.mark.slow
def test_similarity_suggests_the_gamma_that_a_task_says(kept, tmp_path, capsys):
    settings = [f"algorithms.flt.{key}={value}" for key, value in FLT.items()]
    arguments = [part for setting in settings for part in ("--set", setting)]
    command = ["similarity", "demo_digits", "--signature", "embedding", "--data-dir", kept, "--out", str(tmp_path)]
    assert main([*command, *arguments]) == 0
    told = capsys.readouterr().out
    gamma = re.search(r"as a task says it: algorithms.flt.threshold = ([0-9.]+)", told)[1]
    assert f"suggested threshold {gamma} distance in the UMAP map" in told
    number = re.search(r"UMAP map, (\d+) clusters", told)[1]
    assert main([*command, *arguments, "--set", f"algorithms.flt.threshold={gamma}"]) == 0
    assert f": {number} clusters of sizes" in capsys.readouterr().out
