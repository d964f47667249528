"""The table, the picture and the page of a sweep, over runs with genuine numbers."""

import csv
import dataclasses
import io
import json
import math
import shutil

import numpy as np
import pytest

from tests.lab.reporting.test_report import Page, assert_stands_alone
from tests.runs.finished_runs import rows_of
from tffcl.errors import UserError
from tffcl.files import csv_text
from tffcl.lab.reporting import figures, report_figures, sweeps
from tffcl.lab.reporting.batch_index import write_index
from tffcl.lab.reporting.report import write_report
from tffcl.runs import run_files

ERRORS = {"0": [4.0, 2.0, 3.0, None, 1.0], "10": [6.0, 5.0, 1.0, 2.0, 2.0]}  # of five rounds, by seed


def write_sweep(path, make_run, values, *, keys=("algorithms.pacfl.beta",), seeds=(0,), errors=None):
    """A sweep over runs of PACFL, the same for all values but for their accuracy, which is by its place."""
    points = []
    for place, value in enumerate(values):
        directory = f"point-{place}"
        for seed in seeds:
            out = path / directory / f"seed-{seed}"
            make_run(out, "pacfl", seed)
            set_accuracy(out, 0.1 * (place + 1) + 0.001 * seed)
            if errors:
                add_column(out / "rounds.csv", [None if e is None else e + place for e in errors[str(seed)]])
        points.append({"values": list(value), "directory": directory})
    noted = {"task": "digits", "algorithm": "pacfl", "seeds": list(seeds), "keys": list(keys), "points": points}
    noted["labels"] = [key.rpartition(".")[2].replace("_", " ") for key in keys]
    write_index(path, "sweep", noted)
    return path


def set_accuracy(out, mean):
    summary = json.loads((out / "summary.json").read_text())
    summary["accuracy"]["cluster"]["mean"] = mean
    (out / "summary.json").write_text(json.dumps(summary))
    for name, whose in (("clients.csv", slice(None)), ("rounds.csv", slice(-1, None))):
        rows = rows_of(out / name)
        for row in rows[whose]:
            row["cluster_accuracy"] = mean
        (out / name).write_text(csv_text([rows[0], *(row.values() for row in rows)]))


def add_column(path, values):
    head, *lines = path.read_text().splitlines()
    cells = ["clustering_error", *("" if each is None else each for each in values)]
    path.write_text("".join(f"{cell},{line}\n" for cell, line in zip(cells, [head, *lines], strict=True)))


@pytest.fixture(scope="module")
def with_errors(tmp_path_factory):
    """beta x local epochs, two seeds, with clustering errors; only read by tests."""
    from tests.lab.reporting.conftest import write_run

    values = [(beta, epochs) for beta in (0.5, 0.1, 0.3) for epochs in (5, 1)]
    keys = ("algorithms.pacfl.beta", "train.local_epochs")
    path = tmp_path_factory.mktemp("sweep")
    write_sweep(path, write_run, values, keys=keys, seeds=(0, 10), errors=ERRORS)
    write_report(path)
    return path


def labels_of(axes):
    return [text.get_text() for text in axes.get_xticklabels()]


def test_the_optional_column_of_rounds(with_errors, finished_run):
    rounds = run_files.read_run(with_errors / "point-0" / "seed-0").rounds
    np.testing.assert_array_equal(rounds["clustering_error"], [4, 2, 3, math.nan, 1])
    assert "clustering_error" not in run_files.read_run(finished_run).rounds


def test_statistics_over_rounds_and_seeds(with_errors):
    point = sweeps.read_sweep(with_errors).points[1]
    first, second = [5, 3, 4, 2], [7, 6, 2, 3, 3]
    mean, over = point.row.stats["clustering_error"], point.row.stats["clustering_error_over_rounds"]
    assert mean.mean == pytest.approx((np.mean(first) + np.mean(second)) / 2)
    assert mean.std == pytest.approx(np.std([np.mean(first), np.mean(second)], ddof=1))
    assert over.mean == pytest.approx((np.std(first, ddof=1) + np.std(second, ddof=1)) / 2)
    assert point.row.stats["cluster_accuracy_percent"].mean == pytest.approx(20.5)
    assert point.row.stats["cluster_accuracy_percent"].std == pytest.approx(1 / math.sqrt(2))


def test_the_maps_are_of_the_same_clients_and_of_one_seed(with_errors):
    def sent(run, count=18):
        found = run_files.Representations(np.arange(count), np.random.default_rng(0).normal(size=(count, 2)))
        clients = run.clients
        own = {name: getattr(clients, name)[:count] for name in ("client_id", "true_cluster", "cluster")}
        return dataclasses.replace(
            run, clients=dataclasses.replace(clients, **own), representations=found, history={1: own["cluster"]}
        )

    def drawn(*points):
        return report_figures.OF_SWEEP[-1].draw(dataclasses.replace(sweep, points=points))

    sweep = sweeps.read_sweep(with_errors)
    first, second = (dataclasses.replace(each, runs=[*map(sent, each.runs)]) for each in sweep.points[:2])
    titles = ["3 true groups", *(f"beta, local epochs 0.5, {epochs}: 3 clusters" for epochs in (5, 1))]
    assert [axes.get_title() for axes in drawn(first, second).axes if axes.get_visible()] == titles
    fewer = dataclasses.replace(second, runs=[sent(run, 12) for run in second.runs])
    assert drawn(first, fewer) is None  # as of a sweep over how many clients there are
    failed = dataclasses.replace(second, runs=second.runs[1:])  # whose first seed failed
    assert [axes.get_title() for axes in drawn(first, failed).axes if axes.get_visible()] == titles[:2]


