"""What the figures draw: orders, lines, means and bands, read back from their axes."""

import dataclasses
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.cluster import hierarchy

from tffcl.lab.reporting import batch_index, comparison_table, figures, ordering, style
from tffcl.lab.reporting.figures import data, rounds
from tffcl.lab.reporting.figures.rounds import over_seeds
from tffcl.lab.reporting.page.panels import panels_of
from tffcl.runs.metrics import rows_of

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def runs(comparison_path):
    return batch_index.find_runs(comparison_path)


def drawn(figure: Figure) -> bytes:
    """The picture as a notebook shows it; fails where there is next to nothing on it."""
    data = figure._repr_png_()
    assert data.startswith(PNG)
    assert len(data) > 3_000
    return data


@pytest.mark.slow
@pytest.mark.parametrize(
    "names, columns", [(["a", "b", "c"], 3), (["within true groups (2,877,600)"] * 3, 2), (["n" * 60] * 3, 1)]
)
def test_a_legend_is_as_wide_as_its_figure_at_most(names, columns):
    figure = style.new_figure(7.0, 4.0)
    for name in names:
        figure.subplots().plot([0, 1], label=name)
    style.legend_below(figure, 3)
    drawn(figure)
    (legend,) = figure.legends
    assert legend._ncols == columns
    assert legend.get_window_extent().x0 >= 0 and legend.get_window_extent().x1 <= figure.bbox.width


@pytest.mark.slow
def test_proximity_is_ordered_by_cluster(population):
    # As the clients come, their groups are mixed; the image must not be.
    mixed = np.random.default_rng(0).permutation(len(population.labels))
    proximity, labels = population.proximity[np.ix_(mixed, mixed)], population.labels[mixed]
    figure = figures.proximity_figure(proximity, labels, client_ids=mixed, unit="degrees", measure="angle")
    axes, bar = figure.axes
    image = np.asarray(axes.images[0].get_array())
    order = np.argsort(labels, kind="stable")
    np.testing.assert_array_equal(image, proximity[np.ix_(order, order)])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [str(mixed[each]) for each in order]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "2"]
    assert bar.get_xlabel() == "angle (degrees); dark is alike"
    frames = sorted((frame.get_x(), frame.get_width()) for frame in axes.patches)
    assert frames == [(-0.5, 6), (5.5, 6), (11.5, 6)]
    drawn(figure)


def test_within_a_cluster_clients_stand_as_in_the_tree(population):
    # The clusters are numbered against the order of the tree.
    labels = 2 - population.labels
    order = ordering.by_cluster(labels, population.merges)
    assert (np.diff(labels[order]) >= 0).all()
    leaves = hierarchy.leaves_list(population.merges)
    for label in range(3):
        own = [each for each in leaves if labels[each] == label]
        assert [each for each in order if labels[each] == label] == own
    figure = figures.proximity_figure(population.proximity, labels, merges=population.merges)
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), population.proximity[np.ix_(order, order)])


def test_the_diagonal_does_not_take_the_contrast(population):
    figure = figures.proximity_figure(population.proximity, population.labels)
    low, high = figure.axes[0].images[0].get_clim()
    between = population.proximity[~np.eye(18, dtype=bool)]
    assert (low, high) == (between.min(), between.max())
    assert low > 0


def test_dark_is_alike_for_distances_and_similarities(population):
    distances = figures.proximity_figure(population.proximity)
    similarities = figures.proximity_figure(np.cos(np.radians(population.proximity / 3)))
    shades = [figure.axes[0].images[0] for figure in (distances, similarities)]
    first, second = (image.cmap(image.norm(image.get_array()))[0, 0, :3] for image in shades)
    np.testing.assert_allclose(first, second)
    assert first.sum() < 0.8


def test_the_dendrogram_has_the_cut_and_its_reason(population):
    figure = figures.dendrogram_figure(
        population.merges, population.threshold, labels=population.labels, unit="degrees", suggestion="Because of <it>."
    )
    axes = figure.axes[0]
    assert axes.get_title() == "Because of <it>."
    cut = next(line for line in axes.lines if line.get_label() == "cut")
    assert list(cut.get_xdata()) == [population.threshold] * 2
    assert f"{population.threshold:.4g} degrees" in axes.texts[0].get_text()
    assert [text.get_text() for text in figure.legends[0].texts] == ["cluster 0 (6)", "cluster 1 (6)", "cluster 2 (6)"]
    heights = sorted(corners[1][0] for corners in axes.collections[0].get_segments())
    np.testing.assert_allclose(heights, np.sort(population.merges[:, 2]))
    drawn(figure)


