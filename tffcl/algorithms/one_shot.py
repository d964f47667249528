"""Methods that cluster once, before training, by signatures, a proximity matrix, and a tree of merges or another
grouping; then the engine trains.

The methods of `presets` are such methods with different signatures; `grouping_in_time` groups at other times.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import numpy as np

from tffcl.algorithms.clustered_training import ClusteredTraining, EngineMethod
from tffcl.algorithms.method import ClusteredState, Exports, MetricView, Views, nowhere_note
from tffcl.choices import GAP, KNEE, SELF
from tffcl.clients.newcomers import check_newcomers, extended
from tffcl.clients.population import Population
from tffcl.clustering import groupings, hierarchical, self_distance
from tffcl.clustering import newcomers as joining
from tffcl.clustering.groupings import Grouping
from tffcl.clustering.self_distance import Chance
from tffcl.clustering.vector_distances import without_direction
from tffcl.display import counted, listed
from tffcl.errors import UserError
from tffcl.rounds.client_queries import build_collection, build_signing, check_signatures, signature_transfer
from tffcl.rounds.traffic import Traffic
from tffcl.signatures.parameters import check_noised
from tffcl.signatures.signature import EXAMPLES, FIRST, SECOND, WHOLE, Signature, by_name, with_halves
from tffcl.validation import tell_once

MOST_COMPARED = 5000  # clients with whom newcomers are compared if clients are not grouped again
_FEWEST_COMPARED = 10  # compared clients of a cluster that newcomers have founded after these
THRESHOLD = {"threshold": lambda threshold: threshold}  # the key of a threshold in a task, and its value there


@dataclasses.dataclass(frozen=True, eq=False)
class OneShotClustering:
    """How clients are grouped by their signatures.

    Attributes:
      signature: The signature that every client sends, a structure of arrays by name.
      distances: `(first, second or None) -> float32 [N, M]`, the distances of clients, from the arrays of their
        signatures, rows are clients; among the first's clients if there is no second.
      unit: The unit of the proximity, for reports.
      metric: Name of the metric, for reports.
      linkage: A name in `choices.LINKAGES`.
      threshold: Clusters up to this distance are merged; or a name in `RULES`, of which `SELF` takes halves of every
        signature, or `KNEE`. None: by number.
      num_clusters: The number of clusters, instead of a threshold.
      tree_unit: The unit of the merges, where it is not that of the proximity.
      setting: How a task states a threshold: its key and `(threshold) -> value`; empty where it cannot.
      device_signature: The same signature by operations that device runtimes have, where they lack some of
        `signature`'s; this one is exported.
      remark: `(signatures, proximity) -> str`, what is odd about them, for the notes of a run; "" for nothing.
      grouping: Groups clients into `num_clusters` instead of a tree; None: the tree.
      points: `(first, second or None) -> [N, ...]`, the points of the second's clients, or of the first's if there is
        no second, in the coordinates of the first's, for a grouping of points.
      seed: Seed of the grouping.
    """

    signature: Signature
    distances: Callable[[Mapping, Mapping | None], np.ndarray]
    unit: str
    metric: str
    linkage: str
    threshold: float | str | None
    num_clusters: int | None
    tree_unit: str | None = None
    setting: Mapping[str, Callable[[float], float]] = dataclasses.field(default_factory=dict)
    device_signature: Signature | None = None
    remark: Callable[[Mapping, np.ndarray], str] | None = None
    grouping: Grouping | None = None
    points: Callable[[Mapping, Mapping | None], np.ndarray] | None = None
    seed: int = 0

    def __post_init__(self):
        """Raises UserError for the rule `SELF` with private signatures."""
        if self.threshold == SELF:
            check_noised(self.signature.noise_multiplier, self.threshold)

    @functools.cached_property
    def sent(self) -> Signature:
        """What clients send: their signature, and those of two halves of their examples where the rule needs them."""
        return with_halves(self.signature) if self.threshold == SELF else self.signature

    @functools.cached_property
    def sent_by_devices(self) -> Signature:
        """The same by operations that device runtimes have."""
        signature = self.device_signature or self.signature
        return with_halves(signature) if self.threshold == SELF else signature

    def build_signing(self) -> Callable[[Population], "Signed"]:
        """Builds `sign(population, again=0, model=None)`, see `client_queries.build_signing`."""
        sign = build_signing(self.sent)

        def signed(population: Population, again: int = 0, model: np.ndarray | None = None) -> Signed:
            value = sign(population, again, model)
            if self.threshold != SELF:
                return Signed(by_name(value))
            whole, first, second = (by_name(value[part]) for part in (WHOLE, FIRST, SECOND))
            return Signed(whole, (first, second), value[EXAMPLES])

        return signed

    def form(self, signed: "Signed") -> "Formed":
        """Measures how far clients are apart and clusters them."""
        proximity = self.distances(signed.whole, None)
        odd = self.remark(signed.whole, proximity) if self.remark else ""
        if signed.halves is None:
            labels, dendrogram, threshold = self.group(proximity, signed.whole)
            note = "".join(self._doubts(proximity, dendrogram))
            if self.num_clusters is not None and labels.max() + 1 < self.num_clusters:
                kinds = counted(labels.max() + 1, "kind")
                note = (
                    f"num_clusters is {self.num_clusters}, but signatures are of {kinds}: clients at 0 from each other "
                    "stay together"
                )
            return Formed(proximity, labels, dendrogram, threshold, _notes(note, odd))
        first, second = signed.halves
        least = self.signature.least_examples
        able = self_distance.able(signed.examples, least)
        halves = None
        if len(able) >= self_distance.FEWEST:
            first, second = ({name: rows[able] for name, rows in half.items()} for half in (first, second))
            apart = self.distances(first, None), self.distances(second, None), self.distances(first, second)
            halves = self_distance.Halves(*apart)
        found = self_distance.judge(proximity, halves, signed.examples, least=least, linkage=self.linkage)
        note = found.sentence
        if found.kind == self_distance.DIFFER:
            cut = hierarchical.suggest_threshold(hierarchical.build_dendrogram(proximity, self.linkage), unit=self.unit)
            ((key, as_set),) = self.setting.items()
            note += f"; {key} = {as_set(cut.threshold):.4g}, at the largest gap, would give {cut.num_clusters}"
        return Formed(proximity, found.labels, found.dendrogram, found.threshold, _notes(note, odd), found.chance)

    def group(self, proximity: np.ndarray, signatures: Mapping | None = None):
        """Clusters clients by a number, a gap or a knee: returns `(labels int32 [N], dendrogram, threshold)`, the last
        two None without a tree. `signatures` are their arrays by name, for a grouping of points."""
        if self.grouping is not None:
            return self.grouping(proximity, self._points(signatures), self.num_clusters, self.seed), None, None
        cut = groupings.knee_distance(proximity) if self.threshold == KNEE else self.threshold
        return hierarchical.group(proximity, self.linkage, cut, self.num_clusters)

    def _doubts(self, proximity: np.ndarray, dendrogram: hierarchical.Dendrogram | None) -> tuple[str, ...]:
        """Says why the rule shows no clusters, or no clear ones; empty if it shows clear clusters."""
        if self.threshold == KNEE and len(proximity) == 2:
            return (groupings.ONE_DISTANCE,)
        return self.suggest(proximity, dendrogram).doubts if self.threshold == GAP else ()

    def _points(self, *signatures: Mapping) -> np.ndarray | None:
        """The grouping's points for the last signatures, in the coordinates of the first."""
        return self.points(*signatures) if self.points and self.grouping and self.grouping.of_points else None

    def place(self, proximity: np.ndarray, known: Mapping, arrived: Mapping, labels: np.ndarray) -> np.ndarray:
        """Places newcomers in the clusters of a grouping without a tree.

        Args:
          proximity: `[M + B, M + B]`, old clients first.
          known: The old clients' signatures, arrays by name.
          arrived: The newcomers' signatures.
          labels: `int32 [M]`, the old clients' clusters.

        Returns:
          `int32 [B]`, the newcomers' clusters.
        """
        points = self._points(known)
        if points is not None:
            points = np.concatenate([points, self._points(known, arrived)])
        found, clients = np.asarray(self.grouping.place(proximity, points, labels)), len(proximity) - len(labels)
        if found.shape != (clients,) or found.dtype.kind not in "iu" or (found < 0).any():
            there = f"{found.dtype} {list(found.shape)}, from {found.min()} on" if found.size else "nothing"
            raise UserError(
                f"the grouping places newcomers in {there}; it must give whole numbers from 0 on, a cluster for each "
                f"of {clients} newcomers"
            )
        return found.astype(np.int32)

    def tree(self, proximity: np.ndarray) -> np.ndarray | None:
        """Returns the merges of the clients; None for a grouping without a tree."""
        return None if self.grouping is not None else hierarchical.build_dendrogram(proximity, self.linkage).merges

    def suggest(self, proximity: np.ndarray, dendrogram: hierarchical.Dendrogram) -> hierarchical.Suggestion:
        """Suggests a threshold, in the form of `setting`, from the arguments and results of `group`."""
        del proximity
        return hierarchical.suggest_threshold(dendrogram, unit=self.suggested_unit)

    @property
    def suggested_unit(self) -> str:
        """The unit of the threshold that `suggest` returns."""
        return self.tree_unit or self.unit

    def check(self, clients: int):
        """Raises UserError if there are fewer clients than clusters are asked for."""
        check_enough(clients, self.num_clusters)

    def described(self) -> dict[str, str]:
        """What the grouping's numbers mean, for an export's manifest."""
        if self.grouping is not None:
            return {"unit": self.unit, "metric": self.metric}
        described = {"unit": self.unit, "metric": self.metric, "linkage": self.linkage}
        tree_unit = self_distance.UNIT if self.threshold == SELF else self.tree_unit
        return described if tree_unit is None else {**described, "tree_unit": tree_unit}


