"""A study whose settings are chosen by validation, as a league of methods; and one that goes on from kept results."""

import dataclasses
import json
import shutil
import tomllib

import numpy as np
import pytest

from tests.lab.batches.test_small_tasks import missing
from tests.lab.batches.test_study import SHORT
from tests.lab.cli.test_cli import fails
from tests.lab.reporting.test_answer_figures import titles
from tffcl import registry
from tffcl.lab.batches import batch, search, study, study_file, study_plan
from tffcl.lab.cli.main import main
from tffcl.lab.reporting import league_table, study_results, style
from tffcl.lab.reporting.batch_index import read_index
from tffcl.lab.reporting.number_format import Stat, human_time
from tffcl.lab.reporting.results_page import read_studies, results_page, write_leagues
from tffcl.lab.tasks import task_file
from tffcl.lab.tasks.build import load_data
from tffcl.runs import metrics
from tffcl.runs.run_files import RunNumbers

MINE = """
title = "Two methods"
layout = "league"
measure = "cluster"

[tuning]
rounds = 0.5
seed = 77

[tune]
learning_rate = [1e-6, 0.08]

[set.dataset]
validation = 0.2

[columns.digits]
task = "demo_digits"
target = 15
about = "Forty clients in\tfour rotations."

[rows.FedAvg]
method = "fedavg"

[rows.SOLO]
method = "solo"
tune = {learning_rate = []}

[rows.Wild]
method = "fedavg"
tune = {learning_rate = [1e30, 1e31]}
"""


@pytest.fixture(scope="module")
def league(tmp_path_factory):
    """The league above, run: its file and its directory; tests leave both as they are."""
    place = tmp_path_factory.mktemp("league")
    (place / "mine.toml").write_text(MINE, encoding="utf-8")
    assert main(["study", str(place / "mine.toml"), *SHORT, "--out", str(place / "out")]) == 0
    return place / "mine.toml", place / "out"


@pytest.fixture
def read(league):
    return study_results.read_study(league[1] / "results")


def test_the_best_on_validation_examples_is_chosen(league, read):
    tuned = json.loads((league[1] / "results" / "batch.json").read_text())["tuned"]
    points = tuned["digits/FedAvg"]["points"]
    assert [point["values"] for point in points] == [{"train.learning_rate": 1e-6}, {"train.learning_rate": 0.08}]
    assert points[0]["validation"] < points[1]["validation"]
    cells = {each.noted["row"]: each.noted for each in read.results}
    assert cells["FedAvg"]["tuned"] == {"train.learning_rate": 0.08} and cells["SOLO"]["tuned"] == {}
    assert "failed, diverged or had no validation_cluster_accuracy with each of 2 settings" in cells["Wild"]["missing"]
    run = league[1] / "results" / "digits" / "fedavg" / "seed-0"
    assert "learning_rate = 0.08" in (run / "config.toml").read_text()
    trial = league[1] / "runs" / "trials" / "digits" / "fedavg" / "1" / "seed-77"
    assert json.loads((trial / "summary.json").read_text())["rounds"] == 1  # half of two
    assert not (league[1] / "results" / "trials").exists()


def test_what_was_chosen_and_run_elsewhere_is_not_run_again(league, tmp_path, monkeypatch):
    """The results of another machine, in `tasks/results`, are where a study with the same settings goes on."""
    shutil.copytree(league[1] / "results", tmp_path / "tasks" / "results" / "mine")
    shutil.copytree(task_file.task_directory() / "studies", tmp_path / "tasks" / "studies")
    told = (task_file.task_directory() / "demo_digits.toml").read_text(encoding="utf-8")
    reworded = told.replace('description = "', 'description = "In other words: ')
    assert reworded != told  # what only tells about a task changes neither its runs nor what was chosen
    (tmp_path / "tasks" / "demo_digits.toml").write_text(reworded, encoding="utf-8")
    monkeypatch.setattr(task_file, "task_directory", lambda: tmp_path / "tasks")
    ran = []
    monkeypatch.setattr(batch.Batch, "run_or_note", lambda _, job: ran.append(job.config.algorithm))
    out = tmp_path / "out"
    assert main(["study", str(league[0]), *SHORT, "--out", str(out)]) == 0 and ran == []
    assert (out / "results" / "digits" / "solo" / "seed-0" / "summary.json").is_file()
    # Other settings are other runs.
    main(
        [
            "study",
            str(league[0]),
            *SHORT,
            *"--only */SOLO --set train.momentum=0.1 --out".split(),
            str(tmp_path / "other"),
        ]
    )
    assert ran == ["solo"]


