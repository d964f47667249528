from tffcl.runner.progress import go_on_from, progress_bar


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
