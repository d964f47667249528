"""Populations that change during a run: which clients there are in a round, with which data, and the notes on this."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tffcl.algorithms.method import Views
from tffcl.clients.arrays import BOOLS
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.example_types import check_examples, checked_when_read, fitted, reconstructed
from tffcl.clients.population import Population
from tffcl.display import counted, listed
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.objectives import LABELS, RECONSTRUCTION
from tffcl.runs.evaluator import Evaluator, check_tokens


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """The clients of some consecutive rounds.

    Attributes:
      population: The clients of these rounds.
      evaluator: Evaluates the test examples of the clients whose accuracies are taken, `population.evaluated`.
      arrivals: The clients that were in no stage before, or None.
      changed: Clients with other training data than in the last stage that had them, `int32 [n]`, ascending.
      retested: These, and clients with other test examples than then, `int32 [n]`, ascending.
      left: Clients of the stage before that are not in this one, `int32 [n]`, ascending.
      returned: Clients of an earlier stage that were not in the stage before, `int32 [n]`, ascending.
      initial: The model before any training, `float32 [P]`.
      validator: Evaluates the validation examples of the same clients; None without validation examples.
    """

    population: Population
    evaluator: Evaluator
    arrivals: Population | None
    changed: np.ndarray
    retested: np.ndarray
    left: np.ndarray
    returned: np.ndarray
    initial: np.ndarray
    validator: Evaluator | None = None

    @functools.cached_property
    def untrained(self) -> np.ndarray:
        """The initial model's accuracy on each client's test examples, `float64 [N]`; a client that never trained has
        it."""
        tested = self.population.evaluated
        own = Evaluator(self.evaluator.model, tested)
        return self.of_all(own.cluster_accuracy(self.initial[np.newaxis], np.zeros(len(tested), int)))

    def of_all(self, values: np.ndarray) -> np.ndarray:
        """Spreads values `float64 [n]` of the evaluated clients to all clients `[N]`; NaN for the others."""
        found = np.full(len(self.population), np.nan)
        found[self.population.index(self.population.evaluated.client_ids)] = values
        return found


class Stages:
    """The stages of a run: which population there is from which round on.

    Attributes:
      starts: The rounds with which stages begin, ascending; 0 for the first stage, before the first round.
      populations: The population of each stage.
      client_ids: `int32 [N]`, ascending, all clients of all stages.
    """

    def __init__(self, model: FlatModel, population: Population, later: Mapping[int, Population] | None = None):
        """Puts the stages in order.

        Args:
          model: The architecture, for evaluation.
          population: The clients before the first round.
          later: Maps a round, from 1, to the population from then on. A client that is not in it has left, and may come
            back. A client's training data have changed if its `versions` is higher than in its last population; if this
            holds for no client, the examples are compared.

        Raises:
          UserError: If a client of one population is called something else in a later one.
        """
        self._model = model
        self.starts = [0, *sorted(later or {})]
        self.populations = [population]
        for start in self.starts[1:]:
            for before in self.populations:
                if reason := why_not_after(before, later[start]):
                    raise UserError(f"the population from round {start} on cannot follow those before: {reason}")
            self.populations.append(_with_versions(self.populations, later[start]))
        self.client_ids = functools.reduce(np.union1d, (each.client_ids for each in self.populations))
        # The cache is of this object: one of the class would keep the data of every run until the process ends.
        self._stage = functools.cache(self._make_stage)

    def population(self, round_number: int) -> Population:
        """The clients that there are in a round; round 0 is before the first."""
        return self.populations[self._place(round_number)]

    def at(self, round_number: int) -> Stage:
        """The stage that a round is in."""
        return self._stage(self._place(round_number))

    def begins(self, round_number: int) -> bool:
        """Whether a stage other than the first begins with this round."""
        return round_number in self.starts[1:]

    def names(self) -> dict[int, object]:
        """Returns what each client is called, by its number."""
        return dict(itertools.chain.from_iterable(names_of(each).items() for each in self.populations))

    def _place(self, round_number: int) -> int:
        return int(np.searchsorted(self.starts, round_number, side="right")) - 1

    def _make_stage(self, place: int) -> Stage:
        population, nobody = self.populations[place], np.zeros(0, np.int32)
        tested = population.evaluated
        evaluator, held = Evaluator(self._model, tested), tested.pooled_validation
        more = self._model.initial, None if held is None else Evaluator(self._model, tested, tests=held)
        if place == 0:
            return Stage(population, evaluator, None, nobody, nobody, nobody, nobody, *more)
        before, there, changed, retested = self.populations[:place], population.client_ids, [nobody], [nobody]
        for each, clients in _last_there(before, there):
            anew = population.versions[population.index(clients)] > each.versions[each.index(clients)]
            changed.append(clients[anew])
            both = np.intersect1d(np.intersect1d(clients[~anew], tested.client_ids), each.evaluated.client_ids)
            others = [client for client in both.tolist() if _are_others(each.test(client), population.test(client))]
            retested += [clients[anew], np.array(others, np.int32)]
        known, previous = self.known_before(self.starts[place]), before[-1].client_ids
        new = np.setdiff1d(there, known)
        arrivals = population.restricted(new) if new.size else None
        left, returned = np.setdiff1d(previous, there), np.setdiff1d(np.intersect1d(there, known), previous)
        different = (np.sort(np.concatenate(each)) for each in (changed, retested))
        return Stage(population, evaluator, arrivals, *different, left, returned, *more)

    def known_before(self, round_number: int) -> np.ndarray:
        """Returns the IDs, ascending, of all clients of the stages that began before a round."""
        begun = [each.client_ids for start, each in zip(self.starts, self.populations) if start < round_number]
        return functools.reduce(np.union1d, begun, np.zeros(0, np.int32))

    def when_there(self, rounds: int) -> dict[int, str]:
        """Returns in which of so many rounds each client is in the population, e.g. "1-19 30-40", by its number."""
        begun = [start for start in self.starts if start <= rounds]
        found: dict[int, list[list[int]]] = {}
        for start, end, population in zip(begun, [*(each - 1 for each in begun[1:]), rounds], self.populations):
            for client in population.client_ids.tolist() if end else ():
                spans = found.setdefault(client, [])
                if spans and spans[-1][1] == start - 1:
                    spans[-1][1] = end
                else:
                    spans.append([max(start, 1), end])
        return {client: " ".join(f"{first}-{last}" for first, last in spans) for client, spans in found.items()}


def taken_by(model: FlatModel, population: Population) -> Population:
    """Returns the clients as a model takes them; UserError if they do not fit it."""
    name, spec = model.objective.name, model.example_spec
    population = fitted(reconstructed(population) if name == RECONSTRUCTION else population, spec)
    classes = 2 if name == LABELS else model.num_classes
    check_examples(population, spec, classes)
    check_tokens(model, population)
    return checked_when_read(population, classes)


def names_of(population: Population) -> dict[int, object]:
    """Returns what each client is called, by its number."""
    return dict(zip(population.client_ids.tolist(), population.shown_ids.tolist(), strict=True))


_CURE = "build it with known=, a population that has all so far"


def why_not_after(before: Population, after: Population, known: Mapping[int, object] | None = None) -> str:
    """Says why a population cannot follow another in a run; "" if it can.

    Args:
      before: The population before.
      after: The one that should follow.
      known: The names by number of all clients of the run; default: those of the population before.
    """
    names = names_of(after)
    there = set(names.values())
    for number, name in (known or names_of(before)).items():
        if names.get(number, name) != name or (number not in names and name in there):
            called = f"called {names[number]}" if number in names else "another client"
            return f"client {name} is {called} in it; {_CURE}"
    rules = [each.table and (each.table.inputs, each.table.columns) for each in (before, after)]
    named = after.label_names not in (None, before.label_names)
    if named and (before.label_names or after.label_names != BOOLS):  # labels that are bools are 0 and 1
        return f"it has other names of labels; {_CURE}"
    if before.group_names and after.group_names and after.group_names[: len(before.group_names)] != before.group_names:
        return f"it has other names of true groups; {_CURE}"
    if None not in rules and rules[0] != rules[1]:
        return f"it has other rules of columns; {_CURE}"
    columns = [frame_columns(each) for each in (before, after)]
    if any(columns[0][part] != columns[1][part] for part in columns[0].keys() & columns[1].keys()):
        return f"its frames have other columns; {_CURE}"
    return ""


def frame_columns(population: Population) -> dict[str, tuple[str, ...]]:
    """Returns the columns of the data frames from which clients in memory were made, see `ClientExamples.columns`."""
    held = population.train_examples.held
    return held[int(population.client_ids[0])].columns if isinstance(held, dict) else {}


def _last_there(before: Sequence[Population], client_ids: np.ndarray) -> Iterator[tuple[Population, np.ndarray]]:
    """Yields each population with those of the given clients that were last in it; newcomers are in none."""
    for population in reversed(before):
        there = np.isin(client_ids, population.client_ids)
        if there.any():
            yield population, client_ids[there]
        client_ids = client_ids[~there]


def _with_versions(before: Sequence[Population], after: Population) -> Population:
    """The population with versions that mark the clients whose data have changed since they were last there; a
    population that marks some client itself is returned unchanged."""
    known = [
        (last, clients, after.index(clients), last.versions[last.index(clients)])
        for last, clients in _last_there(before, after.client_ids)
    ]
    if any((after.versions[rows] > then).any() for _, _, rows, then in known):
        return after
    versions = after.versions.copy()
    for last, clients, rows, then in known:
        versions[rows] = then + [_are_others(last.train(client), after.train(client)) for client in clients.tolist()]
    return dataclasses.replace(after, versions=versions)


def _are_others(old: ClientExamples, new: ClientExamples) -> bool:
    """Whether a client's examples have changed."""
    same_pool = all(one is other for one, other in zip(tf.nest.flatten(old.pool), tf.nest.flatten(new.pool)))
    if old is new or same_pool and old.rows is not None and np.array_equal(old.rows, new.rows):
        return False
    if not np.array_equal(old.y, new.y):
        return True
    leaves = zip(tf.nest.flatten(old.x), tf.nest.flatten(new.x), strict=True)
    return not all(np.array_equal(one, other) for one, other in leaves)


