"""States as arrays in a file and back, for every state of the catalog; damaged and foreign files."""

import collections
import dataclasses
import enum
import json
import types
import typing

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tffcl
from tests.short_runs import TRAINING
from tffcl.algorithms.method import ClusteredState, Method
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.clients.client_state import KeptStates, KeptStore
from tffcl.clients.simulation_context import simulating
from tffcl.errors import OVERWRITE, UserError
from tffcl.registry import ALGORITHMS
from tffcl.runs import checkpoints as checkpoints_module
from tffcl.runs.checkpoints import Checkpoints, Foreign, pack, unpack
from tffcl.runs.run import Totals

TOTALS = Totals(*np.arange(9).reshape(3, 3), 10, 11, 12, np.arange(3.0), np.zeros([0, 8]), '{"mine": [1]}')


def subclasses(cls):
    return {cls}.union(*map(subclasses, cls.__subclasses__()))


for entry in ALGORITHMS.values():
    entry.builder()
FOUND = subclasses(ClusteredState) | {each.state_class for each in subclasses(Method) if hasattr(each, "state_class")}
STATES = sorted((each for each in FOUND if each.__module__.startswith("tffcl.")), key=lambda c: c.__name__)


def sample(hint, rng):
    """A value of a field's type; of a union its first that is a type of values."""
    hint = typing.get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{field.name: sample(hints[field.name], rng) for field in dataclasses.fields(hint)})
    if hint is KeptStates:
        return KeptStates(np.zeros(3, np.float32)).updated([2, 5], list(rng.random([2, 3], np.float32)))
    if typing.get_origin(hint) is not None and issubclass(typing.get_origin(hint), typing.Mapping):
        return {name: rng.random([2, 3]) for name in ("z", "a b", "m.n")}
    if typing.get_origin(hint) is tuple:
        return ("a note", "and another")
    if hint is float:
        return float(rng.random())
    if hint is np.ndarray:
        return rng.random([3, 2], np.float32) > 0.5
    assert hint in (object, tuple), f"no sample of {hint}"
    # As TFF gives aggregation processes' states, and as trees of arrays are.
    return (
        {"update": (np.int32(3), [], np.zeros([0, 4], np.float32)), "count": 2},
        ("text", None, True, 0.1),
        [np.int64(2**40)],
    )


def assert_same(found, expected):
    """Equal, with the same nesting, types and order of names."""
    if isinstance(expected, KeptStates):
        clients = range(7)
        assert_same(found.has(clients), expected.has(clients))
        assert_same(found.of(clients), expected.of(clients))
    elif dataclasses.is_dataclass(expected):
        assert type(found) is type(expected)
        for field in dataclasses.fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, typing.Mapping):
        assert list(found) == list(expected)
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif expected is None or isinstance(expected, str | bool):
        assert found is expected or found == expected and type(found) is type(expected)
    else:
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(found, expected)


def test_the_catalogs_states_are_found():
    """Every method's state is among those of the tests below."""
    methods = [
        each for each in subclasses(Method) if each.__module__.startswith("tffcl.") and hasattr(each, "state_class")
    ]
    assert len(methods) > 10 and {each.state_class for each in methods} <= set(STATES)
    assert {"OneShotState", "StoCFLState", "FLTState", "FedSEMState"} < {each.__name__ for each in STATES}


@pytest.mark.parametrize("kind", STATES, ids=lambda kind: kind.__name__)
def test_a_state_comes_back_as_it_was(kind, tmp_path):
    store = KeptStore(tmp_path / "kept")
    with simulating(client_states=store):
        state = sample(kind, np.random.default_rng(0))
        checkpoints = Checkpoints(tmp_path / "checkpoints", client_states=store)
        checkpoints.save(7, state, TOTALS)
        found, totals = checkpoints.load(7, kind)
    assert_same(found, state)
    assert_same(totals, TOTALS)