def test_the_same_command_goes_on_in_the_same_place(league, tmp_path, monkeypatch, capsys):
    out = shutil.copytree(league[1], tmp_path / "out")
    (out / "results" / "digits" / "solo" / "seed-0" / "summary.json").unlink()  # as if killed in its last run
    (out / "runs" / "digits" / "solo" / "seed-0" / "summary.json").unlink()
    before = (out / "results" / "batch.json").read_text()
    monkeypatch.setattr(search, "validation", lambda *_: pytest.fail("what is chosen is not chosen again"))
    noted = []
    monkeypatch.setattr(
        batch.Batch, "run_or_note", lambda *_: noted.append((out / "results" / "batch.json").read_text())
    )
    main(["study", str(league[0]), *SHORT, "--out", str(out)])
    assert noted == [before]
    assert "holds another run" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_cell_that_diverges_is_run_again_with_gentler_settings(league, tmp_path, capsys):
    """Its trial, which is shorter, has not shown it: here scores are written in that no such trial would have."""
    noted = json.loads((league[1] / "results" / "batch.json").read_text())
    rates = {"FedAvg": {1e-6: 0.1, 0.08: 0.2, 1e30: 0.9, 1e31: 0.8}, "Wild": {1e30: 0.9, 1e31: None}}
    for row, scores in rates.items():
        points = [{"values": {"train.learning_rate": rate}, "validation": each} for rate, each in scores.items()]
        noted["tuned"][f"digits/{row}"]["points"] = points
    (out := tmp_path / "out").joinpath("results").mkdir(parents=True)
    (out / "results" / "batch.json").write_text(json.dumps(noted))
    command = ["study", str(league[0]), *SHORT, "--only", "*/FedAvg,*/Wild", "--out", str(out)]
    assert main(command) == 1  # of Wild nothing gentler was tried
    said = capsys.readouterr()
    assert "digits/FedAvg diverged with learning rate 1e+30; it is run again with gentler settings" in said.err
    assert "FedAvg: diverged with learning rate 1e+30, and was run again with all seeds" in said.out
    assert "Wild: seed 0 failed: client" in said.out and "Wild: diverged" not in said.out
    rows = {each.noted["row"]: each for each in study_results.read_study(out / "results").results}
    assert rows["FedAvg"].noted["tuned"] == {"train.learning_rate": 0.08} and rows["FedAvg"].seeds == 1
    assert rows["Wild"].noted["tuned"] == {"train.learning_rate": 1e30} and rows["Wild"].failures
    run = out / "results" / "digits" / "fedavg" / "seed-0"
    assert "learning_rate = 0.08" in (run / "config.toml").read_text() and not (run / "failed.json").exists()
    index = (out / "results" / "batch.json").read_text()
    assert main(command) == 1 and "nothing to do" in capsys.readouterr().err  # the choice stands
    assert (out / "results" / "batch.json").read_text() == index


def test_another_method_in_a_study_changes_no_choice_of_the_others(league):
    planned = study.plan(study_file.load_study(league[0]))
    (cell,) = [each for each in planned.cells if each.row == "FedAvg"]

    def mark(**algorithms):
        overrides = task_file.merged(cell.overrides, {"algorithms": algorithms})
        return study_plan.mark(dataclasses.replace(cell, overrides=overrides), planned)

    assert mark(ifca={"num_clusters": 4}) == mark() != mark(fedavg={"momentum": 0.9})


@pytest.mark.parametrize("damage", [3, {"points": 3}, {"points": [3]}])
def test_choices_that_are_damaged_are_told(league, tmp_path, capsys, damage):
    out = shutil.copytree(league[1], tmp_path / "out")
    file = out / "results" / "batch.json"
    known = json.loads(file.read_text())
    known["tuned"]["digits/FedAvg"] = damage if damage == 3 else {**known["tuned"]["digits/FedAvg"], **damage}
    file.write_text(json.dumps(known))
    assert f"{file} is damaged: " in fails(capsys, "study", str(league[0]), *SHORT, "--out", str(out))


