"""What the page draws, read back from its SVG: places, bands, matrices, colours, and what marks say."""

import base64
import dataclasses
import io
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from markupsafe import Markup
from PIL import Image
from scipy.cluster import hierarchy

from tests.lab.reporting.test_report import Page
from tffcl.lab.reporting import batch_index, comparison_table, figures, report_figures, style
from tffcl.lab.reporting.html import render
from tffcl.lab.reporting.page import cluster_tables
from tffcl.lab.reporting.page.panels import Panel, panels_of, pooled, scale_colors
from tffcl.lab.reporting.report_figures import CLUSTERS, ROUNDS, Picture
from tffcl.runs import run_files


@pytest.fixture(scope="module")
def runs(comparison_path):
    return batch_index.find_runs(comparison_path)


def svg_of(panel: Panel) -> ElementTree.Element:
    return ElementTree.fromstring(f"<svg>{panel.content}</svg>")


def points_of(path: str) -> np.ndarray:
    return np.array(re.findall(r"-?[\d.]+", path), float).reshape(-1, 2)


def drawn_lines(panel: Panel) -> list:
    return [group for group in svg_of(panel).iter("g") if "line" in group.get("class", "").split()]


def pixels_of(image: ElementTree.Element) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(image.get("href").partition(",")[2]))).convert("RGBA"))


def entries_of(image: ElementTree.Element) -> tuple[dict, np.ndarray]:
    """What is said of a matrix, and its entries by their colours, as the page's script reads them; NaN without one."""
    said, colors = json.loads(image.get("data-hover")), scale_colors()
    steps = {colors[6 * step : 6 * step + 6]: step / 255 for step in range(256)}
    low, high = said["ends"]
    values = [
        low + steps[bytes(pixel[:3]).hex()] * (high - low) if pixel[3] else np.nan
        for pixel in pixels_of(image).reshape(-1, 4)
    ]
    return said, np.array(values).reshape(len(said["rows"]), -1)


def test_a_line_is_where_its_values_are():
    figure = style.new_panels(1, 3.0)
    (axes,) = figure.panels
    style.draw_line(axes, [0, 5, 10], [100, 150, 200], np.array([0, 10, np.nan]), name="a", number=0)
    axes.set(xlim=(0, 10), ylim=(100, 200), xlabel="x")
    (panel,) = panels_of("one", figure)
    (line,) = drawn_lines(panel)
    left, top, right, bottom = panel.hover["box"]
    middle = ((left + right) / 2, (top + bottom) / 2)
    np.testing.assert_allclose(points_of(line.find("path").get("d")), [(left, bottom), middle, (right, top)], atol=0.11)
    # The band's outline reaches 10 above and below the middle.
    (band,) = [each.get("d") for each in svg_of(panel).iter("path") if "fill-opacity:0.15" in each.get("style", "")]
    around = points_of(band)
    at_middle = around[np.isclose(around[:, 0], middle[0], atol=0.11), 1]
    np.testing.assert_allclose(np.ptp(at_middle), 0.2 * (bottom - top), atol=0.21)
    assert line.findtext("title") == "a: 200 at 10"
    dots = [path for path in line.iter("path") if "stroke-linecap:round" in path.get("style")]
    assert len(dots) + len(list(line.iter("circle"))) in (1, 3)
    assert panel.hover["places"] == [[0, left], [5, pytest.approx(middle[0], abs=0.1)], [10, right]]
    assert panel.hover["lines"][0]["points"] == [[0, 100], [5, 150, 10], [10, 200]]


def test_bands_are_the_deviation_of_the_table(runs):
    cluster, local, union = panels_of("accuracy", figures.accuracy_figure(runs))
    assert [len(drawn_lines(panel)) for panel in (cluster, local, union)] == [2, 2, 1]
    rows = comparison_table.comparison_rows(runs)
    for line, row in zip(cluster.hover["lines"], rows, strict=True):
        stat = row.stats["cluster_accuracy_percent"]
        x, mean, std = line["points"][-1]
        assert (x, mean, std) == (5, pytest.approx(stat.mean, rel=1e-4), pytest.approx(stat.std, rel=1e-3))
    lines = drawn_lines(cluster)
    assert [line.get("class") for line in lines] == ["line run-0", "line run-1"]
    assert [f"var(--c{number})" in line.find("path").get("style") for number, line in enumerate(lines)] == [True, True]
    assert [line["run"] for line in cluster.hover["lines"]] == [0, 1]


