"""Which pictures a report has, with the words that say how to read them."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from tffcl.lab.reporting import figures
from tffcl.lab.reporting.client_figures import KINDS, lower_end
from tffcl.lab.reporting.page import client_panels, matrix_panels, round_panels, tree_panels
from tffcl.lab.reporting.page.panels import Panel
from tffcl.lab.reporting.rounds_figures import ACCURACIES, MERGING, PRIVACY, PROGRESS
from tffcl.lab.reporting.style import ReportFigure, to_png
from tffcl.lab.reporting.sweeps import Sweep
from tffcl.runs.metrics import BY_KEY
from tffcl.runs.run_files import RunFiles

ROUNDS, CLIENTS, CLUSTERS, SWEEP = "Over the rounds", "Clients", "Clusters", "Over the values"

# Columns of a sweep's table as panels: key, title, unit, and whose mean the whiskers are.
_VALUE_PANELS = tuple(
    (BY_KEY[key].name, BY_KEY[key].title, BY_KEY[key].axis, "")
    for key in ("cluster_accuracy", "local_accuracy", "global_accuracy", "clusters", "ari")
)
_ERROR = BY_KEY["clustering_error"]
_ERROR_PANELS = (*_VALUE_PANELS[:3], (_ERROR.name, _ERROR.title, _ERROR.axis, "clustering_error_over_rounds"))


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure of the report.

    Attributes:
      name: Of its file, without ".png".
      section: Under which heading it stands.
      title: What it shows.
      caption: How to read it.
      png: The picture, to take away.
      figure: What it is a picture of, for other formats.
      panels: The same for the page; none where only the picture shows it.
      number: Of its method, by which the page switches it on and off; None for all.
    """

    name: str
    section: str
    title: str
    caption: str
    png: bytes
    figure: ReportFigure | None = None
    panels: Sequence[Panel] = ()
    number: int | None = None


def run_pictures(run: RunFiles) -> list[Picture]:
    """Draws the pictures of one run."""
    return [*_shared([run]), *_of_one(run, "")]


def comparison_pictures(runs: Sequence[RunFiles]) -> list[Picture]:
    """Draws the pictures of a comparison: of all methods together, and of the first seed of each."""
    pictures = _shared(runs)
    for number, run in enumerate(first_runs(runs)):
        pictures += [dataclasses.replace(each, number=number) for each in _of_one(run, f"-{run.method}")]
    return pictures


