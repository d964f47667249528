"""Tables of clusters and clients: the data and accuracies of each cluster, and of each client."""

import collections
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from PIL import Image

from tffcl.display import counted
from tffcl.lab.reporting import ordering, style, verdict
from tffcl.lab.reporting.comparison_table import further_columns
from tffcl.lab.reporting.number_format import MISSING, Stat, show_number
from tffcl.lab.reporting.page.panels import png_address
from tffcl.lab.reporting.table import Cell, Column, Table, percent
from tffcl.runs.cluster_history import MOST_CLUSTERS
from tffcl.runs.metrics import Metric, find, rows_of
from tffcl.runs.run_files import NO_CLUSTER, RunFiles

MOST_CLIENTS = 1000  # clients that have a row on the page
_MOST_GROUPS = 4  # groups that are named
_MOST_BARS = 100
_IMAGE = 36  # pixels of an image on the page
_IMAGES = {True: 6, False: 10}  # images of a cluster, on the page of a comparison and of a run


def clusters_table(run: RunFiles, *, compared: bool) -> Table | None:
    """The clusters of a run; None if each client is its own cluster, or no client was measured.

    Args:
      run: The run.
      compared: Whether the page is that of a comparison, which shows fewer images.
    """
    clients = run.clients
    found = ordering.blocks(clients.cluster[ordering.by_group(clients.cluster)])
    if not found or len(found) == len(clients) > 1:
        return None
    kept = sorted(sorted(range(len(found)), key=lambda each: -found[each].size)[:MOST_CLUSTERS])
    grouped, labelled = clients.true_groups is not None, clients.label_counts.shape[1] > 0
    sampled, described = run.samples is not None, isinstance(run.summary["clusters"].get("features"), Mapping)
    heads = ["cluster", "clients", "training examples", "cluster %", "worst client %", "local %"]
    further = further_columns([run])
    named = {each.metric.source[1]: each.group for each in further if each.header == "cluster"}
    heads += named.values()
    heads += ["true groups"] * grouped + ["labels"] * labelled + ["some of its images"] * sampled
    heads += ["features furthest from the mean of all (σ)"] * described
    rows = []
    for each in kept:
        own = clients.cluster == found[each].name
        cluster, local = clients.cluster_accuracy[own], clients.local_accuracy[own]
        row = [Cell(ordering.cluster_name(found[each].name)), Cell(f"{own.sum():,}")]
        held = clients.examples[own].sum()
        row += [Cell(f"{held:,}" if held else MISSING)]
        row += [percent(value) for value in (_mean(cluster), _least(cluster), _mean(local))]
        row += [_of_cluster(run, name, found[each].name) for name in named]
        row += [Cell(_groups_in_words(clients.true_cluster[own]), words=True)] * grouped
        row += [_label_profile(clients.label_counts[own].sum(axis=0), run.label_names)] if labelled else []
        row += [_images(run, found[each].name, _IMAGES[compared])] if sampled else []
        row += [_features(run, str(found[each].name))] if described else []
        rows.append(row)
    return Table.of(heads, rows, stacked=True).without_empty()


def _of_cluster(run: RunFiles, name: str, cluster: int) -> Cell:
    """A further metric, over the test examples of all clients of a cluster."""
    column, value = rows_of(name)[0], run.number("metrics", name, "clusters", str(cluster))
    return _shown(column, value)


def _shown(metric: Metric, value: float) -> Cell:
    """A value from a file, in the format of the table of metrics."""
    return Cell(show_number(Stat.of([metric.scale * value]), metric.digits), metric.scale * value)


def same_clusters(one: RunFiles, other: RunFiles) -> bool:
    """Returns whether two runs have the same clusters of clients; never for another seed, which has other data."""
    if one.seed != other.seed or not np.array_equal(one.clients.client_id, other.clients.client_id):
        return False
    pairs = len({*zip(one.clients.cluster.tolist(), other.clients.cluster.tolist(), strict=True)})
    return pairs == len(np.unique(one.clients.cluster)) == len(np.unique(other.clients.cluster))


def clusters_left_out(run: RunFiles) -> int:
    """Returns how many clusters `clusters_table` leaves out; these are the smallest ones."""
    return max(0, len(np.unique(run.clients.cluster)) - MOST_CLUSTERS)


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.any(~np.isnan(values)) else math.nan


def _least(values: np.ndarray) -> float:
    return float(np.nanmin(values)) if np.any(~np.isnan(values)) else math.nan


def _groups_in_words(groups: np.ndarray) -> str:
    """The true groups of a cluster, the largest first: "2 (9), 0 (1)"."""
    found = collections.Counter(groups.tolist()).most_common()
    named = [f"{ordering.cluster_name(group)} ({count})" for group, count in found[:_MOST_GROUPS]]
    return ", ".join(named) + (f" and {len(found) - _MOST_GROUPS} more" if len(found) > _MOST_GROUPS else "")


