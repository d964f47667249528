"""What clients keep between rounds: objects that do not change, files beyond a size, versions that a
checkpoint names.
"""

import contextlib
import dataclasses
import os

import numpy as np
import pytest

from tffcl.algorithms.method import ClusteredState
from tffcl.clients.client_state import MEMORY_BYTES, KeptStates, KeptStore
from tffcl.clients.simulation_context import simulating
from tffcl.errors import UserError
from tffcl.runs.checkpoints import Checkpoints
from tffcl.runs.run import Totals

SIZE = 4 * 5  # bytes of a value


def value(number):
    return np.full(5, number, np.float32)


def numbers(kept, clients):
    return [each[0] for each in kept.of(clients)]


def state_of(kept):
    return ClusteredState(
        np.arange(6, dtype=np.int32), np.zeros(6, np.int32), np.zeros([1, 5], np.float32), (), kept=kept
    )


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


class Run:
    """The directory of a run; `process()` is what a new process finds in it."""

    def __init__(self, out):
        self.out = out

    @contextlib.contextmanager
    def process(self, memory_bytes=MEMORY_BYTES):
        with simulating(client_states=KeptStore(self.out / "kept", memory_bytes)) as simulation:
            yield simulation.client_states

    def save(self, number, kept, store, keep=2):
        Checkpoints(self.out / "checkpoints", keep, store).save(number, state_of(kept), Totals.of_nobody(6))

    def load(self, number):
        state, _ = Checkpoints(self.out / "checkpoints").load(number, ClusteredState)
        return state.kept

    def files(self):
        return sorted(KeptStore(self.out / "kept").files())


def test_who_has_kept_nothing_has_the_first_value():
    kept = KeptStates(value(7))
    assert len(kept) == 0 and not kept.has([0, 3]).any()
    assert numbers(kept, [0, 3, 1000]) == [7, 7, 7]
    later = kept.updated([3], [value(1)])
    assert later.has([0, 3]).tolist() == [False, True] and numbers(later, [0, 3]) == [7, 1]
    assert repr(later) == "KeptStates(1 clients, 20 bytes each)"


@pytest.mark.parametrize("memory_bytes", [0, 2 * SIZE, 1000])
def test_old_objects_stay_as_they_were(run, memory_bytes):
    with run.process(memory_bytes):
        first = KeptStates(value(0)).updated([1, 2, 3], [value(1), value(2), value(3)])
        second = first.updated(np.array([2, 4], np.int32), [value(20), value(40)])
        third = second.updated([2], [value(200)])
        second.saved()
        assert numbers(first, range(5)) == [0, 1, 2, 3, 0]
        assert numbers(second, range(5)) == [0, 1, 20, 3, 40]
        assert numbers(third, range(5)) == [0, 1, 200, 3, 40]


def test_what_does_not_fit_into_memory_is_on_disk(run):
    with run.process(2 * SIZE) as store:
        kept = KeptStates(value(0)).updated(range(5), [value(each + 1) for each in range(5)])
        assert sorted(client for client, _ in store.files()) == [2, 3, 4]
        assert numbers(kept, range(6)) == [1, 2, 3, 4, 5, 0]
        for again in range(3):  # the two in memory are replaced there, the others are written anew
            kept = kept.updated([1, 4], [value(10 + again), value(40 + again)])
        assert sorted(client for client, _ in store.files()) == [2, 3, 4, 4, 4, 4]
        assert numbers(kept, range(5)) == [1, 12, 3, 4, 42]


def test_a_structure_keeps_its_types(run):
    first = {"control": np.zeros([2, 3], np.float32), "steps": np.int64(0), "layers": [np.zeros(2, bool)]}
    mine = {"control": np.ones([2, 3], np.float32), "steps": np.int64(9), "layers": [np.array([True, False])]}
    with run.process(0) as store:
        kept = KeptStates(first).updated([5], [mine])
        (found,) = kept.of([5])
        (client, version), *_ = store.files()
        assert client == 5 and run.files() == [(5, version)]
    assert found["control"].dtype == np.float32 and found["steps"] == 9 and found["layers"][0].tolist() == [True, False]
    np.testing.assert_array_equal(found["control"], mine["control"])


def test_without_a_run_values_are_in_a_directory_that_ends_with_them():
    store = KeptStore(memory_bytes=0)
    kept = KeptStates(value(0), store=store).updated([1], [value(5)])
    directory = store.directory
    assert numbers(kept, [1]) == [5] and len(list(directory.iterdir())) == 1
    del kept, store
    assert not directory.exists()


