"""Studies: files that are read and refused, plans, and one of digits that is run, killed and resumed."""

import contextlib
import copy
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

from tests.lab.cli.test_cli import fails
from tests.runs.finished_runs import rows_of
from tests.runs.test_run import wait_for
from tffcl.errors import UserError
from tffcl.lab.batches import batch, study, study_file
from tffcl.lab.cli.main import main
from tffcl.lab.reporting import study_results, study_table
from tffcl.lab.tasks.resolve import parse_overrides
from tffcl.lab.tasks.task_file import overridden, task_directory
from tffcl.runs.run_directory import RunDirectory

SHORT = "--rounds 2 --set train.clients_per_round=4 --set evaluation.every=1".split()
MINE = """
title = "Mine"
paper = "A paper"
table = "Table 9"
note = "A note."
seeds = [3]

[columns.digits]
task = "demo_digits"

[set.evaluation]
every = 1

[columns."to target"]
task = "demo_digits"
measure = "rounds_to"
accuracy = "local"
target = 5

[columns.unseen]
task = "demo_digits"
set = {newcomers = {clients = 8, epochs = 1}}

[rows.FedAvg]
method = "fedavg"
measure = "global"
published = {digits = [80.5, 0.5], "to target" = "none", unseen = "none"}

[rows.SOLO]
method = "solo"
published = {digits = 70, "to target" = 1, unseen = 60}

[rows.Another]
method = "another"
missing = "no code of it is known"
published = {digits = 90, "to target" = "none", unseen = "none"}

[rows.Wild]
method = "fedavg"
set = {train = {learning_rate = 1e30}}
published = {digits = 10, "to target" = "none", unseen = "none"}

[cells."unseen/SOLO"]
measure = "unseen_local"
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The study above after a run of each cell: `(directory, exit code, standard error)`; its tests leave it
    as it is.
    """
    place = tmp_path_factory.mktemp("study")
    (place / "mine.toml").write_text(MINE, encoding="utf-8")
    command = ["study", str(place / "mine.toml"), *SHORT, "--out", str(place / "out")]
    begun, run = [], batch.run

    def interrupted(config, *given, **how):
        begun.append(config.algorithm)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return run(config, *given, **how)

    # Ended where the second run begins: the same command goes on.
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(batch, "run", interrupted)
        main(command)
    finished = sorted((place / "out" / "runs").glob("*/*/seed-3/summary.json"))
    assert len(begun) == 2 and len(finished) == 1
    written = [file.stat().st_mtime_ns for file in finished]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(command)
    assert [file.stat().st_mtime_ns for file in finished] == written  # what had finished was not run again
    return place / "out", code, said.getvalue()


def test_every_cell_of_every_study_can_be_planned():
    """Methods, tasks, keys and values are known, and no cell takes part in two runs of one setting; the league, which
    is the largest, is planned where it is tested.
    """
    for name in set(study_file.study_names()) - {"league"}:
        planned = study.plan(study_file.load_study(name), rounds=0.75, seeds=[0])
        assert planned.jobs and len(planned.cells) == len(planned.study.cells)
        for cell, place in zip(planned.cells, planned.places, strict=True):
            assert (place is None) == bool(cell.missing), cell.name


def test_names_that_directories_cannot_tell_apart_have_their_own_runs(mine):
    text = mine.read_text().replace(
        '[cells."unseen/SOLO"]',
        '[rows."SOLO!"]\nmethod = "pacfl"\n[rows."solo?"]\nmethod = "fedprox"\n[cells."unseen/SOLO"]',
    )
    mine.write_text(text)
    planned = study.plan(study_file.load_study(mine), only=["digits"])
    found = {each.config.algorithm: each.place.parent.name for each in planned.jobs if "solo" in each.place.parent.name}
    assert found == {"solo": "solo", "pacfl": "solo~2", "fedprox": "solo~3"}
    some = study.plan(study_file.load_study(mine), only=["digits/solo?"]).jobs
    assert {each.place.parent.name for each in some} == {"solo~2", "solo~3"}, "whichever are run"


def test_published_numbers_are_read():
    cells = {cell.name: cell for cell in study_file.load_study("pacfl_table_1").cells}
    assert len(cells) == 40
    assert cells["FMNIST/PACFL"].published == (97.54, 0.08) and cells["FMNIST/PACFL"].measure == "local"
    assert cells["SVHN/FedAvg"].published == (80.2, 0.8) and cells["SVHN/FedAvg"].measure == "global"
    assert cells["CIFAR-100/CFL"].task == "pacfl_cifar100_label_skew_20"
    unseen = {cell.name: cell for cell in study_file.load_study("stocfl_table_4").cells}
    assert unseen["unseen/StoCFL"].measure == "unseen_cluster" and unseen["unseen/StoCFL"].published == (91.06, 0.05)
    lacking = [cell for cell in study_file.load_study("pacfl_table_6").cells if cell.missing]
    assert [cell.name for cell in lacking] == ["CIFAR-100, Mb to 50 %/LG-FedAvg"]
    assert "not printed" in lacking[0].missing


def test_the_authors_megabits_are_theirs():
    """PACFL Table 8 prints 79.36 Mb for FedAvg on FMNIST: 200 rounds; 11.30 for IFCA: 19; 1.26 for LG-FedAvg: 18."""
    cells = {cell.name: cell for cell in study_file.load_study("pacfl_table_6").cells}
    for name, rounds in (
        ("FMNIST, Mb to 80 %/FedAvg", 200),
        ("FMNIST, Mb to 80 %/IFCA", 19),
        ("FMNIST, Mb to 80 %/LG-FedAvg", 18),
        ("CIFAR-100, Mb to 50 %/PACFL", 47),
    ):
        assert rounds * cells[name].megabits_a_round == pytest.approx(cells[name].published[0], rel=0.01), name


@pytest.mark.parametrize(
    ("rounds", "found"), [(1, 30), (0.25, 8), (0.01, 1), (7, 7)], ids=["all", "a quarter", "at least one", "a number"]
)
def test_a_share_of_the_rounds(rounds, found):
    planned = study.plan(study_file.load_study("demo_digits"), rounds=rounds)
    assert {each.config.train.rounds for each in planned.jobs} == {found}


