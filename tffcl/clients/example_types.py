"""Clients' examples as a model takes them: numbers of another type become the model's, where none of them changes."""

import dataclasses
import functools

import numpy as np

from tffcl.clients.client_examples import PooledTests, as_examples
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
        raise UserError(f"{kinds}: round them, x.astype(np.{dtype.name}), or build the model with an input of {x.dtype}")
    lowest, highest = _range_of(dtype, x.dtype)
    if x.size and not lowest <= x.min() <= x.max() <= highest:
        wrong = x.min() if x.min() < lowest else x.max()
        raise UserError(f"{kinds}, which does not hold {wrong}: scale them, or build the model with an input of {x.dtype}")
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
    """Returns the population with examples of the type that a model takes; the same if they are of it, or of another shape.

    Raises:
      UserError: If a client has a number that the model's type does not hold.
    """
    given, dtype = population.examples(int(population.client_ids[0])).element_spec["x"], example_spec["x"].dtype.as_numpy_dtype
    if given.dtype.as_numpy_dtype == dtype or tuple(given.shape) != tuple(example_spec["x"].shape):
        return population

    def converted(stacked):
        return {
            int(client): (as_type(held["x"], dtype, f"the examples of client {population.name_of(client)}"), held["y"])
            for client, held in ((client, stacked(int(client))) for client in population.client_ids)
        }

    def pooled(pool: PooledTests | None):
        return None if pool is None else dataclasses.replace(pool, x=as_type(pool.x, dtype, "the clients' examples"))

    arrays, tests = converted(population.stacked), converted(population.stacked_tests)
    return dataclasses.replace(
        population,
        examples=functools.cache(lambda client: as_examples(*arrays[int(client)])),
        test_examples=functools.cache(lambda client: as_examples(*tests[int(client)])),
        arrays=lambda client: arrays[int(client)],
        test_arrays=lambda client: tests[int(client)],
        tests=pooled(population.tests),
        validation=pooled(population.validation),
    )
