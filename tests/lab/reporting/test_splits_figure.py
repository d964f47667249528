"""The picture of splits: lines, dots and words against the table; and what is said of a damaged one."""

import dataclasses

import numpy as np
import pytest

from tffcl.errors import UserError
from tffcl.lab.reporting import figures, report_figures
from tffcl.lab.reporting.figures.trees import lanes_of
from tffcl.runs import run_files

SPLITS = "round,cluster,founded\n2,0,1\n3,0,2\n4,1,3\n"


@pytest.fixture
def split_run(run_path):
    (run_path / "splits.csv").write_text(SPLITS)
    run = run_files.read_run(run_path)
    clusters = np.arange(len(run.clients)) % 4
    return dataclasses.replace(run, clients=dataclasses.replace(run.clients, cluster=clusters))


def test_the_table_is_read(split_run):
    assert split_run.splits.tolist() == [[2, 0, 1], [3, 0, 2], [4, 1, 3]]


def test_what_a_cluster_founds_last_is_next_to_it(split_run):
    assert lanes_of(split_run.splits) == {0: 0, 2: -1, 1: -2, 3: -3}


def test_lines_are_clusters_and_dots_are_splits(split_run):
    (axes,) = figures.splits_figure(split_run).axes
    lines = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines]
    for cluster, founded, lane in ((0, 0, 0), (1, 2, -2), (2, 3, -1), (3, 4, -3)):
        assert ([founded, 5], [lane, lane]) in lines
    for number, lane, new in ((2, 0, -2), (3, 0, -1), (4, -2, -3)):
        assert ([number, number], [lane, new]) in lines and ([number], [lane]) in lines
    members = [int((split_run.clients.cluster == cluster).sum()) for cluster in range(4)]
    names = [f"cluster {c}: {m} clients" for c, m in enumerate(members)]
    assert sorted(each.get_text() for each in axes.get_yticklabels()) == names
    assert len(axes.texts) == 4 and all("group " in each.get_text() for each in axes.texts)
    assert axes.get_title() == "3 splits in 5 rounds"


def test_a_report_has_it_where_clusters_were_split(split_run):
    names = [picture.name for picture in report_figures.run_pictures(split_run)]
    assert "splits" in names
    never = dataclasses.replace(split_run, splits=np.zeros([0, 3], int))
    assert "splits" not in [picture.name for picture in report_figures.run_pictures(never)]


@pytest.mark.parametrize("row", ["5,7,4", "5,0,1"])
def test_a_cluster_that_was_never_founded_or_twice_is_damage(run_path, row):
    (run_path / "splits.csv").write_text(f"{SPLITS}{row}\n")
    with pytest.raises(
        UserError, match="splits.csv is damaged: a cluster is split that was never founded, or founded twice"
    ):
        run_files.read_run(run_path)
