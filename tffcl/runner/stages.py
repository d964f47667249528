"""Who takes part in a round and with what data, where that changes in the middle of a run."""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.runner.evaluator import Evaluator


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
          later: Round, from 1, to the population from then on. Its clients are those of the one before, newcomers, and clients
            whose `versions` say that their data have changed.

        Raises:
          UserError: If a client of one population is missing in a later one, or called something else.
        """
        self._model = model
        self.starts = [0, *sorted(later or {})]
        self.populations = [population, *(later[start] for start in self.starts[1:])] if later else [population]
        for before, after, start in zip(self.populations, self.populations[1:], self.starts[1:]):
            gone = np.setdiff1d(before.client_ids, after.client_ids)
            if start < 1 or gone.size:
                reason = f"client {gone[0]} is missing in it" if gone.size else "rounds count from 1"
                raise UserError(f"the population from round {start} on cannot follow the one before: {reason}")
            same = after.restricted(before.client_ids)
            if not np.array_equal(before.shown_ids, same.shown_ids):
                row = int(np.flatnonzero(before.shown_ids != same.shown_ids)[0])
                reason = f"client {before.shown_ids[row]} is called {same.shown_ids[row]} in it; build it with known="
                raise UserError(f"the population from round {start} on cannot follow the one before: {reason}")
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
        versions = before.versions[before.index(np.setdiff1d(population.client_ids, new))]
        stayed = np.setdiff1d(population.client_ids, new)
        changed = stayed[population.versions[population.index(stayed)] > versions]
        return Stage(population, evaluator, population.restricted(new) if new.size else None, changed, *more)