def test_only_some_cells_and_cells_of_one_setting_share_runs():
    found = study_file.load_study("demo_digits")
    assert [cell.name for cell in study_file.chosen(found, ["*/pacfl"])] == ["digits/PACFL"]
    assert [cell.name for cell in study_file.chosen(found, ["DIGITS", "digits_v*/*"])] == [
        cell.name for cell in found.cells
    ]
    assert [cell.name for cell in study_file.chosen(study_file.load_study("flis_table_2"), ["FMNIST/FLIS (DC)"])]
    assert [cell.name for cell in study_file.chosen(found, ["*/fedavg,*/pacfl"])] == ["digits/FedAvg", "digits/PACFL"]
    assert [cell.name for cell in study_file.chosen(found, ["digits, variance"])] == ["digits, variance/SOLO, clients"]
    several = study_file.chosen(found, ["digits, variance/SOLO, clients, digits/PACFL"])
    assert [cell.name for cell in several] == ["digits/PACFL", "digits, variance/SOLO, clients"]
    with pytest.raises(
        UserError, match="unknown cell of demo_digits 'digits, variance/SOLOS'; did you mean 'digits, variance/"
    ):
        study_file.chosen(found, ["digits, variance/SOLOS"])
    planned = study.plan(found)
    assert len(planned.cells) == 4 and len(planned.jobs) == 3  # SOLO's accuracy and variance are of one run
    assert planned.places[2] == planned.places[3]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"demo_digits"',
            '"demo_digit"',
            "unknown task of mine.toml, digits/FedAvg: 'demo_digit'; did you mean 'demo_digits'",
        ),
        ('"rounds_to"', '"rounds_till"', "unknown measure of mine.toml"),
        ("target = 5", "", "rounds_to needs a target"),
        ("[80.5, 0.5]", "[80.5, 0.5, 1]", "published is [80.5, 0.5, 1]; it must be a number"),
        ("{digits = 70,", "{digit = 70,", "published names 'digit', which the study does not have"),
        ('method = "solo"', "", "mine.toml, digits/SOLO has no method"),
        ('title = "Mine"', 'titel = "Mine"', "unknown key of mine.toml 'titel'; did you mean 'title'"),
        ('[cells."unseen/SOLO"]', '[cells."unseen/SOL"]', "did you mean 'unseen/SOLO'"),
        ('title = "Mine"', "title = ", "mine.toml is no TOML"),
        ('title = "Mine"', 'page = "x"', "mine.toml: page is 'x'; it must be a whole number from 0"),
        ("seeds = [3]", "seeds = []", "mine.toml: seeds is []; it must be a list of 1 or more whole numbers from 0"),
        ('title = "Mine"', "tuning = 3", "mine.toml: tuning is 3; it must be a table"),
        ('title = "Mine"', 'measure = ["local"]', "mine.toml: measure is ['local']; it must be text"),
        ('title = "Mine"', "x = " + 3000 * "[" + 3000 * "]", "mine.toml is nested too deep"),
        ("target = 5", 'target = "x"', "target is 'x'; it must be a number"),
        ('method = "solo"', 'method = "solo"\nset = 3', "set is 3; it must be a table"),
        ("target = 5", "target = 0.5", "SOLO: target 'local=0.5' is 0.5 %, and it must be above 1; did you mean loc"),
        ("target = 5", "target = 500", "SOLO: target 'local=500': local is from 0 to 100 %"),
        ('title = "Mine"', 'layout = "league"', "digits/SOLO has measure local and target None, others"),
    ],
)
def test_a_wrong_file_is_one_line(mine, old, new, message):
    text = mine.read_text()
    assert old in text
    mine.write_text(text.replace(old, new))
    with pytest.raises(UserError) as caught:
        study_file.load_study(mine)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pacfl_table_l"], "unknown study 'pacfl_table_l'; did you mean 'pacfl_table_"),
        (
            ["demo_digits", "--only", "digits/FedAv"],
            "unknown cell of demo_digits 'digits/FedAv'; did you mean 'digits/FedAvg'",
        ),
        (["demo_digits", "--rounds", "0"], "--rounds 0 must be a share of each task's rounds"),
        (["demo_digits", "--rounds", "1.5"], "--rounds 1.5 must be"),
        (["demo_digits", "--seeds", "a"], "--seeds 'a' must be whole numbers"),
        (["demo_digits", "--seeds", "0,0"], "--seeds names 0 twice"),
        (["demo_digits", "--table-only"], "holds no results of a study"),
    ],
)
def test_a_wrong_command_is_one_line(capsys, tmp_path, arguments, message):
    assert message in fails(capsys, "study", *arguments, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_study_that_was_ended_goes_on_and_says_how_long(done):
    out, code, errors = done
    assert code == 1  # Wild diverges
    assert "finished before" in errors or "diverged before" in errors
    assert "not available: digits/Another: no code of it is known" in errors
    assert "4 runs, " in errors and "to do" in errors
    assert "[1/4] " in errors and "all that is left: " in errors
    assert len(list((out / "results").glob("*/*/seed-3/summary.json"))) == 3


@pytest.mark.slow
def test_a_killed_study_ends_as_another(done, mine, tmp_path):
    command = ["study", str(mine), *SHORT, "--out", str(tmp_path / "out")]
    process = subprocess.Popen([sys.executable, "-m", "tffcl", *command], stderr=subprocess.DEVNULL)
    wait_for(lambda: len(list((tmp_path / "out" / "runs").glob("*/*/seed-3/config.toml"))) == 2, process)
    process.kill()
    process.wait()
    assert main(command) == done[1]
    tables = [rows_of(out / "results" / "table.csv") for out in (done[0], tmp_path / "out")]
    assert tables[0] == tables[1]


def five_digits(cell):
    name, text = cell
    return name, f"{float(text):.5g}" if "." in text or "e" in text else text


def test_the_results_are_small_and_those_of_the_runs(done):
    out, _, _ = done
    for file in (out / "runs").glob("*/*/seed-3/summary.json"):
        copied = out / "results" / file.relative_to(out / "runs")
        digits = json.loads(file.read_text(), parse_float=lambda text: float(f"{float(text):.5g}"))
        assert json.loads(copied.read_text()) == digits and copied.read_text().count("\n") == 1
        assert not (file.parent / "checkpoints").exists()
        rounds = [rows_of(place.parent / "rounds.csv") for place in (file, copied)]
        assert [list(map(five_digits, row.items())) for row in rounds[0]] == [list(row.items()) for row in rounds[1]]
    assert sum(file.stat().st_size for file in (out / "results").rglob("*") if file.is_file()) < 60_000


def test_the_table_has_published_numbers_and_differences(done):
    out, _, _ = done
    rows = {(row["column"], row["row"]): row for row in rows_of(out / "results" / "table.csv")}
    assert list(rows) == [("digits", each) for each in ("FedAvg", "SOLO", "Another", "Wild")] + [
        ("to target", "SOLO"),
        ("unseen", "SOLO"),
    ]
    summary = json.loads((out / "results" / "digits" / "fedavg" / "seed-3" / "summary.json").read_text())
    here = 100 * summary["accuracy"]["global"]["mean"]
    fedavg = rows["digits", "FedAvg"]
    assert float(fedavg["here"]) == pytest.approx(here)
    assert (float(fedavg["paper"]), float(fedavg["paper_spread"])) == (80.5, 0.5)
    assert (fedavg["rounds"], fedavg["difference"]) == ("2", "")  # the paper's are of 30
    assert rows["digits", "Another"]["missing"] == "no code of it is known" and rows["digits", "Another"]["here"] == ""
    assert "not finite" in rows["digits", "Wild"]["failed"] and rows["digits", "Wild"]["seeds"] == "0"
    joined = json.loads((out / "results" / "unseen" / "solo" / "seed-3" / "newcomers.json").read_text())
    assert float(rows["unseen", "SOLO"]["here"]) == pytest.approx(100 * joined["accuracy"]["local"]["mean"])
    read = rows_of(out / "results" / "digits" / "solo" / "seed-3" / "rounds.csv")
    reached = [int(row["round"]) for row in read if 100 * float(row["local_accuracy_all"] or 0) >= 5]
    assert float(rows["to target", "SOLO"]["here"]) == reached[0]
    assert rows["to target", "SOLO"]["difference"] == ""  # the command set other epochs and clients


def test_rounds_to_recovery_are_counted_from_the_change_of_data():
    rounds = {"round": np.arange(1.0, 6.0), "cluster_accuracy": np.array([0.95, 0.95, 0.5, 0.7, 0.93])}
    for since, counted in ((0, 1), (3, 3), (5, 1)):
        assert study_results._rounds_to(rounds, "cluster", 90.0, since) == counted
    assert np.isnan(study_results._rounds_to(rounds, "cluster", 94.0, 3))


def test_rounds_to_a_target_are_compared_whatever_the_rounds():
    assert not study_results.is_cut("rounds_to", 2, 30) and study_results.is_cut("local", 2, 30)
    assert not study_results.is_cut("local", 30, 30)


def test_a_study_in_which_nothing_is_published_has_all_of_its_cells(mine):
    mine.write_text(re.sub(r"published = .*", 'published = "none"', mine.read_text()))
    found = study_file.load_study(mine)
    assert len(found.cells) == 12 and {cell.published for cell in found.cells} == {(None, None)}
    mine.write_text(mine.read_text().replace('published = "none"', "published = 70", 1))
    assert [cell.name for cell in study_file.load_study(mine).cells] == [
        "digits/FedAvg",
        "to target/FedAvg",
        "unseen/FedAvg",
    ]


def test_the_table_is_made_again_and_goes_into_the_page(done, tmp_path, capsys):
    import shutil

    out, _, _ = done
    table = out / "results" / "table.csv"
    before = table.read_bytes()
    table.unlink()
    own_file = next(out.parent.glob("mine.toml"))
    assert main(["study", str(own_file), "--table-only", "--out", str(out)]) == 0
    assert table.read_bytes() == before
    text = capsys.readouterr().out
    assert "set otherwise than in the tasks: train.clients_per_round." in text
    assert "Mine (A paper, Table 9)" in text and "2 of 30" in text and "Another: not available: no code of it" in text
    kept = tmp_path / "kept"
    shutil.copytree(out / "results", kept / "mine")
    (kept / "NOTES.md").write_text("What I think.\n")
    (kept / "mine" / "FINDINGS.md").write_text("What it\nshows.\n")
    assert main(["results", str(kept)]) == 0
    page = (tmp_path / "RESULTS.md").read_text()
    cells = "5 of 5, 1 without a number"  # it diverged
    assert re.search(
        rf"\| \[`mine`\]\(#mine\): Mine \(A paper, Table 9\) \| 3 \| {cells} \| 3 \| 2 rounds \| \d+ s \|", page
    )
    assert '<a id="mine"></a>' in page and "\nWhat it shows.\n" in page
    assert "| Wild | local | diverged | 10.00 |" in page
    assert page.startswith("# What the studies give") and page.rstrip().endswith("What I think.")
    (file,) = kept.glob("mine/*/wild/seed-3/failed.json")
    file.write_text(json.dumps({"algorithm": "fedavg", "seed": 3, "reason": "no data"}))  # nothing has been run
    assert main(["results", str(kept)]) == 0
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| 4 of 5 |" in page and "| Wild | local | – | 10.00 |" in page
    assert "| FedAvg | global |" in page and "80.50 ± 0.50" in page
    assert "no code of it is known" in page


@pytest.fixture
def nobodys(tmp_path_factory):
    """A study file of which nobody has run anything."""
    file = tmp_path_factory.mktemp("studies") / "nobodys.toml"
    shutil.copy(task_directory() / "studies" / "flt_table_1.toml", file)
    return str(file)


def test_the_table_of_what_nobody_ran_here_is_that_of_the_kept_results(nobodys, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["study", "flt_table_1", "--table-only"]) == 0
    text = capsys.readouterr().out
    assert "Scenario 1 (FLT" in text and "82.73" in text and "kept results: " in text
    assert "holds no results of a study" in fails(capsys, "study", nobodys, "--table-only")
    assert not list(tmp_path.iterdir())
    only = ["--only", "MNIST/FLT (Enc2)", "--seeds", "0"]
    assert main(["study", "flt_table_1", "--table-only", *only]) == 0
    text = capsys.readouterr().out
    assert "Scenario 1 (FLT" in text and "variance" not in text and "FedAvg" not in text and "seed 0;" in text
    assert "results of seed 77" in fails(capsys, "study", "flt_table_1", "--table-only", "--seeds", "77")


def test_the_table_of_a_part_of_what_was_run(done, capsys):
    out = done[0]
    before = (out / "results" / "table.csv").read_bytes()
    command = ["study", str(out.parent / "mine.toml"), "--table-only", "--out", str(out)]
    assert main([*command, "--only", "digits/SOLO", "--seeds", "3"]) == 0
    text = capsys.readouterr().out
    assert "SOLO" in text and "FedAvg" not in text and "unseen" not in text
    assert (out / "results" / "table.csv").read_bytes() == before  # the files have all
    assert "holds no results of seed 4, 5" in fails(capsys, *command, "--seeds", "4,3,5")
    assert "unknown cell of mine 'digits/Solos'" in fails(capsys, *command, "--only", "digits/Solos")


def test_a_table_of_other_rounds_is_named(nobodys, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "studies" / "nobodys-rounds-2").mkdir(parents=True)
    (tmp_path / "runs" / "studies" / "flt_table_1-rounds-0.5").mkdir()
    told = fails(capsys, "study", nobodys, "--table-only")
    assert "; there is runs/studies/nobodys-rounds-2: name it with --out" in told
    assert main(["study", "flt_table_1", "--table-only"]) == 0
    assert "run here, with other rounds: runs/studies/flt_table_1-rounds-0.5" in capsys.readouterr().out
    assert "flt_table_1-rounds-2 holds no results" in fails(
        capsys, "study", "flt_table_1", "--table-only", "--rounds", "2"
    )


def test_other_settings_are_refused_and_other_seeds_are_added(done, capsys, tmp_path):
    import shutil

    out = tmp_path / "copy"
    shutil.copytree(done[0], out)
    own_file = str(done[0].parent / "mine.toml")
    message = fails(capsys, "study", own_file, *SHORT, "--set", "train.momentum=0.1", "--out", str(out))
    assert "holds another run: its train.momentum is 0.5, not 0.1" in message
    assert "holds the study mine, not demo_digits" in fails(capsys, "study", "demo_digits", "--out", str(out))
    more = ["study", own_file, *SHORT, "--only", "digits/SOLO", "--seeds", "4", "--out", str(out)]
    assert main(more) == 0
    capsys.readouterr()
    read = study_results.read_study(out / "results")
    assert [result.here.count for result in read.results] == [1, 2, 0, 0, 2, 1]
    assert read.noted["seeds"] == [3, 4] and pathlib.Path(read.path).name == "results"


@pytest.mark.parametrize("more", [["--set", "train.momentum=0.1"], ["--rounds", "1"], ["--overwrite", "--rounds", "1"]])
def test_a_cell_has_no_runs_of_two_settings(done, capsys, tmp_path, more):
    """Its mean over seeds would be of both."""
    out = shutil.copytree(done[0], tmp_path / "copy")
    own_file = str(done[0].parent / "mine.toml")
    given = ["study", own_file, *SHORT, "--only", "digits/SOLO", "--seeds", "4", *more, "--out", str(out)]
    key = "train.momentum 0.5, not 0.1" if "--set" in more else "train.rounds 2, not 30"
    assert f"solo/seed-3 was run with {key}; the runs of a cell are of the same settings" in fails(capsys, *given)


def test_rounds_to_a_target_need_every_round_evaluated(mine):
    mine.write_text(MINE.replace("every = 1", "every = 4"))
    with pytest.raises(UserError, match="to target/SOLO: rounds_to is read off .* every 4; it needs set.evaluation.e"):
        study.plan(study_file.load_study(mine))


NUMBERS = {"every = 1": 'every = 1\nmetrics = ["mae"]'}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {'"global"': '"cluster_auc"'},
            r"measure cluster_auc of digits/FedAvg needs the metric: --set 'evaluation.metrics",
        ),
        (NUMBERS, "measure global of digits/FedAvg 'global_accuracy'; did you mean"),
        (
            {**NUMBERS, '"global"': '"cluster_variance"'},
            "measure cluster_variance of digits/FedAvg 'cluster_accuracy'; did you mean",
        ),
        (
            {'"global"': '"benign_worst"'},
            "digits/FedAvg: benign_worst is of those who do not attack; .* needs set.attack.share",
        ),
    ],
)
def test_what_a_cell_compares_must_be_measured(mine, changes, message):
    text = MINE
    for old, new in changes.items():
        text = text.replace(old, new, 1)
    mine.write_text(text)
    with pytest.raises(UserError, match=message):
        study.plan(study_file.load_study(mine))


