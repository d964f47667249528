"""The table of a report's figures: the function that draws each figure, and its caption.

A new figure needs a function in `figures` and a row here.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tffcl.lab.reporting import style
from tffcl.lab.reporting.figures import clients, data, maps, matrices, rounds, trees, values
from tffcl.lab.reporting.page.panels import Panel, panels_of
from tffcl.lab.reporting.style import ReportFigure, to_png
from tffcl.lab.reporting.sweeps import Sweep
from tffcl.runs.run_files import RunFiles, by_method

ROUNDS, CLIENTS, CLUSTERS, SWEEP = "Over the rounds", "Clients", "Clusters", "Over the values"
_WHO = ("client_id", "true_cluster")
_BAND = {
    "seeds": " The line is the mean over the seeds, the band is ± their sample standard deviation, the ± of the table."
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A figure that reports have.

    Attributes:
      name: The name of its file, without the ending; figures of single methods add the method's name.
      section: The heading under which the figure is shown.
      title: The title; "{0}" stands for the run or sweep that is drawn.
      caption: How to read the figure; "{0}" as in the title.
      draw: Draws runs, one run or a sweep; returns None if there is nothing to draw.
      more: Additions to the caption for several "seeds", for "two" settings of a sweep, or for "private" runs.
    """

    name: str
    section: str
    title: str
    caption: str
    draw: Callable[..., ReportFigure | None]
    more: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure of a report.

    Attributes:
      name: The name of its file, without the ending.
      section: The heading under which the figure is shown.
      title: The title.
      caption: How to read the figure.
      files: The contents of picture files, by their endings.
      panels: The panels for the page.
      number: The number of its method, with which the page shows or hides it; None for all methods.
    """

    name: str
    section: str
    title: str
    caption: str
    files: Mapping[str, bytes]
    panels: Sequence[Panel] = ()
    number: int | None = None


def _have_accuracies(runs: Sequence[RunFiles]) -> bool:
    """Whether there is an accuracy to draw, or no other metric either; labels that are numbers have only the latter."""
    known = any(np.isfinite(run.clients.cluster_accuracy).any() for run in runs)
    return known or not any(run.clients.further for run in runs)


def _merging(runs: Sequence[RunFiles]) -> ReportFigure | None:
    merging = [run for run in runs if "objective" in run.rounds]
    return rounds.merging_figure(merging, list(by_method(runs))) if merging else None


def _proximity(run: RunFiles) -> ReportFigure | None:
    found = run.clustering
    return found and matrices.proximity_figure(
        found.proximity, found.labels, client_ids=found.client_ids, unit=found.unit, measure=found.measure,
        merges=found.merges,
    )  # fmt: skip


def _dendrogram(run: RunFiles) -> ReportFigure | None:
    found = run.clustering
    if found is None or found.merges is None:
        return None
    return trees.dendrogram_figure(
        found.merges, found.threshold, labels=found.labels, client_ids=found.client_ids, unit=found.tree_unit,
        linkage=found.linkage, suggestion=found.suggestion,
    )  # fmt: skip


def _relatedness(run: RunFiles) -> ReportFigure | None:
    found = run.clustering
    if found is None or found.relatedness is None:
        return None
    return matrices.relatedness_figure(found.relatedness, found.labels, found.merges, client_ids=found.client_ids)


def _centres(run: RunFiles) -> ReportFigure | None:
    found = run.clustering
    if found is None or found.points is None:
        return None
    return maps.centres_figure(
        found.points, found.mask, found.labels, run.clients.true_groups, client_ids=found.client_ids
    )


def _representations(run: RunFiles) -> ReportFigure | None:
    if run.representations is None or not run.history:
        return None
    last = int(max(run.rounds["round"], default=max(run.history)))
    return maps.representations_figure(
        run.representations, run.history, last, run.clients.true_groups, client_ids=run.clients.client_id
    )


def _maps(sweep: Sweep) -> ReportFigure | None:
    """The clusters of the first seed at each point, for methods whose clients sent vectors. Clients and true groups
    must be the same at all points, because all panels have the colours of the first point's groups."""
    first = sweep.runs[0]
    points = [(point, run) for point in sweep.points for run in point.runs if run.seed == first.seed]
    for _, run in points:
        if run.representations is None or not run.history:
            return None
        if any(not np.array_equal(getattr(run.clients, name), getattr(first.clients, name)) for name in _WHO):
            return None
    runs = {f"{sweep.title} {point.row.algorithm}": run for point, run in points}
    return maps.settings_figure(runs, first.clients.true_groups)