def test_a_column_may_compare_one_model_for_all(league, read):
    """Of which some methods have none: they come last."""
    results = [
        dataclasses.replace(each, noted={**each.noted, "measure": "global"}, here=each.accuracies["global"])
        for each in read.results
    ]
    rows = league_table.league_rows(dataclasses.replace(read, results=results))["digits"]
    assert [row.result.noted["row"] for row in rows] == ["FedAvg", "SOLO"]
    assert league_table.heads(metrics.BY_MEASURE["global"])[1:5] == (
        "global accuracy %", "global accuracy − FedAvg's", "local %", "cluster %"
    )  # fmt: skip
    shown = league_table.cells(rows[0])
    for place, kind in ((1, "global"), (3, "local"), (4, "cluster")):
        assert shown[place] == f"{rows[0].result.accuracies[kind].mean:.2f}"


def test_the_table_has_what_methods_are_compared_by(league, read):
    rows = {row.result.noted["row"]: row for row in league_table.league_rows(read)["digits"]}
    assert set(rows) == {"FedAvg", "SOLO"}
    summary = json.loads((league[1] / "results" / "digits" / "fedavg" / "seed-0" / "summary.json").read_text())
    row = rows["FedAvg"]
    assert row.stats["cluster_worst_decile"].mean == pytest.approx(100 * summary["accuracy"]["cluster"]["worst_decile"])
    assert row.stats["participation_gap"].mean == pytest.approx(
        100 * summary["accuracy"]["cluster"]["participants"]["gap"]
    )
    assert row.stats["total_bytes"].mean == summary["traffic"]["down_bytes"] + summary["traffic"]["up_bytes"]
    with open(league[1] / "results" / "digits" / "fedavg" / "seed-0" / "rounds.csv", encoding="utf-8") as file:
        head, *lines = [line.strip().split(",") for line in file]
    accuracies = [100 * float(line[head.index("cluster_accuracy")]) for line in lines]
    reached = [place for place, value in enumerate(accuracies) if value >= 15]
    assert row.stats["rounds_to_target"].count == bool(reached)
    if reached:
        assert row.stats["rounds_to_target"].mean == float(lines[reached[0]][head.index("round")])
    cells = dict(zip(league_table.HEADS, league_table.cells(row), strict=True))
    assert cells["chosen"] == "learning rate 0.08" and cells["seeds"] == "1"
    sent = np.array([3.0, 3.0])
    beside = RunNumbers(league[1])
    beside.summary = {"traffic": {"down_bytes": 6.0, "up_bytes": 13.0}}  # signatures of 7 bytes before the first round
    beside.rounds = {"round": [1, 2], "cluster_accuracy": np.array([0.1, 0.2]), "down_bytes": sent, "up_bytes": sent}
    found = league_table._numbers(beside, metrics.BY_KEY["cluster_accuracy"], 10)
    assert (found["rounds_to_target"], found["bytes_to_target"], found["total_bytes"]) == (1, 6 + 7, 19)


def test_a_page_for_readers_and_its_picture(league, tmp_path):
    results = tmp_path / "results"
    shutil.copytree(league[1] / "results", results / "mine")
    (results / "mine" / "FINDINGS.md").write_text(
        "First <b>line</b>\nof `it`, **strong**.\n\nAnother.\n", encoding="utf-8"
    )
    page, picture = write_leagues(results, read_studies(results))
    assert (page, picture) == (results / "mine.html", results / "mine" / "league.svg")
    text = page.read_text(encoding="utf-8")
    assert (
        "First &lt;b&gt;line&lt;/b&gt; of <code>it</code>, <strong>strong</strong>." in text
        and "<script" not in text
        and "http:" not in text
        and "https:" not in text
    )
    assert text.count("<img ") == 4 and "Forty clients in four rotations." in text  # no groups: nobody formed clusters
    assert picture.read_bytes().startswith(b"<?xml")
    markdown = results_page(results, read_studies(results))
    assert "(results/mine/league.svg)" in markdown and "| SOLO |" in markdown and "Another." in markdown
    assert "Wild: not available" in markdown