@pytest.mark.parametrize("kind", STATES, ids=lambda kind: kind.__name__)
def test_what_may_be_missing_may_be(kind):
    """Fields with a default have it before the first round."""
    hints = typing.get_type_hints(kind)
    needed = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is field.default_factory is dataclasses.MISSING
    ]
    state = kind(**{name: sample(hints[name], np.random.default_rng(0)) for name in needed})
    arrays, named = pack({"state": state})
    assert not named
    assert_same(unpack(arrays, {"state": kind})["state"], state)


def test_numpy_alone_reads_the_arrays(tmp_path):
    state = ClusteredState(np.arange(4, dtype=np.int32), np.zeros(4, np.int32), np.ones([2, 5], np.float32), ())
    Checkpoints(tmp_path).save(10, state, TOTALS)
    assert [path.name for path in tmp_path.iterdir()] == ["round_000010.npz"]
    with np.load(tmp_path / "round_000010.npz", allow_pickle=False) as saved:
        np.testing.assert_array_equal(saved["state.models"], state.models)
        np.testing.assert_array_equal(saved["state.client_ids"], state.client_ids)
        assert set(json.loads(str(saved["structure"]))) == {"state", "totals"}
        assert all(not saved[name].dtype.hasobject for name in saved.files)


def test_the_newest_are_kept(tmp_path):
    state = ClusteredState(np.arange(2, dtype=np.int32), np.zeros(2, np.int32), np.ones([1, 5], np.float32), ())
    checkpoints = Checkpoints(tmp_path / "new", keep=2)
    assert checkpoints.latest() is None
    for number in (0, 5, 100, 1_000_000):
        checkpoints.save(number, dataclasses.replace(state, assignment=np.full(2, number)), TOTALS)
    assert checkpoints.rounds() == [100, 1_000_000] and checkpoints.latest() == 1_000_000
    (tmp_path / "new" / "round_x.npz").touch()
    (tmp_path / "new" / "round_000200.partial").touch()
    assert checkpoints.rounds() == [100, 1_000_000]
    assert checkpoints.load(100, ClusteredState)[0].assignment.tolist() == [100, 100]


def test_one_too_many_of_a_process_that_ended_between_writing_and_removing_is_removed(tmp_path):
    state = ClusteredState(np.arange(2, dtype=np.int32), np.zeros(2, np.int32), np.ones([1, 5], np.float32), ())
    for number in (2, 3, 4):
        Checkpoints(tmp_path, keep=3).save(number, state, TOTALS)
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.load_newest(ClusteredState, last_round=4)[0] == 4
    assert checkpoints.rounds() == [3, 4]


@pytest.fixture
def small_files(monkeypatch):
    """Arrays of 40 bytes have files of their own."""
    monkeypatch.setattr(checkpoints_module, "LARGE_BYTES", 40)


def test_a_large_array_is_written_once_and_kept_as_long_as_a_checkpoint_names_it(tmp_path, small_files):
    def state(assignment):
        same = np.random.default_rng(0).random([3, 5], np.float32).T  # as it is after each round, though another object
        return ClusteredState(np.arange(3, dtype=np.int32), np.asarray(assignment), same, ())

    def large():
        return {path.name: path.stat().st_ino for path in tmp_path.glob("*.npy")}

    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(0, state([0, 0]), TOTALS)
    first = large()
    assert len(first) == 1
    checkpoints.save(1, state(np.arange(20)), TOTALS)
    both = large()
    assert len(both) == 2 and first.items() <= both.items()
    (tmp_path / f"{'0' * 32}.npy").touch()  # of a process that was killed before its checkpoint named it
    (tmp_path / "mine.npy").touch()
    for number in (2, 3):
        checkpoints.save(number, state([1, number]), TOTALS)
        assert_same(checkpoints.load(number, ClusteredState)[0], state([1, number]))
    assert large().keys() == {*first, "mine.npy"} and first.items() <= large().items()
    (path,) = (tmp_path / name for name in first)
    whole = path.read_bytes()
    for contents in (whole[:-1], whole[:-1] + b"\0", whole.replace(b"(5, 3)", b"(3, 5)"), b"", None):
        path.unlink() if contents is None else path.write_bytes(contents)
        assert path.name in refused(checkpoints)
    path.write_bytes(whole)
    assert_same(checkpoints.load_newest(ClusteredState, 3)[1], state([1, 3]))


