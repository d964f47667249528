"""Mistakes of the command `tffcl show`; what it writes is looked at in test_fast_mistakes.py."""

import pytest

from tests.lab.cli.test_cli import fails


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["show", "demo_digit"], "unknown task 'demo_digit'; did you mean 'demo_digits'"),
        (["show", "demo_digits", "--set", "dataset.name=mnits"], "did you mean 'mnist'"),
        (["show", "demo_digits", "--set", "partition.clients=3000"], "3000"),
        (["show", "demo_digits", "--seed", "-1"], "seed is -1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_one_line_says_what_is_wrong(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, *arguments)