def check_enough(clients: int, wanted: int | None):
    """Raises UserError if there are fewer clients than the wanted number of clusters; None wants no number."""
    if wanted is not None and not 1 <= wanted <= clients:
        raise UserError(f"num_clusters is {wanted}; it must be from 1 to the number of clients, {clients}")


@dataclasses.dataclass(frozen=True, eq=False)
class Signed:
    """What clients have sent: arrays by name, rows are clients.

    Attributes:
      whole: Their signatures.
      halves: The signatures of two halves of their examples, if the rule needs them; else None.
      examples: `int32 [N]`, how many examples they have, if the rule needs this.
    """

    whole: Mapping[str, np.ndarray]
    halves: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]] | None = None
    examples: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Formed:
    """The clusters of all clients that have sent signatures.

    Attributes:
      proximity: `float32 [N, N]`.
      labels: `int32 [N]`.
      dendrogram: The tree that was cut; None for a grouping without one.
      threshold: The height at which it was cut, in the tree's unit; None without a tree.
      notes: What a reader should know of the clusters.
      chance: The self-distance, if the tree is in units of it.
    """

    proximity: np.ndarray
    labels: np.ndarray
    dendrogram: hierarchical.Dendrogram | None
    threshold: float | None
    notes: tuple[str, ...] = ()
    chance: Chance | None = None


