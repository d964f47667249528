"""Reading the files of a run, and what is said about files that cannot be read."""

import json
import math
import shutil

import numpy as np
import pytest

from tests.runs.finished_runs import rows_of
from tffcl.errors import UserError
from tffcl.lab.reporting import batch_index
from tffcl.lab.reporting.report import write_report
from tffcl.runs import run_files
from tffcl.runs.run_directory import RunDirectory
from tffcl.runs.write_results import write_clients


def message(path) -> str:
    with pytest.raises(UserError) as caught:
        batch_index.find_runs(path)
    text = str(caught.value)
    assert "\n" not in text
    return text


def replace(path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_copied_run_is_no_further_seed(comparison_path, tmp_path):
    for name in ("seed-1", "seed-00"):
        there = tmp_path / name / "pacfl"
        for place in ("seed-0", name):
            shutil.copytree(comparison_path / "pacfl" / "seed-0", there / place)
        assert message(there.parent).startswith(f"{there / name} holds a run with seed 0; rename it, or move it out of")


def test_lines_that_are_lost_or_doubled_are_told(run_path):
    for name, wrong, why in (
        ("rounds.csv", lambda lines: lines[:-1], "its rounds are not those of summary.json"),
        ("rounds.csv", lambda lines: [*lines[:3], *lines[2:]], "its rounds are not those of summary.json"),
        ("rounds.csv", lambda lines: [*lines[:2], *lines[3:]], "its rounds are not those of summary.json"),
        ("clients.csv", lambda lines: [*lines[:3], *lines[2:]], "a client stands twice in it"),
        ("clients.csv", lambda lines: [*lines[:3], *lines[4:]], "its cluster_accuracy is not that of summary.json"),
        (
            "rounds.csv",
            lambda lines: [*lines[:5], lines[5].replace(",0.", ",0.0")],
            "its cluster_accuracy is not that of summary.json",
        ),
    ):
        before = (run_path / name).read_text()
        (run_path / name).write_text("".join(wrong(before.splitlines(keepends=True))))
        assert message(run_path).startswith(f"{run_path / name} is damaged: {why}")
        (run_path / name).write_text(before)


def test_more_rounds_than_any_run_has_are_told(run_path):
    replace(run_path / "summary.json", '"rounds": 5', f'"rounds": 1{"0" * 39}')
    assert message(run_path) == f"{run_path / 'rounds.csv'} is damaged: its rounds are not those of summary.json"


def test_rounds_after_those_of_the_result_are_none_of_it(run_path):
    """A longer run that is killed before it saves leaves their rows, and who moved; the result's traffic lacks them."""
    (run_path / "history").mkdir()
    for number in (1, 7):
        np.save(run_path / "history" / f"{number:06}.npy", np.array([["client-00"], [str(number)]]))
    before = run_files.read_run(run_path)
    lines = (run_path / "rounds.csv").read_text().splitlines()
    longer = [lines[-1].replace("5", str(number), 1) for number in (6, 7)]
    (run_path / "rounds.csv").write_text("\n".join([*lines, *longer]) + "\n")
    after = run_files.read_run(run_path)
    assert after.rounds["round"].tolist() == [1, 2, 3, 4, 5] and [*after.history] == [1]
    np.testing.assert_array_equal(after.exchanged()[0], before.exchanged()[0])
    assert after.exchanged()[1] == before.exchanged()[1] == 8_321_000 - 5 * 1_664_200


def test_a_run_is_read_into_columns(run_path, population):
    run = run_files.read_run(run_path)
    assert (run.task, run.algorithm, run.method, run.seed) == ("digits", "pacfl", "pacfl", 0)
    assert run.config["train"]["learning_rate"] == 0.05
    assert run.rounds["round"].tolist() == [1, 2, 3, 4, 5]
    assert np.isnan(run.rounds["cluster_accuracy"]).tolist() == [False, True, False, True, False]
    assert np.isnan(run.rounds["global_accuracy"]).all()
    assert len(run.clients) == 18
    assert run.clients.client_id[3] == "client-03"
    assert run.clients.true_cluster.tolist() == population.truth.astype(str).tolist()
    np.testing.assert_array_equal(run.clients.cluster, population.labels)
    assert np.flatnonzero(np.isnan(run.clients.local_accuracy)).tolist() == [16, 17]
    np.testing.assert_array_equal(run.clients.label_counts.sum(axis=1), run.clients.examples)
    for (_, targets), counts in zip(population.train, run.clients.label_counts, strict=True):
        np.testing.assert_array_equal(counts, np.bincount(targets, minlength=10))


def test_the_clustering_is_read(run_path, population):
    found = run_files.read_run(run_path).clustering
    np.testing.assert_allclose(found.proximity, population.proximity, rtol=1e-6)
    np.testing.assert_allclose(found.merges, population.merges)
    assert found.threshold == population.threshold
    assert (found.unit, found.measure, found.linkage) == ("degrees", "sum of principal angles", "average")
    assert found.suggestion.endswith("it leaves 3 clusters.")


def test_numbers_of_the_summary(run_path):
    run = run_files.read_run(run_path)
    assert run.number("accuracy", "local", "share") == pytest.approx(16 / 18)
    assert math.isnan(run.number("accuracy", "global", "mean"))
    assert math.isnan(run.number("nothing", "of", "the", "kind"))


def test_a_number_that_is_none_is_named(run_path):
    replace(run_path / "summary.json", '"count": 3', '"count": "three"')
    run = run_files.read_run(run_path)
    with pytest.raises(UserError, match=r"summary\.json is damaged: clusters\.count is 'three', not a number"):
        run.number("clusters", "count")


def test_a_comparison_is_found_by_method_and_seed(comparison_path):
    runs = batch_index.find_runs(comparison_path)
    # Seed 10 comes after seed 0 and would come before seed 2: seeds are numbers.
    assert [(run.method, run.seed) for run in runs] == [("fedavg", 0), ("fedavg", 10), ("pacfl", 0), ("pacfl", 10)]
    assert [run.clustering is None for run in runs] == [True, True, False, False]
    assert not RunDirectory(comparison_path).is_run
    assert RunDirectory(comparison_path / "pacfl" / "seed-10").is_run


def test_runs_say_what_they_are_in_a_line(comparison_path):
    """At the prompt, where all their columns would be pages."""
    for run in batch_index.find_runs(comparison_path):
        assert repr(run).startswith(f"RunFiles(task: digits, method: {run.method}, seed: {run.seed}, rounds: ")
        for part in (run, run.clients, run.clustering):
            assert (
                part is None or len(repr(part)) < 400 and "array(" not in repr(part) and "<table>" in part._repr_html_()
            )


def test_seeds_are_ordered_as_numbers(tmp_path, make_run):
    for seed in (10, 9):
        make_run(tmp_path / "pacfl" / f"seed-{seed}", seed=seed)
    assert [run.seed for run in batch_index.find_runs(tmp_path)] == [9, 10]


def test_variants_of_an_algorithm_go_by_their_directory(tmp_path, make_run):
    make_run(tmp_path / "pacfl" / "seed-0")
    make_run(tmp_path / "pacfl-5-vectors" / "seed-0")
    runs = batch_index.find_runs(tmp_path)
    assert [(run.method, run.algorithm) for run in runs] == [("pacfl", "pacfl"), ("pacfl-5-vectors", "pacfl")]


def test_what_holds_no_run(tmp_path):
    assert "nowhere is not a directory" in message(tmp_path / "nowhere")
    assert "holds no run" in message(tmp_path)


@pytest.mark.parametrize("name", ["config.toml", "summary.json", "rounds.csv", "clients.csv"])
def test_a_missing_file_is_named(run_path, name):
    (run_path / name).unlink()
    assert message(run_path) == f"{run_path / name} is missing; did the run finish?"


@pytest.mark.parametrize("name", ["config.toml", "summary.json", "rounds.csv", "clients.csv"])
def test_a_file_that_is_no_text_is_named(run_path, name):
    (run_path / name).write_bytes(b"\xff\xfe\x00\x80")
    assert message(run_path).startswith(f"{run_path / name} is damaged: it is not UTF-8 text")


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("config.toml", "seed = 0", "seed = ", "Invalid value"),
        ("summary.json", "{", "", "Extra data"),
        ("summary.json", '"task": "digits"', '"task": null', "task is None"),
        ("rounds.csv", "train_loss", "loss", "there is no column train_loss"),
        ("rounds.csv", "864200", "many", "line 2: down_bytes is 'many', not a number"),
        ("clients.csv", "client-04,", "client-04,,", "line 6 has 19 cells, the header 18"),
        ("clients.csv", "client-00,0,", "client-00,0,0.5e0,", "line 2 has 19 cells, the header 18"),
        ("clients.csv", "label_3", "label_x", "there is no column label_3"),
    ],
)
def test_damage_is_described(run_path, name, old, new, why):
    replace(run_path / name, old, new)
    text = message(run_path)
    assert text.startswith(f"{run_path / name} is damaged: ")
    assert why in text