def test_a_cell_that_shared_a_run_of_other_settings_has_none_until_it_is_run(mine):
    """As an accuracy and its variance do, of which one is edited and run anew."""
    shared = MINE.replace(
        "[rows.Another]", '[rows.Variance]\nmethod = "solo"\nmeasure = "local_variance"\n[rows.Another]'
    )
    mine.write_text(
        shared.replace('measure = "local_variance"', 'measure = "local_variance"\npublished = {digits = 3}')
    )
    whole = study._contents(study.plan(study_file.load_study(mine)), {})
    edited = mine.read_text().replace(
        '[rows.SOLO]\nmethod = "solo"', '[rows.SOLO]\nmethod = "solo"\nset.train.momentum = 0.1'
    )
    for text, found in ((mine.read_text(), "digits/solo"), (edited, None)):
        mine.write_text(text)
        planned = study.plan(study_file.load_study(mine), only=["digits/SOLO"])
        noted = {f"{each['column']}/{each['row']}": each for each in study._contents(planned, whole)["cells"]}
        assert noted["digits/Variance"]["directory"] == found and noted["digits/SOLO"]["directory"] == "digits/solo"


def test_accuracies_of_unseen_clients_need_clients_that_are_held_out(mine):
    mine.write_text(MINE.replace("set = {newcomers = {clients = 8, epochs = 1}}", ""))
    with pytest.raises(UserError, match="unseen/SOLO: unseen_local is of clients .* needs set.newcomers.clients"):
        study.plan(study_file.load_study(mine))


