"""Populations of a user's own data: arrays by client, or TFF's ClientData."""

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tffcl import arrays
from tffcl.clients.client_examples import ClientExamples
from tffcl.errors import UserError

if TYPE_CHECKING:  # which makes one of what is read here
    from tffcl.clients.population import Population

_LONG = 3.0  # seconds, after which one wants to know how long it will take
_MOST_COUNTED = 1000  # different labels of which clients' counts are kept for reports


def from_arrays(
    examples: Mapping[str | int, tuple],
    test: Mapping[str | int, tuple] | None = None,
    *,
    known: "Population | None" = None,
) -> dict:
    """Returns the fields of `Population.from_arrays`, which says what it is given.

    Text IDs stand for numbers; those of clients that are known keep theirs, others follow.
    """
    if not isinstance(examples, Mapping):
        frame = ': {client: (rows[features], rows["label"]) for client, rows in frame.groupby("client")}'
        hint = frame if hasattr(examples, "groupby") else ""
        raise UserError(f"examples is of {type(examples).__name__}; it must be a mapping of client IDs to (x, y){hint}")
    if not examples:
        raise UserError("there are no clients; give a mapping of client IDs to (x, y) with 1 or more")
    if test is not None and not isinstance(test, Mapping):
        raise UserError(
            f"test is of {type(test).__name__}; it must be a mapping of client IDs to (x, y), as examples are"
        )
    shown, ids = _numbered(examples, known)
    unknown_tests = set(test or {}) - set(examples)
    if unknown_tests:
        raise UserError(f"client {min(unknown_tests, key=str)} has test examples, but no training examples")
    data = {client: _checked(client, examples[client], "training") for client in shown}
    first = data[shown[0]]
    _check_known(first, known)
    tests = {client: _checked(client, pair, "test") for client, pair in (test or {}).items()}
    for client, (x, y) in [*data.items(), *tests.items()]:
        for name, array, like in (("examples", x, first[0]), ("labels", y, first[1])):
            if array.dtype != like.dtype or array.shape[1:] != like.shape[1:]:
                given, others = (f"{each.dtype} {list(each.shape[1:])}" for each in (array, like))
                kinds = f"{given}, those of client {shown[0]} {others}"
                raise UserError(f"the {name} of client {client} are {kinds}; all must be alike")
    none = ClientExamples(first[0][:0], first[1][:0])
    tested = {client: ClientExamples(*pair) for client, pair in tests.items()}
    return dict(
        client_ids=ids.astype(np.int32),
        train_examples={
            number: ClientExamples(*data[client]) for number, client in zip(ids.tolist(), shown, strict=True)
        },
        test_examples={number: tested.get(client, none) for number, client in zip(ids.tolist(), shown, strict=True)},
        label_counts=_label_counts([y for _, y in data.values()]),
        names=np.array(shown) if isinstance(shown[0], str) else None,
    )


def _numbered(examples: Mapping, known: "Population | None") -> tuple[list, np.ndarray]:
    """Returns the clients in the order of their numbers, and the numbers, ascending."""
    texts, wholes = (
        all(isinstance(each, kind) and not isinstance(each, bool) for each in examples)
        for kind in (str, (int, np.integer))
    )
    if not texts and not wholes:
        kinds = ", ".join(sorted({type(each).__name__ for each in examples}))
        raise UserError(f"client IDs are of {kinds}; they must be all text or all whole numbers")
    if known is not None and texts != (known.names is not None):
        kinds = ["whole numbers", "text"]
        raise UserError(
            f"client IDs are {kinds[texts]}, those of the known clients are {kinds[not texts]}; they must be alike"
        )
    if any("\0" in str(each) for each in examples):
        raise UserError("a client ID holds a NUL character, which no file can; give it another name")
    if wholes:
        ids = np.array(sorted(map(int, examples)))
        if ids[0] < 0 or ids[-1] >= 2**31:
            raise UserError(f"client ID {ids[0] if ids[0] < 0 else ids[-1]} is not from 0 to 2147483647; use text")
        return ids.tolist(), ids
    numbers = {} if known is None else dict(zip(known.names.tolist(), known.client_ids.tolist()))
    following = itertools.count(1 + max(numbers.values(), default=-1))
    pairs = sorted((numbers[name] if name in numbers else next(following), str(name)) for name in sorted(examples))
    return [name for _, name in pairs], np.array([number for number, _ in pairs])