OF_RUNS = (
    Row(
        "accuracy", ROUNDS, "The three accuracies",
        "Each panel is another question, so compare methods within a panel. The local accuracy counts the clients "
        "that have trained by then.",
        lambda runs: rounds.accuracy_figure(runs) if len(runs[0].rounds["round"]) and _have_accuracies(runs) else None,
        _BAND,
    ),
    Row(
        "metrics", ROUNDS, "Further metrics",
        "Of the same models on the same examples as the accuracies, each computed on a client's whole test set; the "
        "mean over the clients for whom it is defined.",
        rounds.metrics_figure,
        _BAND,
    ),
    Row(
        "progress", ROUNDS, "Training loss, clusters and their agreement with the true groups",
        "An adjusted Rand index of 1 is perfect agreement, about 0 is chance.",
        lambda runs: rounds.progress_figure(runs) if len(runs[0].rounds["round"]) else None,
        _BAND | {"private": " A method that released something without noise has spent infinite ε, which is no line."},
    ),
    Row(
        "traffic", ROUNDS, "Accuracy against what is sent",
        "The bytes that the server has sent to all clients and they have sent back by then, signatures included. "
        "Farther to the left, an accuracy costs less.",
        lambda runs: rounds.traffic_figure(runs) if _have_accuracies(runs) else None,
        {"seeds": " Bytes and accuracies are means over the seeds, the band is ± their deviation."},
    ),
    Row(
        "merging", ROUNDS, "How clusters merge",
        "At first every client is a cluster of its own; clients become known when they first take part. The objective "
        "is the sum of the cosines of all pairs of clusters: less is farther apart.",
        _merging,
        _BAND,
    ),
    Row(
        "clients", CLIENTS, "How the accuracy is spread over clients",
        "A dot is a client. The box holds the middle half of them, its line is the median, the whiskers reach from "
        "the worst to the best tenth, the diamond is the mean. A narrow box far to the right serves all clients well.",
        lambda runs: clients.client_accuracy_figure(runs) if _have_accuracies(runs) else None,
        {"seeds": " The clients of all seeds are put together."},
    ),
    Row(
        "sizes", CLIENTS, "How much data the clients have",
        "The height of a bar is the number of clients with so many training examples; the dashed line is the median.",
        lambda runs: clients.client_sizes_figure(runs[0].clients.examples) if runs[0].clients.examples.any() else None,
        {"seeds": " It is of seed {0[0].seed}."},
    ),
)  # fmt: skip
OF_ONE = (
    Row(
        "labels", CLUSTERS, "Who holds which labels",
        "A row is a client, ordered by cluster (number of clients in brackets); colours at the left are the true "
        "groups, where they are known. Empty: the client has no example of the label. A cluster whose rows look alike "
        "has put like with like.",
        lambda run: data.labels_figure(run) if run.clients.label_counts.shape[1] else None,
    ),
    Row(
        "mixtures", CLUSTERS, "The mixture of models of each client",
        "A row is a client, ordered by the model that weighs most in its mixture; colours at the left are the true "
        "groups, where they are known. A row with one dark field uses one model, and one with several answers by their "
        "weighted mean.",
        data.mixtures_figure,
    ),
    Row(
        "confusion", CLUSTERS, "Which labels are taken for which",
        "A panel is a cluster: all test examples of its clients, by the model that they are assigned. A row is a "
        "label, a column what the model answers; the colours are shares of a row, so that a dark diagonal is a model "
        "that is right. The largest clusters are drawn.",
        lambda run: matrices.confusion_figure(run.confusion, run.label_names) if run.confusion else None,
    ),
    Row(
        "proximity", CLUSTERS, "{0.clustering.measure} between clients",
        "Rows and columns are the clients, ordered by cluster; the frames are the clusters. Squares that are alike "
        "within the frames and unlike outside them are clear clusters. The colours span the values between different "
        "clients.",
        _proximity,
    ),
    Row(
        "dendrogram", CLUSTERS, "Which clients merge at which height",
        "Two branches are joined at the height at which they merge. The dashed line is the cut: what is joined left "
        "of it is one cluster, in one colour. The longer the grey branches across the line, the clearer the clusters. "
        "In self-distances a dotted line is at 1, as far as chance alone puts clients: groups that merge near it may "
        "be one.",
        _dendrogram,
    ),
    Row(
        "relatedness", CLUSTERS, "Which clients are related",
        "The relatedness matrix as it came, ordered by the tree, and flattened to disjoint clusters: full colours are "
        "relations within a cluster, pale ones are pairs of a cluster that were not related, grey ones relations that "
        "the clusters cut.",
        _relatedness,
    ),
    Row(
        "centres", CLUSTERS, "The clients' centres in the map",
        "A dot is one centre of one client, laid out by UMAP: near dots stand for like images.", _centres,
    ),
    Row(
        "splits", CLUSTERS, "Which cluster was split when",
        "A line is a cluster, from the round in which it was founded; a dot is a split, in which the clients at the "
        "end of the vertical line left. Beside it are the clients that each has in the end, and their true groups "
        "where these are known.",
        lambda run: trees.splits_figure(run) if run.splits is not None and len(run.splits) else None,
    ),
    Row(
        "representations", CLUSTERS, "The clients by what they sent of their data",
        "A dot is a client; near dots have sent vectors of a like direction. The map is the same in each panel, the "
        "colours are the clusters by then. Grey dots are clusters of one client, as are all that have not taken part.",
        _representations,
    ),
)  # fmt: skip
OF_SWEEP = (
    Row(
        "sweep", SWEEP, "Results against {0.labels[0]}",
        "The accuracies of the last evaluation, before them the metric that runs are compared by where it is another, "
        "and the clustering error, with its standard deviation over the rounds as band, or else the number of clusters "
        "and their agreement with the true groups, as far as these are known.",
        values.sweep_figure,
        {
            "two": " A colour is a value of {0.labels[1]}.",
            "seeds": " A line goes through the means over the seeds, its band is ± their sample standard deviation.",
        },
    ),
    Row(
        "representations", SWEEP, "The clusters against {0.labels[0]}",
        "A dot is a client; near dots have sent vectors of a like direction. The colours are the clusters after the "
        "last round, of seed {0.runs[0].seed}. Grey dots are clusters of one client.",
        _maps,
    ),
)  # fmt: skip


