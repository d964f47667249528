"""Methods whose clients try all the server's models, to choose one, as in IFCA and FLIS (DC), or to report their
losses, as in CLoVE and FedDrift."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import ClusteredTraining, EngineMethod
from tffcl.algorithms.method import ClusteredState, Exports, Method, Views, own_part
from tffcl.client_work.client_work import sequence_type, stack, stacked_type
from tffcl.client_work.evaluation import FEW, build_choose, build_losses, build_score
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_choose_and_train
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import on_devices
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import session_function
from tffcl.models.layer_parts import require_shared
from tffcl.rounds import privacy_releases
from tffcl.rounds.client_queries import ask_all, build_asking
from tffcl.rounds.composer import Round
from tffcl.rounds.server import models_type
from tffcl.rounds.traffic import Traffic
from tffcl.trace_cache import built_once
from tffcl.validation import tell_once

_TRIED = "choice_examples"  # the field of examples to choose on, if they differ from those to train on
_CRITERIA = {"train_loss": "loss", "validation_loss": "loss", "test_accuracy": "accuracy"}


def has_too_few(composed: Round, cohort: Cohort, hides: bool) -> bool:
    """Whether a round is left out because it has fewer clients than its uploads need, whatever models they train; False
    if the method `hides` who takes part by letting the round run (`Method.hides_empty_rounds`)."""
    needed = composed.members_needed
    if hides or len(cohort.client_ids) >= needed:
        return False
    tell_once(f"a round of fewer than {needed} clients (min_cluster_size) is left out: sums would hide nothing")
    return True


def build_chooser(model: FlatModel, training: LocalTraining, choose_by: str):
    """Builds the choice and the training of a client, see `client_work.training.build_choose_and_train`.

    Returns:
      `(choose_and_train, fields)`; the client work needs these fields besides those of the training.
    """
    fields = {"forced": np.int32}
    tried = "examples" if choose_by == "train_loss" else _TRIED
    if tried == _TRIED:
        fields[_TRIED] = sequence_type(model.example_spec)
    return build_choose_and_train(model, training, _CRITERIA[choose_by], tried), fields


@built_once
def build_choice(model: FlatModel, criterion: str, *, stacked: bool = True) -> tff.Computation:
    """Builds the computation that collects which of the models `float32[?,P]` each client chooses; `criterion` as in
    `evaluation.build_choose`, `stacked` as in `build_trying`."""
    choose, sequence = build_choose(model, criterion), sequence_type(model.example_spec)

    def choose_one(models, examples):
        tried = stack(examples)
        return choose(models, tried["x"], tried["y"])[0]

    return build_asking(models_type(model.size), stacked_type(sequence) if stacked else sequence, choose_one)


@built_once
def build_trying(
    model: FlatModel, num_clusters: int, *, criterion: str = "loss", stacked: bool = False
) -> tff.Computation:
    """Builds the computation that collects every client's losses `float32[K]` under all models `float32[K,P]`.

    Args:
      num_clusters: K.
      criterion: "loss", or "accuracy" for the shares of wrong predictions instead of losses.
      stacked: Whether clients bring their examples as tensors, as in simulations.
    """
    sequence = sequence_type(model.example_spec)
    score = build_score(model, criterion)

    def try_all(models, examples):
        tried = stack(examples)
        scores = tf.map_fn(lambda vector: score(vector, tried["x"], tried["y"]), models, parallel_iterations=1)
        return tf.ensure_shape(scores, [num_clusters])

    return build_asking(models_type(model.size, num_clusters), stacked_type(sequence) if stacked else sequence, try_all)


@built_once
def _build_losses_here(model: FlatModel):
    """Builds `build_losses` for few examples, with `float32 [n]` for those that count, as a function of arrays in this
    process."""
    y = model.example_spec["y"]
    labels = tf.TensorSpec([None, *y.shape], y.dtype)
    losses = build_losses(model, few=True)

    def run(vector, x, y):
        return losses(vector, x, y), tf.sign(model.objective.counts(y))

    return session_function(run, tf.TensorSpec([model.size]), model.x_spec, labels)


def losses_of_few(
    model: FlatModel, models: np.ndarray, population: Population, examples: Callable[[int], object]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean losses of clients with few examples under all models, many clients at once in this process.

    This is for evaluations: asking each client through the runtime takes a millisecond or two, minutes for 200,000.

    Args:
      models: `float32 [K, P]`.
      examples: Maps a client ID to the examples on which it tries the models.

    Returns:
      `(bool [N], float32 [n, K])`: which clients have few examples, and their losses; a loss that is not finite is
      infinite.
    """
    run, few, found, block = _build_losses_here(model), np.zeros(len(population), bool), [], []

    def try_block():
        x = tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *(each.x for each in block))
        y = np.concatenate([each.y for each in block])
        starts = np.cumsum([0, *map(len, block[:-1])])
        sums, sizes = zip(*(np.add.reduceat(run(vector, x, y), starts, axis=1) for vector in models))
        found.append(np.stack(sums, axis=1) / np.maximum(np.stack(sizes, axis=1).astype(float), 1))

    for row, client in enumerate(population.client_ids.tolist()):
        with on_devices():
            own = examples(client)
        few[row] = 0 < len(own) <= FEW
        if not few[row]:
            continue
        if sum(map(len, block)) + len(own) > FEW:
            try_block()
            block = []
        block.append(own)
    if block:
        try_block()
    losses = np.concatenate([np.zeros([0, len(models)]), *found]).astype(np.float32)
    return few, np.where(np.isfinite(losses), losses, np.float32(np.inf))


