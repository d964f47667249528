"""Who takes part in a round and with what data, where that changes in the middle of a run."""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.runs.evaluator import Evaluator


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
        """The initial model's accuracy on each client's test examples, `float64 [N]`: that of a client that never trained."""
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
          later: Round, from 1, to the population from then on. Its clients are those of the one before and newcomers. Whose
            training data changed is said by `versions` above those before; where none is, by the examples themselves.

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
        evaluator, held = Evaluator(self._model, population), population.validation
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
    if before.arrays is None and after.arrays is None and before.examples(client) is after.examples(client):
        return False
    old, new = before.stacked(client), after.stacked(client)
    return any(old[name] is not new[name] and not np.array_equal(old[name], new[name]) for name in "xy")
