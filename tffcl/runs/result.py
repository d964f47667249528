"""The results of a run, as Python objects."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from tffcl import runtime
from tffcl.algorithms.method import Method
from tffcl.client_work.evaluation import build_mixed_outputs, build_predict, build_probabilities
from tffcl.clients.arrays import index_of
from tffcl.clients.client_examples import columns_of
from tffcl.clients.example_types import as_taken
from tffcl.clients.population import Population
from tffcl.clients.sources import check_columns
from tffcl.display import Shown, counted, percent
from tffcl.errors import UserError
from tffcl.files import read_table
from tffcl.models.flat import FlatModel
from tffcl.models.from_keras import keras_mixture, keras_with
from tffcl.models.graph_function import graph_function
from tffcl.models.model_rows import assigned
from tffcl.runs import checks
from tffcl.runs.evaluator import not_taken
from tffcl.runs.metrics import ACCURACIES
from tffcl.runs.population_changes import frame_columns, names_of, taken_by, why_not_after
from tffcl.runs.run import chooses_at_evaluations, shown_views
from tffcl.runs.run_directory import CLIENTS, RunDirectory
from tffcl.trace_cache import built_once
from tffcl.validation import check_kind

_NAMES = ("client_id", "true_cluster", "rounds_there")  # columns of clients.csv that are not numbers


@dataclasses.dataclass(frozen=True, eq=False)
class Trained(Shown):
    """A method with the state that it has learned.

    Attributes:
      method: The method.
      state: The state of the method after `round_number`.
      population: The clients that took part.
      round_number: The number of rounds that led to this state.
      names: The name of each client that the state may know, by its number; also of clients that have left.
      asked: `int32 [m]`, the clients that have chosen their model in this state, where clients choose. Default:
        `population.evaluated`.
    """

    method: Method
    state: object
    population: Population
    round_number: int
    names: Mapping[int, object]
    asked: np.ndarray = dataclasses.field(default=None, kw_only=True)  # type: ignore[arg-type]

    def __post_init__(self):
        if self.asked is None:
            object.__setattr__(self, "asked", self.population.evaluated.client_ids)

    def facts(self):
        """The method, the number of rounds, and the clients."""
        return {
            "method": self.method.name,
            "after round": self.round_number,
            "clients": len(self.population),
            "clusters": shown_views(self.method, self.state, self.population, self.asked).found,
        }

    def cluster_of(self, client) -> int:
        """Returns a client's cluster. A client that was not asked chooses now; UserError if it did not take part."""
        own = self.population.id_of(client)
        views = self.method.views(self._state_of(own))
        # The state may know more clients than the population.
        return int(views.clusters[index_of(views.client_ids, own)[0]])

    def _state_of(self, client: int):
        """The state in which a client has chosen. If an evaluation asks only some of very many clients, a client that
        was not asked chooses now."""
        if not chooses_at_evaluations(self.method) or client in self.asked:
            return self.state
        runtime.use_local_worker()
        return self.method.choose(self.state, self.population.restricted([client]))

    def admit(self, population: Population) -> "Trained":
        """Lets the new clients of a population join, and returns a `Trained` for that population; nobody trains.

        What newcomers release, such as their signatures, is in no run's ledger. To have it counted, let newcomers join
        in a run by `later` of `train`.

        Args:
          population: The newcomers, and perhaps clients that are known; made with `known=` the population so far.

        Raises:
          UserError: If no client in it is new, a newcomer cannot be told from the clients so far, or the method takes
            no newcomers or not these.
        """
        check_kind("population", population, Population, "a tffcl.Population")
        if reason := why_not_after(self.population, population, self.names):
            raise UserError(f"these clients cannot join: {reason}")
        population = taken_by(self.method.model, population)
        # The state may know more clients than the population.
        new = np.setdiff1d(population.client_ids, self.method.views(self.state).client_ids)
        if not new.size:
            raise UserError("these clients have taken part; admit lets those join that are new in a population")
        runtime.use_local_worker()
        state = checks.admitted(self.method, self.state, population.restricted(new))
        names = {**self.names, **names_of(population)}
        asked = np.union1d(self.asked, new)
        return dataclasses.replace(self, state=state, population=population, names=names, asked=asked)

    def mixture_of(self, client) -> tuple[np.ndarray, np.ndarray]:
        """Returns the models that a client uses, `float32 [k, P]`, and their weights `float32 [k]`, which sum to one.
        There is one model unless the method mixes several. Raises UserError if the client did not take part."""
        own: Any = np.array([self.population.id_of(client)], np.int32)
        models, given = self.method.used_models(self._state_of(own[0]), own)
        rows, weights = assigned(given).of(0)
        return models[rows], weights

    def model_of(self, client) -> np.ndarray:
        """Returns the model that a client uses, `float32 [P]`.

        Raises:
          UserError: If the client did not take part, or uses a mixture of several models.
        """
        models, weights = self.mixture_of(client)
        if len(models) > 1:
            shown = ", ".join(f"{weight:.2g}" for weight in weights)
            raise UserError(
                f"client {client} uses a mixture of {len(models)} models, with the weights {shown}, which is no single "
                "model: mixture_of gives them, predict its answers, keras_model_of a Keras model of it"
            )
        return models[0]

    def keras_model_of(self, client) -> tf.keras.Model:
        """Returns the model that a client uses as a new Keras model, to train further, to save or to serve.

        It gives the same outputs as the Keras model of `FlatModel.from_keras`, with logits where that one gives logits.
        A mixture of models gives probabilities, or numbers: the weighted mean of what its models predict. For methods
        with personal models, such as Ditto, it is the client's own model as it was after the client's last round.

        Raises:
          UserError: If the client did not take part, or the method's model was not made by `FlatModel.from_keras`.
        """
        models, weights = self.mixture_of(client)
        if len(models) == 1:
            return keras_with(self.method.model.whole, models[0])
        return keras_mixture(self.method.model, models, weights)

    def predict(self, client, x: np.ndarray, *, probabilities: bool = False) -> np.ndarray:
        """Returns the predictions of a client's model, or of its mixture of models.

        Args:
          client: The client whose model predicts.
          x: Examples `[n, ...]` as the model takes them; for several inputs a mapping of their names to arrays.
          probabilities: Whether to return the probability of each class, also where the Keras model gives logits.

        Returns:
          Labels `int32 [n]`, -1 where the outputs are not finite, or probabilities `float32 [n, classes]`; sequences of
          labels have one more axis.

        Raises:
          UserError: If the client did not take part, the examples' type or shape is not the data's, entries are NaN,
            infinite or masked, or the model cannot be computed on them.
        """
        known = frame_columns(self.population)
        check_columns(columns_of(x), known, "the columns of the examples are", "those of the clients")
        try:
            x = as_taken(x, self.method.model.example_spec["x"], "the examples")
        except UserError as error:
            of_table = hasattr(x, "columns") and self.population.table is not None
            cure = "; of rows as from_frame was given, clients.features_of(frame) makes examples" if of_table else ""
            raise UserError(f"{error}{cure}") from None
        models, weights = self.mixture_of(client)
        own = (models[0],) if len(models) == 1 else (models, weights)
        try:
            return _predictor(self.method.model.whole, probabilities, len(own) > 1)(*own, x).numpy()
        except tf.errors.InvalidArgumentError as error:
            raise not_taken(self.method.model, "one of the examples", error) from None