def test_branches_have_the_colour_of_their_cluster(population):
    figure = figures.dendrogram_figure(population.merges, population.threshold, labels=population.labels)
    lines = figure.axes[0].collections[0]
    above = [corners[1][0] > population.threshold for corners in lines.get_segments()]
    grey = [np.allclose(each, lines.get_colors()[above.index(True)]) for each in lines.get_colors()]
    assert grey == above
    assert sum(above) == 2
    # Without labels they are those of the cut.
    same = figures.dendrogram_figure(population.merges, population.threshold)
    np.testing.assert_array_equal(same.axes[0].collections[0].get_colors(), lines.get_colors())


@pytest.mark.slow
@pytest.mark.parametrize("chained", [False, True])
def test_a_large_tree_is_cut_short(chained):
    # A chain of 3,000 merges is deeper than Python's recursion allows.
    points = np.sort(np.random.default_rng(0).exponential(size=3000)).cumsum() if chained else np.arange(3000.0) % 97
    merges = hierarchy.linkage(points[:, None], "single" if chained else "average")
    figure = figures.dendrogram_figure(merges, float(merges[-3, 2]))
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert 40 <= len(names) <= 150
    clients = sum(int(name.strip("()")) if name.startswith("(") else 1 for name in names)
    assert clients == 3000
    assert "3,000 clients" in figure.axes[0].get_xlabel()
    drawn(figure)


def test_accuracies_are_means_with_a_band_of_the_deviation_in_the_table(runs):
    figure = figures.accuracy_figure(runs)
    cluster = figure.axes[0]
    assert [axes.get_title() for axes in figure.axes] == ["cluster accuracy", "local accuracy", "global accuracy"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2, 1]
    values = 100 * np.array([run.rounds["cluster_accuracy"][[0, 2, 4]] for run in runs if run.method == "pacfl"])
    np.testing.assert_array_equal(cluster.lines[1].get_xdata(), [1, 3, 5])
    np.testing.assert_allclose(cluster.lines[1].get_ydata(), values.mean(axis=0))
    band = cluster.collections[1].get_paths()[0].vertices[:, 1]
    mean, std = values.mean(axis=0), values.std(axis=0, ddof=1)
    assert (band.min(), band.max()) == pytest.approx(((mean - std).min(), (mean + std).max()))
    # At the last round it is the ± of the table.
    stat = comparison_table.comparison_rows(runs)[1].stats["cluster_accuracy_percent"]
    assert std[-1] == pytest.approx(stat.std)
    assert [text.get_text() for text in figure.legends[0].texts] == ["fedavg", "pacfl"]
    drawn(figure)


def test_panels_that_share_an_axis_hold_all_lines(runs):
    better = dataclasses.replace(
        runs[2], rounds={**runs[2].rounds, "local_accuracy": 0.99 - 0.9 / runs[2].rounds["round"]}
    )
    for axes in figures.accuracy_figure([better]).axes:
        low, high = axes.get_ylim()
        assert all(low < line.get_ydata().min() and line.get_ydata().max() < high for line in axes.lines)


@pytest.mark.parametrize("name, values", [("mae", [4.07, 4.05]), ("r2", [-0.35, 0.2])])
def test_no_marker_is_cut_by_the_end_of_its_axis(name, values):
    metric = rows_of(name)[0]
    axes = style.new_panels(1, 3.1).panels[0]
    series = {number: (np.array([4]), np.array([value]), np.array([np.nan])) for number, value in enumerate(values)}
    rounds.draw_methods(axes, metric, series, ["a", "b"])
    rounds.set_range(axes, metric)
    low, high = axes.get_ylim()
    assert min(high - max(values), min(values) - low) > 0.03 * (high - low)