def first_runs(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """Returns of each method the run of its first seed, in the order of the methods."""
    first: dict[str, RunFiles] = {}
    for run in runs:
        first.setdefault(run.method, run)
    return list(first.values())


def sweep_pictures(sweep: Sweep) -> list[Picture]:
    """Draws the pictures of a sweep."""
    errors = any(point.stats[_ERROR.name].count for point in sweep.points)
    lines = f" A colour is a value of {sweep.labels[1]}." if len(sweep.labels) == 2 else ""
    seeds = " A line goes through the means over the seeds, its band is ± their sample standard deviation."
    beside = (
        "clustering error, with its standard deviation over the rounds as band"
        if errors
        else "number of clusters and their agreement with the true groups, where these are known"
    )
    caption = f"The accuracies of the last evaluation, and the {beside}.{lines}"
    return [
        _picture(
            "sweep",
            SWEEP,
            f"accuracy and clusters against {sweep.labels[0]}",
            f"{caption}{seeds if max(len(point.runs) for point in sweep.points) > 1 else ''}",
            figures.sweep_figure(sweep),
            round_panels.value_panels(sweep, _ERROR_PANELS if errors else _VALUE_PANELS),
        ),
        *_maps_of(sweep),
    ]


def _maps_of(sweep: Sweep) -> Iterator[Picture]:
    """The clusters of the first seed at each point, for methods whose clients sent vectors."""
    firsts = {f"{sweep.title} {point.name}": point.runs[0] for point in sweep.points if point.runs}
    if all(run.representations is not None and run.history for run in firsts.values()):
        truth = next(iter(firsts.values())).clients.true_cluster
        yield _picture(
            "representations",
            SWEEP,
            f"the clusters against {sweep.labels[0]}",
            "A dot is a client; near dots have sent vectors of a like direction. The colours are the clusters after the last "
            f"round, of seed {next(iter(firsts.values())).seed}. Grey dots are clusters of one client.",
            figures.settings_figure(firsts, truth if np.any(truth != "") else None),
            tree_panels.settings_panels(firsts),
        )


def _picture(
    name: str, section: str, title: str, caption: str, figure: ReportFigure, panels: Sequence[Panel | None]
) -> Picture:
    return Picture(
        name,
        section,
        title[:1].upper() + title[1:],
        caption,
        to_png(figure),
        figure,
        [panel for panel in panels if panel is not None],
    )


def _shared(runs: Sequence[RunFiles]) -> list[Picture]:
    several = len({run.seed for run in runs}) > 1
    return [*_over_rounds(runs, several), *_over_clients(runs, several)]


def _over_rounds(runs: Sequence[RunFiles], several: bool) -> list[Picture]:
    """Accuracies, losses and clusters against the rounds; `several`: of several seeds."""
    band = (
        " The line is the mean over the seeds, the band is ± their sample standard deviation, the ± of the table."
        if several
        else ""
    )
    private = any("epsilon" in run.rounds for run in runs)
    spent = " A method that released something without noise has spent an infinite ε, which is no line." if private else ""
    pictures, methods = [], list(dict.fromkeys(run.method for run in runs))
    if len(runs[0].rounds["round"]):
        pictures += [
            _picture(
                "accuracy",
                ROUNDS,
                "The three accuracies",
                f"Each panel is another question, so compare methods within a panel.{band} The local accuracy counts "
                "the clients that have trained by then.",
                figures.accuracy_figure(runs),
                round_panels.accuracy_panels(runs, ACCURACIES, methods),
            ),
            _picture(
                "progress",
                ROUNDS,
                "Training loss, clusters and their agreement with the true groups",
                f"An adjusted Rand index of 1 is perfect agreement, about 0 is chance.{band}{spent}",
                figures.progress_figure(runs),
                round_panels.progress_panels(runs, (*PROGRESS, *PRIVACY), methods),
            ),
        ]
    merging = [run for run in runs if "objective" in run.rounds]
    if merging:
        pictures.append(
            _picture(
                "merging",
                ROUNDS,
                "How clusters merge",
                "At first every client is a cluster of its own; clients become known when they first take part. The "
                f"objective is the sum of the cosines of all pairs of clusters: less is farther apart.{band}",
                figures.merging_figure(merging, methods),
                round_panels.progress_panels(merging, MERGING, methods),
            )
        )
    return pictures


def _over_clients(runs: Sequence[RunFiles], several: bool) -> list[Picture]:
    """How unequal clients are in accuracy and size; `several`: of several seeds."""
    pooled = " The clients of all seeds are put together." if several else ""
    return [
        _picture(
            "clients",
            CLIENTS,
            "How the accuracy is spread over clients",
            "A dot is a client. The box holds the middle half of them, its line is the median, the whiskers reach "
            f"from the worst to the best tenth, the diamond is the mean.{pooled} A narrow box far to the right serves "
            "all clients well.",
            figures.client_accuracy_figure(runs),
            client_panels.accuracy_panels(runs, KINDS, lower_end(runs)),
        ),
        _picture(
            "sizes",
            CLIENTS,
            f"How much data the clients have{f' (seed {runs[0].seed})' if several else ''}",
            "The height of a bar is the number of clients with so many training examples; the dashed line is the median.",
            figures.client_sizes_figure(runs[0].clients.examples),
            [client_panels.sizes_panel(runs[0].clients.examples)],
        ),
    ]


def _of_one(run: RunFiles, suffix: str) -> Iterator[Picture]:
    sides = "; the colours at the left are the true groups" if np.any(run.clients.true_cluster != "") else ""
    if run.clients.label_counts.shape[1]:
        yield _picture(
            f"labels{suffix}",
            CLUSTERS,
            "who holds which labels",
            f"A row is a client, ordered by cluster (number of clients in brackets){sides}. Empty: the client has no "
            "example of the label. A cluster whose rows look alike has put like with like.",
            figures.labels_figure(run),
            [matrix_panels.labels_panel(run)],
        )
    if run.clustering is not None:
        yield from _of_clustering(run, suffix)
    if run.splits is not None and len(run.splits):
        yield _picture(
            f"splits{suffix}",
            CLUSTERS,
            "which cluster was split when",
            "A line is a cluster, from the round in which it was founded; a dot is a split, in which the clients at the end of the "
            "vertical line left. In brackets the clients that each has in the end.",
            figures.splits_figure(run),
            [tree_panels.splits_panel(run)],
        )
    if run.representations is not None and run.history:
        truth = run.clients.true_cluster
        last = int(max(run.rounds["round"], default=max(run.history)))
        yield _picture(
            f"representations{suffix}",
            CLUSTERS,
            "the clients by what they sent of their data",
            "A dot is a client; near dots have sent vectors of a like direction. The map is the same in each panel, the "
            "colours are the clusters by then. Grey dots are clusters of one client, as are all that have not taken part.",
            figures.representations_figure(run.representations, run.history, last, truth if np.any(truth != "") else None),
            tree_panels.history_panels(run),
        )


def _of_clustering(run: RunFiles, suffix: str) -> Iterator[Picture]:
    found = run.clustering
    yield _picture(
        f"proximity{suffix}",
        CLUSTERS,
        f"{found.measure} between clients".replace("_", " "),
        "Rows and columns are the clients, ordered by cluster; the frames are the clusters. Squares that are alike "
        "within the frames and unlike outside them are clear clusters. The colours span the values between different clients.",
        figures.proximity_figure(
            found.proximity,
            found.labels,
            client_ids=found.client_ids,
            unit=found.unit,
            measure=found.measure,
            merges=found.merges,
        ),
        [matrix_panels.proximity_panel(found)],
    )
    if found.merges is None:
        return
    yield _picture(
        f"dendrogram{suffix}",
        CLUSTERS,
        "which clients merge at which height",
        "Two branches are joined at the height at which they merge. The dashed line is the cut: what is joined below "
        "it is one cluster, in one colour. The longer the grey branches across the line, the clearer the clusters.",
        figures.dendrogram_figure(
            found.merges,
            found.threshold,
            labels=found.labels,
            client_ids=found.client_ids,
            unit=found.tree_unit,
            linkage=found.linkage,
            suggestion=found.suggestion,
        ),
        [tree_panels.dendrogram_panel(found)],
    )
    if found.relatedness is not None:
        yield from _of_relations(run, suffix)


def _of_relations(run: RunFiles, suffix: str) -> Iterator[Picture]:
    found, truth = run.clustering, run.clients.true_cluster
    yield _picture(
        f"relatedness{suffix}",
        CLUSTERS,
        "which clients are related",
        "The relatedness matrix as it came, ordered by the tree, and flattened to disjoint clusters: full colours are "
        "relations within a cluster, pale ones are pairs of a cluster that were not related, grey ones relations that "
        "the clusters cut.",
        figures.relatedness_figure(found.relatedness, found.labels, found.merges, client_ids=found.client_ids),
        matrix_panels.relatedness_panels(found),
    )
    if found.points is not None:
        yield _picture(
            f"centres{suffix}",
            CLUSTERS,
            "the clients' centres in the map",
            "A dot is one centre of one client, laid out by UMAP: near dots stand for like images.",
            figures.centres_figure(found.points, found.mask, found.labels, truth if np.any(truth != "") else None),
            tree_panels.centre_panels(found, truth),
        )
