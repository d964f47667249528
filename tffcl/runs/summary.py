"""The summary of a run: accuracies with their spread over clients, cluster quality, traffic, time."""

import collections
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score

from tffcl.algorithms.method import Views, nowhere_note
from tffcl.clients.client_examples import chosen
from tffcl.clients.population import Population
from tffcl.display import listed
from tffcl.models.metrics import UP, better_of
from tffcl.rounds.traffic import RoundMetrics
from tffcl.runs import fingerprint
from tffcl.runs.cluster_history import NO_CLUSTER, largest_clusters
from tffcl.runs.run import Totals

_MOST_COMPARED = 5000  # clients in a score that compares all pairs
_MOST_FEATURES = 3  # that describe a cluster


def spread(values: np.ndarray, better: str = UP) -> dict[str, float | None]:
    """Statistics over clients.

    Args:
      values: Each client's accuracy, or value of another metric; NaN where there is none.
      better: Whether the metric is better `UP` or `DOWN`.

    Returns:
      `mean`, `std` and `variance` (of the population of clients, ddof 0), `stderr`, the standard error of the mean
      (from ddof 1; None for one client), and `worst_decile`, the mean over the worst tenth of the clients (rounded up);
      None if no client has a value.
    """
    known = np.sort(values[np.isfinite(values)])
    if not known.size:
        return dict.fromkeys(("mean", "std", "variance", "worst_decile", "stderr"))
    tenth = -(-len(known) // 10)
    worst = known[:tenth] if better == UP else known[-tenth:]
    return {
        "mean": float(known.mean()),
        "std": float(known.std()),
        "variance": float(known.var()),
        "worst_decile": float(worst.mean()),
        "stderr": float(known.std(ddof=1) / np.sqrt(known.size)) if known.size > 1 else None,
    }


def spread_and_deciles(values: np.ndarray, better: str = UP) -> dict:
    """As `spread`, with `deciles`: the values below which 10, 20, ... 90 % of the clients are; None if none has one."""
    known = values[np.isfinite(values)]
    deciles = np.quantile(known, np.arange(1, 10) / 10).tolist() if known.size else None
    return {**spread(values, better), "deciles": deciles}


def pooled(values: np.ndarray, counts: np.ndarray) -> float | None:
    """The accuracy on the test examples of all clients together: the mean of the clients' `values`, weighted by
    `counts`, the number of their labels that count."""
    known = np.isfinite(values) & (counts > 0)
    return float(np.average(values[known], weights=counts[known])) if known.any() else None


def local_of_all(accuracy: Mapping, totals: Totals) -> np.ndarray:
    """The accuracies of the clients' own models, `float64 [N]`, with that of the untrained model for a client that
    never trained, as the authors of PACFL and FLIS count."""
    local = totals.local_accuracies
    return np.where((totals.rounds_trained > 0) | np.isfinite(local), local, accuracy["untrained"])


def participation(accuracy: Mapping, totals: Totals, counts: np.ndarray) -> dict:
    """Compares the cluster accuracy of the clients that took part in a round with that of the others.

    Args:
      accuracy: `cluster float [N]`.
      totals: What the run has counted.
      counts: `float [N]`, labels of test examples that count; NaN for clients that are not evaluated.

    Returns:
      Statistics of those that took part, as in `spread` and `pooled`, with their `share` of all clients, the mean of
      the `others`, and the `gap` between the two means.
    """
    took_part = totals.rounds_trained > 0
    found, others = spread(accuracy["cluster"][took_part]), spread(accuracy["cluster"][~took_part])["mean"]
    gap = None if found["mean"] is None or others is None else found["mean"] - others
    together = pooled(accuracy["cluster"][took_part], counts[took_part])
    return {**found, "pooled": together, "share": totals.share_trained, "others": others, "gap": gap}


def rand_index(true_groups, assignment) -> float | None:
    """Adjusted Rand index of the clusters and the true groups (1: the same, 0: as by chance)."""
    return _index(adjusted_rand_score, true_groups, assignment)


def mutual_information(true_groups, assignment) -> float | None:
    """Normalised mutual information of the clusters and the true groups (1: the same; many small clusters raise it by
    chance)."""
    return _index(normalized_mutual_info_score, true_groups, assignment)


def _index(score: Callable, true_groups, assignment) -> float | None:
    if true_groups is None:
        return None
    with warnings.catch_warnings():  # scikit-learn takes clusters of one client each for a regression
        warnings.filterwarnings("ignore", message="The number of unique classes")
        return float(score(true_groups, assignment))


def wasserstein_adjusted_score(label_counts: np.ndarray | None, assignment: np.ndarray) -> float | None:
    """The Wasserstein-adjusted score of FedGWC (Licciardi et al., ICML 2025, arXiv:2502.03340, section 3.5): whether
    the members of a cluster are alike in how evenly their labels are spread, whichever labels these are.

    It is the silhouette coefficient with distances between the sorted shares of the clients' labels, which are √C times
    the 2-Wasserstein distances of their shares; the coefficient is the same at any scale.

    Args:
      label_counts: `int [N, C]`, examples of each label; None if these are not known.
      assignment: `int [N]`, the clusters, or `NO_CLUSTER`.

    Returns:
      From -1 to 1; None if it is undefined: for one cluster, or if each client is a cluster. Of more than 5,000 clients
      5,000 are drawn.
    """
    if label_counts is None:
        return None
    placed = assignment != NO_CLUSTER
    label_counts, assignment = label_counts[placed], assignment[placed]
    if len(assignment) > _MOST_COMPARED:
        drawn = np.random.default_rng(0).choice(len(assignment), _MOST_COMPARED, replace=False)
        label_counts, assignment = label_counts[drawn], assignment[drawn]
    if not 1 < len(np.unique(assignment)) < len(assignment):
        return None
    shares = label_counts / np.maximum(label_counts.sum(axis=1, keepdims=True), 1)
    return float(silhouette_score(np.sort(shares, axis=1), assignment))


def features_apart(population: Population, clusters: np.ndarray) -> dict[str, dict[str, float]] | None:
    """Describes by which features of a table clusters differ. For each of the largest clusters these are the three
    features whose mean over its clients' training examples is furthest from the mean over all, in standard deviations
    of all examples.

    Args:
      population: Who holds what.
      clusters: `int [N]`, of each client, or `NO_CLUSTER`.

    Returns:
      By cluster, as text, the features by name, the furthest first. None if examples are not a table of one input, if
      there is one cluster, or if each client is a cluster.
    """
    names, clients = population.feature_names, population.client_ids[clusters != NO_CLUSTER]
    clusters = clusters[clusters != NO_CLUSTER]
    found, place = np.unique(clusters, return_inverse=True)
    if not isinstance(names, tuple) or not 1 < len(found) < len(clusters):
        return None
    counts, sums, squares = np.zeros([len(found), 1]), *np.zeros([2, len(found), len(names)])
    for client, row in zip(clients, place):
        x = np.asarray(population.train(client).x, np.float64)
        counts[row] += len(x)
        sums[row] += x.sum(axis=0)
        squares[row] += (x**2).sum(axis=0)
    mean, total = sums.sum(axis=0) / counts.sum(), np.maximum(counts, 1)
    deviation = np.sqrt(np.maximum(squares.sum(axis=0) / counts.sum() - mean**2, 1e-12))
    apart = np.where(counts > 0, (sums / total - mean) / deviation, 0)
    furthest = np.argsort(-np.abs(apart), axis=1)[:, :_MOST_FEATURES]
    largest = np.searchsorted(found, largest_clusters(clusters))
    return {str(found[row]): {names[each]: float(apart[row, each]) for each in furthest[row]} for row in largest}


def agreement(
    population: Population, views: Views, among: np.ndarray | None = None, index: Callable = rand_index
) -> float | None:
    """An index of the clusters and the true groups, over all clients in a cluster or over those `among bool [N]`.

    It is None without groups and without clients; an index over no clients would be 1.
    """
    among = views.clusters != NO_CLUSTER if among is None else among
    if population.groups is None or not among.any():
        return None
    return index(population.groups[population.index(views.client_ids[among])], views.clusters[among])


def cluster_numbers(population: Population, views: Views) -> dict:
    """The number of clusters that the known clients are in, the largest one's share of these clients, and how well
    clusters fit the true groups; for methods that meet clients, also of known ones alone."""
    _, sizes = np.unique(views.clusters[views.known_or_all], return_counts=True)
    numbers = {"clusters": views.found, "ari": agreement(population, views)}
    numbers["largest_cluster"] = float(sizes.max() / sizes.sum()) if sizes.size else None
    if views.known is not None:
        numbers["known_ari"] = agreement(population, views, views.known_or_all)
    return numbers


def summarize(
    about: Mapping, population: Population, views: Views, accuracy: dict, totals: Totals, notes: Sequence[str]
) -> dict:
    """Makes the contents of summary.json.

    Args:
      about: `task`, `algorithm`, `seed` and `rounds`, what was run.
      population: The clients after the last round.
      views: Of the method's last state.
      accuracy: `cluster float [N]`, `global float | None` of the last evaluation.
      totals: What the run has counted.
      notes: Notes on the run.
    """
    local = totals.local_accuracies
    whole = dict.fromkeys(("std", "variance", "worst_decile"))
    _, sizes = np.unique(views.clusters[views.known_or_all], return_counts=True)
    unknown = {} if views.known is None else {"unknown": int(np.sum(~views.known_or_all))}
    clustering, training, evaluation = (float(value) for value in totals.seconds)
    numbers, counts = cluster_numbers(population, views), accuracy["labels"]
    cluster = {**spread_and_deciles(accuracy["cluster"]), "pooled": pooled(accuracy["cluster"], counts)}
    return {
        **about,
        "notes": [
            *([population.note] if population.note else []),
            *_notes_of_many(population, views),
            *_notes(population, views),
            *_undefined(accuracy, population.test_sizes),
            *notes,
        ],
        **({"label_names": list(population.label_names)} if population.label_names else {}),
        "accuracy": {
            "cluster": {**cluster, "participants": participation(accuracy, totals, counts)},
            "local": {
                **spread_and_deciles(local),
                "share": totals.share_trained,
                "all": spread(local_of_all(accuracy, totals)),
            },
            "global": {"mean": accuracy["global"], **whole},
        },
        **({"metrics": _metrics(accuracy, totals)} if accuracy["metrics"] else {}),
        **({"validation": _validation(accuracy["validation"])} if "validation" in accuracy else {}),
        "clusters": {
            "count": numbers.pop("clusters"),
            "sizes": sizes.tolist(),
            **unknown,
            **numbers,
            **_information(population, views),
            **({"features": apart} if (apart := features_apart(population, np.asarray(views.clusters))) else {}),
        },
        "traffic": {key: int(getattr(totals, key)) for key in ("down_bytes", "up_bytes", "signature_bytes")},
        "seconds": {
            "total": clustering + training + evaluation,
            "clustering": clustering,
            "training": training,
            "evaluation": evaluation,
        },
    }


def _notes(population: Population, views: Views) -> list[str]:
    nowhere = [] if views.nowhere is None else [population.name_of(client) for client in views.nowhere()]
    untested = [] if population.test_sizes.any() else ["no client has test examples: no accuracy is known"]
    return [*_notes_of_classes(population), *untested, *views.notes, *([nowhere_note(nowhere)] if nowhere else [])]


def _notes_of_classes(population: Population) -> list[str]:
    """Says which classes no client has, e.g. 0 if labels count from 1."""
    counts, names = population.label_counts, population.label_names
    empty = [] if counts is None else np.flatnonzero(~counts.any(axis=0)).tolist()
    if not empty:
        return []
    classes = listed([names[each] if names else each for each in empty])
    return [f"no client has training examples of class{'es' if len(empty) > 1 else ''} {classes}"]


def _notes_of_many(population: Population, views: Views) -> list[str]:
    tested, everyone = len(population.evaluated), len(population)
    what = "accuracies, and what clients choose," if np.any(views.clusters == NO_CLUSTER) else "accuracies"
    note = f"{what} are of {tested:,} of the {everyone:,} clients, drawn at random: examples are read when needed"
    return [note] if tested < everyone else []


def _undefined(accuracy: Mapping, test_sizes: np.ndarray) -> list[str]:
    """Says for how many clients a metric is defined, if others have test examples but no finite value."""
    counted, notes = accuracy["labels"] > 0, []
    tested = counted if counted.any() else test_sizes > 0  # numbers, which are not right or wrong, do not count
    for name, found in accuracy["metrics"].items():
        known = np.isfinite(found["cluster"]) & tested
        if tested.any() and not known.any():
            notes.append(f"defined for no client's test examples: {name}")
        elif known.sum() < tested.sum():
            notes.append(f"{name} is defined for {known.sum():,} of {tested.sum():,} clients: its mean is of these")
    return notes


def _information(population: Population, views: Views) -> dict:
    """Normalised mutual information, beside the Rand indices; for methods that meet clients, also of known ones."""
    found = {"nmi": agreement(population, views, index=mutual_information)}
    if views.known is not None:
        found["known_nmi"] = agreement(population, views, views.known_or_all, mutual_information)
    return found | {"was": wasserstein_adjusted_score(population.label_counts, np.asarray(views.clusters))}


def _validation(accuracy: Mapping) -> dict:
    further = {
        name: {"cluster": spread(found["cluster"], better_of(name)), "global": {"mean": found["global"]}}
        for name, found in accuracy["metrics"].items()
    }
    own = {"cluster": spread(accuracy["cluster"]), "global": {"mean": accuracy["global"]}}
    return {**own, **({"metrics": further} if further else {})}


def _metrics(accuracy: Mapping, totals: Totals) -> dict:
    """The further metrics by name: statistics over clients, as for accuracies; values on each cluster's test examples
    together; and whether the metric is better up or down."""
    return {
        name: {
            "better": better_of(name),
            "cluster": spread_and_deciles(found["cluster"], better_of(name)),
            "local": spread_and_deciles(totals.local_metrics[:, place], better_of(name)),
            "global": {"mean": found["global"]},
            "clusters": {
                str(cluster): value if np.isfinite(value) else None for cluster, value in found["clusters"].items()
            },
        }
        for place, (name, found) in enumerate(accuracy["metrics"].items())
    }


def client_table(population: Population, views: Views, accuracy: dict, totals: Totals) -> dict[str, np.ndarray]:
    """The columns of clients.csv, arrays by name: who a client is, its cluster, its data, its accuracies."""
    labels = population.label_counts
    columns = {
        "client_id": population.shown_ids,
        "true_cluster": population.shown_groups,
        "cluster": np.asarray(views.clusters),
        **({} if views.mixture is None else {f"weight_{row}": own for row, own in enumerate(views.mixture.T)}),
        "examples": population.sizes,
        "test_examples": population.test_sizes,
        "rounds_trained": totals.rounds_trained,
        "cluster_accuracy": accuracy["cluster"],
        "local_accuracy": totals.local_accuracies,
    }
    if len(tested := population.evaluated) < len(population):  # the others' numbers are not known
        unknown = ~np.isin(population.client_ids, tested.client_ids)
        columns["test_examples"] = np.ma.masked_array(population.test_sizes, unknown)
    if (sets := _test_sets(population)) is not None:
        columns["test_set"] = sets
    for place, (name, found) in enumerate(accuracy["metrics"].items()):
        columns |= {f"cluster_{name}": found["cluster"], f"local_{name}": totals.local_metrics[:, place]}
    if labels is not None:
        columns |= {f"label_{label}": labels[:, label] for label in range(labels.shape[1])}
    return columns


def _test_sets(population: Population) -> np.ndarray | None:
    """Which clients have the same test examples: for each client the first row of clients.csv with the same ones, `int
    [N]`; None if no two clients have the same."""
    tested = population.evaluated
    tests, alike = tested.pooled_tests, collections.defaultdict(list)
    for row, index in zip(population.index(tested.client_ids).tolist(), tests.indices, strict=True):
        alike[fingerprint.of_array(tests.y[index])].append((row, index))  # if labels differ, examples are not read
    found, hashes = np.arange(len(population)), {}
    for members in alike.values():
        firsts: dict[str, int] = {}
        for row, index in members if len(members) > 1 else ():
            if id(index) not in hashes:
                hashes[id(index)] = fingerprint.of_array(*tf.nest.flatten(chosen(tests.x, index)))
            found[row] = firsts.setdefault(hashes[id(index)], row) if len(index) else row
    return None if np.array_equal(found, np.arange(len(found))) else found


def truly_related(population: Population, client_ids: np.ndarray) -> np.ndarray | None:
    """Says which clients truly belong together.

    If the partition has groups, those of the same group do. Otherwise labels decide, as in the FLIS authors' code:
    client j belongs to client i's cluster if it has at least half of i's labels (rounded up). This relation need not be
    symmetric.

    Args:
      population: The clients that there are, with groups or label counts.
      client_ids: `[m]`.

    Returns:
      `bool [m, m]`, true on the diagonal; None if neither groups nor labels are known.
    """
    rows = population.index(client_ids)
    if population.groups is not None:
        groups = population.groups[rows]
        return groups[:, np.newaxis] == groups[np.newaxis, :]
    if population.label_counts is None:
        return None
    held = population.label_counts[rows] > 0
    shared = held.astype(np.int64) @ held.T
    return shared >= np.ceil(held.sum(axis=1, keepdims=True) / 2)


def clustering_error(population: Population, metrics: RoundMetrics) -> float | None:
    """The false positives and false negatives in a round's relatedness: how many, on average, a client of the cohort
    has.

    Args:
      population: The clients that there are.
      metrics: The metrics of a round that has a relatedness.

    Returns:
      From 0 to the cohort's size minus 1.
    """
    truth = truly_related(population, metrics.client_ids)
    return None if truth is None else float(((metrics.relatedness > 0) != truth).sum(axis=1).mean())