@pytest.mark.parametrize(
    ("column", "value"),
    [*(("cluster_accuracy", each) for each in ("1e999", "1.5", "-0.1")), ("up_bytes", "inf"), ("clusters", "1e999")],
)
def test_what_a_metric_cannot_be_is_damage(run_path, column, value):
    names, first, *others = (run_path / "rounds.csv").read_text().splitlines()
    cells = dict(zip(names.split(","), first.split(","), strict=True)) | {column: value}
    (run_path / "rounds.csv").write_text("\n".join([names, ",".join(cells.values()), *others]))
    assert message(run_path).endswith(f"rounds.csv is damaged: {column} is {float(value):g}")


@pytest.mark.parametrize("column", ["cluster", "label_0"])
def test_what_is_no_whole_number_is_damage(run_path, column, recwarn):
    path = run_path / "clients.csv"
    names, first, second, *others = path.read_text().splitlines()
    for value in ("0.5", "1e20", "inf"):
        cells = dict(zip(names.split(","), second.split(","), strict=True)) | {column: value}
        path.write_text("\n".join([names, first, ",".join(cells.values()), *others]))
        assert message(run_path).endswith(f"clients.csv is damaged: line 3: {column} is {value!r}, not a whole number")
    assert not recwarn.list


def test_empty_tables(run_path):
    header = (run_path / "rounds.csv").read_text().splitlines()[0]
    (run_path / "rounds.csv").write_text(header + "\n")
    assert run_files.read_run(run_path).rounds["round"].size == 0
    (run_path / "clients.csv").write_text((run_path / "clients.csv").read_text().splitlines()[0])
    assert message(run_path).endswith("clients.csv is damaged: it has no clients")
    (run_path / "rounds.csv").write_text("")
    assert message(run_path).endswith("rounds.csv is damaged: it is empty")


