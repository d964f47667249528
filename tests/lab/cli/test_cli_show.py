"""The command `tffcl show`, which trains nothing."""

import subprocess
import sys

import pytest

from tests.lab.cli.test_cli import fails

FORBIDDEN = "{'tensorflow', 'tensorflow_federated'}"


def test_show_writes_below_runs_without_tensorflow(tmp_path):
    check = (
        "import sys\nfrom tffcl.lab.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"assert not {FORBIDDEN} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", check, "show", "demo_digits", "--seed", "2", "--set", "partition.clients=8"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "demo_digits, seed 2: digits/rotated" in done.stdout and "8 clients, 4 true groups of 2" in done.stdout
    written = sorted(path.name for path in (tmp_path / "runs" / "demo_digits" / "show").iterdir())
    assert written == ["labels.png", "samples.png", "sizes.png"]


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