def test_a_method_has_its_colour_and_switch_in_every_panel(runs):
    merging = [
        dataclasses.replace(
            run, rounds={**run.rounds, "known_clusters": run.rounds["clusters"], "objective": run.rounds["ari"]}
        )
        for run in runs[2:]
    ]
    panels = panels_of("merging", figures.merging_figure(merging, ["fedavg", "pacfl"]))
    assert len(panels) == 3
    for panel in panels:
        assert [(line["run"], line["color"]) for line in panel.hover["lines"]] == [(1, "c1")]
        assert "var(--c1)" in drawn_lines(panel)[0].find("path").get("style")


@pytest.mark.slow
def test_infinite_privacy_is_no_point(runs):
    spent = dataclasses.replace(
        runs[0], rounds={**runs[0].rounds, "epsilon": np.array([1.0, 2.0, np.inf, np.inf, np.inf])}
    )
    *_, panel = panels_of("progress", figures.progress_figure([spent]))
    assert panel.title == "privacy spent" and [x for x, *_ in panel.hover["lines"][0]["points"]] == [1, 2]
    assert len(figures.progress_figure(runs[:1]).panels) == 3


def test_a_line_says_in_which_round_clusters_were_formed_anew(runs):
    """PACFL forms them before a round trains, FLT after it has: "after round 2" would be the round before, or this."""
    anew = dataclasses.replace(runs[0], rounds={**runs[0].rounds, "formed_anew": np.array([0.0, 1, 0, 0, 0])})
    told = {" ".join(mark.words) for mark in figures.progress_figure([anew]).marks.values()}
    assert "clusters formed anew in round 2" in told


def test_one_method_of_many_clusters_does_not_hide_the_others(runs):
    many = dataclasses.replace(runs[0], rounds={**runs[0].rounds, "clusters": np.full(5, 400.0)})
    axes = figures.progress_figure([many, *runs[2:]]).panels[1]
    assert axes.get_yscale() == "log" and axes.get_ylim()[0] < 1 < 400 < axes.get_ylim()[1]


def test_labels_say_their_shares(runs):
    run = runs[2]
    (panel,) = panels_of("labels", figures.labels_figure(run))
    image = next(each for each in svg_of(panel).iter("image") if "data-hover" in each.attrib)
    said, entries = entries_of(image)
    shares = 100 * run.clients.label_counts / run.clients.label_counts.sum(axis=1, keepdims=True)
    place = {name: row for row, name in enumerate(run.clients.client_id)}
    order = [place[name.partition(",")[0]] for name in said["rows"]]
    np.testing.assert_allclose(np.nan_to_num(entries), shares[order], atol=np.max(shares) / 255)
    assert np.array_equal(np.isnan(entries), shares[order] == 0) and said["columns"][3] == "label 3" and panel.inverted
    titles = [title.text for title in svg_of(panel).iter("title")]
    assert sorted(titles) == ["true group 0: 6 clients", "true group 1: 6 clients", "true group 2: 6 clients"]


def test_many_rows_are_pooled_by_their_means():
    matrix = np.arange(20.0).reshape(10, 2)
    matrix[0, 0] = np.nan
    small, starts = pooled(matrix, 4)
    assert starts.tolist() == [0, 3, 6, 9]
    np.testing.assert_allclose(small[:, 0], [np.mean([2, 4]), np.mean([6, 8, 10]), np.mean([12, 14, 16]), 18])


def test_proximity_is_said_in_the_order_of_the_clusters(runs):
    found = runs[2].clustering
    (panel,) = panels_of("proximity", report_figures._proximity(runs[2]))
    image = next(each for each in svg_of(panel).iter("image") if "data-hover" in each.attrib)
    said, entries = entries_of(image)
    names, count = said["rows"], len(found.labels)
    cluster_of = dict(zip(found.client_ids, found.labels, strict=True))
    assert [cluster_of[name] for name in names] == sorted(found.labels) and "columns" not in said
    order = [list(found.client_ids).index(name) for name in names]
    true = found.proximity[np.ix_(order, order)]
    off = ~np.eye(count, dtype=bool)
    np.testing.assert_allclose(entries[off], true[off], atol=np.ptp(said["ends"]) / 255)
    assert said["unit"] == " degrees" and "dark is alike" in "".join(svg_of(panel).itertext())
    assert pixels_of(image)[0, 0, :3].sum() < 300  # alike is dark