def test_a_copied_run_is_no_further_seed(with_errors, tmp_path):
    path = tmp_path / "sweep"
    shutil.copytree(with_errors, path)
    shutil.rmtree(path / "point-0" / "seed-10")
    shutil.copytree(path / "point-0" / "seed-0", path / "point-0" / "seed-10")
    with pytest.raises(UserError, match="seed-10 holds a run with seed 0; rename it"):
        sweeps.read_sweep(path)


def test_the_csv_has_a_column_for_each_key(with_errors):
    text = (with_errors / "sweep.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["algorithms.pacfl.beta"], row["train.local_epochs"]) for row in rows[:3]] == [
        ("0.5", "5"), ("0.5", "1"), ("0.1", "5"),
    ]  # fmt: skip
    for row, point in zip(rows, sweeps.read_sweep(with_errors).points, strict=True):
        for key, stat in point.row.stats.items():
            assert row[key] == ("" if math.isnan(stat.mean) else f"{stat.mean:.10g}")
            assert row[f"{key}_std"] == ("" if math.isnan(stat.std) else f"{stat.std:.10g}")


def test_the_figure_has_a_line_for_each_second_value(with_errors):
    figure = figures.sweep_figure(sweeps.read_sweep(with_errors))
    cluster, local, errors = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["cluster accuracy", "local accuracy", "clustering error"]
    one, five = cluster.lines
    np.testing.assert_allclose(one.get_xdata(), [0.1, 0.3, 0.5])
    np.testing.assert_allclose(one.get_ydata(), [40.5, 60.5, 20.5])
    np.testing.assert_allclose(five.get_ydata(), [30.5, 50.5, 10.5])
    assert one.get_color() != five.get_color()
    assert len(local.lines) == 2
    legend = figure.legends[0]
    assert legend.get_title().get_text() == "local epochs"
    assert [text.get_text() for text in legend.get_texts()] == ["1", "5"]
    assert (cluster.get_xlabel(), cluster.get_ylabel()) == ("beta", "accuracy (%)")
    assert labels_of(cluster) == ["0.1", "0.3", "0.5"]
    # At the right the mean over rounds with the deviation over rounds as band.
    point = next(each for each in sweeps.read_sweep(with_errors).points if each.values == (0.1, 1))
    assert errors.lines[0].get_ydata()[0] == pytest.approx(point.row.stats["clustering_error"].mean)
    ends = errors.collections[0].get_paths()[0].vertices
    ends = ends[np.isclose(ends[:, 0], 0.1), 1]
    assert np.ptp(ends) / 2 == pytest.approx(point.row.stats["clustering_error_over_rounds"].mean)
    assert errors.get_ylim()[1] > max(band.get_paths()[0].vertices[:, 1].max() for band in errors.collections)


@pytest.mark.slow
def test_without_clustering_errors_the_clusters_are_drawn(tmp_path, make_run):
    sweep = sweeps.read_sweep(write_sweep(tmp_path, make_run, [(1,), (2,), (3,)]))
    figure = figures.sweep_figure(sweep)
    accuracy, _, clusters, agreement = figure.axes
    assert clusters.lines[0].get_ydata().tolist() == [3, 3, 3]
    assert clusters.get_ylabel() == "number of clusters"
    assert agreement.get_ylabel() == "adjusted Rand index"
    assert not figure.legends
    assert not accuracy.collections  # one seed has no deviation
    assert "clustering error" not in sweeps.to_table(sweep).to_text()
    write_report(tmp_path)
    assert next(csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text())))["clustering_error"] == ""


def test_the_metric_of_numbers_is_drawn_first(tmp_path, make_run):
    sweep = sweeps.read_sweep(write_sweep(tmp_path, make_run, [(1,), (2,), (3,)]))
    for place, point in enumerate(sweep.points):
        (run,) = point.runs
        summary = run.summary | {"metrics": {"mae": {kind: {"mean": float(place)} for kind in ("cluster", "local")}}}
        row = sweeps.Row.of(point.row.algorithm, [dataclasses.replace(run, summary=summary)], sweeps.SWEEP_COLUMNS)
        sweep.points[place] = dataclasses.replace(point, runs=[dataclasses.replace(run, summary=summary)], row=row)
    cluster, local, accuracy, *_ = figures.sweep_figure(sweep).axes
    assert cluster.get_title() == "cluster MAE" and local.get_title() == "local MAE"
    assert cluster.lines[0].get_ydata().tolist() == [0, 1, 2]
    assert accuracy.get_title() == "cluster accuracy"
    assert "MAE" in sweeps.to_table(sweep).to_text() and "AUC, F1, ..." in dict(sweeps.legend(sweep))


