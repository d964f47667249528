"""What a method can tell of what it was built from, in plain containers as config.toml takes them."""

import dataclasses
import numbers
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.contract import traits
from tffcl.models.flat import FlatModel, FlatWeights
from tffcl.runs.fingerprint import of_array
from tffcl.validation import Parameters


def told_of(method) -> dict:
    """Returns the model of a method, and what its builder was given by name; of a stranger's method the model only.

    What cannot be told, such as a function, is left out.
    """
    given = method.built_from
    others = {name: value for name, value in given.items() if name != "model"} if isinstance(given, Mapping) else {}
    told = {"model": _of_model(method.model)} if isinstance(method.model, FlatModel) else {}
    # What was not given is told as well: whoever resumes with it has another method.
    return told | _table({name: "none" if value is None else value for name, value in others.items()})


def _of_model(model: FlatModel) -> dict:
    """What a model is, whatever Keras has called it: it counts the models of a process in their names."""
    x = model.example_spec["x"]
    told = {"parameters": model.size, "examples": f"{x.dtype.name}{list(x.shape)}", "classes": model.num_classes}
    if model.key is None:
        return told | {"weights": [list(weight.shape) for weight in model.weights]}
    return told | {"name": model.name, **{name: value for name, value in model.key[2:]}}


def _plain(value):
    """The value in plain containers; None for nothing, and for what cannot be told."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, str, numbers.Integral, float)):
        return value
    if isinstance(value, (np.ndarray, tf.Tensor)):
        return f"array {of_array(np.asarray(value))}"
    if isinstance(value, FlatWeights):
        return {"name": value.name, "parameters": value.size}
    if isinstance(value, (list, tuple)):
        return [each for each in map(_plain, value) if each is not None]
    if isinstance(value, tff.learning.optimizers.Optimizer):
        state = value.initialize(tf.TensorSpec([1], tf.float32))
        return {"kind": type(value).__name__, **_table(value.get_hparams(state))}
    if isinstance(value, (tff.aggregators.UnweightedAggregationFactory, tff.aggregators.WeightedAggregationFactory)):
        return {"kind": type(value).__name__, **_parameters_in(value)}
    if dataclasses.is_dataclass(value):
        return _table({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    return _table(value) if isinstance(value, Mapping) else None


def _table(values: Mapping) -> dict:
    plain = {str(name): _plain(value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if value is not None}


def _parameters_in(factory) -> dict:
    """The fields of the dataclass that a factory of ours was made of, and the seed of its noise; one of TFF's is told by its name alone."""
    held = [value for value in vars(factory).values() if isinstance(value, Parameters)]
    told = {name: value for each in held for name, value in _table(vars(each)).items()}
    return told | _table({"noise_seed": traits(factory).noise_seed})