def test_the_picture_is_of_all_that_has_been_run(read):
    methods, settings, grid = league_table.accuracy_grid(read, "cluster")
    assert methods == ["FedAvg", "SOLO", "Wild"] and settings == ["digits"]
    assert np.isfinite(grid[:2]).all() and np.isnan(grid[2]).all()
    assert league_table.groups_grid(read)[0] == []  # neither has clusters
    # Means of the ranks: 1 and 1.5, 2 and 1.5, 3, and none.
    grid = np.array([[80.0, 70.0], [90.0, 70.0], [10.0, np.nan], [np.nan, np.nan]])
    assert league_table.ranked(grid).tolist() == [1, 0, 2, 3]
    # 2.25, 1.25 and 2: the first two share ranks 2 and 3.
    grid = np.array([[70.0, 70.0], [70.0, 90.0], [np.nan, 80.0]])
    assert league_table.ranked(grid).tolist() == [1, 2, 0]
    # 2, 1.5, 2 and 2: three share ranks 1 to 3.
    grid = np.array([[np.nan, 70.0], [50.0, 80.0], [50.0, np.nan], [50.0, np.nan]])
    assert league_table.ranked(grid).tolist() == [1, 0, 2, 3]


def test_the_picture_tells_which_groups_were_found(read):
    def with_ari(result, column, index):
        noted = {**result.noted, "column": column}
        return dataclasses.replace(result, noted=noted, ari=Stat.of([] if index is None else [index]))

    found = {"digits": (None, None, None), "turned": (0.0, -0.25, None), "swapped": (0.0, 1.0, None)}
    results = [
        with_ari(result, column, index)
        for column, own in found.items()
        for result, index in zip(read.results, own, strict=True)
    ]
    study = dataclasses.replace(read, results=results)
    settings, grid = league_table.groups_grid(study)
    assert settings == ["turned", "swapped"]
    # FedAvg's single model is no cluster; the second row forms some; of the third nothing is known.
    np.testing.assert_array_equal(grid, [[np.nan, np.nan], [-0.25, 1.0], [np.nan, np.nan]])
    assert titles(league_table.league_figure(study)) == ["cluster %", "local %", "adjusted Rand index"]
    # On a page its heading stands above it, and who forms no clusters is left out.
    alone = league_table.league_figure(study, ["groups"])
    assert titles(alone) == [] and [each.get_text() for each in alone.axes[0].get_yticklabels()] == [
        results[1].noted["row"]
    ]
    assert titles(league_table.league_figure(read)) == ["cluster %", "local %"]
    assert not league_table.league_figure(read, ["groups"]).axes


def test_colours_are_by_the_same_accuracy_of_fedavg(read):
    """After local training most methods are far above FedAvg's model before it, which tells nothing of the method."""
    panels = [axes for axes in league_table.league_figure(read).axes if axes.get_title()]
    for kind, axes in zip(("cluster", "local"), panels, strict=True):
        methods, _, grid = league_table.accuracy_grid(read, kind)
        order = league_table.ranked(league_table.accuracy_grid(read, "cluster")[2])
        above = (grid - grid[methods.index("FedAvg")])[order] / 30
        np.testing.assert_allclose(axes.images[0].get_array().filled(np.nan), above)


def test_a_league_without_fedavg_is_coloured_by_its_mean(read):
    others = dataclasses.replace(read, results=[each for each in read.results if each.noted["method"] != "fedavg"])
    axes = league_table.league_figure(others).axes[0]
    assert axes.images[0].get_array().tolist() == [[0.0]]  # one method is its own mean
    assert [row.above_baseline.count for row in league_table.league_rows(others)["digits"]] == [0]


def with_accuracies(study, tmp_path, accuracies):
    """A copy of the league in which the methods have had these cluster accuracies, by method and seed."""
    copy = shutil.copytree(study.path, tmp_path / "results")
    noted = json.loads((copy / "batch.json").read_text())
    noted["seeds"] = [0, 1, 2]
    (copy / "batch.json").write_text(json.dumps(noted))
    for method, own in accuracies.items():
        (cell,) = [each.noted for each in study.results if each.noted["row"] == method]
        before = copy / cell["directory"] / "seed-0"
        summary = json.loads((before / "summary.json").read_text())
        for seed, accuracy in own.items():
            place = copy / cell["directory"] / f"seed-{seed}"
            place.mkdir(exist_ok=True)
            summary["seed"], summary["accuracy"]["cluster"]["mean"] = seed, accuracy
            summary["seconds"]["total"] = 13.0 - seed
            (place / "summary.json").write_text(json.dumps(summary))
            if place != before:
                shutil.copy(before / "rounds.csv", place)
    return study_results.read_study(copy)