def test_a_league_ranks_a_column_by_one_measure(mine):
    league = MINE.replace('measure = "rounds_to"\n', "").replace(
        "[cells.", '[cells."digits/SOLO"]\nmeasure = "local"\n[cells.'
    )
    mine.write_text(
        'layout = "league"\nmeasure = "cluster"'
        + league.replace('measure = "global"', "").replace("unseen_local", "cluster")
    )
    with pytest.raises(UserError, match="digits/SOLO has measure local and target None, others of its column cluster"):
        study_file.load_study(mine)
    mine.write_text('layout = "league"\nmeasure = "rounds_to"\ntarget = 50' + MINE.replace("target = 5\n", ""))
    with pytest.raises(UserError, match="measure of mine.toml, .* a league's: 'rounds_to'"):
        study_file.load_study(mine)


def test_cells_that_are_not_run_are_compared_with_what_the_file_says_now(mine):
    whole = study._contents(study.plan(study_file.load_study(mine)), {})
    mine.write_text(MINE.replace("{digits = 70,", "{digits = 75,"))
    edited = study.plan(study_file.load_study(mine), only=["digits/FedAvg"])
    noted = {f"{each['column']}/{each['row']}": each for each in study._contents(edited, whole)["cells"]}
    assert noted["digits/SOLO"]["published"] == [75, None] and noted["digits/SOLO"]["directory"]


def test_cells_that_share_a_run_of_fewer_rounds_have_their_own_number(mine):
    column = '[columns.long]\ntask = "demo_digits"\nset.train.rounds = 90\n[columns.unseen]'
    longer = MINE.replace("[columns.unseen]", column)
    mine.write_text(longer.replace("published = {digits = 70,", "published = {digits = 70, long = 70,"))
    planned = study.plan(study_file.load_study(mine), rounds=4)
    noted = {f"{each['column']}/{each['row']}": each for each in study._contents(planned, {})["cells"]}
    short, long = (noted[f"{column}/SOLO"] for column in ("digits", "long"))
    assert short["directory"] == long["directory"] and (short["paper_rounds"], long["paper_rounds"]) == (30, 90)