def test_a_client_without_a_cluster_or_a_true_one(run_path):
    path = run_path / "clients.csv"
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    cells[1] = cells[2] = ""
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]))
    clients = run_files.read_run(run_path).clients
    assert (clients.true_cluster[0], clients.cluster[0]) == ("", run_files.NO_CLUSTER)
    assert (clients.cluster[1:] >= 0).all()


def rewrite_clustering(run_path, **changes) -> None:
    with np.load(run_path / "clustering.npz") as archive:
        arrays = dict(archive) | changes
    np.savez(run_path / "clustering.npz", **{name: value for name, value in arrays.items() if value is not None})


IDS = [
    "=cmd|'/C calc'!A0",
    "+1",
    "-1+1",
    "@SUM(1)",
    "\tx",
    "'=1",
    "''",
    "'a",
    'a,b"c',
    "a\nb",
    "\x1b[31m\u202e<b>",
    "\r",
    " =1",
]


def test_texts_are_no_formulas_of_a_spreadsheet_and_read_back_as_they_were(run_path):
    names = np.array(IDS)
    numbers = np.linspace(-1, 1, len(IDS))
    columns = dict.fromkeys(run_files.CLIENT_COLUMNS, np.arange(len(IDS)))
    accuracies = np.full(len(IDS), run_files.read_run(run_path).number("accuracy", "cluster", "mean"))
    columns |= {"client_id": names, "true_cluster": names, "cluster_accuracy": accuracies, "local_accuracy": numbers}
    write_clients(run_path, columns)
    clients = run_files.read_run(run_path).clients
    assert clients.client_id.tolist() == clients.true_cluster.tolist() == IDS
    rows = rows_of(run_path / "clients.csv")
    assert not [row["client_id"] for row in rows if row["client_id"][:1] in ("=", "+", "-", "@", "\t", "\r")]
    assert [float(row["local_accuracy"]) for row in rows] == pytest.approx(numbers, abs=1e-6)
    for name in ("clustering.npz", "representations.npz"):  # of other clients
        (run_path / name).unlink(missing_ok=True)
    shutil.rmtree(run_path / "history", ignore_errors=True)
    page = write_report(run_path).read_text()
    assert "=cmd|" in page and "\\x1b[31m\\u202e&lt;b&gt;" in page
    assert not {letter for letter in page if not letter.isprintable() and letter not in "\n\t\xa0"}


def test_a_clustering_without_a_tree(run_path):
    rewrite_clustering(run_path, merges=np.empty((0, 4)), threshold=np.nan)
    found = run_files.read_run(run_path).clustering
    assert found.merges is None
    assert found.threshold is None


def test_a_damaged_clustering_is_described(run_path, recwarn):
    rewrite_clustering(run_path, labels=np.zeros(3, int))
    assert message(run_path).endswith("clustering.npz is damaged: labels is (3,), for 18 clients it must be (18,)")
    rewrite_clustering(run_path, labels=None)
    assert message(run_path).endswith("clustering.npz is damaged: there is no 'labels'")
    for value in (np.nan, 1e300):
        rewrite_clustering(run_path, labels=np.full(18, value))
        assert message(run_path).endswith(
            f"clustering.npz is damaged: labels holds {value:g}, which is no whole number"
        )
    assert not recwarn.list
    whole = (run_path / "clustering.npz").read_bytes()
    for part in (b"", whole[:100], whole[: len(whole) // 2]):
        (run_path / "clustering.npz").write_bytes(part)
        assert f"{run_path / 'clustering.npz'} is damaged: " in message(run_path)


def test_pickles_are_not_opened(run_path):
    rewrite_clustering(run_path, labels=np.array([{"a": 1}] * 18, dtype=object))
    assert "clustering.npz is damaged: Object arrays cannot be loaded" in message(run_path)


def test_null_stands_for_what_a_method_lacks(run_path):
    summary = json.loads((run_path / "summary.json").read_text())
    (run_path / "summary.json").write_text(json.dumps(summary | {"accuracy": None, "traffic": None}))
    run = run_files.read_run(run_path)
    assert math.isnan(run.number("accuracy", "cluster", "mean"))
    assert math.isnan(run.number("traffic", "up_bytes"))