def test_seeds_that_ended_in_other_rounds_stand_over_their_own_bytes(runs):
    # As early stopping by the loss ends them, before any round in which both are evaluated.
    def ended(run, last):
        rows = {name: values[:last] for name, values in run.rounds.items()}
        rows["cluster_accuracy"] = np.where(rows["round"] == last, 0.5, np.nan)
        return dataclasses.replace(run, rounds=rows)

    both = [ended(run, last) for run, last in zip([run for run in runs if run.method == "pacfl"], (2, 5))]
    sent = [1e-6 * sum(run.number("traffic", name) for name in ("down_bytes", "up_bytes")) for run in both]
    np.testing.assert_allclose(rounds.traffic_figure(both).panels[0].lines[0].get_xdata(), sent)


def test_a_run_whose_first_rounds_nobody_was_drawn_for_has_its_line(runs):
    run = next(run for run in runs if run.method == "fedavg")
    rows = {**run.rounds, "cluster_accuracy": np.full(5, 0.5)}
    rows |= {name: np.array([0.0, 0, 1e6, 2e6, 0]) for name in ("down_bytes", "up_bytes")}
    summary = {**run.summary, "traffic": dict.fromkeys(("down_bytes", "up_bytes"), 3e6)}
    poisson = dataclasses.replace(run, rounds=rows, summary=summary)
    for beside in ([], [each for each in runs if each.method == "pacfl"]):
        line = rounds.traffic_figure([poisson, *beside]).panels[0].lines[0]
        np.testing.assert_allclose(line.get_xdata(), [2, 6, 6])


@pytest.mark.slow
def test_accuracy_stands_over_all_bytes_sent_by_then(runs):
    figure = rounds.traffic_figure(runs)
    line = figure.panels[0].lines[1]
    # Of each seed three evaluated rounds, and what signatures took before the first.
    expected = []
    for run in (each for each in runs if each.method == "pacfl"):
        exchanged = np.cumsum(run.rounds["down_bytes"] + run.rounds["up_bytes"])
        whole = run.number("traffic", "down_bytes") + run.number("traffic", "up_bytes")
        expected.append((exchanged + whole - exchanged[-1])[[0, 2, 4]] / 1e6)
        assert expected[-1][-1] == pytest.approx(whole / 1e6)
    np.testing.assert_allclose(line.get_xdata(), np.mean(expected, axis=0))
    np.testing.assert_allclose(line.get_ydata(), figures.accuracy_figure(runs).panels[0].lines[1].get_ydata())
    up_bytes = 1e9 * runs[0].rounds["round"]
    traffic = {**runs[0].summary["traffic"], "up_bytes": up_bytes.sum()}
    far = dataclasses.replace(
        runs[0], rounds={**runs[0].rounds, "up_bytes": up_bytes}, summary={**runs[0].summary, "traffic": traffic}
    )
    assert rounds.traffic_figure([far, *runs[2:]]).panels[0].get_xscale() == "log"
    nothing = dataclasses.replace(runs[0], rounds={name: values[:0] for name, values in runs[0].rounds.items()})
    assert rounds.traffic_figure([nothing]) is None
    (line,) = rounds.traffic_figure([nothing, *runs[2:]]).panels[0].lines
    assert line.get_color() == style.color(1)  # as in the other figures of the comparison
    drawn(figure)


@pytest.mark.slow
def test_one_seed_has_no_band(runs):
    figure = figures.accuracy_figure(runs[2:3])
    assert not any(axes.collections for axes in figure.axes)
    # The third is not measured.
    assert [axes.get_title() for axes in figure.axes] == ["cluster accuracy", "local accuracy"]
    drawn(figure)


def test_the_axis_of_a_single_round_has_its_number_alone(runs):
    run = runs[2]
    last = dataclasses.replace(run, rounds={name: values[-1:] for name, values in run.rounds.items()})
    axes = figures.accuracy_figure([last]).axes[0]
    assert [tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]] == [5]


def test_only_rounds_of_all_seeds_are_averaged(runs):
    first, second = (run for run in runs if run.method == "pacfl")
    longer = {name: np.append(column, column[-1]) for name, column in second.rounds.items()}
    longer["round"][-1] = 6
    second = dataclasses.replace(second, rounds=longer)
    rounds, mean, std = over_seeds([first, second], "cluster_accuracy")
    assert rounds.tolist() == [1, 3, 5]
    both = np.array([run.rounds["cluster_accuracy"][[0, 2, 4]] for run in (first, second)])
    np.testing.assert_allclose(mean, both.mean(axis=0))
    np.testing.assert_allclose(std, both.std(axis=0, ddof=1))
    assert over_seeds([second], "cluster_accuracy")[0].tolist() == [1, 3, 5, 6]


