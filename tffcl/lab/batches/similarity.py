"""Measures how similar clients are before any training: signatures, proximity matrix, pictures, a suggestion."""

import base64
import collections
import dataclasses
import pathlib
from collections.abc import Mapping

import numpy as np

from tffcl import choices, runtime
from tffcl.algorithms.composed import group_composed
from tffcl.algorithms.one_shot import Formed, OneShotClustering, Signed
from tffcl.algorithms.parameters import ComposedParameters
from tffcl.client_work.local_training import LocalTraining
from tffcl.clients.cohort import stream
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import simulating
from tffcl.clustering import hierarchical, self_distance
from tffcl.clustering.projection import project
from tffcl.display import Shown, counted
from tffcl.errors import UserError, unknown
from tffcl.files import replacing
from tffcl.lab.reporting.table import Table
from tffcl.lab.tasks import build
from tffcl.lab.tasks.populations import build_population
from tffcl.lab.tasks.resolve import RunConfig, Seed
from tffcl.models.flat import FlatModel
from tffcl.registry import ALGORITHMS
from tffcl.rounds.client_queries import check_signatures
from tffcl.runs.callbacks import progress_bar, waiting
from tffcl.runs.population_changes import taken_by
from tffcl.runs.summary import rand_index
from tffcl.validation import check_kind, check_value

_MOST_WRITTEN = 10  # clients whose matrix is printed
_DRAWS, _FEWEST_DRAWS = 200, 20  # draws of a half of each client, to find the largest gap again
_ALL_DRAWS_OF = 500  # clients up to which all draws are made; with more clients, fewer draws take the same time
_OF_SIGNATURES = ("server_images", "find_encoder", "noise_seed")
_PRIVATE = "how certain the number of clusters is remains open: private signatures of halves would be further releases"


@dataclasses.dataclass(frozen=True, eq=False)
class Similarity(Shown):
    """The similarity of clients by their signatures.

    Attributes:
      client_ids: `[N]`, names of the clients, or their IDs.
      proximity: `float32 [N, N]`, unit as `how.unit`.
      labels: `int32 [N]`, the clusters by the task's settings.
      dendrogram: The tree of merges.
      threshold: Where the tree is cut for `labels`.
      tree_unit: The unit of merges and threshold.
      notes: Findings about the clusters: whether clients differ, and whether they form groups.
      suggestion: Threshold and number of clusters at the largest gap.
      numbers: Maps each number of clusters that the largest gap gives to its share of 200 draws, most frequent first.
        In each draw, every client has one random half of its examples. More than 500 clients have fewer draws, down to
        20. FLT makes one map of all halves. Empty for two clients, for private signatures, and if a half gives no
        signature.
      how: Signature, metric and cut.
      seed: The seed of the task.
    """

    client_ids: np.ndarray
    proximity: np.ndarray
    labels: np.ndarray
    dendrogram: hierarchical.Dendrogram
    threshold: float
    tree_unit: str
    notes: tuple[str, ...]
    suggestion: hierarchical.Suggestion
    numbers: Mapping[int, float]
    how: OneShotClustering
    seed: int

    def facts(self):
        """The number of clusters by the settings, and what the tree suggests."""
        return {
            "clients": len(self.client_ids),
            "metric": f"{self.how.metric} ({self.how.unit})",
            "clusters": len(np.unique(self.labels)),
            "found": "; ".join(self.notes) or self.suggestion.reason,
            **({"largest gap of halves": shares} if (shares := self.number_shares) else {}),
        }

    @property
    def number_shares(self) -> str:
        """`numbers` in words; or the reason why there are none."""
        shares = ", ".join(f"{number} in {100 * share:.0f} %" for number, share in self.numbers.items())
        return _PRIVATE if self.how.signature.noise_multiplier else shares

    def _repr_html_(self) -> str:
        from tffcl.lab.reporting import style

        pictures = [base64.b64encode(style.to_png(each)).decode() for each in (self.heat_map(), self.tree())]
        return super()._repr_html_() + "".join(f'<img src="data:image/png;base64,{each}">' for each in pictures)

    def heat_map(self):
        """Draws the matrix, ordered by cluster."""
        from tffcl.lab.reporting import figures

        return figures.proximity_figure(
            self.proximity, self.labels, client_ids=self.client_ids, unit=self.how.unit, measure=self.how.metric,
            merges=self.dendrogram.merges,
        )  # fmt: skip

    def tree(self):
        """Draws the tree of merges with their distances, and the cut."""
        from tffcl.lab.reporting import figures

        suggested = self.suggestion.reason if self.how.suggested_unit == self.tree_unit else ""
        return figures.dendrogram_figure(
            self.dendrogram.merges, self.threshold, labels=self.labels, client_ids=self.client_ids, unit=self.tree_unit,
            linkage=self.how.linkage, suggestion="; ".join(self.notes) or suggested,
        )  # fmt: skip

    def histogram(self, truth: np.ndarray | None = None):
        """Draws a histogram of clients' distances, within and across the true groups `[N]` where they are known."""
        from tffcl.lab.reporting import figures

        return figures.pairs_figure(
            self.proximity, truth, threshold=self.threshold, unit=self.how.unit, measure=self.how.metric
        )

    def umap(self):
        """Draws the clients as points of a UMAP projection, with similar clients near each other."""
        from tffcl.lab.reporting import figures

        points = project(self.proximity, seed=stream(self.seed, "map"))
        title = f"{len(points)} clients by {self.how.metric}, laid out by UMAP"
        return figures.projection_figure(points, self.labels, client_ids=self.client_ids, title=title)