def test_large_arrays_of_the_same_bytes_and_other_shapes_or_types_are_two(tmp_path, small_files):
    """As a matrix of zeros and as many zeros in a row."""
    state = ClusteredState(np.arange(3, dtype=np.int32), np.zeros(20, np.int32), np.zeros([4, 5], np.float32), ())
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, state, TOTALS)
    found, _ = checkpoints.load(0, ClusteredState)
    assert_same(found, state)
    assert found.models.dtype == np.float32 and found.assignment.dtype == np.int32


def test_nothing_is_removed_while_a_checkpoint_cannot_be_read(tmp_path, small_files):
    def state(number):
        return ClusteredState(
            np.arange(3, dtype=np.int32), np.zeros(3, np.int32), np.full([3, 5], number, np.float32), ()
        )

    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(0, state(0), TOTALS)
    file = tmp_path / "round_000000.npz"
    whole = file.read_bytes()
    file.write_bytes(b"")  # for a moment
    checkpoints.save(1, state(1), TOTALS)
    file.write_bytes(whole)
    assert_same(checkpoints.load(0, ClusteredState)[0], state(0))
    checkpoints.save(2, state(2), TOTALS)
    assert checkpoints.rounds() == [1, 2] and len(list(tmp_path.glob("*.npy"))) == 2


@pytest.mark.slow
def test_the_matrix_of_a_run_is_written_once(model, population, tmp_path, small_files):
    """Of PACFL, stopped and resumed; the models of clusters, which move, have a file for each checkpoint
    that is kept.
    """

    def run(out, **more):
        method = build_pacfl(model, TRAINING, PACFLParameters(num_vectors=2, num_clusters=2))
        how = {
            "rounds": 3,
            "clients_per_round": 3,
            "out": tmp_path / out,
            "checkpoint_every": 1,
            "show_progress": False,
        }
        return tffcl.train(method, population, **how, **more)

    def matrices():
        found = {path: np.load(path) for path in (tmp_path / "run" / "checkpoints").glob("*.npy")}
        return {path.name: path.stat().st_ino for path, array in found.items() if array.shape == (5, 5)}

    run("run", until=1)
    first = matrices()
    resumed, whole = run("run", resume=True), run("whole")
    assert len(first) == 1 and matrices() == first
    np.testing.assert_array_equal(resumed.model_of(0), whole.model_of(0))
    again = run("run", overwrite=True)
    assert again.summary["accuracy"] == whole.summary["accuracy"] and matrices().keys() == first.keys()


@pytest.fixture
def saved(tmp_path):
    """A checkpoint, of models that are larger than what is read at once: `(checkpoints, file, state)`."""
    models = np.random.default_rng(0).random([4, 5000], np.float32)
    state = ClusteredState(np.arange(6, dtype=np.int32), np.zeros(6, np.int32), models, {"update": np.float32(1)})
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, state, TOTALS)
    return checkpoints, tmp_path / "round_000003.npz", state


def refused(checkpoints, kind=ClusteredState):
    with pytest.raises(UserError, match="the checkpoint of round 3 cannot be read") as raised:
        checkpoints.load(3, kind)
    message = str(raised.value)
    assert "\n" not in message and message.endswith(f"{OVERWRITE} starts anew")
    return message


@pytest.mark.parametrize("part", [0, 1, 100, 0.5, 0.999])
def test_a_truncated_file(saved, part):
    checkpoints, file, _ = saved
    whole = file.read_bytes()
    file.write_bytes(whole[: part if isinstance(part, int) else int(part * len(whole))])
    refused(checkpoints)


