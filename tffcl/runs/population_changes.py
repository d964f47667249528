"""Who takes part in a round and with what data, where that changes in the middle of a run, and what is said of it."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tffcl.algorithms.method import Views
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.runs.evaluator import Evaluator

_MOST_NAMED = 20  # clients in a note


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """The clients of some consecutive rounds.

    Attributes:
      population: Those who take part.
      evaluator: Of their test examples.
      arrivals: Those of them who were not there in the stage before, or None.
      changed: Clients with other data than in the stage before, `int32 [n]`, ascending.
      initial: The model before any training, `float32 [P]`.
      validator: Of their validation examples; None without.
    """

    population: Population
    evaluator: Evaluator
    arrivals: Population | None
    changed: np.ndarray
    initial: np.ndarray
    validator: Evaluator | None = None

    @functools.cached_property
    def untrained(self) -> np.ndarray:
        """The initial model's accuracy on each client's test examples, `float64 [N]`: that of a client that
        never trained.
        """
        own = Evaluator(self.evaluator.model, self.population)
        return own.cluster_accuracy(self.initial[np.newaxis], np.zeros(len(self.population), int))


class Stages:
    """The stages of a run: which population holds from which round on.

    Attributes:
      starts: The rounds with which a stage begins, ascending; 0 is what there is before the first.
      populations: The population of each.
    """

    def __init__(self, model: FlatModel, population: Population, later: Mapping[int, Population] | None = None):
        """Puts the stages in order.

        Args:
          model: The architecture, for evaluation.
          population: Before the first round.
          later: Round, from 1, to the population from then on. Its clients are those of the one before and newcomers.
            Whose training data changed is said by `versions` above those before; where none is, by the examples
            themselves.

        Raises:
          UserError: If a client of one population is missing in a later one, or called something else.
        """
        self._model = model
        self.starts = [0, *sorted(later or {})]
        self.populations = [population]
        for start in self.starts[1:]:
            if reason := _why_not_after(self.populations[-1], later[start]):
                raise UserError(f"the population from round {start} on cannot follow the one before: {reason}")
            self.populations.append(_with_versions(self.populations[-1], later[start]))
        # A cache of this object, not of the class: that would keep the data of every run until the process ends.
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

    def _place(self, round_number: int) -> int:
        return int(np.searchsorted(self.starts, round_number, side="right")) - 1

    def _make_stage(self, place: int) -> Stage:
        population, nobody = self.populations[place], np.zeros(0, np.int32)
        evaluator, held = Evaluator(self._model, population), population.pooled_validation
        more = self._model.initial, None if held is None else Evaluator(self._model, population, tests=held)
        if place == 0:
            return Stage(population, evaluator, None, nobody, *more)
        before = self.populations[place - 1]
        new = np.setdiff1d(population.client_ids, before.client_ids)
        changed = before.client_ids[population.versions[population.index(before.client_ids)] > before.versions]
        return Stage(population, evaluator, population.restricted(new) if new.size else None, changed, *more)


def _why_not_after(before: Population, after: Population) -> str:
    """Says why a population cannot follow another in a run; "" if it can."""
    gone = set(before.shown_ids.tolist()) - set(after.shown_ids.tolist())
    if gone:
        more = f", and {len(gone) - 1} more" if len(gone) > 1 else ""
        return f"client {min(gone, key=str)} is missing in it{more}"
    names = dict(zip(after.client_ids.tolist(), after.shown_ids.tolist(), strict=True))
    for number, name in zip(before.client_ids.tolist(), before.shown_ids.tolist(), strict=True):
        if names.get(number) != name:
            called = f"called {names[number]}" if number in names else "another client"
            return f"client {name} is {called} in it; build it with known="
    return ""


def _with_versions(before: Population, after: Population) -> Population:
    """The population with versions that say whose data are others than before, unless it says so of anyone itself."""
    rows = after.index(before.client_ids)
    if (after.versions[rows] > before.versions).any():
        return after
    versions = after.versions.copy()
    versions[rows] = before.versions + [_differ(before, after, int(client)) for client in before.client_ids]
    return dataclasses.replace(after, versions=versions)


def _differ(before: Population, after: Population, client: int) -> bool:
    """Whether a client has other training examples than before."""
    old, new = before.train(client), after.train(client)
    if old is new:
        return False
    leaves = zip(tf.nest.flatten(old.stacked), tf.nest.flatten(new.stacked), strict=True)
    return not all(np.array_equal(one, other) for one, other in leaves)


def notes(stages: Stages, rounds: int, views: Views) -> list[str]:
    """Says who joined and whose data changed when, and for methods that form their clusters anew who moved when.

    Args:
      stages: Of the run.
      rounds: How many the run had.
      views: Of the method's last state.
    """
    found, drifted, arrived_changed = [], np.zeros(0, np.int32), np.zeros(0, np.int32)
    name_of, changed_in = stages.at(rounds).population.name_of, {}
    for start in (each for each in stages.starts[1:] if each <= rounds):
        stage = stages.at(start)
        if stage.changed.size:
            changed_in[start] = stage.changed
            drifted = np.union1d(drifted, stage.changed)
        if stage.arrivals is not None:
            found.append(f"{len(stage.arrivals)} newcomers joined in round {start}")
            changed = stage.arrivals.client_ids[stage.arrivals.versions > 0]
            arrived_changed = np.union1d(arrived_changed, changed)
            if changed_in:  # they held the other data before they joined
                changed_in[max(changed_in)] = np.union1d(changed_in[max(changed_in)], changed)
    for start, changed in changed_in.items():
        found.append(f"from round {start} on these clients held other data: {_listed(list(map(name_of, changed)))}")
    if views.moves is None:
        return found
    moved, flagged = views.moves.moved_in, views.moves.flagged_in
    for number in np.unique(moved[moved > 0]):
        clients = views.client_ids[moved == number]
        found.append(
            f"clusters formed anew after round {number}; into another cluster moved: "
            f"{_listed(list(map(name_of, clients)))}"
        )
    if (flagged > 0).any():
        raised = [
            f"{name_of(client)} (round {number})"
            for client, number in zip(views.client_ids, flagged, strict=True)
            if number
        ]
        found.append(f"flags of change: {_listed(raised)}")
    silent = np.setdiff1d(drifted, [*views.client_ids[flagged > 0], *arrived_changed])
    if silent.size:
        found.append(
            f"no flag of {_listed(list(map(name_of, silent)))}: they did not train on the new data before clusters "
            "were formed anew, or at all"
        )
    return found


def _listed(items: Sequence) -> str:
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return ", ".join(str(item) for item in list(items)[:_MOST_NAMED]) + more