def similarity(
    clients: RunConfig | Population,
    signature: str | Mapping | ComposedParameters = "subspace",
    *,
    model: FlatModel | None = None,
    training: LocalTraining = LocalTraining(),
    seed: int = 0,
    data_dir: str | None = None,
    show_progress: bool = True,
    **values,
) -> Similarity:
    """Lets all clients send their signatures, and measures how similar these are; no federated round is run.

    In a notebook it shows the heat map and the tree.

    Args:
      clients: A population, or what `tffcl.resolve` returns for a method that clusters before training; then the task
        sets all other arguments except `data_dir`. Clients that a run would hold out as newcomers are included.
      signature: As in `ComposedParameters`, or such parameters themselves, which have metric, linkage and cut.
      model: The clients' model. Signatures of models or of normalized examples need it; others need only its input spec
        and its number of classes.
      training: The local training of signatures that train.
      seed: Decides the random numbers of signatures, and the random halves of each client's examples.
      data_dir: The directory with the data sets of tasks.
      show_progress: Whether to show a bar on standard error while clients sign.
      **values: Further arguments of a signature: `server_images`, `find_encoder`, `noise_seed`, as in `build_composed`.

    Raises:
      UserError: If the method does not cluster before training, or an argument is missing or of another kind.
    """
    check_kind("clients", clients, (RunConfig, Population), "a tffcl.Population, or what tffcl.resolve returns")
    check_kind("signature", signature, (str, Mapping, ComposedParameters), "a name, a table, or ComposedParameters")
    check_kind("training", training, LocalTraining, "a tffcl.LocalTraining(...)")
    check_value("seed", seed, Seed)
    for name in values:
        if name in vars(ComposedParameters()):
            raise UserError(f"{name} is one of the parameters: similarity(clients, ComposedParameters({name}=...))")
        if name not in _OF_SIGNATURES:
            raise unknown("argument", name, _OF_SIGNATURES)
    if isinstance(clients, Population):
        check_kind("model", model, FlatModel, "a tffcl.FlatModel of these clients, as FlatModel.from_keras makes one")
        if not isinstance(signature, ComposedParameters):
            signature = ComposedParameters(signature=signature if isinstance(signature, str) else dict(signature))
        population = taken_by(model, clients)  # type: ignore[arg-type]  # checked above
        how = group_composed(model, training, signature, seed=seed, **values)  # type: ignore[arg-type]  # checked above
    else:
        how, population, seed = *_of_task(clients, data_dir), clients.seed
    runtime.use_local_worker()
    how.check(len(population.client_ids))
    with progress_bar(len(population.client_ids), "clients sign", "client", show=show_progress) as bar:

        def show_clients(done: int, clients: int):  # some clients sign several times, e.g. for their halves
            bar.n = min(done, clients)
            bar.set_description("clients sign" if done < clients else "distances of clients are measured")

        with simulating(on_progress=show_clients):
            formed, notes, numbers = _formed(how, population, seed)
        bar.n = bar.total
        bar.set_description("clients have signed")
    # A task's threshold is for the tree in the metric's own unit.
    tree, unit = formed.dendrogram, how.tree_unit or how.unit
    if formed.chance is not None or tree is None:
        tree = hierarchical.build_dendrogram(formed.proximity, how.linkage)
    if formed.chance is not None:
        unit = self_distance.UNIT
    drawn, threshold = formed.dendrogram, formed.threshold
    if drawn is None or threshold is None:  # for other groupings, show a tree that is cut into equally many clusters
        drawn, threshold = tree, hierarchical.threshold_of(tree, int(formed.labels.max()) + 1)
        notes = (*notes, "the clusters are not of the tree, which is drawn beside them, cut into as many")
    return Similarity(
        population.shown_ids, formed.proximity, formed.labels, drawn, threshold, unit, notes,
        how.suggest(formed.proximity, tree), numbers, how, seed,
    )  # fmt: skip