def _thin(signature: Signature, population: Population) -> str:
    """Names the clients with fewer examples than a signature needs; "" if there are none, or signatures hide it."""
    few = population.client_ids[population.sizes_of(population.client_ids) < signature.least_examples]
    if not len(few) or signature.noise_multiplier:
        return ""
    return (
        f"{len(few)} of {len(population)} clients have fewer than {signature.least_examples} examples, and a thin "
        f"signature {signature.name} that says little of them: {listed([population.name_of(client) for client in few])}"
    )


def _notes(*notes: str) -> tuple[str, ...]:
    return tuple(each for each in notes if each)


@dataclasses.dataclass(frozen=True, eq=False)
class OneShotState(ClusteredState):
    """Adds to `ClusteredState` the data of the clustering. N counts the clients that newcomers are compared with.

    Attributes:
      signatures: The signatures' arrays by name, rows are clients.
      proximity: `float32 [N, N]`.
      merges: `float64 [N-1, 4]`, SciPy linkage matrix; None for a grouping without a tree, and with `compared`.
      threshold: `float64`, the height at which the tree is cut, in the tree's unit; None without one.
      notes: What a reader should know of the clusters: whether clients differ, and whether in groups.
      chance: The self-distance, if the tree is in units of it; else None.
      examples: `int32 [N]`, how many examples clients have, if the rule needs this; else None.
      signed_with: `float32 [P]`, the model with which clients described their data; None: the initial one, or none.
      compared: `int32 [N]`, ascending, the clients that newcomers are compared with; None: all.
    """

    signatures: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    proximity: np.ndarray | None = None
    merges: np.ndarray | None = None
    threshold: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    chance: Chance | None = None
    examples: np.ndarray | None = None
    signed_with: np.ndarray | None = None
    compared: np.ndarray | None = None

    def facts(self):
        """The numbers of clients and models, and the notes on the clusters."""
        return {**super().facts(), **({"found": "; ".join(self.notes)} if self.notes else {})}


