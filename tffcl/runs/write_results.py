"""The end of a run: its tables, arrays and summary, and the result that Python gets."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
from scipy.spatial.distance import squareform

from tffcl.aggregators.contract import traits
from tffcl.algorithms.method import Method, Views
from tffcl.clients import cohort
from tffcl.clients.population import Population
from tffcl.clustering import hierarchical
from tffcl.clustering.projection import project_directions
from tffcl.display import counted
from tffcl.files import csv_text, nine_digits, replacing, text_cell, write_text
from tffcl.runs import checks, population_changes, summary
from tffcl.runs.cluster_history import NO_CLUSTER, largest_clusters
from tffcl.runs.privacy import privacy_notes
from tffcl.runs.result import Result, Trained
from tffcl.runs.run import Run
from tffcl.runs.run_directory import CLIENTS, CLUSTERING, CONFUSION, REPRESENTATIONS, SAMPLES, SPLIT_COLUMNS, SPLITS

_MOST_MAPPED = 2000  # clients on the map of representations
_MOST_MEMBERS, _IMAGES = 5, 10  # in samples.npz: the clients of each cluster, and their images
_SIDES = range(4, 129)  # of images in samples.npz


def finish(run: Run, settings: Mapping, further: Callable | None = None) -> Result:
    """Writes the files with the results of a run.

    Args:
      run: The run after its last round, which has been evaluated.
      settings: The settings of the run, with `task` and `algorithm`.
      further: As in `train.train_by`.
    """
    population, views, out, seed = run.population, run.views, run.directory.path, run.protocol.seed
    if views.metric is not None:
        write_clustering(out, views, population)
    if views.representations is not None:
        write_representations(out, views, population, cohort.stream(seed, "map"))
    if views.splits is not None:
        write_splits(out, views)
    write_confusion(out, run.evaluation["confusion"]())
    write_samples(out, population, np.asarray(views.clusters))
    columns = summary.client_table(population, views, run.evaluation, run.totals)
    if any(run.stages.at(start).left.size for start in run.stages.starts if start <= run.round_number):
        when = run.stages.when_there(run.round_number)
        columns["rounds_there"] = np.array([when[client] for client in population.client_ids.tolist()])
    write_clients(out, columns)
    about = {"task": settings["task"], "algorithm": settings["algorithm"], "seed": seed, "rounds": run.round_number}
    about |= {"stopped": run.stopped} if run.stopped else {}
    cost = run.ledger.summary(run.stopped if run.budget_spent else "")
    notes = [
        *population_changes.notes(run.stages, run.round_number, views),
        *_notes_of_waiting(run),
        *_notes_of_placing(run),
        *_notes_of_statistics(run.method),
        *privacy_notes(cost),
    ]
    notes += [*([run.stopped] if run.stopped else []), *run.ledger.notes]
    contents = summary.summarize(about, population, views, run.evaluation, run.totals, notes)
    if cost is not None:
        contents["privacy"] = cost
    if further is not None:
        contents |= further(contents, columns, population, views.known_or_all)
    run.directory.write_summary(contents)
    rounds = run.directory.rounds()
    trained = Trained(run.method, run.state, population, run.round_number, run.stages.names())
    return Result(contents, trained, out, {name: rounds.floats(name) for name in rounds.names}, columns)


def _notes_of_statistics(method: Method) -> list[str]:
    """Says that an aggregation clips updates that contain a model's statistics, which may move far."""
    aggregation = method.options.get("aggregation")
    if aggregation is None or not method.model.has_statistics:
        return []
    far = tf.constant([1e9])
    if np.array_equal(traits(aggregation).clipped(far), far):
        return []
    return [
        "the updates are clipped, and the model's statistics in them, which then lag behind the data's; "
        'from_keras(statistics="local"), "fedbn" and "reset" do not send them, and they move less on features of '
        "deviation 1"
    ]


def _notes_of_placing(run: Run) -> list[str]:
    """Says that some accuracies are of models that the result does not have for these clients."""
    unseen = int((~run.views.known_or_all).sum())
    if not run.protocol.place_unseen or not unseen or type(run.method).place is Method.place:
        return []
    return [
        f"those who have not taken part ({counted(unseen, 'client')}) were tested with the model of the closest "
        "cluster (place_unseen), and have in the result and its export that of clients of whom nothing is known"
    ]


def _notes_of_waiting(run: Run) -> list[str]:
    """Says how many clients were drawn but never asked to train, e.g. because their cluster never had the
    `FactoryTraits.members_needed` in a round."""
    trained = run.totals.rounds_trained > 0
    if trained.all():
        return []
    drawn = checks.who_takes_part(run.stages, dataclasses.replace(run.protocol, rounds=run.round_number))
    never = int(np.sum(np.isin(drawn, run.population.client_ids[~trained])))
    if not never:
        return []
    whose = "" if trained.any() else "; no client has trained"
    why = "with secure sums a cluster of fewer than min_cluster_size clients in a round waits"
    return [f"never asked to train: {never} of the {counted(len(drawn), 'client')} that were drawn ({why}){whose}"]


def write_clients(out: pathlib.Path, columns: Mapping[str, np.ndarray]):
    """Writes clients.csv, one row for each client; a missing accuracy or group is an empty cell."""
    cells = (_cells(column, len(columns["client_id"])) for column in columns.values())
    write_text(out / CLIENTS, csv_text([columns, *zip(*cells, strict=True)]))