def _of_task(config: RunConfig, data_dir: str | None) -> tuple[OneShotClustering, Population]:
    """The clustering and the clients of a task."""
    if config.method_source.clustering_builder is None:
        before = [name for name, row in ALGORITHMS.items() if row.clustering]
        raise unknown("algorithm that clusters before training", config.algorithm, before)
    federated = build.load_data(config, data_dir)
    model = build.build_model(config, federated)
    return build.build_clustering(config, model, federated, data_dir), taken_by(model, build_population(federated))


def _numbers(how: OneShotClustering, signed: Signed, seed: int) -> dict[int, float]:
    """The share of draws, with one half of each client, in which the largest gap gives each number of clusters."""
    first, second = signed.halves  # type: ignore[misc]  # signed for the rule "self"
    both = {name: np.concatenate([own, second[name]]) for name, own in first.items()}
    clients = len(signed.examples)  # type: ignore[arg-type]  # likewise
    finite = all(np.isfinite(each).all() for each in both.values())
    if clients <= 2 or not finite or "centres" in both and not both["mask"].any(axis=1).all():
        return {}
    apart, found = how.distances(both, None), collections.Counter()
    draws = int(np.clip(_DRAWS * (_ALL_DRAWS_OF / clients) ** 2, _FEWEST_DRAWS, _DRAWS))
    rng = np.random.default_rng([stream(seed, "map"), _DRAWS])
    for _ in range(draws):
        rows = np.arange(clients) + clients * rng.integers(0, 2, clients)
        drawn = apart[np.ix_(rows, rows)]
        found[how.suggest(drawn, hierarchical.build_dendrogram(drawn, how.linkage)).num_clusters] += 1
    return {number: times / draws for number, times in found.most_common()}


def _formed(
    how: OneShotClustering, population: Population, seed: int
) -> tuple[Formed, tuple[str, ...], dict[int, float]]:
    """The clusters by the settings; notes, which say under any settings whether clients differ and form groups; and the
    shares of the numbers of clusters from halves.
    """
    noised = how.signature.noise_multiplier  # then no halves are taken, which would tell more
    by_itself = how if noised else dataclasses.replace(how, threshold=choices.SELF, num_clusters=None, grouping=None)
    signed = by_itself.build_signing()(population)
    check_signatures(population, signed.whole)
    numbers = {} if noised else _numbers(how, signed, seed)
    if noised or how.threshold == choices.SELF:
        formed = how.form(signed)
        return formed, formed.notes, numbers
    formed = how.form(Signed(signed.whole))
    if type(how) is not OneShotClustering:  # FLT's distances are in a UMAP map, in which halves are separate points
        return formed, formed.notes, numbers
    answer, *odd = by_itself.form(signed).notes
    return formed, tuple(dict.fromkeys([f'by threshold = "self": {answer}', *odd, *formed.notes])), numbers