def _check_known(pair: tuple[np.ndarray, np.ndarray], known: "Population | None"):
    if known is None:
        return
    examples = known.train(known.client_ids[0])
    for what, array, like in zip(("examples", "labels"), pair, (examples.x, examples.y)):
        if array.dtype != like.dtype or array.shape[1:] != like.shape[1:]:
            kinds = (
                f"{array.dtype} {list(array.shape[1:])}, those of the known clients {like.dtype} {list(like.shape[1:])}"
            )
            raise UserError(f"the clients' {what} are {kinds}")


def from_client_data(train, test=None, *, known: "Population | None" = None) -> dict:
    """Returns the fields of `Population.from_client_data`, which says what it is given."""
    for name, given in (("train", train), ("test", test)):
        if given is not None and not hasattr(given, "create_tf_dataset_for_client"):
            raise UserError(f"{name} is of {type(given).__name__}; it must be a tff.simulation.datasets.ClientData")
    trains = _read_all(train, train.client_ids, "training")
    tests = {} if test is None else _read_all(test, [each for each in test.client_ids if each in trains], "test")
    return from_arrays(trains, tests, known=known)


def _read_all(data, client_ids, kind: str) -> dict:
    """The arrays of each client; what takes long shows how far it is."""
    bar = tqdm(client_ids, f"{kind} examples of clients", unit="client", delay=_LONG, leave=False)
    return {client: _arrays_of(data, client) for client in bar}


def _arrays_of(data, client) -> tuple[np.ndarray, np.ndarray]:
    examples = data.create_tf_dataset_for_client(client)
    spec = examples.element_spec
    pair = isinstance(spec, (tuple, list)) and len(spec) == 2
    if not pair and not (isinstance(spec, Mapping) and set(spec) == {"x", "y"}):
        names = list(spec) if isinstance(spec, Mapping) else spec
        raise UserError(
            f'examples are {names}; they must be (x, y) or {{"x": ..., "y": ...}}, unbatched: '
            "client_data.preprocess(...) puts them in this form"
        )
    x, y = spec if pair else (spec["x"], spec["y"])
    if not all(isinstance(each, tf.TensorSpec) and each.shape.is_fully_defined() for each in (x, y)):
        raise UserError(
            f"the examples of client {client} are x: {x}, y: {y}; both must be tensors of fixed shape, unbatched"
        )
    if examples.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise UserError(
            f"the examples of client {client} never end; leave out repeat(), LocalTraining(epochs=...) repeats them"
        )
    whole = _read_whole(examples)
    return tuple(whole if pair else (whole["x"], whole["y"]))


def _read_whole(examples: tf.data.Dataset):
    """Returns all examples of a data set, also none, as one structure of arrays `[n, ...]`."""
    nothing = tf.nest.map_structure(lambda leaf: tf.zeros([0, *leaf.shape], leaf.dtype), examples.element_spec)
    # Not by an iterator: to make one takes five times as long as to read the few examples of a client so.
    first = examples.batch(2**30).concatenate(tf.data.Dataset.from_tensors(nothing)).take(1).get_single_element()
    return tf.nest.map_structure(np.asarray, first)


def _checked(client, pair, kind: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        x, y = pair
    except (TypeError, ValueError):
        raise UserError(
            f"the {kind} examples of client {client} are {type(pair).__name__}; they must be a pair (x, y)"
        ) from None
    what, given = f"the {kind} examples of client {client}", x
    x, y = arrays.numbers_of(x, what), arrays.labels_of(y, f"the labels of client {client}")
    if len(x) != len(y):
        raise UserError(
            f"client {client} has {kind} examples {x.dtype} {list(x.shape)} and {len(y)} labels; they do not fit"
        )
    arrays.check_finite(x, what, given)
    arrays.check_labels(y, f"client {client}")
    if x.dtype == np.float64:
        if x.size and np.abs(x).max() > np.finfo(np.float32).max:
            raise UserError(f"{what} have entries beyond what float32 holds, 3.4e38")
        x = x.astype(np.float32)
    return np.ascontiguousarray(x), y.astype(np.int32)


def _label_counts(labels: list[np.ndarray]) -> np.ndarray | None:
    classes = max(int(each.max(initial=0)) for each in labels) + 1
    if classes > _MOST_COUNTED:
        return None
    return np.stack([np.bincount(each.ravel(), minlength=classes) for each in labels]).astype(np.int64)
