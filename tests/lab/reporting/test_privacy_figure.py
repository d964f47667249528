"""Studies of privacy: the measures epsilon and benign, their table and their picture, and the page that shows them."""

import json
import math

import pytest

from tffcl.lab.cli.study_command import write_tables
from tffcl.lab.reporting import figures, study_results, study_table
from tffcl.lab.reporting.batch_index import write_index
from tffcl.lab.reporting.results_page import read_studies, results_page
from tffcl.runs.run_files import RunNumbers

COSTS = {"none": None, "little": {"epsilon": 20.0}, "beside": {"epsilon": None, "noised_epsilon": 3.0}}


def accuracy(mean):
    return {"mean": mean, "std": 0.0, "variance": 0.0, "participants": {"mean": mean}}


@pytest.fixture
def study(tmp_path):
    """A study with a cell for each way in which a run may be private, of two seeds."""
    place, cells = tmp_path / "results" / "mine", []
    for row, cost in COSTS.items():
        for column, measure in (("whole", "epsilon"), ("signatures", "noised_epsilon")):
            for seed in (0, 1):
                summary = {
                    "task": "digits",
                    "algorithm": "fedavg",
                    "seed": seed,
                    "rounds": 2,
                    "clusters": {"ari": 0.5 + seed / 10, "count": 2},
                    "accuracy": {kind: accuracy(0.8 + seed / 10) for kind in ("cluster", "local", "global")},
                    **({} if cost is None else {"privacy": cost}),
                }
                run = place / column / row / f"seed-{seed}"
                run.mkdir(parents=True)
                (run / "summary.json").write_text(json.dumps(summary))
            cells.append(
                {
                    "column": column,
                    "row": row,
                    "task": "digits",
                    "method": "fedavg",
                    "measure": measure,
                    "accuracy": "local",
                    "target": None,
                    "megabits_a_round": None,
                    "published": [None, None],
                    "missing": "",
                    "directory": f"{column}/{row}",
                    "paper_rounds": 2,
                }
            )
    noted = {
        "study": "mine",
        "title": "Mine",
        "paper": "",
        "table": "",
        "page": 0,
        "note": "",
        "published_is": "none",
        "rounds": 1,
        "seeds": [0, 1],
        "cells": cells,
        "tuned": {},
    }
    write_index(place, "study", noted)
    return place


def test_epsilon_is_that_of_all_or_of_what_has_noise(study):
    read = study_results.read_study(study)
    found = {(each.noted["column"], each.noted["row"]): each.here.mean for each in read.results}
    assert found == {
        ("whole", "none"): math.inf,
        ("signatures", "none"): math.inf,
        ("whole", "little"): 20,
        ("signatures", "little"): 20,
        ("whole", "beside"): math.inf,
        ("signatures", "beside"): 3,
    }
    text = study_table.to_text(read)
    assert "infinite" in text and "20.0 ± 0.0" in text and "inf " not in text.replace("infinite", "")


def test_the_picture_has_a_line_for_each_column_and_a_place_without_noise(study):
    figure = figures.privacy_figure(study_results.read_study(study))
    accuracy, clusters = figure.axes
    assert (accuracy.get_ylabel(), clusters.get_ylabel()) == ("cluster accuracy (%)", "adjusted Rand index")
    lines = [container.lines[0] for container in clusters.containers]
    assert [container.get_label() for container in clusters.containers] == ["whole", "signatures"]
    assert lines[0].get_xdata().tolist() == [20, 80, 80] and lines[1].get_xdata().tolist() == [3, 20, 80]
    assert lines[0].get_ydata() == pytest.approx([0.55] * 3)
    assert "no noise" in [text.get_text() for text in clusters.texts]
    figure.draw_without_rendering()
    labels = [label.get_text() for label in clusters.get_xticklabels() + clusters.get_xticklabels(minor=True)]
    assert "10" in labels and not any("$" in label for label in labels)


def test_a_line_of_clients_without_true_groups_is_named(study):
    for file in study.glob("whole/*/*/summary.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "clusters": {"ari": None, "count": 2}}))
    figure = figures.privacy_figure(study_results.read_study(study))
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"whole", "signatures"}


def test_tables_and_page_show_the_picture(study, capsys):
    write_tables(study)
    assert (study / "privacy.png").read_bytes().startswith(b"\x89PNG")
    assert "![accuracy and clusters against epsilon](privacy.png)" in (study / "table.md").read_text()
    assert "](results/mine/privacy.png)" in results_page(study.parent, read_studies(study.parent))
    assert "Mine" in capsys.readouterr().out


def test_benign_clients_are_those_of_the_attack(study):
    run, told = RunNumbers(study), {"mean": 0.7, "clusters": {"0": 0.9, "1": 0.4, "2": None}}
    run.summary = {"attack": {"benign_accuracy": told}}
    assert study_results.measured(run, {"measure": "benign"}) == 70
    assert study_results.measured(run, {"measure": "benign_worst"}) == 40
    run.summary = {}
    assert math.isnan(study_results.measured(run, {"measure": "benign"}))
    assert math.isnan(study_results.measured(run, {"measure": "benign_worst"}))
