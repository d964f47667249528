"""What is said of what a user gave is one line, whatever it holds."""

import pytest

from tffcl.errors import UserError, printable
from tffcl.lab.cli.main import main

ODD = "a\nb\r\x1b[31mred\x1b[0m \u202egnp.exe\u2066 \x9b2J \u200b\ufeff\x00"
SHOWN = r"a\nb\r\x1b[31mred\x1b[0m \u202egnp.exe\u2066 \x9b2J \u200b\ufeff\x00"


def test_control_characters_are_shown_as_escapes():
    assert printable(ODD) == SHOWN == str(UserError(ODD))
    assert printable("β = 0.5 ± 1 %, “x”, 東京") == "β = 0.5 ± 1 %, “x”, 東京"
    assert len(str(UserError(f"a is {'9' * 5000}; it must be 1"))) < 1000
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert printable("\udc80") == r"\udc80"  # of a path that is no UTF-8


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "a\n\x1b[31m\u202e"],
        ["run", "a\n\x1b[31m\u202e.toml", "--algorithm", "fedavg"],
        ["run", "demo_digits", "--algorithm", "a\n\x1b[31m\u202e"],
        ["run", "demo_digits", "--algorithm", "fedavg", "--set", "train.a\x1b[31m\u202e=1"],
        ["report", "--a\n\x1b[31m\u202e=1", "x"],
    ],
)
def test_a_message_has_one_line_and_commands_no_terminal(capsys, arguments):
    try:
        assert main(arguments) == 2
    except SystemExit as stop:
        assert stop.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.strip().isprintable(), said