class OneShot(EngineMethod):
    """A method that clusters all clients before the first round; all cluster models start from the same initial one."""

    state_class = OneShotState
    pair_bytes = 8  # the float32 matrix, and half of it in float64 while the tree is made

    def __init__(self, name: str, engine: ClusteredTraining, clustering: OneShotClustering):
        super().__init__(name, engine)
        self.clustering, self.sign = clustering, clustering.build_signing()
        self.joining = Traffic.of(signature_transfer(clustering.sent))

    def check_clients(self, clients: int):
        self.clustering.check(clients)

    def initialize(self, population: Population) -> OneShotState:
        labels, formed = self.formed(population)
        return OneShotState(**self.engine.start(population, labels), **formed)

    def formed(self, population: Population, again: int = 0, model: np.ndarray | None = None) -> tuple:
        """Returns the clusters `int32 [N]` of clients that sign now, and the fields that a state adds to
        `ClusteredState`; arguments as in `client_queries.build_signing`."""
        self.clustering.check(len(population))
        signed = self.sign(population, again, model)
        check_signatures(population, signed.whole)
        _tell_nowhere(population, signed.whole)
        formed = self.clustering.form(signed)
        notes = (*formed.notes, *_notes(_thin(self.clustering.signature, population)))
        for note in notes:
            tell_once(f"{self.name}: {note}")
        return formed.labels, {
            "signatures": signed.whole, "proximity": formed.proximity,
            "merges": None if formed.dendrogram is None else formed.dendrogram.merges,
            "threshold": None if formed.threshold is None else np.float64(formed.threshold), "notes": notes,
            "chance": formed.chance, "examples": signed.examples, "signed_with": model, "compared": None,
        }  # fmt: skip

    def admit(self, state: OneShotState, newcomers: Population, *, whole: bool = False) -> OneShotState:
        """PACFL Alg. 2 and 3; a cluster that newcomers found starts from the initial model.

        Newcomers found no cluster if the number of clusters was given or if a rule has found a single one; with
        self-distances, neither do those with too few examples.

        Newcomers are compared with the `MOST_COMPARED` clients that were known first, and with ten of each cluster that
        was founded later, to avoid a matrix of all pairs of very many clients; if `whole`, with all clients.
        """
        check_newcomers(state, newcomers)
        signed = self.sign(newcomers, 0, state.signed_with)
        check_signatures(newcomers, signed.whole)
        _tell_nowhere(newcomers, signed.whole)
        labels, placed = self.placed(state, newcomers, signed, None if whole else MOST_COMPARED)
        grown = self.engine.grown(state, max(labels.max() + 1 - len(state.models), 0))
        return dataclasses.replace(state, **extended(state, newcomers, labels), **placed, **grown)

    def placed(
        self, state: OneShotState, newcomers, signed: Signed, most: int | None = None
    ) -> tuple[np.ndarray, dict]:
        """Places newcomers, of which only `client_ids` are used, by what they have sent. Returns their clusters `int32
        [B]`, and the fields that a state with them adds to `ClusteredState`, with `most` clients to compare later ones
        with."""
        how, known, whole, old = self.clustering, state.signatures, signed.whole, state.compared
        old, assignment = (state.client_ids, state.assignment) if old is None else (old, state.clusters(old))
        proximity = joining.extend_proximity(state.proximity, how.distances(known, whole), how.distances(whole, None))
        examples = None if state.examples is None else np.concatenate([state.examples, signed.examples])
        scaled = proximity if state.chance is None else proximity / state.chance.between(examples)
        free = np.ones(len(newcomers.client_ids), bool)
        if state.chance is not None:
            free[:] = False
            free[self_distance.able(signed.examples, how.signature.least_examples)] = True
        if how.grouping is not None:
            labels = np.concatenate([assignment, how.place(proximity, known, whole, assignment)])
        else:
            labels = _placed(scaled, assignment, free, self._limit(state), how.linkage)
        kept = _compared(labels, len(old), most)
        ids = np.concatenate([old, newcomers.client_ids]).astype(np.int32)
        all_kept = state.compared is None and len(kept) == len(ids)
        order = kept[np.argsort(ids[kept])]
        return labels[len(old) :], {
            "signatures": {name: np.concatenate([known[name], whole[name]])[order] for name in known},
            "proximity": proximity[np.ix_(order, order)],
            # The tree of all present clients. It is for reports: the old clients' clusters no longer follow from it.
            "merges": how.tree(scaled[np.ix_(order, order)]) if all_kept else None,
            "examples": None if examples is None else examples[order],
            "compared": None if all_kept else ids[order],
        }

    def _limit(self, state: OneShotState) -> float:
        """The largest distance at which a newcomer joins the nearest cluster."""
        by_rule = isinstance(self.clustering.threshold, str)
        together = self.clustering.num_clusters is not None or (by_rule and not state.assignment.any())
        return math.inf if together else float(state.threshold)

    def views(self, state: OneShotState) -> Views:
        how = self.clustering
        tree_unit = how.tree_unit if state.chance is None else self_distance.UNIT
        if state.compared is not None:
            met = functools.partial(_nowhere, state.compared, state.signatures)
            few = f"later clients were compared with {len(state.compared):,} of {len(state.client_ids):,} known ones"
            return Views(state.client_ids, state.assignment, notes=(*state.notes, few), nowhere=met)
        metric = MetricView(
            state.proximity, how.unit, how.metric, state.merges,
            None if state.threshold is None else float(state.threshold), "" if state.merges is None else how.linkage,
            tree_unit, state.notes,
        )  # fmt: skip
        nowhere = functools.partial(_nowhere, state.client_ids, state.signatures)
        return Views(state.client_ids, state.assignment, metric=metric, notes=state.notes, nowhere=nowhere)

    def exports(self) -> Exports:
        signature, grouping = self.clustering.sent_by_devices, self.clustering.described()
        return self.engine.exports(
            build=lambda: {"signature": build_collection(signature)}, clustering={**grouping, "newcomers": _NEWCOMERS}
        )


