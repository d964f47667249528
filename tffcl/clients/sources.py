"""Populations of a user's own data: arrays by client, or TFF's ClientData."""

import functools
from collections.abc import Mapping

import numpy as np

from tffcl.clients.population import PooledTests, Population, as_examples
from tffcl.errors import UserError

_MOST_COUNTED = 1000  # different labels of which clients' counts are kept for reports


def from_arrays(examples: Mapping[str | int, tuple], test: Mapping[str | int, tuple] | None = None) -> Population:
    """Makes a population of arrays.

    Args:
      examples: Client ID, text or a whole number from 0, to its training examples `(x, y)`: x of any numbers and shape `[n, ...]`,
        y integers, `[n]` or sequences `[n, L]`. All clients alike but for n.
      test: The same for test examples; none for a client that is not named.

    Raises:
      UserError: If there are no clients, IDs are of two kinds, a client has no examples, or arrays do not fit each other.
    """
    if not isinstance(examples, Mapping) or not examples:
        raise UserError("there are no clients; give a mapping of client IDs to (x, y) with 1 or more")
    shown = sorted(examples) if len({isinstance(each, str) for each in examples}) == 1 else None
    if shown is None or not all(isinstance(each, (str, int, np.integer)) for each in shown) or isinstance(shown[0], bool):
        raise UserError("client IDs must be all text or all whole numbers")
    unknown_tests = set(test or {}) - set(examples)
    if unknown_tests:
        raise UserError(f"client {sorted(unknown_tests)[0]} has test examples, but no training examples")
    data = {client: _checked(client, examples[client], "training") for client in shown}
    first = data[shown[0]]
    tests = {client: _checked(client, pair, "test") for client, pair in (test or {}).items()}
    for client, (x, y) in [*data.items(), *tests.items()]:
        for name, array, like in (("examples", x, first[0]), ("labels", y, first[1])):
            if array.dtype != like.dtype or array.shape[1:] != like.shape[1:]:
                kinds = f"{array.dtype} {list(array.shape[1:])}, those of client {shown[0]} {like.dtype} {list(like.shape[1:])}"
                raise UserError(f"the {name} of client {client} are {kinds}; all must be alike")
    named = isinstance(shown[0], str)
    ids = np.arange(len(shown), dtype=np.int32) if named else np.array(shown)
    if not named and (ids.min() < 0 or ids.max() >= 2**31):
        raise UserError(f"client ID {ids.min() if ids.min() < 0 else ids.max()} is not from 0 to 2147483647; use text")
    by_id = dict(zip(ids.tolist(), shown, strict=True))
    none = (first[0][:0], first[1][:0])
    held = [tests.get(client, none) for client in shown]
    ends = np.cumsum([len(y) for _, y in held])
    pool = PooledTests(
        np.concatenate([x for x, _ in held]),
        np.concatenate([y for _, y in held]),
        tuple(np.split(np.arange(ends[-1]), ends[:-1])),
    )
    return Population(
        ids.astype(np.int32),
        np.array([len(y) for _, y in data.values()], np.int32),
        functools.cache(lambda client: as_examples(*data[by_id[client]])),
        functools.cache(lambda client: as_examples(*tests.get(by_id[client], none))),
        tests=pool,
        label_counts=_label_counts([y for _, y in data.values()]),
        names=np.array(shown) if named else None,
    )


def from_client_data(train, test=None) -> Population:
    """Makes a population of `tff.simulation.datasets.ClientData` whose examples are `(x, y)` or `{"x": ..., "y": ...}`.

    Args:
      train: Training examples by client. Examples of other names are put in this form by `train.preprocess(...)`.
      test: Test examples by client; None for none.

    Raises:
      UserError: As `from_arrays`, or if the examples are not of this form.
    """
    for name, given in (("train", train), ("test", test)):
        if given is not None and not hasattr(given, "create_tf_dataset_for_client"):
            raise UserError(f"{name} is of {type(given).__name__}; it must be a tff.simulation.datasets.ClientData")
    tests = None if test is None else {client: _arrays_of(test, client) for client in test.client_ids}
    trains = {client: _arrays_of(train, client) for client in train.client_ids}
    return from_arrays(trains, None if tests is None else {each: tests[each] for each in tests if each in trains})


