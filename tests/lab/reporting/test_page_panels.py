"""What the page draws, read back from its SVG: places by hand, bands, rasters, what is said when something is pointed at."""

import base64
import dataclasses
import io
import json
import re

import numpy as np
import pytest
from PIL import Image
from scipy.cluster import hierarchy

from tests.lab.reporting.test_report import Page
from tffcl.lab.reporting import files, tables
from tffcl.lab.reporting.html import render
from tffcl.lab.reporting.page import cluster_tables, matrix_panels, panels, rasters, round_panels, tree_panels
from tffcl.lab.reporting.page.panels import Axis, Panel
from tffcl.lab.reporting.report_figures import CLUSTERS, ROUNDS, Picture
from tffcl.lab.reporting.rounds_figures import ACCURACIES, MERGING, PRIVACY, PROGRESS
from tffcl.runs import run_files


@pytest.fixture(scope="module")
def runs(comparison_path):
    return files.find_runs(comparison_path)


def points_of(path: str) -> np.ndarray:
    return np.array([[float(each) for each in point.split(",")] for point in path.strip("MZ").split(" ")])


def drawn_lines(panel: Panel) -> list:
    return [shape for shape in panel.shapes if shape.look.startswith("line ")]


def test_a_line_is_where_its_values_are():
    panel = Panel("", Axis("x", 0, 10), Axis("y", 100, 200), height=300, left=60)
    panel.line([0, 5, 10], [100, 150, 200], "c0", name="a", stds=[0, 10, np.nan])
    band, line, dots = panel.shapes
    left, right, top, bottom = 60, 360 - 14, 26, 300 - 40
    np.testing.assert_allclose(
        points_of(line.attributes["d"]), [(left, bottom), ((left + right) / 2, (top + bottom) / 2), (right, top)]
    )
    above, below = points_of(band.attributes["d"])[[1, 4]]
    np.testing.assert_allclose([above[1], below[1]], [(top + bottom) / 2 - 23.4, (top + bottom) / 2 + 23.4])
    assert line.title == "a: 200 at x 10" and dots.attributes["d"].count("h0") == 3
    assert panel.hover["lines"][0]["points"] == [[0, 100], [5, 150, 10], [10, 200]]


def test_equal_distances_are_equal_ratios_on_a_logarithmic_axis():
    panel = Panel("", panels.ratio_axis("x", 1, 100), Axis("", 0, 1))
    one, ten, hundred = panel.across([1, 10, 100])
    assert ten - one == pytest.approx(hundred - ten)
    assert [text for _, text in panel.x.ticks] == ["1", "2", "5", "10", "20", "50", "100"]


@pytest.mark.parametrize("values", [[3.0], [], [np.nan], [0, 0], [-5, 5], [1e-9, 2e-9], [1, 1e6]])
def test_an_axis_holds_its_values_and_has_ticks(values):
    axis = panels.number_axis("", values)
    finite = [each for each in values if np.isfinite(each)]
    assert axis.low < axis.high and all(axis.low <= each <= axis.high for each in finite)
    assert 2 <= len(axis.ticks) <= 8 and all(axis.low <= place <= axis.high for place, _ in axis.ticks)


def test_bands_are_the_deviation_of_the_table(runs):
    cluster, local, union = round_panels.accuracy_panels(runs, ACCURACIES, ["fedavg", "pacfl"])
    assert [len(drawn_lines(panel)) for panel in (cluster, local, union)] == [2, 2, 1]
    rows = tables.comparison_rows(runs)
    for line, row in zip(cluster.lines, rows, strict=True):
        stat = row.stats["cluster_accuracy_percent"]
        x, mean, std = line["points"][-1]
        assert (x, mean, std) == (5, pytest.approx(stat.mean, rel=1e-4), pytest.approx(stat.std, rel=1e-3))
    looks = [shape.look for shape in drawn_lines(cluster)]
    assert looks == ["line c0 dash0", "line c1 dash1"] and [line["run"] for line in cluster.lines] == [0, 1]


def test_a_method_has_its_colour_and_switch_in_every_panel(runs):
    merging = [
        dataclasses.replace(
            run, rounds={**run.rounds, "known_clusters": run.rounds["clusters"], "objective": run.rounds["ari"]}
        )
        for run in runs[2:]
    ]
    for panel in round_panels.progress_panels(merging, MERGING, ["fedavg", "pacfl"]):
        assert [line["run"] for line in panel.lines] == [1] and drawn_lines(panel)[0].look.startswith("line c1 ")


def test_lines_of_many_methods_differ():
    looks = {(panels.shade(each), round_panels.dash(each)) for each in range(32)}
    assert len(looks) == 32


