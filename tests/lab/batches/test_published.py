"""The numbers to expect: found in the studies, noted beside a run, compared in its report."""

import json

import pytest

from tffcl.lab.batches import run, study_file
from tffcl.lab.reporting import batch_index, study_table
from tffcl.lab.tasks import resolve as configs
from tffcl.lab.tasks.task_file import task_directory
from tffcl.runs.run import Interrupted
from tffcl.runs.run_directory import RunDirectory

TASK = "pacfl_fmnist_label_skew_20"


def noted(tmp_path, *arguments, **options) -> list[dict]:
    run.write_published(configs.resolve(*arguments, seed=3, **options), RunDirectory(tmp_path))
    file = tmp_path / "published.json"
    return json.loads(file.read_text())["cells"] if file.exists() else []


def test_the_cells_of_a_task_and_method(tmp_path):
    # PACFL's Table 1, FMNIST, FedAvg: 77.3 +- 4.9 of the global model after 200 rounds.
    (cell,) = [each for each in noted(tmp_path, TASK, "fedavg") if each["study"] == "pacfl_table_1"]
    assert cell["published"] == [77.3, 4.9] and cell["measure"] == "global" and cell["differs"] == []
    assert cell["rounds"] == 200 and cell["where"] == "PACFL, arXiv:2209.10526, Table 1"
    assert (cell["column"], cell["row"]) == ("FMNIST", "FedAvg")


def test_other_settings_are_named(tmp_path):
    cells = noted(tmp_path, TASK, "fedavg", overrides={"train": {"rounds": 5, "learning_rate": 0.5}})
    (cell,) = [each for each in cells if each["study"] == "pacfl_table_1"]
    assert cell["differs"] == ["train.learning_rate", "train.rounds"] and cell["rounds"] == 200


def test_a_task_without_published_numbers_has_no_file(tmp_path):
    assert noted(tmp_path, "attacks_digits_small", "fedavg") == []
    assert noted(tmp_path, "demo_digits", "fedavg") == []  # what the README prints is no paper's


def test_a_run_has_not_ended_before_they_are_there(tff_worker, tmp_path, monkeypatch):
    def killed(self, summary):
        assert (self / "published.json").is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "write_summary", killed)
    monkeypatch.setattr(run, "_cells", lambda config: [{"study": "of mine"}])
    how = {"train": {"rounds": 1, "clients_per_round": 2}}
    with pytest.raises(Interrupted):
        run.run(configs.resolve("demo_digits", "fedavg", overrides=how), tmp_path / "run", show_progress=False)


def test_kept_results_say_what_their_study_says():
    # RESULTS.md is made from the kept files alone: what is mended in a study must be mended there, too.
    for index in sorted((task_directory() / "results").glob("*/batch.json")):
        kept, study = json.loads(index.read_text(encoding="utf-8")), study_file.load_study(index.parent.name)
        texts = ("title", "paper", "table", "note", "published_is")
        assert [kept[text] for text in texts] == [getattr(study, text) for text in texts], study.name
        printed = {(cell.column, cell.row): (list(cell.published), cell.target) for cell in study.cells}
        noted = {(cell["column"], cell["row"]): (cell["published"], cell["target"]) for cell in kept["cells"]}
        assert {place: printed[place] for place in noted} == noted, study.name


def test_the_report_compares(tmp_path, finished_runs):
    runs = batch_index.find_runs(finished_runs)
    table = study_table.published_to_page(runs)
    (row,) = [[getattr(cell, "text", cell) for cell in row] for row in table.rows]
    mean = 100 * sum(run.number("accuracy", "global", "mean") for run in runs[:2]) / 2
    method, compared, here, paper, difference, where = row
    assert (method, compared, paper) == ("fedavg", "global", "77.30 ± 4.90")
    assert here.startswith(f"{mean:.2f} ±") and difference == "–"  # 77.3 is of 200 rounds
    assert where == "PACFL, arXiv:2209.10526, Table 1: FMNIST, FedAvg"


def test_what_was_set_otherwise_is_not_compared(tmp_path, finished_runs):
    for file in finished_runs.glob("*/*/published.json"):
        contents = json.loads(file.read_text())
        for cell in contents["cells"]:
            cell["differs"] = ["train.learning_rate"]
        file.write_text(json.dumps(contents))
    assert study_table.published_to_page(batch_index.find_runs(finished_runs)) is None


@pytest.fixture
def finished_runs(tmp_path):
    """A comparison of the report's tests, as if its FedAvg had been run on PACFL's task, and had ended early."""
    from tests.lab.reporting.conftest import write_run

    for seed in (0, 1):
        out = tmp_path / "out" / "fedavg" / f"seed-{seed}"
        write_run(out, "fedavg", seed)
        run.write_published(configs.resolve(TASK, "fedavg", seed=seed), RunDirectory(out))
        contents = json.loads((out / "published.json").read_text())
        contents["cells"] = [each for each in contents["cells"] if each["study"] == "pacfl_table_1"]
        (out / "published.json").write_text(json.dumps(contents))
    write_run(tmp_path / "out" / "pacfl" / "seed-0", "pacfl", 0)
    return tmp_path / "out"
