"""Clients' examples as a model takes them: of its shape, with its labels, and of its type if this changes no number."""

import collections
import dataclasses
from collections.abc import Mapping

import numpy as np

from tffcl.clients import arrays
from tffcl.clients.client_examples import ClientExamples, inputs_of, mapped, too_many
from tffcl.clients.population import Population
from tffcl.clients.sources import label_counts
from tffcl.errors import UserError


def as_type(x: np.ndarray, dtype, whose: str) -> np.ndarray:
    """Returns an array as another type.

    Args:
      x: Numbers; float64 is rounded to float32, as it is in populations of arrays.
      dtype: The type.
      whose: Their name in messages, e.g. "the examples of client 3".

    Raises:
      UserError: If fractions would be lost, or a number is out of the type's range.
    """
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    input_type = "float32" if x.dtype.kind == "f" else x.dtype
    kinds = f"{whose} are {x.dtype}{list(x.shape[1:])}; the model takes {dtype.name}{list(x.shape[1:])}"
    if x.dtype.kind not in "biuf" or dtype.kind not in "biuf" or (x.dtype.kind == "f") > (dtype.kind == "f"):
        shares = dtype == np.uint8 and x.size and 0 <= x.min() and x.max() <= 1  # of 255; rounded they would be 0
        cure = f"round them, np.round({'255 * ' * bool(shares)}x).astype(np.{dtype.name})"
        raise UserError(f"{kinds}: {cure}, or build the model with an input of {input_type}")
    lowest, highest = _range_of(dtype, x.dtype)
    if x.size and not lowest <= x.min() <= x.max() <= highest:
        wrong = x.min() if x.min() < lowest else x.max()
        raise UserError(
            f"{kinds}, which does not hold {wrong}: scale them, or build the model with an input of {input_type}"
        )
    return x.astype(dtype)


def as_taken(given, spec, whose: str):
    """Returns examples as a model takes them: an array, or one array for each of several inputs by name.

    Args:
      given: The examples, arrays `[n, ...]`.
      spec: The spec of one example's features, as in `FlatModel.example_spec`.
      whose: Their name in messages.

    Raises:
      UserError: If their inputs or shapes are not the model's, or the model's type cannot hold their numbers.
    """
    if isinstance(spec, Mapping):
        if not isinstance(given, Mapping) or set(given) != set(spec):
            raise UserError(f"{whose} must be arrays by the names of the model's inputs: {', '.join(spec)}")
        taken = {name: as_taken(given[name], leaf, f"{whose} of input {name}") for name, leaf in spec.items()}
        counts = {name: len(x) for name, x in taken.items()}
        if len({*counts.values()}) > 1:
            raise UserError(f"{whose} are of unequal numbers: {', '.join(f'{n} {name}' for name, n in counts.items())}")
        return collections.OrderedDict(taken)
    x = arrays.as_array(given, whose)
    if x.shape[1:] != tuple(spec.shape) or x.dtype.kind not in "biuf":
        wanted = f"{spec.dtype.name} of shape [n, {', '.join(map(str, spec.shape))}]"
        hint = "; one example alone is x[np.newaxis]" if x.shape == tuple(spec.shape) else ""
        raise UserError(f"{whose} are {x.dtype} of shape {list(x.shape)}; they must be {wanted}{hint}")
    arrays.check_finite(x, whose, given)
    return as_type(x, spec.dtype.as_numpy_dtype, whose)


def _range_of(dtype: np.dtype, given: np.dtype) -> tuple[float, float]:
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    if given.kind == "f":
        return np.finfo(dtype).min, np.finfo(dtype).max
    whole = {2: 2**11, 4: arrays.WHOLE_IN_FLOAT32}.get(dtype.itemsize, 2**53)
    return -whole, whole


def fitted(population: Population, example_spec) -> Population:
    """Returns the population with examples and labels of the types that a model takes. It is unchanged if it has these
    types already, or if its inputs or shapes are not the model's.

    Raises:
      UserError: If a client has a number that the model's type cannot hold.
    """
    given = population.example_spec
    if given == example_spec:
        return population
    if any(
        inputs_of(given[key]).keys() != inputs_of(example_spec[key]).keys()
        or any(leaf.shape != inputs_of(example_spec[key])[name].shape for name, leaf in inputs_of(given[key]).items())
        for key in given
    ):
        return population

    def converted(client: int, held: ClientExamples) -> ClientExamples:
        whose, inputs = population.name_of(client), inputs_of(held.x)
        x = {
            name: as_type(
                inputs[name], wanted.dtype.as_numpy_dtype, f"the {'examples' if not name else name} of client {whose}"
            )
            for name, wanted in inputs_of(example_spec["x"]).items()
        }
        y = _labels_as(held.y, example_spec["y"].dtype.as_numpy_dtype, f"the labels of client {whose}")
        return ClientExamples(x.get("", x), y, columns=held.columns)

    found = _with_examples(population, converted)
    before, now = (each["y"].dtype.is_floating for each in (given, example_spec))
    if before == now or too_many(found.train_examples.held):
        return found
    if now:  # whole numbers are not classes if the model predicts numbers
        return dataclasses.replace(found, label_counts=None)
    held = [found.train_examples.held[client].y for client in found.client_ids.tolist()]
    if min(int(y.min(initial=0)) for y in held) < 0:  # `check_examples` refuses these
        return found
    counts = label_counts(((len(y), *np.unique(y, return_counts=True)) for y in held), None)
    return dataclasses.replace(found, label_counts=counts)