def test_with_a_share_of_the_rounds_in_which_data_never_change_a_cell_is_not_run(mine):
    drift = '{drift = {pattern = "swapped", round = 20}}'
    changing = MINE.replace("{newcomers = {clients = 8, epochs = 1}}", drift)
    mine.write_text(changing.replace("unseen_local", "local"))
    whole, half = (study.plan(study_file.load_study(mine), rounds=rounds) for rounds in (1, 0.5))
    (told,) = half.missing.keys() - whole.missing.keys()
    assert told.startswith("drift.round is 20, and the run has 15: data would never change")
    assert [cell.column for cell, place in zip(half.cells, half.places) if place is None].count("unseen") == 1


@pytest.mark.parametrize("happens", ["drift = {clients = 12, round = 20}", "newcomers = {clients = 8, round = 20}"])
def test_trials_that_end_before_data_change_or_clients_join_are_refused(tmp_path, happens):
    """What they chose would be for other data than the run's."""
    text = TUNED.replace("[set.dataset]", f"[tuning]\nrounds = 0.5\n[set]\n{happens}\n[set.dataset]")
    with pytest.raises(UserError, match="digits/FedAvg is tuned .* 0.5 of .tuning.: .*round is 20, and the run has 15"):
        study.run_study(tuned(tmp_path, text), tmp_path / "out")


def test_of_the_sizes_of_a_cohort_the_one_that_is_said_last_holds(mine, tmp_path):
    mine.write_text(
        MINE.replace("[columns.unseen]", "set.train.participation = 0.25\n[columns.unseen]", 1).replace(
            'method = "solo"', 'method = "solo"\nset.train.clients_per_round = 7'
        )
    )
    (cell,) = (each for each in study_file.load_study(mine).cells if each.name == "to target/SOLO")
    assert cell.overrides["train"] == {"clients_per_round": 7}
    pairs = ["train.participation=0.25", "train.clients_per_round=7"]
    assert parse_overrides(pairs) == {"train": {"clients_per_round": 7}}
    assert parse_overrides(pairs[::-1]) == {"train": {"participation": 0.25}}


@pytest.mark.parametrize("damage", ["{", "[]", "3", "{}", 5000 * "[", '{"accuracy": 3}'])
@pytest.mark.parametrize("name", ["summary.json", "failed.json"])
def test_the_damaged_file_of_a_run_is_named(done, tmp_path, name, damage):
    results = shutil.copytree(done[0] / "results", tmp_path / "results")
    (place,) = [
        file.parent for file in results.glob(f"*/{'wild' if name == 'failed.json' else 'fedavg'}/seed-3/{name}")
    ]
    (place / name).write_text(damage)
    with pytest.raises(UserError, match=rf"{place / name} is damaged: [^\n]*$"):
        study_results.read_study(results)


def test_runs_with_fewer_rounds_are_told_beside_those_with_all(tmp_path):
    from tffcl.lab.tasks.task_file import task_directory

    results = shutil.copytree(task_directory() / "results" / "demo_digits", tmp_path / "results")
    assert study_results.read_study(results).share == "all rounds"
    summary = results / "digits" / "fedavg" / "seed-0" / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "rounds": 7}))
    read = study_results.read_study(results)
    assert read.share == "all rounds, 1 of 4 numbers with fewer"
    assert [each.difference is None for each in read.results] == [True, False, False, False]
    assert re.search(r"FedAvg +global +87\.5\d +87\.56 +– .* 7 of 30", study_table.to_text(read))


def test_the_table_alone_compares_with_what_the_file_says_now(done, tmp_path, capsys):
    out = shutil.copytree(done[0], tmp_path / "copy")
    own_file = tmp_path / "mine.toml"
    own_file.write_text((done[0].parent / "mine.toml").read_text().replace("{digits = 70,", "{digits = 71.5,"))
    assert main(["study", str(own_file), "--table-only", "--out", str(out)]) == 0
    assert "71.50" in capsys.readouterr().out
    (solo,) = (
        row for row in rows_of(out / "results" / "table.csv") if (row["column"], row["row"]) == ("digits", "SOLO")
    )
    assert float(solo["paper"]) == 71.5


def test_seeds_that_ended_early_leave_no_difference(done, tmp_path):
    results = shutil.copytree(done[0] / "results", tmp_path / "results")
    other = shutil.copytree(results / "digits" / "solo" / "seed-3", results / "digits" / "solo" / "seed-4")
    for name, seed in (("config.toml", "seed = 3"), ("summary.json", '"seed":3')):
        text = (other / name).read_text()
        assert text.count(seed) == 1
        (other / name).write_text(text.replace(seed, f"{seed[:-1]}4"))
    noted = json.loads((results / "batch.json").read_text())
    for cell in noted["cells"]:
        cell["paper_rounds"], cell["changed"] = 2, []
    (results / "batch.json").write_text(json.dumps({**noted, "seeds": [3, 4]}))

    def solo():
        return next(each for each in study_results.read_study(results).results if each.noted["row"] == "SOLO")

    assert solo().difference is not None and solo().rounds == 2
    summary = results / "digits" / "solo" / "seed-4" / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "rounds": 1}))
    rounds = summary.with_name("rounds.csv")
    rounds.write_text("".join(rounds.read_text().splitlines(keepends=True)[:2]))
    assert solo().difference is None and solo().rounds == 1


def test_a_page_that_somebody_else_wrote_is_not_written_over(done, tmp_path, capsys):
    kept = shutil.copytree(done[0] / "results", tmp_path / "all" / "mine")
    (tmp_path / "RESULTS.md").write_text("# My thesis")
    told = fails(capsys, "results", str(kept.parent))
    assert "RESULTS.md was not made by tffcl" in told and (tmp_path / "RESULTS.md").read_text() == "# My thesis"


@pytest.mark.parametrize(
    "left_out",
    [("league", "league_own_keys"), pytest.param((), marks=pytest.mark.slow)],
    ids=["but the leagues", "all"],
)
def test_the_page_of_results_is_that_of_the_kept_files(tmp_path, left_out):
    """`tffcl results` makes tasks/RESULTS.md; an edit by hand would be lost. Leagues are of thousands of runs."""
    from tffcl.lab.reporting.results_page import read_studies, results_page

    kept, page = tmp_path / "tasks" / "results", (task_directory() / "RESULTS.md").read_text(encoding="utf-8")
    kept.mkdir(parents=True)
    for each in (task_directory() / "results").iterdir():
        if each.name not in left_out:
            (kept / each.name).symlink_to(each)
    head = page.partition("<a id=")[0]
    assert set(re.findall(r"(?m)^\| \[?`(\w+)`", head)) == set(study_file.study_names())  # also those without results
    made = results_page(kept, read_studies(kept), study_file.planned_cells())
    for name in left_out:
        page, sections = re.subn(rf'(?s)<a id="{name}">.*?(?=<a id=)', "", page)
        (made, lines), (page, _) = (re.subn(rf"(?m)^\| \[?`{name}`.*\n", "", text) for text in (made, page))
        assert sections == lines == 1
    assert made == page


