import pytest

from tffcl.runs.progress import go_on_from, progress_bar, show_clients


def test_what_was_done_before_is_no_part_of_the_rate(capsys):
    with progress_bar(200, "fedavg", "round") as bar:
        go_on_from(bar, 100)
        assert bar.n == 100
        bar.start_t -= 10  # as if ten seconds had gone by
        bar.update(2)
        bar.refresh()
        line = capsys.readouterr().err.split("\r")[-1]
    assert "102/200" in line
    assert "5.0" in line and "s/round" in line  # not ten rounds a second


@pytest.mark.parametrize("shown", [True, False], ids=["shown", "hidden"])
def test_how_many_clients_are_done_stands_before_the_bar(capsys, shown):
    with progress_bar(2, "flt initialises", "round", show=shown) as bar:
        show_clients(bar, 10, 25)
        assert ("flt initialises (10/25 clients)" in capsys.readouterr().err) == shown
        show_clients(bar, 25, 25)
        assert "clients" not in capsys.readouterr().err.split("\r")[-1]