def notes_of_models(model: FlatModel, used: np.ndarray, num_clusters: int) -> tuple[str, ...]:
    """Returns notes on K different initial models: how given weights were used, and which models have no client.

    Args:
      used: `int [n]`, the models of the clients; with mixtures all models that have a weight.
      num_clusters: K.
    """
    empty, found = num_clusters - len(np.unique(used)), []
    if num_clusters > 1 and model.has_trained_weights:
        found.append(
            f"the weights of {model.name} were trained before: its {num_clusters} models began as these, each with a "
            f"little noise of its own"
        )
    if empty:
        found.append(
            f"no client uses {empty} of the {num_clusters} models; another start, or fewer clusters, may use them all"
        )
    return tuple(found)


class Choosing(Method):
    """A method whose clients choose among the state's models; a client's assignment is its last choice.

    Attributes:
      choose_by: A name in `CHOOSE_BY`.
      criterion: "loss" or "accuracy": whether the best model is the one with the least loss or the best accuracy.
    """

    state_class = ClusteredState
    clients_choose = True

    def __init__(self, model: FlatModel, choose_by: str):
        self.model, self.choose_by, self.criterion = model, choose_by, _CRITERIA[choose_by]

    def chosen_rows(self, models: np.ndarray, population: Population, state=None) -> np.ndarray:
        """Asks every client of a population which row of `models float32 [K, P]` it chooses, `int32 [N]`; where a state
        is given, with the part of the model that the client keeps."""
        own, states = self.model.own, None if state is None else self.own_states(state)
        if own is None or states is None:
            return self._chosen_rows(self.model, models, population)
        ids, found = population.client_ids, np.zeros(len(population), np.int32)
        has = states.has(ids)
        if not has.all():
            found[~has] = self._chosen_rows(self.model, models, population.restricted(ids[~has]))
        for place in np.flatnonzero(has):
            client = ids[place]
            whole = own.parts.joined(own_part(states.value(client)), models)
            found[place] = self._chosen_rows(own.whole, whole, population.restricted([client]))[0]
        return found

    def _chosen_rows(self, model: FlatModel, models: np.ndarray, population: Population) -> np.ndarray:
        examples, found = self._examples_of(population), np.zeros(len(population), np.int32)
        if len(models) == 1:
            return found
        few = np.zeros(len(population), bool)
        if self.criterion == "loss":
            few, losses = losses_of_few(model, models, population, examples)
            found[few] = losses.argmin(axis=1)
        if not few.all():
            found[~few] = self.queried_rows(models, population.restricted(population.client_ids[~few]), model)
        return found

    def queried_rows(
        self, models: np.ndarray, population: Population, model: FlatModel | None = None, **release
    ) -> np.ndarray:
        """Does the same as `chosen_rows`, for devices in a round, not in an evaluation; `release` as in `ask_all`."""
        choice = build_choice(model or self.model, self.criterion)
        return ask_all(choice, models, population, self._examples_of(population), **release)

    def _examples_of(self, population: Population) -> Callable[[int], ClientExamples]:
        """Maps a client ID to the examples that the client chooses on; raises UserError if there are none."""

        def tests(client: int) -> ClientExamples:
            found = population.test(client)
            if not len(found):
                raise UserError(
                    f"client {population.name_of(client)} has no test examples; choose_by 'test_accuracy' lets clients "
                    "choose on them, 'train_loss' does not"
                )
            return found

        return {"validation_loss": population.validation, "test_accuracy": tests}.get(self.choose_by, population.train)

    def choose(self, state: ClusteredState, population: Population) -> ClusteredState:
        assignment = state.assignment.copy()
        assignment[state.index(population.client_ids)] = self.chosen_rows(state.models, population, state)
        return dataclasses.replace(state, assignment=assignment)

    def without_choices(self, state: ClusteredState) -> ClusteredState:
        return dataclasses.replace(state, assignment=np.zeros_like(state.assignment))

    def models_for(self, state: ClusteredState, client_ids):
        return state.models, state.clusters(client_ids)

    def admit(self, state: ClusteredState, newcomers: Population) -> ClusteredState:
        """Newcomers choose as all others do."""
        check_newcomers(state, newcomers)
        return dataclasses.replace(state, **extended(state, newcomers, self.chosen_rows(state.models, newcomers)))

    def views(self, state: ClusteredState) -> Views:
        leak = "choose_by 'test_accuracy': clients choose among models by accuracy on their own test images"
        return Views(state.client_ids, state.assignment, notes=(leak,) if self.choose_by == "test_accuracy" else ())

    def start(self, population: Population, models: np.ndarray, aggregators) -> ClusteredState:
        """Returns the state before any client has chosen, with all clients in cluster 0.

        Raises:
          UserError: If a client lacks the test examples for "test_accuracy", or the validation examples.
        """
        examples = self._examples_of(population)
        with on_devices():  # devices know their own examples
            for client in population.read_before if self.choose_by != "train_loss" else ():
                examples(client)
        return ClusteredState(population.client_ids, np.zeros(len(population), np.int32), models, aggregators)

    def tried(self, cohort: Cohort) -> dict[str, list]:
        """Returns the field of the examples on which the clients of a round choose, if not their training examples."""
        if self.choose_by == "train_loss":
            return {}
        examples = self._examples_of(cohort.population)
        with on_devices():
            return {_TRIED: [examples(client).stacked for client in cohort.client_ids]}


