"""A method as a stranger writes it, from the contract alone; and the same with mistakes that the checks must find."""

import dataclasses

import numpy as np

from tffcl.algorithms.clustered_training import build_clustered_round, round_computations
from tffcl.algorithms.method import Exports, Method, Views
from tffcl.clients.arrays import index_of
from tffcl.errors import UserError
from tffcl.rounds.simulation import run_round
from tffcl.rounds.traffic import Traffic


@dataclasses.dataclass(frozen=True, eq=False)
class ByParityState:
    ids: np.ndarray
    weights: dict[str, np.ndarray]


class ByParity(Method):
    """Clients of even and of odd IDs train a model each."""

    name = "by_parity"
    state_class = ByParityState

    def __init__(self, model, training):
        self.model, self._round = model, build_clustered_round(model, training)

    def initialize(self, population):
        return ByParityState(population.client_ids, {"models": np.repeat(self.model.initial[np.newaxis], 2, axis=0)})

    def next(self, state, cohort):
        keys = np.asarray(cohort.client_ids) % 2
        index_of(state.ids, cohort.client_ids)
        result = run_round(
            self._round, cohort, state.weights, self._round.initial_aggregators, key=keys.astype(np.int32)
        )
        return dataclasses.replace(state, weights=dict(result.values)), result.metrics(cohort, keys)

    def models_for(self, state, client_ids):
        index_of(state.ids, client_ids)
        return state.weights["models"], (np.asarray(client_ids) % 2).astype(np.int32)

    def admit(self, state, newcomers):
        known = np.intersect1d(state.ids, newcomers.client_ids)
        if known.size:
            raise UserError(f"client {known[0]} is known already")
        return dataclasses.replace(state, ids=np.union1d(state.ids, newcomers.client_ids))

    def views(self, state):
        return Views(state.ids, (state.ids % 2).astype(np.int32))

    def exports(self):
        first = {"models": self.model.initial[np.newaxis]}
        return Exports(lambda: round_computations(self._round, first), server_values=lambda state: state.weights)


class ChangesTheState(ByParity):
    """Writes the next models into the given state."""

    def next(self, state, cohort):
        after, metrics = super().next(state, cohort)
        state.weights.update(after.weights)
        return after, metrics


class Remembers(ByParity):
    """Keeps something of earlier rounds in the object, where no checkpoint finds it."""

    momentum = 0.0

    def next(self, state, cohort):
        after, metrics = super().next(state, cohort)
        self.momentum = 0.5 * self.momentum + after.weights["models"] - state.weights["models"]
        return dataclasses.replace(after, weights={"models": state.weights["models"] + self.momentum}), metrics


class MovesMissedClusters(ByParity):
    """Moves all models a little in every round."""

    def next(self, state, cohort):
        after, metrics = super().next(state, cohort)
        return dataclasses.replace(after, weights={"models": after.weights["models"] + np.float32(0.001)}), metrics


class CountsTooMuch(ByParity):
    """Counts a number that is never sent."""

    def next(self, state, cohort):
        after, metrics = super().next(state, cohort)
        return after, dataclasses.replace(metrics, traffic=metrics.traffic + Traffic(0, 4))


class NewcomersReset(ByParity):
    """Starts anew when someone joins."""

    def admit(self, state, newcomers):
        models = np.zeros_like(state.weights["models"])
        return dataclasses.replace(super().admit(state, newcomers), weights={"models": models})
