"""Client data with one thing wrong: .npz files with damaged bytes, and arrays that Hypothesis draws."""

import io
import random

import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import command
from tests.fuzz.command import Case
from tests.fuzz.files_of_runs import damage, equal
from tests.own_data import client_data
from tffcl.clients.example_types import check_examples
from tffcl.clients.population import Population
from tffcl.lab.datasets.loaders.own import load_npz

_RNG = np.random.default_rng(0)
_X, _Y = _RNG.random([20, 8, 8, 1], np.float32), _RNG.integers(0, 3, 20).astype(np.int32)
_SPEC = {"x": tf.TensorSpec([8, 8, 1]), "y": tf.TensorSpec([], tf.int32)}


def file_cases(directory, count: int, seed: int):
    """Yields what came of .npz files with damaged bytes, headers above all."""
    rng, path = random.Random(seed), directory / "own.npz"
    held = {"x_train": _X, "y_train": _Y, "x_test": _X[:5], "y_test": _Y[:5]}
    contents = []
    for save in (np.savez, np.savez_compressed):
        written = io.BytesIO()
        save(written, **held)
        contents.append(written.getvalue())
    path.write_bytes(contents[0])
    like = load_npz(path=str(path))
    for _ in range(count):
        whole = rng.choice(contents)
        path.write_bytes(whole)
        if rng.random() < 0.5:
            done = _header(path, whole, rng)
        else:
            done = damage(path, rng)
        ended = command.reading(lambda: load_npz(path=str(path)))
        read = ended.value
        same = ended.kind == "accepted" and all(
            equal(getattr(read, part).x, getattr(like, part).x) and equal(getattr(read, part).y, getattr(like, part).y)
            for part in ("train", "test")
        )
        yield Case("npz files", done, ended, "same" if same and read.num_classes == like.num_classes else "")
        if path.is_dir():
            path.rmdir()


def _header(path, whole: bytes, rng: random.Random) -> str:
    """Flips a bit in one of the headers of the arrays, or of the archive."""
    starts = [
        place for mark in (b"\x93NUMPY", b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06") for place in _all(whole, mark)
    ]
    place = min(len(whole) - 1, rng.choice(starts) + rng.randrange(128))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << rng.randrange(8)
    path.write_bytes(flipped)
    return f"a bit of a header, at {place}"


def _all(whole: bytes, mark: bytes) -> list[int]:
    return [place for place in range(len(whole)) if whole.startswith(mark, place)]


_FLAWS = {
    "a label that is too large": lambda x, y, n: (x, _put(y, n, 3 + n)),
    "a label of 2^31 - 1": lambda x, y, n: (x, _put(y, n, 2**31 - 1)),
    "a label below 0": lambda x, y, n: (x, _put(y, n, -1 - n)),
    "labels of float": lambda x, y, n: (x, y.astype(float) + n),
    "labels of rank 3": lambda x, y, n: (x, y.reshape(-1, 1, 1)),
    "NaN": lambda x, y, n: (_put(x, n, np.nan), y),
    "infinity": lambda x, y, n: (_put(x, n, -np.inf), y),
    "too large for float32": lambda x, y, n: (_put(x.astype(float), n, 1e300), y),
    "complex numbers": lambda x, y, n: (x.astype(complex), y),
    "objects": lambda x, y, n: (x.astype(object), y),
    "text": lambda x, y, n: (x.astype(str), y),
    "whole numbers": lambda x, y, n: ((255 * x).astype(np.int64), y),
    "another shape": lambda x, y, n: (x.reshape(-1, 64), y),
    "fewer labels": lambda x, y, n: (x, y[: n % len(y)]),
    "masked numbers": lambda x, y, n: (np.ma.array(x, mask=_put(np.zeros(x.shape, bool), n, True)), y),
    "masked labels": lambda x, y, n: (x, np.ma.array(y, mask=_put(np.zeros(y.shape, bool), n, True))),
    "labels in a column": lambda x, y, n: (x, y[:, None]),
    "labels of text": lambda x, y, n: (x, y.astype(str)),
    "no examples": lambda x, y, n: (x[:0], y[:0]),
    "no pair": lambda x, y, n: x,
    "lists of unequal lengths": lambda x, y, n: ([[1.0], [1.0, 2.0]], y[:2]),
}


def _put(array: np.ndarray, place: int, value) -> np.ndarray:
    changed = array.copy().astype(np.int64) if array.dtype.kind == "i" else array.copy()
    changed.reshape(-1)[place % changed.size] = value
    return changed


def _names(said: str, client) -> bool:
    return f"client {client}" in said or "clients' " in said


def array_cases(count: int):
    """Returns what came of clients of which one has arrays that no model takes, given as arrays or as data sets."""
    found = []

    @settings(
        max_examples=count, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.sampled_from(sorted(_FLAWS)),
        st.integers(0, 10**6),
        st.sampled_from([7, "clinic", "Ä", ""]),
        st.booleans(),
        st.booleans(),
    )
    def draw(flaw, number, client, as_test, as_sets):
        others = {0: 9, 7: 0}.get(client, "a")
        wrong = _FLAWS[flaw](_X, _Y, number)
        sound = {others: (_X, _Y), client: (_X, _Y)}

        def check():
            if as_sets and isinstance(client, str) and flaw in _AS_SETS:
                population = Population.from_client_data(client_data({**sound, client: wrong}))
            elif as_test and flaw != "no examples":
                population = Population.from_arrays(sound, {client: wrong})
            else:
                population = Population.from_arrays({**sound, client: wrong})
            check_examples(population, _SPEC, 3)
            return population

        ended = command.reading(check)
        if ended.kind == "told" and not _names(ended.said, client):
            ended = command.Outcome("untold", f"does not name the client: {ended.said}")
        # A column of labels is taken as the labels in it.
        same = ended.kind == "accepted" and flaw == "labels in a column" and _taken_as(sound, ended.value, client)
        named = f"{flaw}, {number}, client {client!r}, test {as_test}, data sets {as_sets}"
        found.append(Case("client data", named, ended, "same" if same else ""))

    draw()
    return found


def _taken_as(sound, population, client) -> bool:
    """Whether a client's examples were read as the sound ones."""
    row = population.id_of(client)
    return all(
        equal(each.x, sound[client][0].astype(np.float32)) and equal(each.y, sound[client][1].astype(np.int32))
        for each in (population.train(row), population.test(row))
        if len(each)
    )


_AS_SETS = ("a label that is too large", "a label of 2^31 - 1", "a label below 0", "NaN", "infinity")