def test_a_flipped_bit_is_told_or_harmless(saved):
    """Wherever it is: one line, or the state is the same (as where a file's date in the archive is)."""
    checkpoints, file, state = saved
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    models = whole.index(b"state.models.npy")
    described = range(models, models + 200)  # the header of the models: fewer rows would leave the rest unread
    told = 0
    for place in [*described[::2], *rng.integers(0, len(whole), 100), *range(len(whole) - 300, len(whole), 2)]:
        content = bytearray(whole)
        content[place] ^= 1 << rng.integers(8)
        file.write_bytes(content)
        try:
            found, totals = checkpoints.load(3, ClusteredState)
        except UserError as error:
            told += 1
            assert "\n" not in str(error) and "the checkpoint of round 3 cannot be read" in str(error)
        else:
            assert_same(found, state)
            assert_same(totals, TOTALS)
    assert told > 250


def test_fewer_rows_in_a_header_are_told(saved):
    checkpoints, file, _ = saved
    whole = file.read_bytes()
    assert b"'shape': (4, 5000)" in whole
    file.write_bytes(whole.replace(b"'shape': (4, 5000)", b"'shape': (1, 5000)"))
    assert "state.models.npy is damaged" in refused(checkpoints)


def test_an_older_checkpoint_under_the_name_of_a_newer_one_is_told(saved):
    checkpoints, file, state = saved
    checkpoints.save(2, state, TOTALS)
    file.with_name("round_000002.npz").replace(file)
    assert "it is of round 2" in refused(checkpoints)


class Executed:
    """Something that would be called if a file were unpickled."""

    calls = []

    def __reduce__(self):
        return Executed.calls.append, ("called",)


def test_nothing_is_executed(saved):
    checkpoints, file, _ = saved
    with np.load(file) as whole:
        arrays = dict(whole)
    for name in ("state.models", "structure", "kept versions"):
        np.savez(file, **{**arrays, name: np.array([Executed()], object)})
        refused(checkpoints, ClusteredState) if name != "kept versions" else checkpoints._named_by(3)
    file.write_bytes(np.lib.format.magic(1, 0))
    refused(checkpoints)
    with open(file, "wb") as opened:
        np.save(opened, np.array([Executed()], object), allow_pickle=True)
    refused(checkpoints)
    assert not Executed.calls


def test_a_checkpoint_of_another_method_or_version(saved):
    from tffcl.algorithms.one_shot import OneShotState

    checkpoints, file, _ = saved
    assert "merges, models, notes, optimizers, proximity" in refused(checkpoints, OneShotState)
    with np.load(file) as whole:
        arrays = dict(whole)
    described = json.loads(str(arrays["structure"]))
    described["state"]["fields"]["more"] = {"plain": None}
    np.savez(file, **{**arrays, "structure": np.array(json.dumps(described))})
    assert "more" in refused(checkpoints)
    np.savez(file, **{name: each for name, each in arrays.items() if name != "state.assignment"})
    assert "state.assignment" in refused(checkpoints)
    np.savez(file, x=np.zeros(3))
    refused(checkpoints)


@dataclasses.dataclass(frozen=True)
class Velocity:
    rows: np.ndarray


@dataclasses.dataclass(frozen=True)
class OwnState(ClusteredState):
    velocity: typing.Optional[Velocity] = None  # noqa: UP045 the older way to write it
    more: object = None


@dataclasses.dataclass(frozen=True)
class EditedState(OwnState):
    velocity: Totals | None = None  # of other fields


