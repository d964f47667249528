"""Records a round: the values that any method passes to its exported computations."""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.algorithms.method import Method
from tffcl.client_work.client_work import stacked_type
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.model_rows import assigned
from tffcl.signatures.signature import deployed_context

_EXAMPLES = 12
_ARRIVALS = 3
_NEW_ID = 2**30  # above every client's


class _Recorder(tff.framework.SyncContext):
    """Runs computations in another context and records their types and arguments."""

    def __init__(self, context):
        self._context = context
        self.calls = []

    def invoke(self, comp, arg=None):
        self.calls.append((comp.type_signature, arg))
        return self._context.invoke(comp, arg)


@contextlib.contextmanager
def recording(context):
    """Records what is computed inside the block, in another context; yields the list of `(type, argument)`, see
    `recorded`."""
    recorder = _Recorder(context)
    tff.framework.set_default_context(recorder)
    try:
        yield recorder.calls
    finally:
        tff.framework.set_default_context(context)


def synthetic_examples(model: FlatModel, seed: int = 0) -> Callable[[int], ClientExamples]:
    """Builds `client ID -> ClientExamples` with random images and labels, so that an export holds no client's data."""

    def examples(client: int):
        rng = np.random.default_rng([seed, client])

        def some(spec):
            # Images have all pixel values; other whole numbers may be tokens, and any vocabulary has the first two.
            most = 256 if spec.dtype == tf.uint8 else 2 if spec.dtype.is_integer else 1
            drawn = rng.uniform(0, most, [_EXAMPLES, *spec.shape])
            return drawn.astype(spec.dtype.as_numpy_dtype)

        x = tf.nest.map_structure(some, model.example_spec["x"])
        label, classes = model.objective.label, model.num_classes or 2  # one of several labels is 0 or 1
        shape = [_EXAMPLES, *label.shape]
        y = (
            rng.integers(0, classes, shape, np.int32)
            if label.dtype.is_integer
            else rng.standard_normal(shape, np.float32)
        )
        return ClientExamples(x, y)

    return examples


def rehearse(
    method: Method,
    computations: Mapping[str, tff.Computation],
    state,
    examples: Callable[[int], ClientExamples],
    context,
) -> dict[str, tuple]:
    """Runs one round, lets three newcomers sign or join, and returns the arguments of each exported computation.

    Args:
      computations: The method's exported computations.
      state: The method's state.
      examples: Maps a client ID to examples; newcomers have those of the first clients.
      context: The TFF context that computes.

    Returns:
      Arguments of the computations that take clients, by name: `(server value, clients)`.

    Raises:
      UserError: If the method calls its computations with values that the exported ones don't take.
    """
    still = method.exports().rehearsal(state)
    ids = _some_of_each_model(method, still)
    held = {int(client): examples(int(client)) for client in ids}
    population = Population(ids.astype(np.int32), held, held)
    some = [int(client) for client in ids[:_ARRIVALS]]
    arrivals = {_NEW_ID + place: examples(client) for place, client in enumerate(some)}
    with recording(context) as calls:
        method.next(_with_nothing_kept(still), Cohort(population, ids, (0, 1)))
        if "signature" in computations or _missing(computations, calls):
            sign = method.exports().sign or functools.partial(method.admit, state)
            sign(Population(np.array(sorted(arrivals), np.int32), arrivals, arrivals))
    for name in _missing(computations, calls):
        raise UserError(f"the computation {name!r} of this method can't be rehearsed: no round calls one of its type")
    return recorded(computations, calls)


def _missing(computations: Mapping[str, tff.Computation], calls: list) -> list[str]:
    """The names of computations with parameters that no recorded call fits."""
    found = recorded(computations, calls)
    return [
        name
        for name, computation in computations.items()
        if computation.type_signature.parameter is not None and name not in found
    ]


def _with_nothing_kept(part):
    """A state, or a part of one, before clients have kept anything: an export has nothing that stays on clients'
    devices."""
    if isinstance(part, KeptStates):
        return KeptStates(part.initial)
    if not dataclasses.is_dataclass(part):
        return part
    parts = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    fresh = {name: None if name == "optimizers" else _with_nothing_kept(each) for name, each in parts.items()}
    return dataclasses.replace(part, **fresh)


def recorded(computations: Mapping[str, tff.Computation], calls: Sequence) -> dict[str, tuple]:
    """Returns the arguments of the exported computations, by name, as far as they were recorded."""
    found = {name: _argument(each.type_signature.parameter, calls) for name, each in computations.items()}
    return {name: argument for name, argument in found.items() if argument is not None}


def _some_of_each_model(method: Method, state) -> np.ndarray:
    """Clients such that every model has as many as a cluster must have in a round; at least three if there are so
    many."""
    ids, needed = method.views(state).client_ids, method.exports().members_needed()
    rows = assigned(method.models_for(state, ids)[1]).rows
    order = np.argsort(rows, kind="stable")
    _, first, members = np.unique(rows[order], return_index=True, return_counts=True)
    some = order[np.arange(len(rows)) - np.repeat(first, members) < needed]
    others = np.setdiff1d(np.arange(len(rows)), some)[: max(0, 3 - len(some))]
    return ids[np.sort(np.concatenate([some, others]))]