def test_infinite_privacy_is_no_point(runs):
    spent = dataclasses.replace(runs[0], rounds={**runs[0].rounds, "epsilon": np.array([1.0, 2.0, np.inf, np.inf, np.inf])})
    *_, panel = round_panels.progress_panels([spent], (*PROGRESS, *PRIVACY), ["fedavg"])
    assert panel.title == "privacy spent" and [x for x, *_ in panel.lines[0]["points"]] == [1, 2]
    assert round_panels.progress_panels([spent], PRIVACY, ["another"]) == []


def test_a_raster_says_its_matrix():
    matrix = np.array([[0.0, 30.0, np.nan], [60.0, 90.0, 45.0]])
    raster = rasters.of_matrix(matrix, ["a", "b"], ["x", "y", "z"], low=0, high=90, unit="%", dark_is_low=True)
    entries = np.frombuffer(base64.b64decode(raster.told["entries"]), np.uint8).reshape(2, 3).astype(float)
    assert entries[0, 2] == 255
    known = ~np.isnan(matrix)
    np.testing.assert_allclose(90 * entries[known] / 254, matrix[known], atol=90 / 254)
    image = Image.open(io.BytesIO(base64.b64decode(raster.address.partition(",")[2])))
    pixels = np.asarray(image.convert("RGBA"))
    assert pixels.shape == (2, 3, 4) and (pixels[..., 3] == np.where(known, 255, 0)).all()
    assert pixels[0, 0, :3].sum() < 300 < pixels[1, 1, :3].sum()  # dark is low


def test_many_rows_are_pooled_by_their_means():
    matrix = np.arange(20.0).reshape(10, 2)
    matrix[0, 0] = np.nan
    pooled, starts = rasters.pooled(matrix, 4)
    assert starts.tolist() == [0, 3, 6, 9]
    np.testing.assert_allclose(pooled[:, 0], [np.mean([2, 4]), np.mean([6, 8, 10]), np.mean([12, 14, 16]), 18])
    same, _ = rasters.pooled(matrix, 10)
    assert same is matrix


def test_proximity_is_said_in_the_order_of_the_clusters(population, runs):
    found = runs[2].clustering
    panel = matrix_panels.proximity_panel(found)
    names, count = panel.raster.told["rows"], len(found.labels)
    cluster_of = dict(zip(found.client_ids, found.labels, strict=True))
    assert [cluster_of[name] for name in names] == sorted(found.labels)
    entries = np.frombuffer(base64.b64decode(panel.raster.told["entries"]), np.uint8).reshape(count, count)
    low, high = panel.raster.told["low"], panel.raster.told["high"]
    place = {name: row for row, name in enumerate(found.client_ids)}
    order = [place[name] for name in names]
    said, true = low + entries / 254 * (high - low), found.proximity[np.ix_(order, order)]
    off = ~np.eye(count, dtype=bool)
    np.testing.assert_allclose(said[off], true[off], atol=(high - low) / 254)
    assert "(alike)" in panel.scale.low and len([shape for shape in panel.shapes if shape.look == "frame"]) == 3


def test_branches_end_at_the_heights_of_the_merges(population, runs):
    found = runs[2].clustering
    panel = tree_panels.dendrogram_panel(found)
    branches = [shape for shape in panel.shapes if shape.look.startswith("branch")]
    tops = sorted(points_of(shape.attributes["d"])[1][0] for shape in branches)
    np.testing.assert_allclose(tops, panel.across(np.sort(found.merges[:, 2])), atol=0.06)
    assert sum(shape.look == "branch grey" for shape in branches) == 2
    (cut,) = [shape for shape in panel.shapes if shape.look == "rule strong"]
    assert cut.title == f"cut at {found.threshold:.4g} degrees"


@pytest.mark.parametrize("count", [1, 2, 1200])
def test_few_and_many_clients(count):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(count, 3))
    distances = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    merges = hierarchy.linkage(points, "average") if count > 1 else np.empty((0, 4))
    ids = np.arange(count).astype(str)
    found = run_files.Clustering(ids, distances, "", merges, 1.0, np.arange(count) % 40, "", "distance", "average")
    panel = matrix_panels.proximity_panel(found)
    assert len(panel.raster.told["rows"]) == min(count, 200)
    tree = tree_panels.dendrogram_panel(found)
    assert (tree is None) == (count == 1)
    assert tree is None or len(tree.y.ticks) <= 150


