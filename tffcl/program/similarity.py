"""How alike clients are before any training: signatures, proximity matrix, pictures, a suggestion."""

import pathlib

import numpy as np

from tffcl import runtime
from tffcl.algorithms.pacfl import PrincipalAngleClustering, group
from tffcl.algorithms.signature_round import build_signing
from tffcl.clustering import hierarchical, proximity
from tffcl.errors import unknown
from tffcl.program import prepare
from tffcl.program.config import RunConfig
from tffcl.program.population import build_population
from tffcl.program.summary import rand_index
from tffcl.signatures.subspace import build_subspace

SIGNATURES = ("subspace",)


def similarity(config: RunConfig, signature: str, out: str | pathlib.Path, *, data_dir: str | None = None) -> str:
    """Measures and draws the clients' proximity matrix.

    Writes `proximity.npz` (as clustering.npz of a run), `proximity.png` and `dendrogram.png` into `out`.

    Args:
      config: Task and the parameters of the method that uses the signature.
      signature: A name in `SIGNATURES`.
      out: Directory.
      data_dir: Where data sets are.

    Returns:
      A few lines of text: what was measured, the suggested threshold and number of clusters, and how they fit the truth.
    """
    from tffcl.reporting import figures

    if signature not in SIGNATURES:
        raise unknown("signature", signature, SIGNATURES)
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    how = PrincipalAngleClustering(**config.method)
    federated = prepare.load_data(config, data_dir)
    model = prepare.build_model(config, federated)
    runtime.use_local_worker()
    sign = build_signing(
        build_subspace(
            model.example_spec, how.num_vectors, per_class=how.per_class, num_classes=model.num_classes, max_classes=how.max_classes
        )
    )
    population = build_population(federated)
    signed = sign(population)
    angles = proximity.principal_angles(signed["basis"], signed["mask"], measure=how.measure)
    labels, dendrogram, threshold = group(angles, how)
    suggestion = hierarchical.suggest_threshold(dendrogram, unit="degrees")
    np.savez_compressed(
        out / "proximity.npz", client_ids=population.client_ids, proximity=angles, merges=dendrogram.merges,
        threshold=threshold, labels=labels, suggestion=suggestion.reason, unit="degrees", measure=how.measure, linkage=how.linkage,
    )  # fmt: skip
    truth = federated.true_groups
    matrix = figures.proximity_figure(
        angles, labels, client_ids=population.client_ids, unit="degrees", measure=how.measure, merges=dendrogram.merges
    )
    tree = figures.dendrogram_figure(
        dendrogram.merges, threshold, labels=labels, unit="degrees", linkage=how.linkage, suggestion=suggestion.reason
    )
    matrix.savefig(out / "proximity.png")
    tree.savefig(out / "dendrogram.png")
    return "\n".join(_lines(config, how, angles, labels, threshold, suggestion, truth, out))


def _lines(config, how, angles, labels, threshold, suggestion, truth, out):
    pairs = angles[np.triu_indices(len(angles), 1)]
    if pairs.size:
        low, middle, high = np.percentile(pairs, [0, 50, 100])
        yield f"{len(angles)} clients of {config.task}, {how.measure}: {low:.2f} to {high:.2f} degrees, median {middle:.2f}"
    yield f"suggested threshold {suggestion.threshold:.2f} degrees, {suggestion.num_clusters} clusters: {suggestion.reason}"
    sizes = np.unique(labels, return_counts=True)[1].tolist()
    yield f"with the task's settings (threshold {threshold:.2f}): {len(sizes)} clusters of sizes {sizes}"
    index = rand_index(truth, labels)
    if index is not None:
        yield f"adjusted Rand index against the {len(np.unique(truth))} true groups: {index:.3f}"
    yield f"written: {out / 'proximity.png'}, {out / 'dendrogram.png'}, {out / 'proximity.npz'}"