def test_branches_end_at_the_heights_of_the_merges(runs):
    found = runs[2].clustering
    (panel,) = panels_of("dendrogram", report_figures._dendrogram(runs[2]))
    groups = [group for group in svg_of(panel).iter("g") if group.findall("path/title")]
    (tree,) = groups
    said = [path.findtext("title") for path in tree.iter("path")]
    assert sorted(said) == sorted(f"merge at {height:.4g} degrees" for height in found.merges[:, 2])
    tops = np.array([points_of(path.get("d"))[1, 0] for path in tree.iter("path")])
    heights = np.array([float(words.split()[2]) for words in said])
    slope, start = np.polyfit(heights, tops, 1)
    np.testing.assert_allclose(slope * heights + start, tops, atol=0.2)
    grey = [path for path in tree.iter("path") if "var(--grey)" in path.get("style", "")]
    assert len(grey) == 2
    titles = [title.text for title in svg_of(panel).iter("title")]
    assert f"cut at {found.threshold:.4g} degrees" in titles


@pytest.mark.parametrize("count", [1, 2, pytest.param(1200, marks=pytest.mark.slow)])
def test_few_and_many_clients(count):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(count, 3))
    distances = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    merges = hierarchy.linkage(points, "average") if count > 1 else np.empty((0, 4))
    (panel,) = panels_of("proximity", figures.proximity_figure(distances, np.arange(count) % 40, merges=merges))
    image = next(each for each in svg_of(panel).iter("image") if "data-hover" in each.attrib)
    rows = json.loads(image.get("data-hover"))["rows"]
    assert len(rows) == min(count, 200) and pixels_of(image).shape[:2] == (len(rows), len(rows))
    (tree,) = panels_of("dendrogram", figures.dendrogram_figure(merges, 1.0))
    assert len(list(svg_of(tree).iter("text"))) < 170 and len(panel.content) + len(tree.content) < 150_000


def test_relations_say_what_they_are():
    groups = np.arange(12) % 3
    related = groups[:, None] == groups
    related[0, 1] = related[1, 0] = True
    related[0, 3] = related[3, 0] = False
    merges = hierarchy.linkage(related.astype(float), "ward")
    raw, _, flat = panels_of("related", figures.relatedness_figure(related, groups, merges))
    (image,) = svg_of(raw).iter("image")
    assert np.array_equal(pixels_of(image)[..., 3] > 0, related)
    (image,) = svg_of(flat).iter("image")
    kinds = json.loads(image.get("data-hover"))["kinds"]
    order = hierarchy.leaves_list(merges)
    words = [kinds.get(bytes(pixel[:3]).hex(), "not related") for pixel in pixels_of(image).reshape(-1, 4)]
    together = (groups[order][:, None] == groups[order]).ravel()
    for said, has, own in zip(words, related[np.ix_(order, order)].ravel(), together, strict=True):
        wanted = {(1, 1): "related, in one cluster", (1, 0): "related, but parted by the clusters",
                  (0, 1): "in one cluster, but not related", (0, 0): "not related"}  # fmt: skip
        assert said == wanted[int(has), int(own)]


def test_dots_say_their_clients(runs):
    _, local = panels_of("clients", figures.client_accuracy_figure(runs))
    groups = [group for group in svg_of(local).iter("g") if group.get("class") == "run-1"]
    titles = [title.text for group in groups for title in group.iter("title")]
    for run in (run for run in runs if run.method == "pacfl"):
        for client, accuracy in zip(run.clients.client_id, run.clients.local_accuracy, strict=True):
            assert (f"{client}, seed {run.seed}: {100 * accuracy:.2f} %" in titles) == (not np.isnan(accuracy))


def test_points_of_a_map_say_their_clients():
    found = representations_of(6)
    panels = panels_of(
        "map", figures.representations_figure(found, {1: np.array([0, 0, 2, 2, 4, 5])}, 1, list("001122"))
    )
    assert [panel.title for panel in panels] == ["3 true groups", "after round 1: 2 clusters, 2 alone"]
    titles = {title.text for title in svg_of(panels[1]).iter("title")}
    assert {"client 0, cluster 0", "client 3, cluster 2"} <= titles
    colors = {each for each in re.findall(r"var\(--(?:c\d|grey)\)", panels[1].content)}
    assert colors == {"var(--c0)", "var(--c1)", "var(--grey)"}


def representations_of(count: int):
    return run_files.Representations(np.arange(count), np.random.default_rng(0).normal(size=[count, 2]))


