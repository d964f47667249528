"""Clients' examples as a model takes them: of its shape, labels and type, which numbers become where none changes."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tffcl import arrays
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.population import Population
from tffcl.errors import UserError

_WHOLE_IN_FLOAT32 = 2**24  # up to here float32 holds every whole number


def as_type(x: np.ndarray, dtype, whose: str) -> np.ndarray:
    """Returns an array as another type.

    Args:
      x: Numbers; float64 is rounded to float32, as it is in populations of arrays.
      dtype: The type.
      whose: Names them in messages, e.g. "the examples of client 3".

    Raises:
      UserError: If fractions would be lost, or a number is out of the type's range.
    """
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    kinds = f"{whose} are {x.dtype}{list(x.shape[1:])}; the model takes {dtype.name}{list(x.shape[1:])}"
    if x.dtype.kind not in "biuf" or dtype.kind not in "biuf" or (x.dtype.kind == "f") > (dtype.kind == "f"):
        raise UserError(
            f"{kinds}: round them, x.astype(np.{dtype.name}), or build the model with an input of {x.dtype}"
        )
    lowest, highest = _range_of(dtype, x.dtype)
    if x.size and not lowest <= x.min() <= x.max() <= highest:
        wrong = x.min() if x.min() < lowest else x.max()
        raise UserError(
            f"{kinds}, which does not hold {wrong}: scale them, or build the model with an input of {x.dtype}"
        )
    return x.astype(dtype)


def _range_of(dtype: np.dtype, given: np.dtype) -> tuple[float, float]:
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    if given.kind == "f":
        return np.finfo(dtype).min, np.finfo(dtype).max
    whole = {2: 2**11, 4: _WHOLE_IN_FLOAT32}.get(dtype.itemsize, 2**53)
    return -whole, whole


def fitted(population: Population, example_spec) -> Population:
    """Returns the population with examples of the type that a model takes; the same if they are of it, or of another
    shape.

    Raises:
      UserError: If a client has a number that the model's type does not hold.
    """
    given, wanted = population.train(population.client_ids[0]).x, example_spec["x"]
    dtype = wanted.dtype.as_numpy_dtype
    if given.dtype == dtype or given.shape[1:] != tuple(wanted.shape):
        return population

    def converted(examples: Mapping[int, ClientExamples] | None):
        return examples and {
            client: ClientExamples(
                as_type(held.x, dtype, f"the examples of client {population.name_of(client)}"), held.y
            )
            for client, held in ((client, examples[client]) for client in population.client_ids.tolist())
        }

    names = ("train_examples", "test_examples", "validation_examples")
    return dataclasses.replace(population, **{name: converted(getattr(population, name)) for name in names})


def check_examples(population: Population, example_spec, num_classes: int):
    """Checks that clients' examples are what a model takes, before anything is computed.

    Raises:
      UserError: If types or shapes are others, or a client lacks examples of a kind, or has a number that is not
        finite or a label out of range.
    """
    first = population.train(population.client_ids[0])
    for key, given in first.stacked.items():
        wanted = example_spec[key]
        if wanted.dtype.as_numpy_dtype != given.dtype or tuple(wanted.shape) != given.shape[1:]:
            what = "examples" if key == "x" else "labels"
            kinds = (
                f"{given.dtype.name}{list(given.shape[1:])}; the model takes {wanted.dtype.name}{list(wanted.shape)}"
            )
            one_hot = key == "y" and given.ndim == 2 and wanted.shape.rank == 0
            hint = "; of one-hot rows y.argmax(axis=1) makes labels" if one_hot else ""
            raise UserError(f"the clients' {what} are {kinds}{hint}")
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
    """The examples of clients by what they are for."""
    kinds = dict(
        training=population.train_examples, test=population.test_examples, validation=population.validation_examples
    )
    return {kind: examples.held for kind, examples in kinds.items() if examples is not None}


def _check_values(population: Population, client: int, kind: str, held: ClientExamples, num_classes: int):
    """Raises UserError if a number is not finite, or a label is none of the model's."""
    who, labels = f"client {population.name_of(client)}", held.y
    if held.pool[0].dtype.kind == "f":  # the rows of others need not be read
        arrays.check_finite(held.x, f"the {kind} examples of {who}")
    arrays.check_labels(labels, who)
    if (largest := int(labels.max(initial=0))) >= num_classes:
        counts = population.label_counts
        unused = counts is not None and not counts[:, 0].any()
        hint = "; labels count from 0, and no client has that: y - 1" if unused else ""
        raise UserError(f"{who} has the label {largest}; the model knows the classes 0 to {num_classes - 1}{hint}")
