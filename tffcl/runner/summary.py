"""What a run says at its end: accuracies with their spread over clients, cluster quality, traffic, time."""

import csv
import json
import pathlib
import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.metrics import adjusted_rand_score

from tffcl.clustering.projection import project_directions

_MOST_MAPPED = 2000


def spread(values: np.ndarray) -> dict[str, float | None]:
    """Statistics over clients.

    Args:
      values: One accuracy a client; NaN where there is none.

    Returns:
      `mean`, `std` and `variance` (of the population of clients, ddof 0) and `worst_decile`, the mean over the tenth of
      the clients (rounded up) that have it worst; None where no client has a value.
    """
    known = np.sort(values[np.isfinite(values)])
    if not known.size:
        return dict.fromkeys(("mean", "std", "variance", "worst_decile"))
    worst = known[: -(-len(known) // 10)]
    return {
        "mean": float(known.mean()),
        "std": float(known.std()),
        "variance": float(known.var()),
        "worst_decile": float(worst.mean()),
    }


def local_accuracies(progress: dict) -> np.ndarray:
    """Accuracy of each client's own model after its last local training, `float64 [N]`, NaN for who never trained."""
    total = progress["local_total"]
    return np.divide(progress["local_correct"], total, out=np.full(len(total), np.nan), where=total > 0)


def rand_index(true_groups, assignment) -> float | None:
    """Adjusted Rand index of the clusters against the true groups (1: the same, 0: as by chance)."""
    if true_groups is None:
        return None
    with warnings.catch_warnings():  # clusters of one client each look like a regression to scikit-learn
        warnings.filterwarnings("ignore", message="The number of unique classes")
        return float(adjusted_rand_score(true_groups, assignment))


def agreement(federated, state, among: np.ndarray | None = None) -> float | None:
    """Adjusted Rand index of the clusters against the true groups, of all clients or of those `among bool [N]`."""
    truth = federated.true_groups
    if truth is None:
        return None
    among = np.ones(len(state.client_ids), bool) if among is None else among
    return rand_index(truth[state.client_ids[among]], state.assignment[among])


def notes(config, federated) -> list[str]:
    """What a reader of the results should know of the data and of the protocol."""
    found = [federated.note] if federated.note else []
    if config.method.get("protocol") == "authors":
        found.append("protocol 'authors': clients choose among models by accuracy on their own test images")
    return found


def summarize(config, state, federated, accuracy: dict, progress: dict, told: Sequence[str] = ()) -> dict:
    """Makes the contents of summary.json.

    Args:
      config: The run's `RunConfig`.
      state: The method's last state.
      federated: Who holds what.
      accuracy: `cluster float [N]`, `global float | None` of the last evaluation.
      progress: The run's totals, see `storage.PROGRESS_KEYS`.
      told: More notes, on what happened in the run.
    """
    local = local_accuracies(progress)
    whole = dict.fromkeys(("std", "variance", "worst_decile"))
    _, sizes = np.unique(state.assignment, return_counts=True)
    clustering, training, evaluation = (float(value) for value in progress["seconds"])
    return {
        "task": config.task,
        "algorithm": config.algorithm,
        "seed": config.seed,
        "rounds": config.train.rounds,
        "notes": [*notes(config, federated), *told],
        "accuracy": {
            "cluster": spread(accuracy["cluster"]),
            "local": {**spread(local), "share": float(np.isfinite(local).mean())},
            "global": {"mean": accuracy["global"], **whole},
        },
        "clusters": {
            "count": len(sizes),
            "sizes": sizes.tolist(),
            "ari": agreement(federated, state),
            # Where a client that has not been met is a cluster of its own, of those that have.
            **({"known_ari": agreement(federated, state, state.extra["known"])} if "known" in state.extra else {}),
        },
        "traffic": {key: int(progress[key]) for key in ("down_bytes", "up_bytes", "signature_bytes")},
        "seconds": {
            "total": clustering + training + evaluation,
            "clustering": clustering,
            "training": training,
            "evaluation": evaluation,
        },
    }


def write_summary(out: pathlib.Path, summary: dict):
    """Writes summary.json, whole or not at all."""
    partial = out / "summary.json.partial"
    partial.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    partial.replace(out / "summary.json")


def write_clients(out: pathlib.Path, state, federated, accuracy: dict, progress: dict):
    """Writes clients.csv, a row a client: who it is, its cluster, its data, its accuracies."""
    labels = federated.label_counts()
    local = local_accuracies(progress)
    truth = federated.true_groups
    header = ["client_id", "true_cluster", "cluster", "examples", "test_examples", "rounds_trained"]
    header += ["cluster_accuracy", "local_accuracy", *(f"label_{label}" for label in range(labels.shape[1]))]
    with open(out / "clients.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row, client in enumerate(state.client_ids):
            writer.writerow([
                int(client),
                "" if truth is None else int(truth[client]),
                int(state.assignment[row]),
                len(federated.train_indices[client]),
                len(federated.test_indices[client]),
                int(progress["rounds_trained"][row]),
                _number(accuracy["cluster"][row]),
                _number(local[row]),
                *labels[client].tolist(),
            ])  # fmt: skip


def _number(value: float) -> str:
    return "" if not np.isfinite(value) else f"{value:.6f}"


def write_representations(out: pathlib.Path, state, seed: int):
    """Writes representations.npz for methods whose clients sent vectors: a map of them, and who they are.

    Of more than 2,000 clients so many are drawn by the seed: more dots tell no more, and the map takes long.
    """
    rows = np.arange(len(state.extra["signatures"]))
    if len(rows) < 4:
        return
    if len(rows) > _MOST_MAPPED:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _MOST_MAPPED, replace=False))
    known = np.flatnonzero(state.extra["known"])[rows]
    points = project_directions(state.extra["signatures"][rows], seed=seed)
    np.savez_compressed(out / "representations.npz", client_ids=state.client_ids[known], places=known, points=points)


def write_clustering(out: pathlib.Path, state, clustering: dict, suggestion: str):
    """Writes clustering.npz for methods with a proximity matrix: matrix, merges, threshold, labels, and what they mean.

    Where clients are related by a map of their centres: relatedness and map too.
    """
    more = {key: state.extra[key] for key in ("relatedness", "points", "mask") if "relatedness" in state.extra}
    np.savez_compressed(
        out / "clustering.npz",
        client_ids=state.client_ids,
        proximity=state.extra["proximity"],
        merges=state.extra["merges"],
        threshold=state.extra["threshold"],
        labels=state.assignment,
        suggestion=suggestion,
        **clustering,
        **more,
    )