_NEWCOMERS = (
    "sign when they join: each is in the nearest cluster or, farther from it than the threshold, in a new one, unless "
    "the number of clusters is given or a rule has found a single one (Python, tffcl.clustering.newcomers)"
)


def _compared(labels: np.ndarray, old: int, most: int | None) -> np.ndarray:
    """The clients among `[M + B]`, of whom M are old, with which later ones are compared: all, or the first `most` and
    a few of each cluster that has none of these."""
    if most is None or len(labels) <= most:
        return np.arange(len(labels))
    first = max(old, most)
    founded = np.setdiff1d(labels[first:], labels[:first])
    few = [first + np.flatnonzero(labels[first:] == cluster)[:_FEWEST_COMPARED] for cluster in founded]
    return np.concatenate([np.arange(first), *few])


def _placed(proximity: np.ndarray, known: np.ndarray, free: np.ndarray, limit: float, linkage: str) -> np.ndarray:
    """As `newcomers.assign_newcomers`; newcomers that are not `free bool [B]` join the nearest cluster at any
    distance."""
    labels = joining.assign_newcomers(proximity, known, threshold=math.inf, linkage=linkage)
    rows = np.concatenate([np.ones(len(known), bool), free])
    labels[rows] = joining.assign_newcomers(proximity[np.ix_(rows, rows)], known, threshold=limit, linkage=linkage)
    return labels


def _nowhere(client_ids: np.ndarray, signatures: Mapping[str, np.ndarray]) -> np.ndarray:
    """The clients whose subspaces have no direction; none for other signatures."""
    return client_ids[without_direction(signatures)] if {"basis", "mask"} <= set(signatures) else client_ids[:0]


def _tell_nowhere(population: Population, signatures: Mapping[str, np.ndarray]):
    """Names the clients whose subspaces have no direction, and how they are placed."""
    nowhere = _nowhere(population.client_ids, signatures)
    if len(nowhere):
        tell_once(nowhere_note([population.name_of(client) for client in nowhere]))