@pytest.mark.parametrize(
    ("solo", "note", "first", "second"),
    [
        ([40, 30, 61], "", ("SOLO", style.color(0)), ("FedAvg", style.color(1))),
        ([40, 30, 99], "", ("SOLO", style.color(0)), ("FedAvg", style.color(1))),  # FedAvg led in between
        ([40, 56, 99], "", ("SOLO", style.color(0)), ("FedAvg", style.GREY)),
        ([40, 56, 99], registry.ORACLE, ("FedAvg", style.color(0)), ("known groups", style.GREY)),
    ],
    ids=["overtaken", "twice ahead", "ahead", "known"],
)
def test_who_leads_after_so_many_rounds_and_bytes(read, tmp_path, solo, note, first, second):
    study = with_accuracies(read, tmp_path, {"FedAvg": {0: 0.5, 1: 0.6}, "SOLO": {0: 0.5, 1: 0.6}})
    values = {"fedavg": ([20, 50, 50], [20, 60, 80]), "solo": (solo, solo)}
    for place in study.path.glob("*/*/seed-*"):
        method, sent = place.parent.name, 1e6 * (place.parent.name == "fedavg")
        accuracies = ["", *(0.01 * each for each in values[method][int(place.name[-1])])]
        lines = [f"{number},{each},{sent},0" for number, each in enumerate(accuracies, 1)]
        (place / "rounds.csv").write_text("\n".join(["round,cluster_accuracy,down_bytes,up_bytes", *lines]))
        summary = json.loads((place / "summary.json").read_text())
        summary |= {"rounds": 4, "traffic": {"down_bytes": 5 * sent, "up_bytes": 0}}  # a fifth of it before the rounds
        summary["notes"] = [note] if method == "solo" else []
        (place / "summary.json").write_text(json.dumps(summary))
    study = study_results.read_study(study.path)

    def lines(over):
        (axes,) = league_table.leaders_figure(study, over).panels
        return {(line.get_label(), line.get_color()): line.get_xydata() for line in axes.lines}

    found = lines("rounds")
    assert list(found) == [first, second]
    means = {"FedAvg": [20, 55, 65]}
    for (name, _), points in found.items():
        np.testing.assert_allclose(points.T, [[2, 3, 4], means.get(name, solo)])
    (only,) = lines("bytes").items()  # SOLO sends nothing
    assert only[0] == ("FedAvg", style.color(0))
    np.testing.assert_allclose(only[1].T, [[3, 4, 5], [20, 55, 65]])


@pytest.mark.parametrize(
    ("solo", "shown"),
    [
        ({0: 0.70, 1: 0.81, 2: 0.89}, "+10.0 ± 1.0*"),  # as much above with each seed
        ({0: 0.50, 1: 0.90, 2: 0.76}, "+2.0 ± 15.9"),
        ({0: 0.55, 1: 0.66, 2: 0.74}, "−5.0 ± 1.0*"),
        ({0: 0.65, 2: 0.85}, "+5.0 ± 0.0"),  # no spread tells no chance
        ({0: 0.65}, "+5.0"),
    ],
    ids=["above", "by chance", "below", "no spread", "one seed"],
)
def test_a_method_is_compared_with_fedavg_seed_by_seed(read, tmp_path, solo, shown):
    study = with_accuracies(read, tmp_path, {"FedAvg": {0: 0.6, 1: 0.7, 2: 0.8}, "SOLO": solo})
    rows = {row.result.noted["row"]: row for row in league_table.league_rows(study)["digits"]}
    cells = dict(zip(league_table.HEADS, league_table.cells(rows["SOLO"]), strict=True))
    assert cells["cluster − FedAvg's"] == shown
    own = dict(zip(league_table.HEADS, league_table.cells(rows["FedAvg"]), strict=True))
    assert own["cluster − FedAvg's"] == "–"
    assert rows["FedAvg"].stats["seconds"].mean == 11  # the least of the seeds': other work can only add to them