def _argument(wanted: tff.Type | None, calls) -> tuple | None:
    """The first recorded argument with values of the wanted type; its clients may have more fields."""
    if wanted is None:
        return None
    parts = list(wanted) if isinstance(wanted, tff.StructType) else [wanted]
    for recorded, argument in calls:
        given = recorded.parameter
        found = list(given) if isinstance(given, tff.StructType) else [given]
        if len(found) != len(parts):
            continue
        values = list(argument) if isinstance(given, tff.StructType) else [argument]
        found, values = zip(*map(_without_seeds, found, values))
        if all(map(_covers, found, parts)):
            return tuple(_project(value, part) for value, part in zip(values, parts, strict=True))
    return None


def _without_seeds(kind: tff.Type, value) -> tuple[tff.Type, object]:
    """A recorded argument as a deployment has it: the server does not broadcast the seeds of noise."""
    if not (isinstance(kind, tff.FederatedType) and kind.placement is tff.SERVER):
        return kind, value
    member, value = deployed_context(kind.member, value)
    return tff.FederatedType(member, tff.SERVER), value


def _covers(given: tff.Type, wanted: tff.Type) -> bool:
    if not (isinstance(given, tff.FederatedType) and given.placement is wanted.placement):
        return False
    if wanted.placement is tff.SERVER:
        return wanted.is_assignable_from(given)
    names = set(tff.structure.name_list(wanted.member))
    return names <= set(tff.structure.name_list(given.member)) and all(
        _fits(wanted.member[each], given.member[each]) for each in names
    )


def _fits(wanted: tff.Type, given: tff.Type) -> bool:
    """Whether the `given` type fits the `wanted` one; a simulation has tensors where a deployed client has a
    sequence."""
    if isinstance(wanted, tff.SequenceType) and not isinstance(given, tff.SequenceType):
        return stacked_type(wanted).is_assignable_from(given)
    return wanted.is_assignable_from(given)


def _project(value, wanted: tff.FederatedType):
    if wanted.placement is tff.SERVER:
        return value
    kinds = list(tff.structure.iter_elements(wanted.member))
    return [
        collections.OrderedDict((name, _as_deployed(client[name], kind)) for name, kind in kinds) for client in value
    ]


def _as_deployed(value, kind: tff.Type):
    """Turns a simulation's tensors into the sequence that a deployed client has."""
    stacked = isinstance(kind, tff.SequenceType) and not isinstance(value, tf.data.Dataset)
    return ClientExamples(value["x"], value["y"]).dataset if stacked else value


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far two results are apart.

    Attributes:
      largest: The largest absolute difference of two numbers; NaN if one of them is NaN.
      close: Whether all numbers agree up to rounding: within 1e-4 of the largest magnitude in their tensor, or of 1.
    """

    largest: float
    close: bool


_SHARE = 1e-4


def difference(first, second) -> Difference:
    """Compares two results of a computation, whatever order the clients' rows came in.

    Texts must be equal.

    Args:
      first: Python containers, TFF structs and arrays.
      second: The same.
    """
    largest, close = 0.0, True
    for one, other in zip(_leaves(first), _leaves(second), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        texts = not all(np.can_cast(each.dtype, np.float64, "same_kind") for each in (one, other))
        if one.shape != other.shape or texts and not np.array_equal(one, other):
            return Difference(float("inf"), False)
        if texts:
            continue
        one, other = one.astype(np.float64), other.astype(np.float64)
        apart = np.abs(one - other).max() if one.size else 0.0
        largest = float(np.maximum(largest, apart))  # Python's max may lose NaN
        close = close and apart <= _SHARE * max(1.0, np.abs(one).max() if one.size else 0.0)
    return Difference(largest, bool(close))


def _leaves(value) -> list:
    """All numbers in a fixed order; rows beside client IDs are sorted by these."""
    if isinstance(value, tff.structure.Struct):
        value = tff.structure.to_odict_or_tuple(value, recursive=False)
    if isinstance(value, collections.abc.Mapping):
        leaves = [leaf for key in value for leaf in _leaves(value[key])]
        if "client_id" in value and np.ndim(value["client_id"]) == 1:
            order = np.argsort(np.asarray(value["client_id"]), kind="stable")
            leaves = [np.asarray(leaf)[order] for leaf in leaves]
        return leaves
    if isinstance(value, (list, tuple)):
        parts = list(value)
        if parts and all(_client_of(part) is not None for part in parts):
            parts.sort(key=_client_of)
        return [leaf for part in parts for leaf in _leaves(part)]
    return [value]


def _client_of(value):
    if isinstance(value, tff.structure.Struct):
        value = tff.structure.to_odict_or_tuple(value, recursive=False)
    return int(value["client_id"]) if isinstance(value, collections.abc.Mapping) and "client_id" in value else None
