"""A method under test: its builder, its clients, and the few rounds that all checks share."""

import contextlib
import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.clients import client_state
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import simulating
from tffcl.errors import UserError
from tffcl.export import deployment_forms as forms
from tffcl.export.dry_run import recording, rehearse, synthetic_examples
from tffcl.models.model_rows import assigned
from tffcl.runs import checkpoints
from tffcl.runtime import use_local_worker

SEED = 7


class DoesNotApply(Exception):
    """A check asks for something that the method has not; the message says what."""


@dataclasses.dataclass(frozen=True, eq=False)
class Exported:
    """A run's export.

    Attributes:
      directory: Where it is.
      manifest: The contents of manifest.json.
      lines: What `check_export` said.
    """

    directory: pathlib.Path
    manifest: Mapping
    lines: list[str]


@dataclasses.dataclass(frozen=True, eq=False)
class After:
    """What a round gave: the state, the metrics, the state's numbers as they were then, and what was computed."""

    state: object
    metrics: object
    numbers: Mapping[str, np.ndarray]
    calls: list = dataclasses.field(default_factory=list)


class Subject:
    """A method, some clients, and what became of them; every part is made when a check first asks for it, and once.

    The first round is of all clients, the second of a few of them, the third of a single one.
    """

    def __init__(
        self,
        build: Callable,
        population: Population,
        newcomers: Population,
        *,
        two_workers: Callable | None = None,
        export: Callable[[], Exported] | None = None,
    ):
        """Makes a subject.

        Args:
          build: `() -> method`, a new object each time.
          population: Who takes part, 5 clients at least.
          newcomers: Who joins later.
          two_workers: A context manager in which two workers compute; it yields the workers. None: there are none.
          export: Runs the method, exports what came of it and checks that, for a method that a task can name. None: the
            computations are looked at in memory.
        """
        self._export = export
        self.build, self.population, self.newcomers, self.two_workers = build, population, newcomers, two_workers
        self._files = tempfile.TemporaryDirectory(prefix="conformance-")
        ids = population.client_ids
        self.cohorts = [self.cohort(each, number) for number, each in enumerate((ids, ids[1:-1:2], ids[2:3]), 1)]

    def close(self):
        self._files.cleanup()

    @contextlib.contextmanager
    def running(self):
        """This machine's worker computes, and what clients keep has its files here."""
        use_local_worker()
        with simulating(client_states=client_state.KeptStore(pathlib.Path(self._files.name))):
            yield

    def cohort(self, clients, number: int, population: Population | None = None) -> Cohort:
        clients = np.asarray(clients, np.int32)
        return Cohort(population or self.population, clients, (SEED, number), np.ones(len(clients), bool))

    @functools.cached_property
    def everyone(self) -> Population:
        """The clients and the newcomers."""
        return _together(self.population, self.newcomers)

    @functools.cached_property
    def method(self):
        return self.build()

    @functools.cached_property
    def start(self):
        return self.method.initialize(self.population)

    def run(self, state, number: int) -> After:
        """Runs a round on a state; UserError where the method has a reason not to."""
        state, metrics = self.method.next(state, self.cohorts[number - 1])
        return After(state, metrics, self.numbers(state))

    @functools.cached_property
    def first(self) -> After:
        return self._recorded(self.start, 1)

    def _recorded(self, state, number: int) -> After:
        with recording(tff.framework.get_context_stack().current) as calls:
            return dataclasses.replace(self.run(state, number), calls=calls)

    @functools.cached_property
    def second(self) -> After:
        return self._recorded(self.first.state, 2)

    @functools.cached_property
    def third(self) -> After | None:
        """None for a method that needs more clients in a round than one."""
        with contextlib.suppress(UserError):
            return self.run(self.second.state, 3)
        return None

    @functools.cached_property
    def computations(self) -> Mapping[str, tff.Computation]:
        return self.method.exports().build()

    @functools.cached_property
    def exported(self) -> Exported | None:
        return self._export() if self._export else None

    @functools.cached_property
    def forms(self) -> Mapping[str, Mapping[str, tff.Computation] | str]:
        """Of each exported computation that takes clients the parts of its MapReduceForm, or the reason why
        there is none.
        """
        taking = [name for name, each in self.computations.items() if each.type_signature.parameter is not None]
        return {name: self._form_from_files(name) if self.exported else self._form(name) for name in taking}

    def _form_from_files(self, name: str):
        described = self.exported.manifest["computations"][name]["forms"]["map_reduce"]
        if "impossible" in described:
            return described["impossible"]
        return forms.read_form(self.exported.directory / described["directory"], "map_reduce")

    def _form(self, name: str):
        try:
            form = forms.build_form("map_reduce", self.computations[name])
        except TypeError as error:
            return str(error)
        return {part: getattr(form, part) for part in forms.PARTS["map_reduce"]}

    @functools.cached_property
    def arguments(self) -> Mapping[str, tuple]:
        """What the exported computations are given in a round, of clients with random images."""
        context = tff.framework.get_context_stack().current
        return rehearse(
            self.method, self.computations, self.second.state, synthetic_examples(self.method.model), context
        )

    def numbers(self, state) -> dict[str, np.ndarray]:
        """Copies of all arrays of a state, and of what each client keeps, by place."""
        arrays, _ = checkpoints.pack({"state": state}, with_client_states=False)
        found = {place: np.array(array) for place, array in arrays.items()}
        ids = self.everyone.client_ids
        for place, values in _kept_in(state, "kept"):
            found[f"{place}.has"] = values.has(ids)
            for client, value in zip(ids, values.of(ids)):
                found |= {f"{place}.{client}.{n}": np.array(leaf) for n, leaf in enumerate(tf.nest.flatten(value))}
        return found

    def models(self, state, client_ids=None) -> np.ndarray:
        """The model of each client, `[n, P]`, of a mixture the mean; by default of the population's."""
        ids = self.population.client_ids if client_ids is None else client_ids
        models, given = self.method.models_for(state, ids)
        used = assigned(given)
        return np.asarray(models)[used.rows] if used.weights is None else used.weights @ models


def assert_same(first: Mapping, second: Mapping):
    """Two states have the same numbers in the same places, to the last bit."""
    assert first.keys() == second.keys()
    for place in first:
        np.testing.assert_array_equal(first[place], second[place], err_msg=place)


def _kept_in(value, place: str):
    if isinstance(value, client_state.KeptStates):
        yield place, value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _kept_in(getattr(value, field.name), f"{place}.{field.name}")
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _kept_in(each, f"{place}.{name}")


def _together(first: Population, second: Population) -> Population:
    ids = np.concatenate([first.client_ids, second.client_ids])
    order = np.argsort(ids)
    return Population(
        ids[order],
        {**first.train_examples, **second.train_examples},
        {**first.test_examples, **second.test_examples},
        versions=np.concatenate([first.versions, second.versions])[order],
        groups=None if first.groups is None else np.concatenate([first.groups, second.groups])[order],
    )