@pytest.mark.slow
def test_nothing_of_a_figure_has_the_colours_of_paper_or_a_name_of_another(runs):
    panels = [
        *panels_of("accuracy", figures.accuracy_figure(runs)),
        *panels_of("labels", figures.labels_figure(runs[2])),
    ]
    contents = "".join(panel.content for panel in panels)
    assert not re.search(r"(?:fill|stroke): ?#(?:000|fff)", contents)  # what is black or white follows light and dark
    names = re.findall(r" id='(.*?)'", contents)
    assert len(names) == len(set(names)) and set(re.findall(r"url\(#(.*?)\)", contents)) <= set(names)


def test_the_page_says_how_many_labels_an_example_has(runs, comparison_path):
    """Of several labels, each 0 or 1, "classes 2" alone would be read as the number of labels."""
    clients = dataclasses.replace(runs[2].clients, label_counts=np.outer(runs[2].clients.examples, [2, 3]))
    page = render([dataclasses.replace(runs[2], clients=clients)], [], comparison_path)
    assert "classes</dt><dd>2</dd>" in page and "labels of an example</dt><dd>5</dd>" in page
    assert "labels of an example" not in render(runs[2:3], [], comparison_path)


def test_the_clusters_of_a_run(runs):
    run = runs[2]
    images = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 3), dtype=np.uint8)
    samples = run_files.Samples(images, np.arange(9), np.repeat([0, 1, 2], 3))
    summary = {**run.summary, "label_names": [*"abcdefghij"]}
    run = dataclasses.replace(run, samples=samples, summary=summary)
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
        assert f"label a: {100 * counts[0] / counts.sum():.1f} %" in cells["labels"].bars[0][1]
        assert cells["some of its images"].text == ("labels a, b, c", "labels d, e, f", "labels g, h, i")[number]
        shown = Image.open(io.BytesIO(base64.b64decode(cells["some of its images"].picture.partition(",")[2])))
        pixels = np.asarray(shown.convert("RGB"))
        np.testing.assert_array_equal(pixels[:, 5:9], images[3 * number + 1])


@pytest.mark.parametrize("classes", [10, 62])
def test_bars_stand_at_their_labels(runs, comparison_path, classes):
    counts = np.zeros((18, classes), int)
    counts[:, -1], counts[:, 3] = 4, 1
    counts[runs[2].clients.cluster == 1, 3] = 0
    run = dataclasses.replace(runs[2], clients=dataclasses.replace(runs[2].clients, label_counts=counts))
    page = render([run], [], comparison_path)
    bars = re.findall(r'<svg class="bars".*?</svg>', page, re.DOTALL)
    assert len(bars) == 3 and f"1 label, most {classes - 1} (100 %)" in page
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
    fedavg, _, pacfl, _ = batch_index.find_runs(comparison_path)
    same = dataclasses.replace(fedavg, method="fedprox")
    panel = Panel("", "0 0 1 1", Markup())
    pictures = [
        Picture(f"labels-{method}", CLUSTERS, "Labels", "", {}, [panel], number)
        for number, method in enumerate(("fedavg", "fedprox", "pacfl"))
    ]
    page = render([fedavg, same, pacfl], pictures, comparison_path)
    assert re.findall(r'data-name="labels-(.*?)"', page) == ["fedavg", "pacfl"]
    assert "The clusters are those of fedavg; who holds which labels is shown there." in page
    assert "The clusters are those of fedavg." in render([fedavg, same, pacfl], [], comparison_path)
    # The first run of a method whose first seed failed.
    other = dataclasses.replace(same, summary={**same.summary, "seed": 5})
    page = render([fedavg, other, pacfl], pictures, comparison_path)
    assert re.findall(r'data-name="labels-(.*?)"', page) == ["fedavg", "fedprox", "pacfl"]


@pytest.mark.slow
def test_a_page_of_ten_runs_and_a_hundred_rounds_is_no_burden(runs, comparison_path, tmp_path):
    numbers = np.arange(1.0, 101.0)
    rng = np.random.default_rng(0)
    many = []
    for method in range(10):
        columns = {name: rng.random(100) for name in runs[0].rounds} | {"round": numbers}
        many.append(dataclasses.replace(runs[2], method=f"method_{method}", rounds=columns))
    drawn = panels_of("accuracy", figures.accuracy_figure(many)) + panels_of("progress", figures.progress_figure(many))
    pictures = [Picture("accuracy", ROUNDS, "Accuracy", "", {}, drawn)]
    page = render(many, pictures, comparison_path)
    hovers = [json.loads(each["data-hover"]) for each in read(page, tmp_path).all("svg") if "data-hover" in each]
    assert [len(hover["lines"]) for hover in hovers] == [10] * 6
    assert len(page) < 700_000


def read(page: str, tmp_path) -> Page:
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    return Page(file)