def _label_profile(counts: np.ndarray, names: Sequence[str]) -> Cell:
    """The labels of a cluster as bars, relative to the largest count; the column sorts by the most frequent label."""
    total, greatest = max(1, counts.sum()), max(1, counts.max())
    bars = [
        (count / greatest, f"label {label}: {100 * count / total:.1f} %, {counted(count, 'example')}")
        for label, count in zip(names, counts, strict=True)
    ]
    held = np.flatnonzero(counts)
    words = f"{counted(len(held), 'label')}, most {names[counts.argmax()]} ({100 * counts.max() / total:.0f} %)"
    return Cell(words, int(counts.argmax()), bars=bars if len(bars) <= _MOST_BARS else ())


def _features(run: RunFiles, cluster: str) -> Cell:
    """The features in which a cluster differs most from all clients, if examples are rows of a table."""
    own = run.summary["clusters"]["features"].get(cluster)
    names = own if isinstance(own, Mapping) else {}
    values = {name: round(run.number("clusters", "features", cluster, name), 1) + 0.0 for name in names}  # not -0.0
    parts = [f"{name} {f'{value:+.1f}'.replace('-', '−')}" for name, value in values.items()]
    return Cell(", ".join(parts) or MISSING, words=True)


def _images(run: RunFiles, cluster: int, most: int) -> Cell:
    places = np.flatnonzero(run.samples.clusters == cluster)
    if not places.size:
        return Cell(MISSING, None)
    places = places[np.unique(np.linspace(0, len(places) - 1, min(most, len(places))).astype(int))]
    names = dict(enumerate(run.label_names))
    labels = ", ".join(style.shorten(names.get(each, each), 8) for each in run.samples.labels[places].tolist())
    picture = png_address(Image.fromarray(style.beside(run.samples.images[places], len(places))))
    return Cell(f"labels {labels}", labels, picture=picture, picture_width=_IMAGE * len(places))


def clients_table(run: RunFiles) -> Table:
    """The clients of one run."""
    who = run.clients
    heads = ("client", "true group", "cluster", "examples", "test examples", "rounds trained", "cluster %", "local %")
    columns = (
        who.client_id,
        [each or MISSING for each in who.true_cluster],
        _clusters_of(run),
        [each or MISSING for each in who.examples],
        [each or MISSING for each in who.test_examples],  # 0 also for clients whose test examples nobody has read
        who.rounds_trained,
        map(percent, who.cluster_accuracy),
        map(percent, who.local_accuracy),
    )
    further = {find(name, [name]): values for name, values in who.further.items()}
    heads += tuple(f"{each.title}{f' {each.unit}' if each.unit else ''}" for each in further)
    columns += tuple([_shown(metric, value) for value in values] for metric, values in further.items())
    return Table.of(heads, _first_rows(columns)).without_empty()


def _first_rows(columns: Sequence[Iterable]) -> list[tuple]:
    """The rows of the first clients; the files of the run have all clients."""
    return list(itertools.islice(zip(*columns, strict=True), MOST_CLIENTS))


def clients_compared(runs: Sequence[RunFiles]) -> Table | None:
    """The clusters and accuracies (or the first metric, if labels are numbers) of the same clients under each method;
    only runs of one seed have the same clients.
    """
    same = [run for run in runs if run.seed == runs[0].seed]
    names = ("client_id", "examples")
    if any(
        not np.array_equal(getattr(run.clients, name), getattr(runs[0].clients, name)) for run in same for name in names
    ):
        return None
    first = runs[0].clients
    columns = [first.client_id, *([each or MISSING for each in of] for of in (first.true_cluster, first.examples))]
    heads = [Column("client"), Column("true group"), Column("examples")]
    measured = verdict.measure_of(same)
    of_numbers = measured is not None and all(np.isnan(run.clients.cluster_accuracy).all() for run in same)
    for run in same:
        heads.append(Column("cluster", run.method))
        columns.append(_clusters_of(run))
        for metric in rows_of(measured.source[1])[:2] if of_numbers else ():
            heads.append(Column(f"{metric.header} {metric.group}", run.method))
            columns.append([_shown(metric, value) for value in verdict.of_clients(run, metric)])
        heads += [Column(name, run.method) for name in ("cluster %", "local %")]
        columns += [map(percent, run.clients.cluster_accuracy), map(percent, run.clients.local_accuracy)]
    return Table(heads, _first_rows(columns)).without_empty()


def _clusters_of(run: RunFiles) -> list[object]:
    return [MISSING if each == NO_CLUSTER else each for each in run.clients.cluster]