@pytest.mark.slow
def test_progress_shows_loss_clusters_and_agreement(runs):
    figure = figures.progress_figure(runs)
    loss, clusters, agreement = figure.axes
    np.testing.assert_allclose(loss.lines[0].get_ydata(), 2.3 / np.arange(1, 6))
    assert clusters.lines[1].get_ydata().tolist() == [3] * 5
    assert agreement.lines[1].get_ydata().tolist() == [1] * 5
    assert all(tick == round(tick) for tick in clusters.get_yticks())
    drawn(figure)


def test_labels_are_drawn_by_cluster_with_true_groups(runs):
    run = runs[2]
    figure = figures.labels_figure(run)
    (bar,) = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert bar.get_xlabel() == "share of the client's examples; empty: 0"
    main = next(axes for axes in figure.axes if axes.get_xlabel() == "label")
    image = main.images[0].get_array()
    assert image.shape == (18, 10)
    np.testing.assert_allclose(image.filled(0).sum(axis=1), 100)
    # A block of six clients is one cluster, and a cluster holds its own labels only.
    held = [set(np.flatnonzero(image[start : start + 6].filled(0).sum(axis=0))) for start in (0, 6, 12)]
    assert sorted(map(sorted, held)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert len(main.lines) == 2
    assert [text.get_text() for text in figure.legends[0].texts] == ["0", "1", "2"]
    drawn(figure)


def test_unknown_groups_are_left_out(runs):
    unknown = dataclasses.replace(runs[2].clients, true_cluster=np.full(18, ""))
    figure = figures.labels_figure(dataclasses.replace(runs[2], clients=unknown))
    assert not figure.legends
    drawn(figure)


@pytest.mark.slow
def test_label_histograms_have_totals(population):
    counts = np.array([np.bincount(y, minlength=10) for _, y in population.train])
    figure = figures.label_histograms(counts, population.truth)
    bars = next(axes for axes in figure.axes if axes.patches and axes.get_ylabel() == "examples")
    assert [bar.get_height() for bar in bars.patches] == counts.sum(axis=0).tolist()
    clients = next(axes for axes in figure.axes if "of the client" in axes.get_xlabel())
    assert sorted(clients.patches[0].get_data().values) == sorted(counts.sum(axis=1))
    drawn(figure)
    names = [f"name {number}" for number in range(10)]
    drawn(named := figures.label_histograms(counts, label_names=names))
    main = next(axes for axes in named.axes if axes.get_xlabel() == "label")
    assert [text.get_text() for text in main.get_xticklabels()] == names


def test_client_accuracies_are_dots_of_all_seeds(runs):
    figure = figures.client_accuracy_figure(runs)
    cluster, local = figure.axes
    for axes, column in ((cluster, "cluster_accuracy"), (local, "local_accuracy")):
        for place, method in enumerate(("fedavg", "pacfl")):
            values = np.concatenate([getattr(run.clients, column) for run in runs if run.method == method])
            values = values[~np.isnan(values)]
            dots, mean = axes.collections[2 * place : 2 * place + 2]
            np.testing.assert_allclose(dots.get_offsets()[:, 0], 100 * np.sort(values))
            assert mean.get_offsets()[0].tolist() == pytest.approx([100 * values.mean(), place])
    assert [text.get_text() for text in cluster.texts] == ["fedavg", "pacfl"]
    drawn(figure)


@pytest.mark.parametrize("sizes", [[7], [5, 5, 5], [3, 5], range(20, 120), [2, 40, 90_000], [0, 8], [90, 5_000]])
def test_each_client_is_in_one_bar(sizes):
    figure = figures.client_sizes_figure(list(sizes))
    assert sum(bar.get_height() for bar in figure.axes[0].patches) == len(sizes)
    assert (" to " in figure.axes[0].get_title()) == (len(set(sizes)) > 1)
    said = [words for mark in figure.marks.values() for words in mark.words if "with" in words]
    for size, words in ((min(sizes), said[0]), (max(sizes), said[-1])):
        low, *_, high = [int(each.replace(",", "")) for each in re.findall(r"[\d,]+", words.partition("with")[2])] * 2
        assert low <= size <= high, words
    drawn(figure)
    assert not any("$" in text.get_text() for text in figure.axes[0].get_xticklabels(which="both"))  # no formulas


def test_mixtures_are_ordered_by_the_model_that_weighs_most(runs):
    """Of soft groups this need not be the model of the client's cluster."""
    run, clients = runs[0], runs[0].clients
    mixture = np.random.default_rng(0).dirichlet([1, 1, 1], len(clients))
    apart = dataclasses.replace(clients, mixture=mixture, cluster=(mixture.argmax(axis=1) + 1) % 3)
    figure = data.mixtures_figure(dataclasses.replace(run, clients=apart))
    (image, matrix) = next(iter(figure.matrices.items()))
    shown = np.ma.filled(image.get_array(), 0).argmax(axis=1)
    np.testing.assert_array_equal(shown, np.sort(shown))
    assert [row.rpartition(", ")[2] for row in matrix.rows] == [f"model {each}" for each in shown]


@pytest.mark.parametrize("channels", [1, 3])
def test_sample_pictures_keep_their_pixels(channels):
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 256, (m, h, h, channels), dtype=np.uint8) for m, h in ((3, 8), (5, 6))]
    figure = figures.sample_pictures(rows, ["first", "second"])
    for axes, row, title in zip(figure.axes, rows, ("first", "second"), strict=True):
        height = row.shape[1]
        image = np.asarray(axes.images[0].get_array())
        for place, picture in enumerate(row):
            left = place * (height + 1)
            there, colours = image[:, left : left + height], np.broadcast_to(picture, (height, height, 3))
            np.testing.assert_array_equal(there, np.dstack([colours, np.full((height, height), 255)]))
        assert axes.get_ylabel() == title and not axes.get_xticklabels()
    drawn(figure)