def _cells(column: np.ndarray | None, clients: int) -> list:
    """The cells of a column; a masked entry is an empty cell."""
    if column is None:
        return [""] * clients
    values = column.tolist()
    if column.dtype.kind == "U":
        return list(map(text_cell, values))
    if column.dtype.kind == "f":
        return [nine_digits(value) if np.isfinite(value) else "" for value in values]
    return ["" if value is None else value for value in values]


def write_representations(out: pathlib.Path, views: Views, population: Population, seed: int):
    """Writes representations.npz for methods whose clients sent vectors: a map of these, and their clients.

    Of more than 2,000 clients 2,000 are drawn by the seed: more dots would show no more, and take long.
    """
    rows = np.arange(len(views.representations))
    if len(rows) < 4:
        return
    if len(rows) > _MOST_MAPPED:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _MOST_MAPPED, replace=False))
    known = np.flatnonzero(views.known_or_all)[rows]
    points = project_directions(views.representations[rows], seed=seed)
    with replacing(out / REPRESENTATIONS) as file:
        np.savez_compressed(file, client_ids=population.shown_ids[known], places=known, points=points)


def write_confusion(out: pathlib.Path, counts: Mapping[int, np.ndarray]):
    """Writes confusion.npz if labels are classes, see `Evaluator.confusion`."""
    if counts:
        with replacing(out / CONFUSION) as file:
            np.savez_compressed(file, clusters=list(counts), counts=np.stack(list(counts.values())))


def write_splits(out: pathlib.Path, views: Views):
    """Writes splits.csv, a row for each split, for methods that split clusters."""
    write_text(out / SPLITS, csv_text([SPLIT_COLUMNS, *np.asarray(views.splits).tolist()]))


def write_clustering(out: pathlib.Path, views: Views, population: Population):
    """Writes clustering.npz for methods with a proximity matrix: matrix, merges, threshold, labels, and what they mean.

    If the matrix is symmetric and zero on the diagonal, only its upper triangle is written, as SciPy's `squareform`
    orders it. If clients are related by a map of their centres, relatedness and map are written, too.
    """
    metric = views.metric
    more = {} if views.relatedness is None else {"relatedness": views.relatedness}
    if views.centre_map is not None:
        more |= {"points": views.centre_map.points, "mask": views.centre_map.mask}
    suggestion = ""
    if metric.merges is not None:
        more["merges"] = metric.merges
        dendrogram = hierarchical.Dendrogram(metric.merges, metric.linkage)
        unit = metric.tree_unit or metric.unit
        suggestion = "; ".join(metric.notes) or hierarchical.suggest_threshold(dendrogram, unit=unit).reason
    if metric.threshold is not None:
        more["threshold"] = np.float64(metric.threshold)
    if metric.tree_unit is not None:
        more["tree_unit"] = metric.tree_unit
    with replacing(out / CLUSTERING) as file:
        np.savez_compressed(
            file, client_ids=population.shown_ids, proximity=_condensed(metric.proximity), labels=views.clusters,
            suggestion=suggestion, unit=metric.unit, measure=metric.name, linkage=metric.linkage, **more,
        )  # fmt: skip


def _condensed(matrix: np.ndarray) -> np.ndarray:
    symmetric = not matrix.diagonal().any() and all(
        np.array_equal(row, matrix[:, place]) for place, row in enumerate(matrix)
    )
    return squareform(matrix, checks=False) if symmetric and len(matrix) > 1 else matrix


def write_samples(out: pathlib.Path, population: Population, clusters: np.ndarray) -> None:
    """Writes `samples.npz`: for each of the largest clusters ten training images of some of its members, spread over
    their labels.

    Nothing is written if examples are not images, or if every client is a cluster of its own.

    Args:
      out: The directory of the run.
      population: Who holds what.
      clusters: `int [N]`, of each client.
    """
    single = len(np.unique(clusters[clusters != NO_CLUSTER])) == len(clusters) > 1
    first = population.train(population.client_ids[0])
    several = isinstance(first.x, Mapping)  # of several inputs none is the picture of an example
    if several or single or _as_images(first.x[:1]) is None or first.y.ndim != 1:
        return
    named = largest_clusters(clusters)
    drawn = [_of_members(population, np.flatnonzero(clusters == each)) for each in named]
    images, labels = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    counts = [len(own) for _, own in drawn]
    with replacing(out / SAMPLES, private=True) as file:
        np.savez_compressed(file, images=_as_images(images), labels=labels, clusters=np.repeat(named, counts))


def _of_members(population: Population, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Examples of some clients `[m, ...]` and their labels `[m]`, in order of labels and evenly spread over them."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, min(_MOST_MEMBERS, len(rows))).astype(int))]
    held = [population.train(population.client_ids[row]) for row in some]
    labels = np.concatenate([each.y for each in held])
    order = np.argsort(labels, kind="stable")
    order = order[np.unique(np.linspace(0, len(order) - 1, min(_IMAGES, len(order))).astype(int))]
    return np.concatenate([each.x for each in held])[order], labels[order]


def _as_images(x: np.ndarray) -> np.ndarray | None:
    """Examples as images uint8 `[m, h, w, 1 or 3]`; None if they are not images."""
    x = x[..., None] if x.ndim == 3 else x
    if x.ndim != 4 or x.shape[3] not in (1, 3) or not {*x.shape[1:3]} <= {*_SIDES} or x.dtype.kind not in "uif":
        return None
    if x.dtype == np.uint8:
        return x
    low, high = float(np.min(x, initial=0.0)), float(np.max(x, initial=0.0))
    low, high = (0.0, 1.0) if 0 <= low and high <= 1 else (0.0, 255.0) if 0 <= low and high <= 255 else (low, high)
    return np.round((x - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