@pytest.mark.slow
def test_a_study_is_listed_with_its_cells(capsys):
    assert main(["list", "studies", "pacfl_table_6"]) == 0
    text = capsys.readouterr().out
    assert "FMNIST, Mb to 80 %/PACFL: megabits_to, 7.53; pacfl on pacfl_fmnist_label_skew_30" in text
    assert "CIFAR-100, Mb to 50 %/LG-FedAvg: megabits_to, nothing printed; not available: the authors' formula" in text
    assert main(["list", "studies"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    kept = {file.parent.name for file in (task_directory() / "results").glob("*/batch.json")}
    assert {name for name in lines if "results of none are kept)" not in lines[name]} == kept
    assert re.search(r"\((\d+) cells: \1 can be run, results of \1 are kept\)$", lines["demo_digits"])
    assert "unknown study" in fails(capsys, "list", "studies", "pacfl_table_66")


@pytest.mark.parametrize("error", [UserError("no data"), RuntimeError("a fault of ours")], ids=["the user's", "ours"])
def test_a_cell_that_fails_leaves_the_others_and_is_tried_again(tmp_path, monkeypatch, capsys, error):
    calls = []

    def run(config, place, **_):
        calls.append(config.algorithm)
        if config.algorithm == "pacfl":
            raise error
        place.mkdir(parents=True)
        (place / "config.toml").write_text("")
        about = {"task": config.task, "algorithm": config.algorithm, "seed": config.seed, "rounds": 1}
        (place / "summary.json").write_text(json.dumps({**about, "seconds": {"total": 1.0}}))

    monkeypatch.setattr(batch, "run", run)
    monkeypatch.setattr(batch.runtime, "renew_local_worker", lambda **_: None)
    monkeypatch.setattr(batch.RunDirectory, "check_claim", lambda *_, **__: None)
    planned = study.plan(study_file.load_study("demo_digits"), rounds=2)
    for _ in range(2):
        assert study.run_study(planned, tmp_path) == 1
        assert str(error) in capsys.readouterr().err
    assert sorted(calls) == ["fedavg", "pacfl", "pacfl", "solo"]
    noted = json.loads((tmp_path / "results" / "digits" / "pacfl" / "seed-0" / "failed.json").read_text())
    assert str(error) in noted["reason"]


@pytest.fixture
def quick(monkeypatch):
    """The learning rates of the runs that were made; they take no time, and a rate is its accuracy."""
    made = []

    def run(config, place, *, resume, **_):
        directory = RunDirectory(place)
        directory.check_claim(config.as_dict(), resume=resume, overwrite=False)
        place.mkdir(parents=True, exist_ok=True)
        directory.claim(config.as_dict(), {}, {}, anew=True)
        about = {"task": config.task, "algorithm": config.algorithm, "seed": config.seed, "rounds": config.train.rounds}
        rate = {"cluster": {"mean": config.train.learning_rate}}
        validation = {**rate, "metrics": {"log_loss": rate}}
        directory.write_summary({**about, "seconds": {"total": 1.0}, "validation": validation})
        made.append(config.train.learning_rate)

    monkeypatch.setattr(batch, "run", run)
    monkeypatch.setattr(batch, "earlier_runs", lambda *_: {})
    monkeypatch.setattr(batch.runtime, "renew_local_worker", lambda **_: None)
    return made


TUNED = """
title = "Tuned"
[set.dataset]
validation = 0.2
[columns.digits]
task = "demo_digits"
[rows.FedAvg]
method = "fedavg"
tune = {learning_rate = [0.1, 0.2]}
"""


def tuned(tmp_path, text=TUNED):
    (tmp_path / "tuned.toml").write_text(text)
    return study.plan(study_file.load_study(tmp_path / "tuned.toml"))


def test_trials_of_another_grid_are_not_scored_as_those_of_this_one(tmp_path, quick):
    out = tmp_path / "out"
    assert study.run_study(tuned(tmp_path), out) == 0 and quick == [0.1, 0.2, 0.2]
    other = tuned(tmp_path, TUNED.replace("[0.1, 0.2]", "[0.3, 0.2]"))
    with pytest.raises(UserError, match="/0/seed-1000 holds another run: its train.learning_rate is 0.1, not 0.3"):
        study.run_study(other, out)
    longer = tuned(tmp_path, TUNED.replace("[0.1, 0.2]", "[0.1, 0.2, 0.15]"))
    assert study.run_study(longer, out) == 0 and quick[3:] == [0.15]  # what has been tried is not tried again


def test_a_trial_that_fails_for_a_passing_reason_is_tried_again_before_anything_is_chosen(tmp_path, quick, monkeypatch):
    out, run = tmp_path / "out", batch.run

    def on_a_full_disk(config, place, **how):
        if config.train.learning_rate == 0.2:
            raise UserError("No space left on device")
        run(config, place, **how)

    with monkeypatch.context() as full:
        full.setattr(batch, "run", on_a_full_disk)
        assert study.run_study(tuned(tmp_path), out) == 1 and quick == [0.1]
    assert study.run_study(tuned(tmp_path), out) == 0 and quick == [0.1, 0.2, 0.2]


def test_trials_of_two_cells_whose_names_make_one_directory_are_apart(tmp_path, quick):
    text = f'{TUNED}[rows."Fed Avg"]\nmethod = "fedavg"\ntune = {{learning_rate = [0.1, 0.2]}}\n'
    text += '[rows."Fed-Avg"]\nmethod = "fedavg"\ntune = {learning_rate = [0.3, 0.4]}\n'
    text += '[rows."Fed (Avg)"]\nmethod = "fedprox"\ntune = {learning_rate = [0.6, 0.5]}\n'
    assert study.run_study(tuned(tmp_path, text), tmp_path / "out") == 0
    noted = json.loads((tmp_path / "out" / "results" / "batch.json").read_text())["tuned"]
    best = {name: max(point["validation"] for point in each["points"]) for name, each in noted.items()}
    assert best == {"digits/FedAvg": 0.2, "digits/Fed Avg": 0.2, "digits/Fed-Avg": 0.4, "digits/Fed (Avg)": 0.6}


def test_what_a_command_sets_is_not_chosen_by_trials(tmp_path, quick):
    tuned(tmp_path)
    for place, overrides in enumerate(
        ({"train": {"learning_rate": 0.7}}, {"algorithms": {"fedavg": {"learning_rate": 0.6}}})
    ):
        out = tmp_path / f"out{place}"
        planned = study.plan(study_file.load_study(tmp_path / "tuned.toml"), overrides=overrides)
        assert study.run_study(planned, out) == 0 and quick == [0.7, 0.6][: place + 1]
        noted = json.loads((out / "results" / "batch.json").read_text())
        assert noted["cells"][0]["tuned"] == noted["tuned"] == {}


def test_a_check_computes_what_was_taken_from_the_kept_results(tmp_path, quick):
    planned = study.plan(study_file.load_study("demo_digits"), only=["digits/FedAvg"], seeds=[0])
    assert study.run_study(planned, tmp_path) == 0 and not quick
    assert study.run_study(planned, tmp_path, all_here=True) == 0 and len(quick) == 1


def test_a_cell_that_shares_its_runs_has_them_where_it_is_asked_for_alone(tmp_path, quick):
    """As the variance beside an accuracy, which the kept results have where the accuracy is."""
    alone = study.plan(study_file.load_study("demo_digits"), only=["digits, variance/*"])
    assert [job.place.as_posix() for job in alone.jobs] == ["digits/solo/seed-0"]
    assert study.run_study(alone, tmp_path) == 0 and not quick


def test_what_is_set_later_wins_over_a_methods_own_of_before(tmp_path, quick):
    """Of a column, then of trials, then of the command."""
    text = TUNED.replace('task = "demo_digits"', 'task = "demo_digits"\nset.algorithms.fedavg.learning_rate = 0.3')
    planned = tuned(tmp_path, text)
    assert study.run_study(planned, tmp_path / "out") == 0 and quick == [0.1, 0.2, 0.2]
    found = study_file.load_study(tmp_path / "tuned.toml")
    (job,) = study.plan(found, overrides={"train": {"learning_rate": 0.7}}).jobs
    assert job.config.train.learning_rate == 0.7
    sized = {"algorithms": {"fedavg": {"participation": 0.5}}}
    assert overridden(sized, {"train": {"clients_per_round": 3}})["algorithms"] == {"fedavg": {}}
    (job,) = study.plan(found, overrides={"algorithms": {"fedavg": {"learning_rate": 0.6}}}).jobs
    assert job.config.train.learning_rate == 0.6


def test_a_study_is_tuned_by_any_metric_in_its_own_direction(tmp_path, quick, capsys):
    by_loss = TUNED.replace("[set.dataset]", '[tuning]\nselect = "cluster_log_loss"\n[set.dataset]')
    with pytest.raises(UserError, match=r"select of \[tuning\], in digits/FedAvg, needs the metric: --set 'evaluation"):
        study.run_study(tuned(tmp_path, by_loss), tmp_path / "out")
    measured = by_loss.replace("[set.dataset]", '[set.evaluation]\nmetrics = ["log_loss"]\n[set.dataset]')
    assert study.run_study(tuned(tmp_path, measured), tmp_path / "out") == 0 and quick == [0.1, 0.2, 0.1]
    # A column may say otherwise than the study, whose seed of trials it keeps.
    of_column = measured.replace('task = "demo_digits"', 'task = "demo_digits"\ntuning.select = "cluster"')
    planned = tuned(tmp_path, of_column.replace("[tuning]", "[tuning]\nseed = 7"))
    assert planned.cells[0].tuning == study_file.Tuning(seed=7, select="cluster")
    assert study.run_study(planned, tmp_path / "other") == 0 and quick[3:] == [0.1, 0.2, 0.2]
    undefined = measured.replace("log_loss", "auc")  # as one of which nobody has the examples
    assert study.run_study(tuned(tmp_path, undefined), tmp_path / "undefined") == 0
    assert "failed, diverged or had no validation_cluster_auc with" in capsys.readouterr().err
    with pytest.raises(UserError, match="unknown select of .*, .tuning.: 'local'"):
        tuned(tmp_path, TUNED.replace("[set.dataset]", '[tuning]\nselect = "local"\n[set.dataset]'))


def test_a_row_of_a_label_of_its_task_is_tuned_by_the_keys_of_its_method(tmp_path, quick):
    """As one of the user's own, which is in no list of methods."""
    text = TUNED.replace('"fedavg"', '"near"').replace("learning_rate = [0.1, 0.2]", "proximal_weight = [0.1, 0.2]")
    text = text.replace("[columns", '[set.algorithms.near]\nmethod = "fedprox"\n[columns', 1)
    assert study.run_study(tuned(tmp_path, text), tmp_path / "out") == 0 and len(quick) == 3
    noted = json.loads((tmp_path / "out" / "results" / "batch.json").read_text())["tuned"]["digits/FedAvg"]
    assert [point["values"] for point in noted["points"]] == [
        {"algorithms.near.proximal_weight": weight} for weight in (0.1, 0.2)
    ]


def test_overwriting_a_study_makes_what_is_tuned_anew(tmp_path, quick):
    out = tmp_path / "out"
    study.run_study(tuned(tmp_path), out)
    assert study.run_study(tuned(tmp_path), out, overwrite=True) == 0 and quick == 2 * [0.1, 0.2, 0.2]
    other = tuned(tmp_path, TUNED.replace("[0.1, 0.2]", "[0.4, 0.3]"))
    assert study.run_study(other, out, overwrite=True) == 0 and quick[6:] == [0.4, 0.3, 0.4]
    config = (out / "results" / "digits" / "fedavg" / "seed-0" / "config.toml").read_text()
    assert "learning_rate = 0.4" in config
    assert study.run_study(other, out) == 0 and len(quick) == 9


def test_what_is_overwritten_and_ended_in_its_first_trial_is_not_as_before(tmp_path, quick, monkeypatch):
    out = tmp_path / "out"
    study.run_study(tuned(tmp_path), out)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as ended, pytest.raises(KeyboardInterrupt):
        ended.setattr(batch, "run", stop)
        study.run_study(tuned(tmp_path), out, overwrite=True)
    assert study.run_study(tuned(tmp_path), out) == 0 and quick == 2 * [0.1, 0.2, 0.2]


@pytest.mark.parametrize("name", ["..", ".", "../../x", "/etc", "", "a\nb", "x" * 300, "...", "\u202e"])
def test_the_directory_of_a_cell_is_inside_of_the_studys(tmp_path, name):
    place = tmp_path / study_file.slug(name)
    assert place.resolve().parent == tmp_path.resolve() and not place.name.startswith(".") and len(place.name) <= 80


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["cells"], [{}]),
        (["cells"], 3),
        (["cells", 0, "directory"], "../other"),
        (["cells", 0, "column"], []),
        (["cells", 0, "published"], [1]),
        (["cells", 0, "paper_rounds"], "x"),
        (["seeds"], ["x"]),
        (["tuned"], [3]),
        (["tuned"], {"digits/SOLO": 3}),
        (["rounds"], None),
        (["title"], 3),
    ],
)
def test_a_damaged_index_is_told_by_the_table_and_before_anything_runs(tmp_path, quick, keys, value):
    from tffcl.lab.tasks.task_file import task_directory

    place = noted = json.loads((task_directory() / "results" / "demo_digits" / "batch.json").read_text())
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (file := tmp_path / "results" / "batch.json").parent.mkdir()
    file.write_text(json.dumps(noted))
    with pytest.raises(UserError, match=rf"{file} is damaged: [^\n]*$"):
        study_results.read_study(file.parent)
    if keys[-1] not in ("directory", "published"):  # which a run puts in order
        with pytest.raises(UserError, match=rf"{file} is damaged: [^\n]*$"):
            study.run_study(study.plan(study_file.load_study("demo_digits")), tmp_path)
        assert not quick