def reconstructed(population: Population) -> Population:
    """Returns the population for a model that reconstructs its input: the inputs are the labels, as float32."""

    def relabelled(client: int, held: ClientExamples) -> ClientExamples:
        del client
        return ClientExamples(held.x, np.asarray(held.x, np.float32))

    return _with_examples(population, relabelled, label_names=None)


def _with_examples(population: Population, function, **others) -> Population:
    """Returns the population with a function of client and examples applied to all examples, and with other fields."""
    names = ("train_examples", "test_examples", "validation_examples")
    parts = {name: getattr(population, name) for name in names}
    parts = {name: each and mapped(each.held, function) for name, each in parts.items()}
    return dataclasses.replace(population, **parts, **others)


def _labels_as(y: np.ndarray, dtype, whose: str) -> np.ndarray:
    """Returns labels as a model takes them: floats that are all whole numbers, as pandas may have, can be classes."""
    if y.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
        if not np.array_equal(y, np.rint(y)):
            raise UserError(
                f"{whose} are {y.dtype}; the model takes classes, {np.dtype(dtype).name}{arrays.label_hint(y, True)}"
            )
        y = y.astype(np.int64)
    return as_type(y, dtype, whose)


def check_examples(population: Population, example_spec, num_classes: int | None):
    """Checks that clients' examples are what a model takes, before anything is computed.

    Args:
      example_spec: The model's spec of an example.
      num_classes: How many values a label may have, from 0; None if labels are numbers to be predicted.

    Raises:
      UserError: If types or shapes are not the model's, or if a client lacks examples of a kind, has a number that is
        not finite, or has a label out of range.
    """
    given = population.example_spec
    if inputs_of(given["x"]).keys() != inputs_of(example_spec["x"]).keys():
        mine, its = (", ".join(inputs_of(each["x"])) or "one array" for each in (given, example_spec))
        raise UserError(f"the clients' examples are of the inputs {mine}; the model takes {its}")
    for key in given:
        for name, wanted in inputs_of(example_spec[key]).items():
            has = inputs_of(given[key])[name]
            if wanted == has:
                continue
            what = "labels" if key == "y" else f"examples of input {name}" if name else "examples"
            kinds = (
                f"{has.dtype.name}{has.shape.as_list()}; the model takes {wanted.dtype.name}{wanted.shape.as_list()}"
            )
            classes = key == "y" and wanted.shape.rank == 0 and wanted.dtype.is_integer
            hint = arrays.label_hint(population.train(population.client_ids[0]).y, classes) if key == "y" else ""
            raise UserError(f"the clients' {what} are {kinds}{hint}")
    if population.label_names is not None and example_spec["y"].dtype.is_floating:
        named = ", ".join(population.label_names[:3])
        raise UserError(f"the clients' labels are names ({named}, ...); the model takes numbers, y.astype(float)")
    looked_at = {}  # by identity: clients may share examples
    for client in population.read_before:
        for kind, examples in _kinds(population).items():
            held = examples.get(client)
            if held is None:
                raise UserError(
                    f"client {population.name_of(client)} has no {kind} examples, which others have; "
                    "ClientExamples(x[:0], y[:0]) are none"
                )
            if id(held) not in looked_at:
                looked_at[id(held)] = held
                _check_values(population, client, kind, held, num_classes)


def _kinds(population: Population) -> dict[str, Mapping[int, ClientExamples]]:
    """Returns the examples of clients by their purpose."""
    kinds = dict(
        training=population.train_examples, test=population.test_examples, validation=population.validation_examples
    )
    return {kind: examples.held for kind, examples in kinds.items() if examples is not None}


def _check_values(population: Population, client: int, kind: str, held: ClientExamples, num_classes: int | None):
    """Raises UserError if a number is not finite, or a label is none of the model's classes."""
    who = f"client {population.name_of(client)}"
    for name, pool in inputs_of(held.pool[0]).items():
        if pool.dtype.kind == "f":  # rows of other types need not be read
            place = f", input {name}," if name else ""
            arrays.check_finite(inputs_of(held.x)[name], f"the {kind} examples of {who}{place}")
    arrays.check_finite(held.y, f"the labels of {who}")
    arrays.coded_labels(held.y, who, None)
    _check_classes(population, client, held.y, num_classes)


def _check_classes(population: Population, client: int, y: np.ndarray, num_classes: int | None):
    """Raises UserError if a label is none of the model's classes."""
    if num_classes is not None and (largest := int(y.max(initial=0))) >= num_classes:
        counts = population.label_counts
        unused = counts is not None and not counts[:, 0].any()
        hint = "; labels count from 0, and no client has that: y - 1" if unused else ""
        named = "" if population.label_names is None else f", {population.label_names[largest]!r}"
        raise UserError(
            f"client {population.name_of(client)} has the label {largest}{named}; the model knows the classes 0 to "
            f"{num_classes - 1}{hint}"
        )


def checked_when_read(population: Population, num_classes: int | None) -> Population:
    """Returns the population with the labels of lazy examples checked whenever these are read, since `check_examples`
    looks only at some of them. Numbers that are not finite are already refused by the reading.

    Raises:
      UserError: If the counts of labels show one that is out of range.
    """
    if isinstance(population.train_examples.held, dict) or num_classes is None:
        return population
    if population.label_counts is not None:
        for row in np.flatnonzero(population.label_counts[:, num_classes:].any(axis=1))[:1]:
            labels = np.flatnonzero(population.label_counts[row])
            _check_classes(population, int(population.client_ids[row]), labels, num_classes)

    def checked(client: int, held: ClientExamples) -> ClientExamples:
        _check_classes(population, client, held.y, num_classes)
        return held

    return _with_examples(population, checked)
