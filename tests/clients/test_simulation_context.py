"""The context of a simulation: blocks inside blocks, and simulations in threads."""

import concurrent.futures
import threading

import pytest

from tffcl.clients.simulation_context import current, on_devices, simulating


class Ledger:
    def __init__(self):
        self.found = []

    def spend(self, *releases):
        self.found += releases


def test_a_block_inside_another_changes_what_it_names():
    outer, inner, read = Ledger(), Ledger(), []
    with simulating(memory=1000, ledger=outer, on_reading=lambda: read.append("outer")):
        with simulating(ledger=inner):
            assert current().memory_bytes == 1000
            current().release("a", "b")
            with on_devices():
                current().on_reading()
            current().on_reading()
        current().release("c")
    current().release("nobody counts it")
    assert (inner.found, outer.found, read) == (["a", "b"], ["c"], ["outer"])


def test_a_block_that_fails_leaves_the_context_as_it_was():
    before = current()
    with pytest.raises(ValueError), simulating(memory=1):
        raise ValueError
    assert current() is before


def test_simulations_in_two_threads_know_nothing_of_each_other():
    both = threading.Barrier(2)

    def simulate(name):
        ledger = Ledger()
        with simulating(ledger=ledger):
            both.wait(10)
            current().release(name)
            both.wait(10)
        return ledger.found

    with concurrent.futures.ThreadPoolExecutor(2) as pool, simulating(ledger=Ledger()):
        assert list(pool.map(simulate, "ab")) == [["a"], ["b"]]
        assert current().ledger.found == []