@pytest.mark.parametrize("memory_bytes", [0, 1000])
def test_versions_that_a_checkpoint_names_survive_and_others_go(run, memory_bytes):
    with run.process(memory_bytes) as store:
        kept = KeptStates(value(0))
        run.save(0, kept, store)
        for number in range(1, 5):
            kept = kept.updated([0, number], [value(number), value(10 * number)])
            if number % 2 == 0:
                run.save(number, kept, store)
        # Checkpoints 2 and 4 are left: client 0 has a version in each, the others one in both.
        assert [client for client, _ in run.files()] == [0, 0, 1, 2, 3, 4]
        run.save(6, kept.updated([0], [value(6)]), store, keep=1)
        assert [client for client, _ in run.files()] == [0, 1, 2, 3, 4]
    with run.process():
        assert numbers(run.load(6), range(6)) == [6, 10, 20, 30, 40, 0]


@pytest.mark.parametrize("memory_bytes", [0, 1000])
def test_a_kill_after_newer_versions_were_written_loses_nothing(run, memory_bytes):
    with run.process(memory_bytes) as store:
        kept = KeptStates(value(0)).updated([1, 2], [value(1), value(2)])
        run.save(2, kept, store)
        named = run.files()
        kept.updated([1, 3], [value(100), value(300)]).saved()  # and here the process is killed
        half = run.out / "kept" / "2.99.npz"
        half.write_bytes(next((run.out / "kept").glob("2.*.npz")).read_bytes()[:50])  # in the middle of writing
    assert len(run.files()) == len(named) + 3
    with run.process(memory_bytes) as store:
        resumed = run.load(2)
        assert numbers(resumed, range(4)) == [0, 1, 2, 0]
        again = resumed.updated([1, 3], [value(11), value(33)])
        again.saved()
        assert max(version for _, version in run.files()) > 99  # no name is used again
        assert numbers(resumed, range(4)) == [0, 1, 2, 0]
        run.save(4, again, store, keep=1)
        assert numbers(run.load(4), range(4)) == [0, 11, 2, 33]
    assert [client for client, _ in run.files()] == [1, 2, 3] and not half.exists()


def test_a_checkpoint_that_was_not_finished_names_nothing(run):
    with run.process(0) as store:
        kept = KeptStates(value(0)).updated([1], [value(1)])
        run.save(2, kept, store)
        whole = (run.out / "checkpoints" / "round_000002.npz").read_bytes()
        (run.out / "checkpoints" / "round_000004.partial").write_bytes(whole[:100])
    with run.process(0):
        checkpoints = Checkpoints(run.out / "checkpoints")
        assert checkpoints.latest() == 2 and numbers(run.load(2), [1]) == [1]


def test_an_older_checkpoint_that_is_damaged_does_not_stop_a_run(run):
    with run.process(0) as store:
        kept = KeptStates(value(0)).updated([1], [value(1)])
        run.save(2, kept, store, keep=3)
        run.save(4, kept.updated([1], [value(2)]), store, keep=3)
        (run.out / "checkpoints" / "round_000002.npz").write_bytes(b"damaged")
        run.save(6, kept.updated([1], [value(3)]), store, keep=3)
        assert numbers(run.load(4), [1]) == [2] and numbers(run.load(6), [1]) == [3]


def damaged_by_truncating(path):
    path.write_bytes(path.read_bytes()[:-30])


def damaged_by_another_shape(path):
    np.savez(path, np.zeros(4, np.float32))


def damaged_by_another_type(path):
    np.savez(path, np.zeros(5, np.int32))


def damaged_by_more_arrays(path):
    np.savez(path, value(1), value(2))


def damaged_by_a_place_past_the_end(path):
    """Of which zipfile raises an EOFError without a word."""
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\3\4") + 29] = 1  # the last array is 256 bytes further
    path.write_bytes(data)


def damaged_by_objects(path):
    np.savez(path, np.array([print] * 5, object))