def run_pictures(run: RunFiles, formats: Sequence[str] = ()) -> list[Picture]:
    """Draws the pictures of one run.

    Args:
      formats: The formats of picture files beside PNG: "svg" and "pdf"; others are ignored.
    """
    return [*_drawn(OF_RUNS, [run], formats, private="epsilon" in run.rounds), *_drawn(OF_ONE, run, formats)]


def comparison_pictures(runs: Sequence[RunFiles], formats: Sequence[str] = ()) -> list[Picture]:
    """Draws the pictures of a comparison: of all methods together, and of each method's first seed; `formats` as in
    `run_pictures`."""
    seeds, private = len({run.seed for run in runs}) > 1, any("epsilon" in run.rounds for run in runs)
    pictures = list(_drawn(OF_RUNS, runs, formats, seeds=seeds, private=private))
    for number, run in enumerate(first_runs(runs)):
        own = _drawn(OF_ONE, run, formats, suffix=f"-{run.method}")
        pictures += [dataclasses.replace(each, number=number) for each in own]
    return pictures


def first_runs(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """Returns the first seed's run of each method, in the order of the methods."""
    return [own[0] for own in by_method(runs).values()]


def sweep_pictures(sweep: Sweep, formats: Sequence[str] = ()) -> list[Picture]:
    """Draws the pictures of a sweep; `formats` as in `run_pictures`."""
    seeds = max(len(point.runs) for point in sweep.points) > 1
    return list(_drawn(OF_SWEEP, sweep, formats, two=len(sweep.labels) == 2, seeds=seeds))


def _drawn(
    rows: Sequence[Row], of: object, formats: Sequence[str], suffix: str = "", **cases: bool
) -> Iterator[Picture]:
    """The pictures of the rows that have something to draw."""
    for row in rows:
        figure = row.draw(of)
        if figure is None:
            continue
        name, title = f"{row.name}{suffix}", row.title.format(of).replace("_", " ")
        caption = row.caption + "".join(words for case, words in row.more.items() if cases.get(case))
        pictures = {"png": to_png(figure)} | {
            each: style.to_bytes(figure, each) for each in ("svg", "pdf") if each in formats
        }
        panels = panels_of(name, figure)
        yield Picture(name, row.section, title[:1].upper() + title[1:], caption.format(of), pictures, panels)