def _arrays_of(data, client) -> tuple[np.ndarray, np.ndarray]:
    examples = data.create_tf_dataset_for_client(client)
    spec = examples.element_spec
    pair = isinstance(spec, (tuple, list)) and len(spec) == 2
    if not pair and not (isinstance(spec, Mapping) and set(spec) == {"x", "y"}):
        names = list(spec) if isinstance(spec, Mapping) else spec
        raise UserError(
            f'examples are {names}; they must be (x, y) or {{"x": ..., "y": ...}}, unbatched: client_data.preprocess(...) puts them '
            "in this form"
        )
    x, y = spec if pair else (spec["x"], spec["y"])
    whole = next(iter(examples.batch(2**30)), None)
    if whole is None:
        nothing = [np.zeros([0, *each.shape], each.dtype.as_numpy_dtype) for each in (x, y)]
        return tuple(nothing)
    return tuple(np.asarray(part) for part in (whole if pair else (whole["x"], whole["y"])))


def _checked(client, pair, kind: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        x, y = pair
    except (TypeError, ValueError):
        raise UserError(
            f"the {kind} examples of client {client} are {type(pair).__name__}; they must be a pair (x, y)"
        ) from None
    x, y = np.asarray(x), np.asarray(y)
    if not np.issubdtype(y.dtype, np.integer) or y.ndim not in (1, 2):
        raise UserError(f"the labels of client {client} are {y.dtype} of rank {y.ndim}; they must be integers, [n] or [n, L]")
    if not (np.issubdtype(x.dtype, np.number) or x.dtype == bool) or not x.ndim or len(x) != len(y):
        raise UserError(f"client {client} has {kind} examples {x.dtype} {list(x.shape)} and {len(y)} labels; they do not fit")
    if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
        raise UserError(f"the {kind} examples of client {client} have NaN or infinite entries")
    if y.size and (y.min() < 0 or y.max() >= 2**31 - 1):
        raise UserError(f"client {client} has the label {y.min() if y.min() < 0 else y.max()}; labels count from 0")
    if x.dtype == np.float64:
        x = x.astype(np.float32)
    return np.ascontiguousarray(x), y.astype(np.int32)


def _label_counts(labels: list[np.ndarray]) -> np.ndarray | None:
    classes = max(int(each.max(initial=0)) for each in labels) + 1
    if classes > _MOST_COUNTED:
        return None
    return np.stack([np.bincount(each.ravel(), minlength=classes) for each in labels]).astype(np.int64)


def check_examples(population: Population, example_spec, num_classes: int):
    """Checks that clients' examples are what a model takes, before anything is computed.

    Raises:
      UserError: If types or shapes are others, or a label is out of range, by client.
    """
    spec = population.examples(int(population.client_ids[0])).element_spec
    for key in ("x", "y"):
        wanted, given = example_spec[key], spec[key]
        if wanted.dtype != given.dtype or tuple(wanted.shape) != tuple(given.shape):
            what = "examples" if key == "x" else "labels"
            wanted, given = (f"{each.dtype.name}{list(each.shape)}" for each in (wanted, given))
            raise UserError(f"the clients' {what} are {given}; the model takes {wanted}")
    counts = population.label_counts
    if counts is not None and counts.shape[1] > num_classes and counts[:, num_classes:].any():
        row = int(np.flatnonzero(counts[:, num_classes:].any(axis=1))[0])
        label = num_classes + int(np.flatnonzero(counts[row, num_classes:])[0])
        name = population.name_of(int(population.client_ids[row]))
        raise UserError(f"client {name} has the label {label}; the model knows the classes 0 to {num_classes - 1}")
