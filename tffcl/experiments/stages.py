"""Who takes part in a round and with what data, where that changes in the middle of a run."""

import dataclasses
import functools

import numpy as np

from tffcl.algorithms.contracts import Population
from tffcl.clients import sampling
from tffcl.datasets.core import FederatedDataset
from tffcl.datasets.drift import drifted, drifting_clients
from tffcl.experiments.config import RunConfig
from tffcl.experiments.populations import build_population
from tffcl.models.flat import FlatModel
from tffcl.runner.evaluator import Evaluator, build_evaluator


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """The clients of some consecutive rounds.

    Attributes:
      federated: Who holds what.
      population: Those who take part.
      evaluator: Of their test images.
      arrivals: Those of them who were not there in the stage before, or None.
      changed: Clients with other data than in the stage before, `int [n]`.
    """

    federated: FederatedDataset
    population: Population
    evaluator: Evaluator
    arrivals: Population | None
    changed: np.ndarray


class Stages:
    """The stages of a run: from `newcomers.round` on the held-out clients take part, from `drift.round` on data have changed.

    Attributes:
      drifting: Whose data change, `int [n]`.
    """

    def __init__(self, config: RunConfig, federated: FederatedDataset, model: FlatModel):
        self._config, self._federated, self._model = config, federated, model
        # Caches of this object, not of the class: that would keep the data of every run until the process ends.
        self._stage, self._parts = functools.cache(self._make_stage), functools.cache(self._make_parts)
        seed = config.seed
        self._participants, self._newcomers = sampling.hold_out(federated.num_clients, config.newcomers.clients, seed)
        self.drifting = np.zeros(0, np.int64)
        if config.drift.clients:
            self.drifting = drifting_clients(federated, config.drift.clients, seed=sampling.stream(seed, "drift"))

    def clients(self, round_number: int) -> np.ndarray:
        """Who takes part in a round, ascending IDs."""
        joined, _ = self._key(round_number)
        return np.arange(self._federated.num_clients) if joined else self._participants

    def at(self, round_number: int) -> Stage:
        """The stage that a round is in; round 0 is what there is before the first."""
        return self._stage(*self._key(round_number), *self._key(round_number - 1))

    def starts(self, round_number: int) -> bool:
        """Whether a stage other than the first starts with this round."""
        return round_number > 1 and self._key(round_number) != self._key(round_number - 1)

    def _key(self, round_number: int) -> tuple[bool, bool]:
        newcomers, drift = self._config.newcomers, self._config.drift
        return 0 < newcomers.round <= round_number, bool(drift.clients) and drift.round <= round_number

    def _make_stage(self, joined: bool, changed: bool, were_joined: bool, had_changed: bool) -> Stage:
        federated, population, evaluator = self._parts(joined, changed)
        new = joined and not were_joined
        arrivals = build_population(federated, self._newcomers, changed=self.drifting if changed else ()) if new else None
        drifting = self.drifting if changed and not had_changed else self.drifting[:0]
        return Stage(federated, population, evaluator, arrivals, np.sort(drifting))

    def _make_parts(self, joined: bool, changed: bool):
        federated = drifted(self._federated, self.drifting) if changed else self._federated
        clients = np.arange(federated.num_clients) if joined else self._participants
        population = build_population(federated, clients, changed=self.drifting if changed else ())
        return federated, population, build_evaluator(self._model, federated, clients)