class TryingMethod(EngineMethod):
    """A method whose clients report their losses under all models, and train the models that the server gives them.

    The losses of a round count as signature traffic: each client receives all models and sends K numbers. Then it
    receives the model of its cluster; a device that keeps all models would not need that.
    """

    def __init__(self, name: str, engine: ClusteredTraining, *, when: str, criterion: str = "loss"):
        """Makes the method; `when` says in the manifest when clients are asked and what follows, `criterion` is as in
        `build_trying`."""
        super().__init__(name, engine)
        require_shared(self.model, f"{name} asks clients for their losses under all models before they train")
        self._when, self._criterion = when, criterion

    def tried(self, state: ClusteredState, population: Population, *, released: bool = True) -> np.ndarray:
        """Asks every client for its losses `float32 [N, K]` under all models; this is a release unless it is for an
        evaluation."""
        trying = build_trying(self.model, len(state.models), criterion=self._criterion, stacked=True)
        release = privacy_releases.of_all("the losses", population) if released else None
        return ask_all(trying, state.models, population, release=release)

    def tried_traffic(self, state: ClusteredState) -> Traffic:
        """Returns the traffic of a client that is asked."""
        return Traffic(state.models.nbytes, 4 * len(state.models))

    def joined_traffic(self, before: ClusteredState | None, after: ClusteredState) -> Traffic:
        """No client is asked before the first round; newcomers are asked when they join."""
        if before is None:
            return Traffic()
        return self.tried_traffic(before) * (len(after.client_ids) - len(before.client_ids))

    def hides_empty_rounds(self, state: ClusteredState) -> bool:
        return False  # the losses show who takes part

    def exports(self) -> Exports:
        found = self.engine.exports(when={"losses": self._when})

        def build_for(values):
            trying = build_trying(self.model, len(values["models"]), criterion=self._criterion)
            return {"losses": trying, **found.build_for(values)}

        one = {"models": self.model.initial[np.newaxis]}
        return dataclasses.replace(found, build_for=build_for, build=lambda: build_for(one))