def write_similarity(
    config: RunConfig, out: str | pathlib.Path, *, data_dir: str | None = None, map_clients: bool = False
) -> str:
    """Measures and draws the clients' proximity matrix.

    Writes `proximity.npz` (like clustering.npz of a run, but with the whole matrix), `proximity.png`, `dendrogram.png`
    and `histogram.png` into `out`.

    Args:
      config: As in `similarity`.
      out: The directory for the files.
      data_dir: Where data sets are.
      map_clients: Whether to write `umap.png`, too, which shows the clients as points.

    Returns:
      A few lines of text: the matrix if there are few clients, the distances, the suggested threshold and number of
      clusters, and the agreement of the clusters with the true groups.
    """
    from tffcl.lab.reporting import figures

    found = similarity(config, data_dir=data_dir)
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / "proximity.npz") as file:
        np.savez_compressed(
            file, client_ids=found.client_ids, proximity=found.proximity,
            merges=found.dendrogram.merges, threshold=found.threshold, labels=found.labels,
            suggestion="; ".join(found.notes) or found.suggestion.reason, unit=found.how.unit, measure=found.how.metric,
            linkage=found.how.linkage, tree_unit=found.tree_unit,
        )  # fmt: skip
    federated = build.load_data(config, data_dir)
    truth = federated.true_groups
    pictures = {"proximity": found.heat_map, "dendrogram": found.tree, "histogram": lambda: found.histogram(truth)}
    pictures |= {"umap": found.umap} if map_clients else {}
    written = []
    with waiting("draws pictures"):
        for name, draw in pictures.items():
            written.append(figures.save(draw(), out / f"{name}.png"))
    return "\n".join(
        [
            *_table(found),
            *_lines(config, found, truth),
            *([f"note: {federated.note}"] if federated.note else []),
            f"written: {', '.join(map(str, written))}, {out / 'proximity.npz'}",
        ]
    )


def _table(found: Similarity):
    """The matrix, if there are few clients."""
    names = [str(each) for each in found.client_ids]
    if len(names) <= _MOST_WRITTEN:
        rows = [[name, *(f"{value:.2f}" for value in row)] for name, row in zip(names, found.proximity, strict=True)]
        yield Table.of([found.how.unit, *names], rows).to_text() + "\n"


def _lines(config: RunConfig, found: Similarity, truth: np.ndarray | None):
    labels, unit = found.labels, found.how.unit
    pairs = found.proximity[np.triu_indices(len(labels), 1)]
    if pairs.size:
        measured = _spread(pairs, "" if unit == found.how.metric else unit)
        yield f"{len(labels)} clients of {config.task}, {found.how.metric}: {measured}"
    yield from found.notes
    if found.numbers:
        yield f"clusters at the largest gap, with one half of each client's examples: {found.number_shares}"
    elif found.number_shares:
        yield found.number_shares
    if found.how.threshold != choices.SELF:
        yield from _suggested(config, found)
    sizes = np.unique(labels, return_counts=True)[1].tolist()
    settings = f"as the method cuts the tree (at {found.threshold:.4g} {found.tree_unit})"
    yield f"{settings}: {counted(len(sizes), 'cluster')} of sizes {sizes}"
    index = rand_index(truth, labels)
    if truth is not None and index is not None:
        yield f"adjusted Rand index against the {len(np.unique(truth))} true groups: {index:.3f}"
    if truth is not None and pairs.size:
        yield from _within_and_across(pairs, truth, unit)


def _suggested(config: RunConfig, found: Similarity):
    """The suggestion of the largest gap, and the setting that a task needs for it."""
    suggestion = found.suggestion
    suggested = f"{suggestion.threshold:.4g} {found.how.suggested_unit}, {counted(suggestion.num_clusters, 'cluster')}"
    yield f"{'suggested threshold' if suggestion.is_clear else 'largest gap at'} {suggested}: {suggestion.reason}"
    if not suggestion.is_clear:
        yield (
            "a weak gap is no advice: look at the dendrogram, or choose by accuracy on validation examples (tffcl "
            "sweep ... --select cluster)"
        )
    elif found.how.setting:
        ((key, as_set),) = found.how.setting.items()
        yield f"as a task says it: algorithms.{config.algorithm}.{key} = {as_set(suggestion.threshold):.4g}"


def _within_and_across(pairs: np.ndarray, truth: np.ndarray, unit: str):
    same = np.equal.outer(truth, truth)[np.triu_indices(len(truth), 1)]
    for name, chosen in (("within", pairs[same]), ("across", pairs[~same])):
        if chosen.size:
            yield f"{name} true groups: {_spread(chosen, unit)}"


def _spread(values: np.ndarray, unit: str) -> str:
    low, middle, high = np.percentile(values, [0, 50, 100])
    return f"{low:.4g} to {high:.4g}{unit and f' {unit}'}, median {middle:.4g}"
