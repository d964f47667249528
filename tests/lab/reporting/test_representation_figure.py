"""The maps of clients by what they sent, the merging of clusters, and the histogram of pairs, read back from
their axes.
"""

import dataclasses

import numpy as np
import pytest
from matplotlib.colors import to_hex

from tests.lab.reporting.test_figures import drawn
from tffcl.errors import UserError
from tffcl.lab.reporting import batch_index, figures, style
from tffcl.lab.reporting.figures.maps import clusters_at, shown_rounds
from tffcl.runs import run_files


@pytest.fixture(scope="module")
def run(comparison_path):
    return batch_index.find_runs(comparison_path)[0]


def colours(axes):
    """Colour and number of the dots of each collection."""
    return sorted((to_hex(dots.get_facecolor()[0]), len(dots.get_offsets())) for dots in axes.collections)


def test_the_rounds_of_the_paper_are_shown_where_a_run_has_them():
    assert shown_rounds(50) == shown_rounds(40) == [5, 10, 40]
    assert shown_rounds(30) == [1, 15, 30]
    assert shown_rounds(2) == [1, 2]
    assert shown_rounds(1) == [1]


def test_the_history_has_only_rounds_that_changed_something():
    history = {1: np.array([0, 1]), 4: np.array([0, 0])}
    assert [clusters_at(history, each).tolist() for each in (1, 3, 4, 9)] == [[0, 1], [0, 1], [0, 0], [0, 0]]


def test_clusters_keep_their_colour_and_lone_clients_are_grey():
    points = np.random.default_rng(0).normal(size=[6, 2])
    found = run_files.Representations(np.arange(6), points)
    history = {1: np.array([0, 1, 0, 3, 4, 5]), 3: np.array([0, 1, 0, 1, 4, 4])}
    figure = figures.representations_figure(found, history, 3, np.array(["0", "1", "0", "1", "2", "2"]))
    truth, first, second, last = figure.axes
    assert colours(truth) == sorted((style.color(place).lower(), 2) for place in range(3))
    assert (style.GREY, 4) in colours(first) and (style.color(0).lower(), 2) in colours(first)
    assert colours(last) == sorted((style.color(place).lower(), 2) for place in range(3))
    assert first.get_title() == "after round 1: 1 cluster, 4 alone" and last.get_title() == "after round 3: 3 clusters"
    drawn(figure)


@pytest.mark.parametrize("truth", [np.array(list("001122")), None], ids=["groups", "no groups"])
def test_a_cluster_that_another_takes_up_keeps_its_colour(truth):
    """Clusters 4 and 2 change their numbers when lone clients join; those who belong together stay in one colour."""
    points = np.arange(12.0).reshape(6, 2)
    found = run_files.Representations(np.arange(6), points)
    history = {1: np.array([0, 0, 2, 2, 4, 4]), 3: np.array([5, 5, 0, 0, 1, 1])}
    panels = figures.representations_figure(found, history, 3, truth).axes
    colour_of = [
        {tuple(point): to_hex(dots.get_facecolor()[0]) for dots in axes.collections for point in dots.get_offsets()}
        for axes in panels
    ]
    assert all(each == colour_of[0] for each in colour_of)
    assert len(set(colour_of[0].values())) == 3


def test_more_clusters_than_groups_have_colours_of_their_own():
    found = run_files.Representations(np.arange(6), np.zeros([6, 2]))
    history = {1: np.array([0, 0, 2, 2, 4, 4])}
    _, axes = figures.representations_figure(found, history, 1, np.array(list("000011"))).axes
    assert colours(axes) == sorted((style.color(place).lower(), 2) for place in range(3))


def test_only_clients_that_sent_something_are_dots():
    found = run_files.Representations(np.array([0, 2]), np.zeros([2, 2]))
    figure = figures.representations_figure(found, {1: np.array([0, 1, 0])}, 1)
    (axes,) = figure.axes
    assert colours(axes) == [(style.color(0).lower(), 2)]


def test_a_sweep_has_a_panel_for_each_value(run):
    count = len(run.clients)
    found = run_files.Representations(np.arange(count), np.random.default_rng(0).normal(size=[count, 2]))
    runs = {
        f"threshold {step}": dataclasses.replace(run, representations=found, history={1: np.arange(count) // step})
        for step in (2, 3, 6, 9, 18)
    }
    figure = figures.settings_figure(runs, run.clients.true_cluster)
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles == [
        "3 true groups",
        *(f"threshold {step}: {count // step} clusters" for step in (2, 3, 6, 9)),
        "threshold 18: 1 cluster",
    ]
    drawn(figure)


@pytest.mark.slow
def test_how_clusters_merge(run):
    rounds = {
        **run.rounds,
        "known_clusters": run.rounds["clusters"],
        "objective": np.arange(len(run.rounds["round"])) / 4,
    }
    figure = figures.merging_figure([dataclasses.replace(run, rounds=rounds)])
    assert [axes.get_title() for axes in figure.axes] == [
        "clusters",
        "clusters of known clients",
        "clustering objective",
    ]
    np.testing.assert_array_equal(figure.axes[2].lines[0].get_ydata(), rounds["objective"])
    drawn(figure)


@pytest.mark.slow
def test_pairs_within_and_across_groups(population):
    truth = population.truth
    figure = figures.pairs_figure(
        population.proximity, truth, threshold=0.5, unit="1 - cosine", measure="cosine distance"
    )
    axes = figure.axes[0]
    heights = [sum(patch.get_height() for patch in part) for part in axes.containers]
    np.testing.assert_allclose(heights, 100)
    within = len(truth) * 5 // 2
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert labels[0] in ("threshold 0.5", f"within true groups ({within})")
    assert f"across true groups ({len(truth) * (len(truth) - 1) // 2 - within})" in labels
    drawn(figure)
    drawn(figures.pairs_figure(population.proximity))


def test_damaged_files_are_named(comparison_path, tmp_path, recwarn):
    import shutil

    source = batch_index.find_runs(comparison_path)[0].path
    count = len(run_files.read_run(source).clients)
    none = np.array([[np.nan]])
    for number, (name, arrays) in enumerate((
        ("representations.npz", {"places": np.arange(3), "points": np.zeros([2, 2])}),
        ("representations.npz", {"places": none[0], "points": np.zeros([1, 2])}),
        ("samples.npz", {"images": np.zeros([1, 2, 2, 1], np.uint8), "labels": none[0], "clusters": [0]}),
        ("confusion.npz", {"clusters": none[0], "counts": np.zeros([1, 2, 2], int)}),
        ("history/000001.npy", np.zeros(count + 1)),
        ("history/000001.npy", np.repeat(none, 2, axis=0)),
    )):  # fmt: skip
        out = shutil.copytree(source, tmp_path / str(number))
        if isinstance(arrays, dict):
            np.savez(out / name, **arrays)
        else:
            (out / "history").mkdir()
            np.save(out / name, arrays)
        with pytest.raises(UserError, match=f"{name.split('/')[-1]} is damaged"):
            run_files.read_run(out)
    assert not recwarn.list