def test_the_clusters_of_a_run(runs):
    run = runs[2]
    images = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 3), dtype=np.uint8)
    run = dataclasses.replace(run, samples=run_files.Samples(images, np.arange(9), np.repeat([0, 1, 2], 3)))
    table = cluster_tables.clusters_table(run, compared=False)
    assert [row[0].text for row in table.rows] == ["0", "1", "2"]
    for number, row in enumerate(table.rows):
        own = run.clients.cluster == number
        cells = dict(zip(table.heads, row, strict=True))
        assert cells["clients"].text == str(own.sum())
        assert cells["training examples"].text == f"{run.clients.examples[own].sum():,}"
        assert cells["cluster %"].text == f"{100 * run.clients.cluster_accuracy[own].mean():.2f}"
        assert cells["worst client %"].text == f"{100 * run.clients.cluster_accuracy[own].min():.2f}"
        assert cells["local %"].text == f"{100 * np.nanmean(run.clients.local_accuracy[own]):.2f}"
        counts = run.clients.label_counts[own].sum(axis=0)
        assert [share for share, _ in cells["labels"].bars] == pytest.approx((counts / counts.max()).tolist())
        assert f"label 0: {100 * counts[0] / counts.sum():.1f} %" in cells["labels"].bars[0][1]
        shown = Image.open(io.BytesIO(base64.b64decode(cells["some of its images"].picture.partition(",")[2])))
        pixels = np.asarray(shown.convert("RGB"))
        np.testing.assert_array_equal(pixels[:, 5:9], images[3 * number + 1])


@pytest.mark.parametrize("classes", [10, 62])
def test_bars_stand_at_their_labels(runs, comparison_path, classes):
    counts = np.zeros((18, classes), int)
    counts[:, -1], counts[:, 3] = 4, 1
    run = dataclasses.replace(runs[2], clients=dataclasses.replace(runs[2].clients, label_counts=counts))
    page = render([run], [], comparison_path)
    bars = re.findall(r'<svg class="bars".*?</svg>', page, re.DOTALL)
    assert len(bars) == 3
    if classes == 10:  # each says its own
        places = [
            (float(x), float(h))
            for x, h in re.findall(r'<rect class="bar c0" x="(.*?)".*? height="(.*?)"/>', bars[0])
            if h != "0"
        ]
        assert "<title>label 9: 80.0 %, 24 examples</title>" in bars[0]
    else:
        places = [(float(x), float(h)) for x, h in re.findall(r"M([\d.]+),36v-([\d.]+)h", bars[0])]
        assert "2 labels, most 61 (80 %)</title>" in bars[0]
    width = 160 / classes
    np.testing.assert_allclose(places, [(3 * width, 8.5), ((classes - 1) * width, 34)], atol=0.06)


def test_clients_of_their_own_have_no_table_of_clusters(runs):
    own = dataclasses.replace(runs[2].clients, cluster=np.arange(18))
    assert cluster_tables.clusters_table(dataclasses.replace(runs[2], clients=own), compared=True) is None


def test_labels_are_drawn_once_for_the_same_clusters(comparison_path):
    """Two methods without clusters would have the same picture twice."""
    fedavg, _, pacfl, _ = files.find_runs(comparison_path)
    same = dataclasses.replace(fedavg, method="fedprox")
    pictures = [dataclasses.replace(each, number=number) for number, method in enumerate(("fedavg", "fedprox", "pacfl"))
                for each in [Picture(f"labels-{method}", CLUSTERS, "Labels", "", b"", panels=[Panel("", Axis("", 0, 1), Axis("", 0, 1))])]]  # fmt: skip
    page = render([fedavg, same, pacfl], pictures, comparison_path)
    assert [name in page for name in ('data-name="labels-fedavg"', 'data-name="labels-fedprox"', 'data-name="labels-pacfl"')] == [
        True, False, True,
    ]  # fmt: skip
    assert "The clusters are those of fedavg" in page


def test_a_page_of_ten_runs_and_a_hundred_rounds_is_no_burden(runs, comparison_path, tmp_path):
    numbers = np.arange(1.0, 101.0)
    rng = np.random.default_rng(0)
    many = []
    for method in range(10):
        columns = {name: rng.random(100) for name in runs[0].rounds} | {"round": numbers}
        many.append(dataclasses.replace(runs[2], method=f"method_{method}", rounds=columns))
    methods = [run.method for run in many]
    drawn = round_panels.accuracy_panels(many, ACCURACIES, methods) + round_panels.progress_panels(many, PROGRESS, methods)
    pictures = [Picture("accuracy", ROUNDS, "Accuracy", "", b"", panels=drawn)]
    page = render(many, pictures, comparison_path)
    hovers = [json.loads(each["data-hover"]) for each in read(page, tmp_path).all("svg") if "data-hover" in each]
    assert [len(hover["lines"]) for hover in hovers] == [10] * 6
    assert len(page) < 700_000


def read(page: str, tmp_path) -> Page:
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    return Page(file)
