"""Metrics beside accuracy in the table of a comparison, in figures and on the page; confusions of clusters."""

import dataclasses

import numpy as np
import pytest

import tffcl
from tffcl.errors import UserError
from tffcl.lab.reporting import comparison_table, report_figures
from tffcl.lab.reporting.page import cluster_tables
from tffcl.lab.reporting.report import write_report
from tffcl.runs import metrics
from tffcl.runs.evaluator import Evaluator
from tffcl.runs.run_directory import CONFUSION
from tffcl.runs.run_files import confusion_of, read_arrays, read_run


def test_rows_of_a_metric_follow_from_its_name():
    cluster, local, shared, on_validation, _ = metrics.rows_of("f1")
    assert (cluster.column, cluster.unit, cluster.better) == ("cluster_f1", "%", "up")
    assert local.source == ("metrics", "f1", "local", "mean") and shared.header == "global"
    assert on_validation.column == "validation_cluster_f1"
    assert on_validation.source == ("validation", "metrics", "f1", "cluster", "mean")
    further = ("cluster_f1", "global_my_error", "validation_cluster_f1", "cluster_accuracy", "round")
    assert [metrics.is_further(column) for column in further] == [True, True, False, False, False]
    assert metrics.of_column("global_my_error").better == "down" and metrics.of_column("my_error") is None
    assert metrics.find("cluster_auc").limits == (0, 1)
    with pytest.raises(UserError, match="unknown metric of a round 'cluster_auk'"):
        metrics.find("cluster_auk")
    assert metrics.find("cluster_auk", ["cluster_auk"]).digits == "number"


@pytest.fixture(scope="module")
def run(tmp_path_factory, worker):
    """A short run of the demo with further metrics."""
    out = tmp_path_factory.mktemp("run")
    changes = {
        "train": {"rounds": 2, "clients_per_round": 4},
        "partition": {"clients": 8},
        "evaluation": {"metrics": ["accuracy", "auc", "log_loss"], "every": 1},
    }
    counted, confusion = [], Evaluator.confusion
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "confusion", lambda *given: counted.append(given) or confusion(*given))
        tffcl.run(tffcl.resolve("demo_digits", "pacfl", overrides=changes), out, show_progress=False)
    assert len(counted) == 1, "confusions are of the end, and no round counts them"
    return read_run(out)


@pytest.mark.slow
def test_tables_figures_and_page_show_the_metrics_of_a_run(run):
    rows = comparison_table.comparison_rows([run])
    table = comparison_table.to_table(rows)
    assert [each for each, _ in table.groups][:4] == ["", "accuracy %", "AUC", "log loss"]
    cells = dict(zip(((each.group, each.header) for each in table.columns), table.cells[0], strict=True))
    found = run.summary["metrics"]["auc"]["cluster"]["mean"]
    assert cells["AUC", "cluster"].text == f"{found:.3f}" and cells["AUC", "global"].text == "–"
    plain = comparison_table.plain_table(rows).to_csv()
    assert "cluster_auc,cluster_auc_std" in plain
    page = write_report(run.path).read_text()
    assert {"metrics", "confusion"} <= {file.stem for file in (run.path / "figures").iterdir()}
    assert "log loss" in page and "Which labels are taken for which" in page
    clients = cluster_tables.clients_table(run)
    places = dict(zip(clients.heads, clients.cells[0], strict=True))
    assert places["cluster log loss"].text == f"{run.clients.further['cluster_log_loss'][0]:.3f}"
    clusters = cluster_tables.clusters_table(run, compared=False)
    shown = dict(zip(clusters.heads, clusters.cells[0], strict=True))
    assert shown["AUC"].text == f"{run.summary['metrics']['auc']['clusters']['0']:.3f}"


def test_where_there_are_other_metrics_alone_no_accuracy_is_drawn(run):
    nothing = np.full(len(run.clients), np.nan)
    clients = dataclasses.replace(run.clients, cluster_accuracy=nothing, local_accuracy=nothing)
    of_numbers = dataclasses.replace(run, clients=clients)
    names = {row.name for row in report_figures.OF_RUNS if row.draw([of_numbers]) is not None}
    assert "metrics" in names and not {"accuracy", "traffic", "clients"} & names
    summary = {name: own for name, own in run.summary["metrics"].items() if name != "accuracy"}
    of_numbers = dataclasses.replace(of_numbers, summary=run.summary | {"metrics": summary})
    heads = cluster_tables.clusters_table(of_numbers, compared=False).heads
    assert "AUC" in heads and not {"cluster %", "worst client %", "local %"} & set(heads)
    assert not {"cluster %", "local %"} & set(cluster_tables.clients_table(of_numbers).heads)
    compared = cluster_tables.clients_compared([of_numbers])
    assert compared.heads[-3:] == ["cluster", "cluster AUC", "local AUC"]
    assert compared.cells[0][-2].text == f"{run.clients.further['cluster_auc'][0]:.3f}"
    assert cluster_tables.clients_compared([run]).heads[-2:] == ["cluster %", "local %"]


def test_confusions_are_of_the_test_examples_of_each_cluster(run):
    for cluster, counts in run.confusion.items():
        own = run.clients.cluster == cluster
        assert counts.sum() == run.clients.test_examples[own].sum()
        right = run.clients.cluster_accuracy[own] @ run.clients.test_examples[own]
        assert np.trace(counts) == pytest.approx(right, abs=1e-3)


def test_damaged_confusions_are_refused(run, tmp_path):
    np.savez(tmp_path / CONFUSION, clusters=[0], counts=np.zeros([1, 2, 3], int))
    with pytest.raises(UserError, match="confusion.npz is damaged: counts is int64"):
        read_arrays(tmp_path / CONFUSION, confusion_of)
