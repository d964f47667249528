"""Studies that compare further metrics: AUC, MAE, ... in their tables, from the kept results of the clinics."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest

from tffcl.errors import UserError
from tffcl.lab.batches.study_file import load_study, study_directory
from tffcl.lab.reporting import league_table
from tffcl.lab.reporting.number_format import Stat
from tffcl.lab.reporting.study_results import read_study
from tffcl.lab.reporting.study_table import compared_cells, to_csv, to_markdown
from tffcl.lab.tasks.task_file import task_directory

KEPT = task_directory() / "results" / "clinics"


@pytest.fixture(scope="module")
def study():
    return read_study(KEPT)


def values(directory, name, kind="cluster"):
    files = (KEPT / directory).glob("seed-*/summary.json")
    return [json.loads(file.read_text())["metrics"][name][kind]["mean"] for file in files]


def test_a_cell_is_the_mean_of_its_metric_over_the_seeds(study):
    found = {(each.noted["column"], each.noted["row"]): each for each in study.results}
    for column, row, name in (
        ("cancer, rules", "IFCA", "auc"),
        ("cancer, devices", "PACFL", "auc"),
        ("diabetes, devices", "FedAvg", "mae"),
    ):
        result = found[column, row]
        own = values(result.noted["directory"], name)
        assert (result.here.count, result.seeds) == (5, 5)
        assert (result.here.mean, result.here.std) == pytest.approx((np.mean(own), np.std(own, ddof=1)))
        local = result.further[f"local_{name}"]
        assert local.mean == pytest.approx(np.mean(values(result.noted["directory"], name, "local")))
    f1 = found["cancer, rules", "IFCA"].further["cluster_f1"]
    assert f1.mean == pytest.approx(100 * np.mean(values(found["cancer, rules", "IFCA"].noted["directory"], "f1")))


def test_tables_have_a_column_for_each_metric_that_the_runs_have(study):
    text = to_markdown(study)
    cancer, numbers = text.split("**diabetes, devices (clinics_diabetes)**")
    assert "| AUC, cluster | AUC, local | F1 %, cluster |" in cancer and "MAE" not in cancer.split("**cancer")[-1]
    # Columns of accuracies and published numbers would be empty.
    assert "|  | compared | here | MAE, cluster | MAE, local | R², cluster | R², local | ARI |" in numbers
    assert "FLIS compares the classes that models answer" in numbers
    assert ",cluster_auc,,,0.9" in to_csv(study)


def test_a_copied_run_is_no_further_seed(tmp_path):
    index = json.loads((KEPT / "batch.json").read_text())
    index["cells"], index["seeds"] = index["cells"][:1], [0, 1]
    (tmp_path / "batch.json").write_text(json.dumps(index))
    for name in ("seed-0", "seed-1"):
        directory = index["cells"][0]["directory"]
        shutil.copytree(KEPT / directory / "seed-0", tmp_path / directory / name)
    with pytest.raises(UserError, match="seed-1 holds a run with seed 0; rename it"):
        read_study(tmp_path)


def test_a_target_that_a_seed_never_reaches_leaves_no_difference(study):
    """Neither on the page nor in the table for programs: of the seeds that reach it alone it would be too small."""
    noted = {**study.results[0].noted, "measure": "rounds_to", "accuracy": "local", "target": 75.0}
    for values, difference in (([20.0, 30.0], -35.0), ([20.0, np.nan], None)):
        missed, here = int(np.isnan(values).sum()), Stat.of(values)
        result = dataclasses.replace(study.results[0], noted=noted, here=here, missed=missed, published=(60, None))
        assert result.difference == difference
        shown = compared_cells(noted, here, missed, result.published, result.cut)[3]
        assert shown == ("–" if difference is None else f"{difference:.0f}")
    late, sent = {**noted, "since": 3}, {**noted, "measure": "megabits_to"}
    shown = compared_cells(late, Stat.of([20.0]), 0, (60, 1), False)
    assert shown == ("rounds from 3 on to local 75 %", "20", "60 ± 1", "-40")
    assert compared_cells(sent, Stat.of([7.5]), 0, (7, None), False) == ("Mb to local 75 %", "7.50", "7.00", "+0.50")


def test_a_study_may_measure_any_metric_of_answers_but_no_unknown_one(tmp_path):
    text = (study_directory() / "clinics.toml").read_text()
    assert {cell.measure for cell in load_study("clinics").cells} == {"cluster_auc", "cluster_mae"}
    (tmp_path / "mine.toml").write_text(text.replace("cluster_auc", "cluster_auk"))
    with pytest.raises(UserError, match="unknown measure of .*'cluster_auk'; did you mean 'cluster_auc'"):
        load_study(tmp_path / "mine.toml")


@pytest.mark.slow
def test_a_part_of_a_league_is_compared_as_in_the_whole(tmp_path):
    """Of a league of one column, among whose 29 differences chance explains FLT's, which it would not among two."""
    league, column, names = KEPT.parent / "league", "FMNIST, P(X)", ("PACFL", "FLT")
    index = json.loads((league / "batch.json").read_text())
    index["cells"] = [cell for cell in index["cells"] if cell["column"] == column]
    (tmp_path / "batch.json").write_text(json.dumps(index))
    for place in {pathlib.PurePath(cell["directory"]).parts[0] for cell in index["cells"] if cell["directory"]}:
        (tmp_path / place).symlink_to(league / place)
    rows = {row.result.noted["row"]: row for row in league_table.league_rows(read_study(tmp_path))[column]}
    assert len(rows) == 32
    part = read_study(tmp_path, cells=[(column, name) for name in names])
    (shown,) = league_table.to_tables(part).values()
    assert shown.rows == [league_table.cells(rows[name]) for name in names]
    assert [row[2] for row in shown.rows] == ["+14.1 ± 1.2*", "+5.3 ± 1.6"]