@pytest.mark.parametrize(
    "damage",
    [
        damaged_by_truncating,
        damaged_by_another_shape,
        damaged_by_another_type,
        damaged_by_more_arrays,
        damaged_by_objects,
        damaged_by_a_place_past_the_end,
        lambda path: path.unlink(),
    ],
    ids=lambda damage: damage.__name__.removeprefix("damaged_by_").strip("<>"),
)
def test_a_damaged_file_is_one_line_that_names_it(run, damage):
    with run.process(0) as store:
        kept = KeptStates(value(0)).updated([3], [value(1)])
        run.save(2, kept, store)
        ((client, version),) = run.files()
        damage(run.out / "kept" / f"{client}.{version}.npz")
        loaded = run.load(2)
        assert numbers(loaded, [0]) == [0]  # the others do not need it
        with pytest.raises(UserError, match=f"{client}.{version}.npz, what client 3 kept, cannot be read") as raised:
            list(loaded.of([3]))
    assert "\n" not in str(raised.value)


def test_files_of_others_are_nobodys_and_a_directory_that_cannot_be_read_has_not_lost_them(run, monkeypatch):
    with run.process(0) as store:
        kept = KeptStates(value(0)).updated([3], [value(1)])
        for name in ("my.own.npz", "3.2.copy.npz"):
            (run.out / "kept" / name).write_bytes(b"mine")
        run.save(2, kept, store)
        assert run.files() == [(3, 1)] and len(list((run.out / "kept").iterdir())) == 3

    def scandir(path):  # also of pathlib
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "listdir", scandir)
    with pytest.raises(UserError, match="kept cannot be read: Permission denied"):
        run.files()


@pytest.mark.slow
def test_newcomers_need_no_entry(digits):
    """SOLO's and Ditto's states after newcomers joined keep what they kept; newcomers use the first row."""
    from tffcl.algorithms.ditto import build_ditto
    from tffcl.algorithms.solo import build_solo
    from tffcl.client_work.local_sgd import LocalTraining
    from tffcl.clients.population import Population
    from tffcl.models.classifiers import build_mlp

    model = build_mlp((8, 8, 1), 10, hidden=2)
    x, y = digits
    everyone = Population.from_arrays({client: (x[client : client + 5], y[client : client + 5]) for client in range(4)})
    for build in (build_solo, build_ditto):
        method = build(model, LocalTraining())
        state = method.initialize(everyone.restricted([0, 2]))
        mine = np.full(model.size, 3, np.float32)
        state = dataclasses.replace(state, kept=state.kept.updated([2], [mine]))
        joined = method.admit(state, everyone.restricted([1, 3]))
        assert joined.client_ids.tolist() == [0, 1, 2, 3] and len(joined.kept) == 1
        models, rows = method.models_for(joined, [0, 1, 2, 3])
        assert rows.tolist() == [0, 0, 1, 0]
        np.testing.assert_array_equal(models, [model.initial, mine])
        np.testing.assert_array_equal(models[0], state.models[0])


def test_a_file_of_another_run_is_refused(tmp_path):
    """Versions of a run that begins anew in the directory count from one again."""
    mine, others = (KeptStates(value(0), store=KeptStore(tmp_path, 0, run=name)) for name in ("a", "b"))
    mine = mine.updated([3], [value(1)])
    assert numbers(mine, [3]) == [1]
    (tmp_path / "3.1.npz").unlink()
    others.updated([3], [value(2)])
    with pytest.raises(UserError, match="3.1.npz, what client 3 kept, .* of another run, which was written"):
        list(mine.of([3]))


def test_a_file_of_another_client_is_refused(tmp_path):
    """As after files were exchanged or copied by hand."""
    kept = KeptStates(value(0), store=KeptStore(tmp_path, 0)).updated([3, 4], [value(1), value(2)])
    assert numbers(kept, [3, 4]) == [1, 2]
    (tmp_path / "4.2.npz").replace(tmp_path / "3.1.npz")
    with pytest.raises(UserError, match=r"3.1.npz, what client 3 kept, cannot be read \(it is of client 4\)"):
        list(kept.of([3]))


def test_what_a_client_kept_earlier_is_not_taken_for_what_it_keeps(tmp_path):
    """As after a single file was put back from a copy."""
    first = KeptStates(value(0), store=KeptStore(tmp_path, 0)).updated([3], [value(1)])
    kept = first.updated([3], [value(2)])
    assert numbers(kept, [3]) == [2]
    (tmp_path / "3.1.npz").replace(tmp_path / "3.2.npz")
    with pytest.raises(UserError, match=r"3.2.npz, what client 3 kept, .* \(it is version 1 of what the client kept\)"):
        list(kept.of([3]))