HISTOGRAM = ["--only", "Five*histogram*/no noise", "--seeds", "0", "--check"]


@pytest.mark.parametrize(
    "of, cells, first",
    [
        ("privacy_signatures", "Five*histogram*/no noise,Five*histogram*/z = 0.5", "68.00 +68.00"),
        pytest.param("demo_digits", "*/FedAvg", "87.56 +87.56", marks=pytest.mark.slow),
    ],
)
def test_kept_numbers_come_back(tmp_path, of, cells, first):
    """To the last digit, with noise and without, in a process that has oneDNN, as the one that made them had. The two
    cells are the cheapest: they share what is traced."""
    command = [sys.executable, "-m", "tffcl", "study", of, "--only", cells, "--seeds", "0", "--check"]
    there = {"PYTHONPATH": str(task_directory().parent), "TF_ENABLE_ONEDNN_OPTS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **there}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(rf", seed 0 +{first} +\+0.00 +the same\n", done.stdout)
    assert done.stdout.count("the same\n") == 1 + cells.count(",") and done.stdout.endswith("the same\n")
    assert (tmp_path / f"runs/studies/{of}-check/runs").is_dir()  # they were made here


def test_results_without_accuracies_are_compared_by_another_metric(tmp_path):
    place = pathlib.PurePath("diabetes_devices", "ditto", "seed-0")
    here = shutil.copytree(task_directory() / "results" / "clinics" / place, tmp_path / "results" / place)
    job = types.SimpleNamespace(place=place, title="ditto")
    planned = types.SimpleNamespace(study=types.SimpleNamespace(name="clinics"), jobs=[job])
    for factor, verdict in ((1, "the same"), (1.005, "within 1 %"), (1.02, "differs")):
        for name in ("summary.json", "rounds.csv"):  # its mean absolute error, and that of the last round
            text = (task_directory() / "results" / "clinics" / place / name).read_text()
            (here / name).write_text(re.sub(r"0\.6893\d*", lambda found: f"{factor * float(found[0]):.9g}", text))
        table, differ = study.compared_with_kept(planned, tmp_path)
        assert table.rows[0][1:3] == ["0.689", f"{0.6893 * factor:.3f}"] and table.rows[0][-1] == verdict
        assert differ == (verdict == "differs")


def test_a_check_tells_of_runs_without_numbers_and_of_what_is_not_kept(tmp_path):
    """A run that diverges as the kept one did has come back; one of which nothing is kept cannot."""
    kept = task_directory() / "results" / "pacfl_table_1"
    places = [pathlib.PurePath("fmnist", name) for name in ("scaffold/seed-0", "pacfl/seed-0", "pacfl/seed-7")]
    jobs = [types.SimpleNamespace(place=place, title=str(place)) for place in places]
    planned = types.SimpleNamespace(study=types.SimpleNamespace(name="pacfl_table_1"), jobs=jobs)
    results = tmp_path / "results"

    def verdicts():
        table, differ = study.compared_with_kept(planned, tmp_path)
        return [row[1:3] + row[4:] for row in table.rows], differ

    assert verdicts()[1] == 3  # nothing has been run
    for place, own in zip(places, (places[0], places[1], places[1]), strict=True):
        shutil.copytree(kept / own, results / place)
    same, differ = verdicts()
    assert same[0] == ["diverged", "diverged", "the same"] and same[2] == ["–", "finished", "not kept"] and not differ
    failed = json.loads((results / places[0] / "failed.json").read_text())
    (results / places[0] / "failed.json").write_text(json.dumps({**failed, "reason": "in another round"}))
    assert verdicts()[0][0][-1] == "diverged, too" and not verdicts()[1]
    (results / places[1] / "summary.json").unlink()
    (results / places[1] / "failed.json").write_text(json.dumps({"algorithm": "pacfl", "seed": 0, "reason": "no data"}))
    assert verdicts() == ([["diverged", "diverged", "diverged, too"], ["finished", "failed", "differs"], same[2]], 1)


def test_kept_runs_whose_newcomers_have_joined_or_that_diverged_are_not_made_again(tmp_path):
    kept = task_directory() / "results" / "pacfl_table_3"
    planned = study.plan(study_file.load_study("pacfl_table_3"), only=["SVHN/PACFL", "SVHN/SCAFFOLD"])
    assert all(study.has_results(job, kept) for job in planned.jobs)
    for job in planned.jobs:
        shutil.copytree(kept / job.place, tmp_path / job.place)
        (tmp_path / job.place / "newcomers.json").unlink(missing_ok=True)
    assert [study.has_results(job, tmp_path) for job in planned.jobs] == [
        (kept / job.place / "failed.json").is_file() for job in planned.jobs
    ]


@pytest.mark.slow
def test_kept_numbers_that_do_not_come_back_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept" / "privacy_signatures"
    shutil.copytree(task_directory() / "results" / "privacy_signatures", kept)
    (place,) = kept.glob("five*histogram/no_noise/seed-0")
    monkeypatch.setattr(study.task_file, "results_directory", lambda: kept.parent)
    summary = json.loads((place / "summary.json").read_text())
    rows = (place / "rounds.csv").read_text()
    for points, verdict, code in ((0.005, "within 1 point", 0), (0.02, "differs", 1)):
        other = copy.deepcopy(summary)
        other["accuracy"]["cluster"]["mean"] -= points
        (place / "summary.json").write_text(json.dumps(other))
        (place / "rounds.csv").write_text(re.sub(r"(?m)^1,", "1,9", rows, count=1))
        assert main(["study", "privacy_signatures", *HISTOGRAM]) == code
        said = capsys.readouterr().out
        assert f"{100 * points:+.2f}" in said and verdict in said
    shutil.rmtree(place)
    assert "has no results of these cells and seeds to compare with: OUT/results is copied there" in fails(
        capsys, "study", "privacy_signatures", *HISTOGRAM
    )
