"""A run that diverges becomes a row that says so: the others go on, resuming does not meet it again, the exit
code is 1.
"""

import json
import pathlib

import pytest

from tests.runs.finished_runs import rows_of
from tffcl.lab.cli.main import main
from tffcl.lab.reporting import batch_index

SHORT = "--rounds 2 --set evaluation.every=2 --set train.clients_per_round=4".split()
WILD = ["--set", "algorithms.fedavg.learning_rate=1e30"]
TASK = 'extends = "demo_digits"\n[algorithms.alone]\nmethod = "solo"\n'


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    place = tmp_path_factory.mktemp("diverging")
    (place / "mine.toml").write_text(TASK)
    how = ["--algorithms", "solo,fedavg,alone", *SHORT, *WILD, "--out", str(place / "compared")]
    return ["compare", str(place / "mine.toml"), *how]


@pytest.fixture(scope="module")
def compared(command):
    assert main(command) == 1
    return pathlib.Path(command[-1])


def test_the_others_go_on_and_the_table_has_all_in_the_order_asked(compared):
    rows = rows_of(compared / "table.csv")
    assert [(row["algorithm"], row["seeds"], bool(row["failed"])) for row in rows] == [
        ("solo", "1", False), ("fedavg", "0", True), ("alone", "1", False)
    ]  # fmt: skip
    assert rows[1]["failed"].startswith("seed 0: client") and "not finite" in rows[1]["failed"]
    assert rows[1]["cluster_accuracy_percent"] == ""
    page = (compared / "report.html").read_text()
    assert "fedavg seed 0 failed: client" in page and "0 of 1" in page
    assert json.loads((compared / "fedavg" / "seed-0" / batch_index.FAILED).read_text())["algorithm"] == "fedavg"


@pytest.mark.slow
def test_overwriting_tries_it_again(tmp_path, capsys):
    command = ["compare", "demo_digits", "--algorithms", "fedavg", *SHORT, "--out", str(tmp_path)]
    assert main([*command, *WILD]) == 1
    assert "0 of 1" in capsys.readouterr().out  # where all diverge there is a table still
    assert not (tmp_path / "report.html").exists()
    assert main([*command, "--overwrite"]) == 0
    assert not (tmp_path / "fedavg" / "seed-0" / batch_index.FAILED).exists()
    assert rows_of(tmp_path / "table.csv")[0]["failed"] == ""


def test_a_sweep_goes_on_and_is_a_sweep_from_its_first_run_on(tmp_path, capsys, monkeypatch):
    from tffcl.lab.reporting import report, sweeps

    seen, write = [], report.write_table

    def write_and_look(path):
        write(path)
        seen.append(
            [
                (point.row.algorithm, len(point.runs), len(point.row.failures))
                for point in sweeps.read_sweep(path).points
            ]
        )

    monkeypatch.setattr(report, "write_table", write_and_look)
    command = ["sweep", "demo_digits", "--algorithm", "fedavg", "--over", "learning_rate=1e30,0.1", *SHORT]
    assert main([*command, "--out", str(tmp_path)]) == 1
    assert seen == [[("1e+30", 0, 1), ("0.1", 0, 0)], [("1e+30", 0, 1), ("0.1", 1, 0)]]
    assert [bool(row["failed"]) for row in rows_of(tmp_path / "sweep.csv")] == [True, False]
    assert "1e+30 seed 0 failed: client" in capsys.readouterr().out
    assert "seed 0 failed" in (tmp_path / "report.html").read_text()