def notes(stages: Stages, rounds: int, views: Views) -> list[str]:
    """Says who joined, whose data changed, and, if the method forms clusters anew, who moved, each with its round.

    Args:
      stages: The stages of the run.
      rounds: How many rounds the run had.
      views: The views of the method's last state.
    """
    found, drifted, arrived_changed = [], np.zeros(0, np.int32), np.zeros(0, np.int32)
    name_of, changed_in = stages.names().__getitem__, {}

    def named(clients) -> str:
        return listed(list(map(name_of, clients)))

    for start in (each for each in stages.starts[1:] if each <= rounds):
        stage = stages.at(start)
        for clients, did in ((stage.left, "left"), (stage.returned, "came back")):
            if clients.size:
                found.append(f"in round {start} {did}: {named(clients)}")
        if stage.changed.size:
            changed_in[start] = stage.changed
            drifted = np.union1d(drifted, stage.changed)
        if stage.arrivals is not None:
            found.append(f"{counted(len(stage.arrivals), 'newcomer')} joined in round {start}")
            changed = stage.arrivals.client_ids[stage.arrivals.versions > 0]
            arrived_changed = np.union1d(arrived_changed, changed)
            if changed_in:  # they held the other data before they joined
                changed_in[max(changed_in)] = np.union1d(changed_in[max(changed_in)], changed)
    for start, changed in changed_in.items():
        found.append(f"from round {start} on these clients held other data: {named(changed)}")
    if views.moves is None:
        return found
    moved, flagged = views.moves.moved_in, views.moves.flagged_in
    for number in np.unique(moved[moved > 0]):
        clients = views.client_ids[moved == number]
        found.append(f"clusters formed anew in round {number}; into another cluster moved: {named(clients)}")
    if flagged is None:
        return found
    if (flagged > 0).any():
        raised = [
            f"{name_of(client)} (round {number})"
            for client, number in zip(views.client_ids, flagged, strict=True)
            if number
        ]
        found.append(f"flags of change: {listed(raised)}")
    silent = np.setdiff1d(drifted, [*views.client_ids[flagged > 0], *arrived_changed])
    if silent.size:
        found.append(
            f"no flag of {named(silent)}: none was asked of them with the new data, or their "
            "answer called for none, as a loss within its bound or one that another model had"
        )
    return found