def test_a_column_may_compare_another_metric_in_its_own_direction(read, tmp_path):
    losses = {"FedAvg": {0: 0.6, 1: 0.7, 2: 0.8}, "SOLO": {0: 0.5, 1: 0.61, 2: 0.69}}
    study = with_accuracies(read, tmp_path, losses)
    for each in study.path.glob("*/*/seed-*/summary.json"):
        summary = json.loads(each.read_text())
        loss = summary["accuracy"]["cluster"]["mean"]
        summary["metrics"] = {"log_loss": {"cluster": {"mean": loss}, "local": {"mean": loss / 4}}}
        each.write_text(json.dumps(summary))
    noted = json.loads((study.path / "batch.json").read_text())
    for cell in noted["cells"]:
        cell |= {"measure": "cluster_log_loss", "target": 0.55}
    (study.path / "batch.json").write_text(json.dumps(noted))
    study = study_results.read_study(study.path)
    assert league_table.heading(study, "digits") == "digits (demo_digits; target: cluster log loss 0.55)"
    table = league_table.to_tables(study)["digits"]
    assert list(table.heads)[1:5] == ["cluster log loss", "cluster log loss − FedAvg's", "local log loss", "cluster %"]
    best, worst = ([cell.text for cell in row] for row in table.cells)
    assert best[:5] == ["SOLO", "0.600 ± 0.095", "−0.100 ± 0.010*", "0.150 ± 0.024", "60.00 ± 9.54"]
    assert worst[:3] == ["FedAvg", "0.700 ± 0.100", "–"]


def test_marks_are_corrected_for_how_many_differences_are_tested(read, tmp_path):
    """What one test of one would mark (p 0.029) is not beyond chance beside one that is not, and is beside its like."""
    plain, clear, vague = {0: 0.6, 1: 0.7, 2: 0.8}, {0: 0.67, 1: 0.8, 2: 0.93}, {0: 0.5, 1: 0.9, 2: 0.76}

    def columns(**solo):
        studies = {
            column: with_accuracies(read, tmp_path / f"{column} {len(solo)}", {"FedAvg": plain, "SOLO": own})
            for column, own in solo.items()
        }
        return [
            dataclasses.replace(each, noted={**each.noted, "column": column})
            for column, found in studies.items()
            for each in found.results
            if each.runs
        ]

    def marked(**solo):
        rows = league_table.league_rows(dataclasses.replace(read, results=columns(**solo)))
        return {
            column: [row.result.noted["row"] for row in own if row.is_beyond_chance] for column, own in rows.items()
        }

    assert marked(first=clear) == {"first": ["SOLO"]}
    assert marked(first=clear, again=vague) == {"first": [], "again": []}
    assert marked(a=clear, b=clear) == {"a": ["SOLO"], "b": ["SOLO"]}
    surer = {0: 0.70, 1: 0.81, 2: 0.89}  # p 0.003: both pass, each at its own place
    assert marked(c=surer, d=clear, e={0: 0.60, 1: 0.71, 2: 0.8}) == {"c": ["SOLO"], "d": ["SOLO"], "e": []}


def test_the_picture_tells_means_over_fewer_seeds(read):
    def numbers(study):
        return {text.get_text() for axes in league_table.league_figure(study).axes for text in axes.texts}

    assert league_table.seeds_grid(read).tolist() == [[1], [1], [0]]
    asked = dataclasses.replace(read, noted={**read.noted, "seeds": [0, 1, 2]})
    assert numbers(asked) == {f"{number}¹" for number in numbers(read)}  # one seed of three


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[1e-6, 0.08]", "[0.1]", "tune.learning_rate is [0.1]; it must be a list of two or more different values"),
        ("rounds = 0.5", "rounds = 2", "[tuning]: rounds is 2; it must be a share of a run's rounds"),
        ("seed = 77", 'select = "local"', "unknown select of mine.toml, digits/FedAvg, [tuning]: 'local'"),
        ('layout = "league"', 'layout = "legue"', "unknown layout of mine.toml: 'legue'; did you mean 'league'?"),
        ("validation = 0.2", "subset = 500", "digits/FedAvg is tuned, which needs validation examples"),
        ("learning_rate = [1e-6", "learning_rat = [1e-6", "learning_rat"),
    ],
    ids=["one value", "rounds", "select", "layout", "no validation", "a key"],
)
def test_what_is_wrong_is_said_before_anything_runs(capsys, tmp_path, old, new, message):
    (tmp_path / "mine.toml").write_text(MINE.replace(old, new), encoding="utf-8")
    assert message in fails(capsys, "study", str(tmp_path / "mine.toml"), *SHORT, "--out", str(tmp_path / "out"))


