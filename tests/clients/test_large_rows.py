import numpy as np
import pytest

from tests.memory import resident_bytes
from tffcl.clients import large_rows
from tffcl.clients.client_state import KeptStore
from tffcl.clients.simulation_context import simulating
from tffcl.errors import UserError


@pytest.fixture
def in_files(monkeypatch):
    monkeypatch.setattr(large_rows, "MEMORY_BYTES", 0)


def parts():
    return (np.full([few.stop - few.start, 3], few.start, np.float32) for few in large_rows.slices(130))


@pytest.mark.parametrize("row_bytes, rows", [(0, 64), (2**22, 64), (2**24, 16), (2**30, 8)])
def test_fewer_large_rows_are_made_at_a_time(row_bytes, rows):
    cut = list(large_rows.slices(130, row_bytes))
    assert cut[0] == slice(0, rows) and cut[-1].stop == 130
    assert all(one.stop == other.start for one, other in zip(cut, cut[1:]))


def test_a_matrix_in_a_file_is_the_one_in_memory(tmp_path, monkeypatch):
    in_memory = large_rows.joined(parts(), (130, 3))
    assert in_memory.flags.owndata
    monkeypatch.setattr(large_rows, "MEMORY_BYTES", 0)
    with simulating(client_states=KeptStore(tmp_path / "kept")):
        in_file = large_rows.joined(parts(), (130, 3))
    assert isinstance(in_file, np.ndarray) and not in_file.flags.writeable
    np.testing.assert_array_equal(in_file, in_memory)
    assert not list((tmp_path / "kept").iterdir())  # a process that is killed leaves nothing behind


def test_what_was_let_go_is_out_of_memory_and_there_again(in_files):
    matrix = large_rows.joined((np.full([1, 2**20], row, np.float32) for row in range(16)), (16, 2**20))
    few = matrix[8:].reshape(-1)  # 32 MB
    few.sum()
    held = resident_bytes()
    large_rows.let_go(few)
    assert held - resident_bytes() > few.nbytes / 2
    np.testing.assert_array_equal(few[:: 2**20], range(8, 16))


def test_what_is_in_memory_cannot_be_let_go():
    own = np.ones(3)
    large_rows.let_go(own)
    np.testing.assert_array_equal(own, np.ones(3))


def test_a_directory_that_takes_nothing(tmp_path, in_files):
    (tmp_path / "kept").write_text("")
    with (
        simulating(client_states=KeptStore(tmp_path / "kept")),
        pytest.raises(UserError, match="130 models of clients need 1,560 bytes"),
    ):
        large_rows.joined(parts(), (130, 3))