@built_once
def _predictor(model: FlatModel, probabilities: bool, mixture: bool):
    """Builds a function that predicts with a model's vector, or with several models' vectors and their weights."""
    answers = build_probabilities(model) if probabilities else build_predict(model)
    if not mixture:
        return graph_function(answers, tf.TensorSpec([model.size]), model.x_spec)
    mixed = build_mixed_outputs(model)
    means: Callable = model.objective.predictions
    if probabilities:
        means = model.objective.probabilities  # type: ignore[assignment]  # build_probabilities refuses numbers
    specs = tf.TensorSpec([None, model.size]), tf.TensorSpec([None]), model.x_spec
    return graph_function(lambda models, weights, x: means(mixed(models, weights, x)), *specs)


@dataclasses.dataclass(frozen=True, eq=False)
class Result(Shown):
    """A finished run.

    Attributes:
      summary: The contents of summary.json.
      trained: The method and its state after the last round.
      out: Directory of the run's files.
      round_columns: rounds.csv, float arrays `[R]` by column; NaN where a cell is empty.
      client_columns: clients.csv, arrays `[N]` by column.
    """

    summary: dict
    trained: Trained
    out: pathlib.Path
    round_columns: Mapping[str, np.ndarray]
    client_columns: Mapping[str, np.ndarray]

    @classmethod
    def read(cls, trained: Trained, out: str | pathlib.Path) -> "Result":
        """Returns the result of a finished run from its files, where numbers in clients.csv have nine digits.

        Args:
          trained: The method and its state after the last round.
          out: Directory of the run's files.

        Raises:
          UserError: If a file is missing or damaged.
        """
        directory = RunDirectory(out)
        rounds, clients, who = directory.rounds(), read_table(directory / CLIENTS, ["client_id"]), trained.population
        columns: dict = {name: clients.numbers(name) for name in clients.names if name not in _NAMES}
        columns = {"client_id": who.shown_ids, "true_cluster": who.shown_groups, **columns}
        if "rounds_there" in clients.names:
            columns["rounds_there"] = clients.texts("rounds_there")
        summary = directory.summary() or {}
        # Rows after these are of a longer run that was killed before it saved any of its rounds.
        by_round = {name: rounds.floats(name)[: summary.get("rounds")] for name in rounds.names}
        return cls(summary, trained, directory.path, by_round, columns)

    def __reduce__(self):
        raise UserError(
            "a result cannot be pickled or copied, as its method is functions and graphs; take its summary, rounds and "
            f"clients, or its directory: the same call with resume=True reads {self.out} again"
        )

    @property
    def rounds(self) -> pd.DataFrame:
        """The columns of rounds.csv, with one row for each round."""
        return pd.DataFrame(dict(self.round_columns))

    @property
    def clients(self) -> pd.DataFrame:
        """The columns of clients.csv, with one row for each client, without columns that are empty."""
        return pd.DataFrame({name: column for name, column in self.client_columns.items() if column is not None})

    def model_of(self, client) -> np.ndarray:
        """Returns the model that a client uses, see `Trained.model_of`."""
        return self.trained.model_of(client)

    def mixture_of(self, client) -> tuple[np.ndarray, np.ndarray]:
        """Returns the models that a client uses and their weights, see `Trained.mixture_of`."""
        return self.trained.mixture_of(client)

    def keras_model_of(self, client) -> tf.keras.Model:
        """Returns the model that a client uses as a Keras model, see `Trained.keras_model_of`."""
        return self.trained.keras_model_of(client)

    def admit(self, population: Population) -> Trained:
        """Lets clients join after the run and returns a `Trained` for them, see `Trained.admit`."""
        return self.trained.admit(population)

    def predict(self, client, x: np.ndarray, *, probabilities: bool = False) -> np.ndarray:
        """Returns the predictions of a client's model, see `Trained.predict`."""
        return self.trained.predict(client, x, probabilities=probabilities)

    def facts(self):
        """The main results of the run."""
        accuracies = {f"{kind} accuracy": percent(mean) for kind, mean in self._means("accuracy").items()}
        for name in [each for each in self.summary.get("metrics", {}) if each != "accuracy"]:
            accuracies |= {f"{kind} {name}": f"{mean:.4g}" for kind, mean in self._means("metrics", name).items()}
        rest = {"clusters": self.summary["clusters"]["count"], "rounds": self.summary["rounds"], "files": self.out}
        return {"method": self.summary["algorithm"], **accuracies, **rest}

    def _means(self, *place: str) -> dict[str, float]:
        """The means over clients at one place in the summary, by `cluster`, `local` and `global`."""
        found = functools.reduce(dict.__getitem__, place, self.summary)
        means = {kind: found[kind]["mean"] for kind in ACCURACIES}
        return {kind: mean for kind, mean in means.items() if mean is not None}

    def __repr__(self) -> str:
        means = ", ".join(f"{kind} {100 * mean:.2f} %" for kind, mean in self._means("accuracy").items())
        first = next(iter(self.summary.get("metrics", {})), None)
        if first and not means:  # e.g. if labels are numbers
            means = ", ".join(f"{kind} {first} {mean:.4g}" for kind, mean in self._means("metrics", first).items())
        rounds = counted(self.summary["rounds"], "round")
        clusters = counted(self.summary["clusters"]["count"], "cluster")
        return f"Result({self.summary['algorithm']} after {rounds}: {means or 'no accuracies'}; {clusters}; {self.out})"