def test_every_method_of_the_league_is_in_it_with_as_many_trials():
    found = study_file.load_study("league")
    methods = {cell.method for cell in found.cells}
    from tffcl.registry import ALGORITHMS

    assert methods == set(ALGORITHMS) - {"composed"}
    planned = study.plan(found, seeds=[0])
    assert planned.jobs and [cell.missing for cell in planned.cells].count("") == len(planned.jobs)
    kept = read_index(task_file.task_directory() / "results" / "league", "study")["tuned"]
    for cell in planned.cells:
        assert len(study_plan.points(cell)) == 3, cell.name
        if cell.name in kept:  # what was chosen is taken over, and not searched for again
            assert kept[cell.name]["mark"] == study_plan.mark(cell, planned), cell.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "column", tomllib.loads((study_file.study_directory() / "league.toml").read_text(encoding="utf-8"))["columns"]
)
def test_a_method_that_is_told_a_number_of_clusters_is_told_that_of_the_groups(column):
    told = {}
    absent = missing(next(cell.task for cell in study_file.load_study("league").cells if cell.column == column))
    if absent:
        pytest.skip(f"{absent} is not in TFFCL_DATA_DIR; lay it out there to run this")
    for cell in study_file.load_study("league").cells:
        if cell.column == column:
            config = study_plan.resolve(cell, 0, 1, {})
            number = (config.as_dict().get("method") or {}).get("num_clusters")
            told |= {cell.row: number} if number else {}
            if cell.row == "FedAvg":
                groups = load_data(config).true_groups
    assert {"IFCA", "PACFL"} <= set(told) and len(set(told.values())) == 1, told
    assert groups is None or set(told.values()) == {len(np.unique(groups))}


def test_the_time_that_the_runs_took_is_said_and_a_shared_run_counts_once(league, read, tmp_path):
    runs = {file.parent: json.loads(file.read_text())["seconds"]["total"] for file in read.path.glob("**/summary.json")}
    assert (
        f"seed 0; {human_time(sum(runs.values()))} of training, evaluation and clustering; set otherwise"
        in read.setting
    )
    copy = shutil.copytree(read.path, tmp_path / "results")
    noted = json.loads((copy / "batch.json").read_text())
    noted["cells"] += [{**cell, "column": "again"} for cell in noted["cells"]]
    (copy / "batch.json").write_text(json.dumps(noted))
    assert study_results.read_study(copy).setting == read.setting
    noted["seeds"] = [0, 5, 6]  # of which the last two have not been run
    (copy / "batch.json").write_text(json.dumps(noted))
    assert study_results.read_study(copy).setting == read.setting
    for file in copy.glob("**/seed-0"):
        shutil.rmtree(file)
    assert study_results.read_study(copy).setting == (
        "Run with 2 rounds; seeds 0, 5, 6; set otherwise than in the tasks: train.clients_per_round."
    )


def test_other_work_on_the_machine_does_not_count_as_a_methods_seconds(read, tmp_path):
    copy = shutil.copytree(read.path, tmp_path / "results")
    noted = json.loads((copy / "batch.json").read_text())
    noted["seeds"] = [0, 1]
    (copy / "batch.json").write_text(json.dumps(noted))
    cell = next(each for each in read.results if each.seconds).noted
    (again := copy / cell["directory"] / "seed-1").mkdir()
    summary = json.loads((copy / cell["directory"] / "seed-0" / "summary.json").read_text())
    least = summary["seconds"]["total"]
    summary["seed"], summary["seconds"]["total"] = 1, 100 * least
    (again / "summary.json").write_text(json.dumps(summary))
    shutil.copy(copy / cell["directory"] / "seed-0" / "rounds.csv", again)
    rows = league_table.league_rows(study_results.read_study(copy))[cell["column"]]
    (row,) = [row for row in rows if row.result.noted["row"] == cell["row"]]
    assert row.result.seeds == 2 and row.stats["seconds"].mean == least