def test_no_axis_for_an_unknown_rand_index(tmp_path, make_run):
    path = write_sweep(tmp_path, make_run, [(1,), (2,)])
    for file in path.glob("*/*/summary.json"):
        summary = json.loads(file.read_text())
        summary["clusters"]["ari"] = None
        file.write_text(json.dumps(summary))
    titles = [axes.get_title() for axes in figures.sweep_figure(sweeps.read_sweep(path)).axes]
    assert titles == ["cluster accuracy", "local accuracy", "clusters"]


@pytest.mark.parametrize(
    ("values", "scale", "labels"),
    [
        ([0.3, 0.1, 0.2], "linear", ["0.1", "0.2", "0.3"]),
        ([0.001, 0.1, 10], "log", ["0.001", "0.1", "10"]),
        ([0, 0.01, 0.1, 1, 10], "symlog", ["0", "0.01", "0.1", "1", "10"]),
        ([-1, 0, 1000], "linear", ["-1", "1000"]),
        (["trace", "angle_sum"], "linear", ["trace", "angle_sum"]),
        ([True, False], "linear", ["true", "false"]),
        ([1, math.inf], "linear", ["1", "inf"]),
    ],
    ids=str,
)
def test_the_x_axis_of_numbers_and_of_names(tmp_path, make_run, values, scale, labels):
    path = write_sweep(tmp_path, make_run, [(value,) for value in values])
    axes = figures.sweep_figure(sweeps.read_sweep(path)).axes[0]
    assert axes.get_xscale() == scale
    assert labels_of(axes) == labels
    (line,) = axes.lines
    named = not all(type(value) in (int, float) and math.isfinite(value) for value in values)
    assert line.get_xdata().tolist() == (list(range(len(values))) if named else sorted(values))
    low, high = axes.get_xlim()
    assert low < min(line.get_xdata()) and max(line.get_xdata()) < high


@pytest.mark.slow
def test_nothing_overlaps(with_errors, tmp_path, make_run):
    crowded = write_sweep(tmp_path, make_run, [(each,) for each in (0, 100, 105, 110, 200, 1000)])
    for path in (with_errors, crowded):
        figure = figures.sweep_figure(sweeps.read_sweep(path))
        figure.draw_without_rendering()
        for axes in figure.axes:
            texts = [*axes.get_xticklabels(), axes.xaxis.label, axes.title]
            texts += axes.get_legend().get_texts() if axes.get_legend() else []
            boxes = [text.get_window_extent() for text in texts if text.get_text()]
            for place, box in enumerate(boxes):
                assert not any(box.overlaps(other) for other in boxes[:place])


def test_the_page(with_errors):
    page = Page(with_errors / "report.html")
    assert_stands_alone(page)
    (figure,) = page.all("figure")
    assert figure["data-name"] == "sweep" and (with_errors / "figures" / "sweep.png").is_file()
    # A panel for each accuracy and for the clustering error; lines are switched by the second setting.
    assert [json.loads(each["data-hover"])["unit"] for each in page.all("svg") if "data-hover" in each] == [
        "accuracy (%)", "accuracy (%)", "wrongly joined or parted clients",
    ]  # fmt: skip
    assert [each["id"] for each in page.all("input")] == ["run-0", "run-1"]
    for words in (
        "digits: pacfl over beta and local epochs", "beta, local epochs", "0.5, 0.1, 0.3",
        "Clients wrongly joined",
        "20.50 ± 0.71", "point-3/seed-10/rounds.csv", "A colour is a value of local epochs",
    ):  # fmt: skip
        assert words in page.text, words
    assert "Each client" not in page.text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"keys"', '"kees"', "batch.json is damaged: Object missing required field `keys`"),
        ('"values":[1]', '"values":[]', "batch.json is damaged: a point has 0 values for 1 keys"),
        ("{", "[", "batch.json is damaged"),
    ],
)
def test_damage_is_one_line(tmp_path, make_run, old, new, message):
    file = write_sweep(tmp_path, make_run, [(1,), (2,)]) / "batch.json"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        write_report(tmp_path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_damage_of_a_run_and_a_sweep_without_one_are_no_damage_of_the_index(tmp_path, make_run):
    runs = [each.parent for each in write_sweep(tmp_path, make_run, [(1,), (2,)]).glob("*/*/summary.json")]
    (runs[0] / "clients.csv").write_text("nothing\n")
    with pytest.raises(UserError, match=r"^[^ ]*clients\.csv is damaged"):
        sweeps.read_sweep(tmp_path)
    for run in runs:
        (run / "summary.json").unlink()
    with pytest.raises(UserError, match=r"^no run in [^ ]* is finished; "):
        sweeps.read_sweep(tmp_path)
    for run in runs:
        (run / "failed.json").write_text('{"seed": 0, "reason": "it diverged"}')
    assert not sweeps.read_sweep(tmp_path).runs
    with pytest.raises(UserError, match=r"^no run in [^ ]* is finished: 1 seed 0 failed: it diverged"):
        write_report(tmp_path)
