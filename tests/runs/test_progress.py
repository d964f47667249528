import types

import pytest

from tffcl.runs.callbacks import Progress


def test_what_was_done_before_is_no_part_of_the_rate(capsys):
    with Progress(200, "fedavg") as progress:
        progress.begin(types.SimpleNamespace(round_number=100))
        bar = progress.bar
        assert bar.n == 100
        bar.start_t -= 10  # as if ten seconds had gone by
        bar.update(2)
        bar.refresh()
        line = capsys.readouterr().err.split("\r")[-1]
    assert "102/200" in line
    assert "5.0" in line and "s/round" in line  # not ten rounds a second


@pytest.mark.parametrize("shown", [True, False], ids=["shown", "hidden"])
def test_how_many_clients_are_done_stands_before_the_bar(capsys, shown):
    with Progress(2, "flt initialises", show=shown) as progress:
        progress.show_clients(10, 25)
        assert ("flt initialises (10/25 clients)" in capsys.readouterr().err) == shown
        progress.show_clients(25, 25)
        assert "clients" not in capsys.readouterr().err.split("\r")[-1]