def test_sample_pictures_have_labels_below():
    rows = [np.zeros((m, 6, 6, 1), np.uint8) for m in (3, 5)]
    figure = figures.sample_pictures(rows, ["first", "second"], [[7, 8, 9], range(5)])
    for axes, words in zip(figure.axes, (["7", "8", "9"], list("01234")), strict=True):
        assert [each.get_text() for each in axes.get_xticklabels()] == words
        assert np.allclose(axes.get_xticks(), 7 * np.arange(len(words)) + 2.5)
    drawn(figure)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 300, 1000])
def test_few_and_many_clients(count):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(count, 3))
    labels = np.arange(count) % 40
    distances = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    merges = hierarchy.linkage(points, "average") if count > 1 else np.empty((0, 4))
    drawn(figures.proximity_figure(distances, labels, merges=merges))
    drawn(figures.dendrogram_figure(merges, 1.0))
    drawn(figures.label_histograms(rng.integers(0, 5, (count, 62)), labels))
    drawn(figures.client_sizes_figure(rng.integers(1, 9, count)))


def test_groups_are_ordered_as_numbers_and_the_missing_last():
    assert ordering.by_group(["10", "", "9", "a", "9"]).tolist() == [2, 4, 0, 3, 1]
    assert ordering.by_group([-1, 3, 2]).tolist() == [2, 1, 0]
    assert ordering.by_group(["nan", "-1", "b", "", "10"]).tolist() == [1, 4, 2, 0, 3]  # as groups may be called
    assert (ordering.cluster_name("-1"), ordering.cluster_name(-1), ordering.cluster_name("")) == ("-1", "none", "none")


def test_labels_on_an_axis_keep_their_distance():
    assert style.spread([0, 1, 2, 10], [1, 5, 1, 1], 2) == [1, 3]


def test_methods_look_different():
    assert len({tuple(style.line_style(number).values()) for number in range(32)}) == 32


def test_figures_are_saved(tmp_path, population):
    path = style.save(figures.proximity_figure(population.proximity, population.labels), tmp_path / "a" / "b.png")
    assert path.read_bytes().startswith(PNG)
    assert path.stat().st_size > 10_000


@pytest.mark.slow
def test_names_of_clients_are_no_formulas(recwarn):
    names = [r"$\frac{$", "$x$", "\x1b[31m", "a\nb", "東京"]
    figure = figures.proximity_figure(1 - np.eye(5), client_ids=names, unit="degrees")
    figure.axes[0].plot([0, 1], label="東京")
    style.legend_below(figure, 3)
    assert style.to_png(figure) and style.to_bytes(figure, "pdf") and panels_of("proximity", figure)
    assert not recwarn.list  # of letters that a font has not, which would be printed as they are