def test_a_checkpoint_of_states_that_were_edited_stays(tmp_path):
    """Nothing is wrong with it: that of the round before, which an edited class can read, is not taken in its place."""
    checkpoints, first = Checkpoints(tmp_path), OwnState(np.arange(2), np.zeros(2), np.ones([1, 5]), {})
    for number, state in ((2, first), (3, dataclasses.replace(first, velocity=Velocity(np.ones(2))))):
        checkpoints.save(number, state, TOTALS)
    told = r"round 3 cannot be read \(it holds rows; .* of Totals are expected\)"
    with pytest.raises(Foreign, match=told):
        checkpoints.load_newest(EditedState, 9)
    assert checkpoints.rounds() == [2, 3] and checkpoints.load_newest(OwnState, 9)[0] == 3


class Pair(typing.NamedTuple):
    rows: np.ndarray
    count: int


class Way(enum.StrEnum):
    UP = "up"


OWN = ClusteredState(np.arange(2), np.zeros(2), np.ones([1, 5]), {})


@pytest.mark.parametrize(
    "value, told",
    [
        (print, "state.more is a builtin_function_or_method$"),
        ({"rng": np.random.default_rng(0)}, "state.more.rng is a Generator$"),
        (np.array([None]), "state.more is a ndarray$"),
        (tf.ones(2, tf.bfloat16), "state.more is a EagerTensor; NumPy's files do not know bfloat16$"),
        # These would come back as something else than they were, or not at all.
        (pd.DataFrame({"a": [1]}), "state.more is a DataFrame$"),
        (np.ma.array([1, 2], mask=[True, False]), "state.more is a MaskedArray$"),
        (Pair(np.zeros(2), 1), "state.more is a Pair; it would come back as a plain tuple$"),
        ([Way.UP], "state.more.0 is a Way; it would come back as a plain str$"),
        (collections.defaultdict(int, a=1), "state.more is a defaultdict; it would come back as a plain dict$"),
        ({(0, 1): np.zeros(2)}, "state.more is a dict; its names must be text or whole numbers$"),
        (Velocity(np.zeros(2)), "state.more is a Velocity; its field must be declared as that$"),
        ([Velocity(np.zeros(2))], "state.more.0 is a Velocity; a dataclass may stand in a field of its own alone$"),
    ],
)
def test_a_state_of_something_else_is_refused(value, told):
    with pytest.raises(UserError, match=f"^a state must be of arrays, numbers and text, .*; {told}"):
        pack({"state": OwnState(**vars(OWN), more=value)})


def test_what_a_state_has_of_each_client_comes_back_by_its_number():
    state = OwnState(**vars(OWN), velocity=Velocity(np.ones(3)), more=dict.fromkeys(np.arange(2, dtype=np.int32), 0.5))
    arrays, _ = pack({"state": state})
    found = unpack(arrays, {"state": OwnState})["state"]
    assert found.velocity.rows.tolist() == [1, 1, 1] and found.more[np.int32(1)] == found.more[1] == 0.5


@pytest.mark.parametrize("more", [{1: np.ones(2), "1": np.zeros(2)}, {"a.b": np.ones(2), "a": {"b": np.zeros(2)}}])
def test_names_that_are_written_alike_stay_two(more):
    arrays, _ = pack({"state": OwnState(**vars(OWN), more=more)})
    found = unpack(arrays, {"state": OwnState})["state"].more
    tf.nest.map_structure(np.testing.assert_array_equal, list(found.values()), list(more.values()))


def test_bytes_keep_their_zeros():
    """As which TFF gives its strings."""
    more = {"event": b"a \xff\x00\x00", "none": b""}
    arrays, _ = pack({"state": OwnState(**vars(OWN), more=more)})
    assert unpack(arrays, {"state": OwnState})["state"].more == more


def test_arrays_of_tensorflow_are_arrays():
    state = ClusteredState(np.arange(2), np.zeros(2), tf.ones([1, 5]), (tf.constant(3),))
    arrays, _ = pack({"state": state})
    found = unpack(arrays, {"state": ClusteredState})["state"]
    assert isinstance(found.models, np.ndarray) and found.aggregators == (3,)
