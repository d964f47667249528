"""The commands that train nothing: `tffcl show` and `tffcl angles`."""

import subprocess
import sys

import pytest

from tffcl.lab.cli.main import main

FORBIDDEN = "{'tensorflow', 'tensorflow_federated'}"


def fails(capsys, *arguments):
    """Runs a command that a user got wrong; returns its single line."""
    try:
        code = main(list(arguments))
    except SystemExit as stop:
        code = stop.code
    lines = capsys.readouterr().err.splitlines()
    assert code == 2 and len(lines) == 1 and lines[0].startswith("tffcl: "), lines
    return lines[0]


def test_show_writes_below_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["show", "demo_digits", "--seed", "2", "--set", "partition.clients=8"]) == 0
    said = capsys.readouterr().out
    assert "demo_digits, seed 2: digits/rotated" in said and "8 clients, 4 true groups of 2" in said
    written = sorted(path.name for path in (tmp_path / "runs" / "demo_digits" / "show").iterdir())
    assert written == ["labels.png", "samples.png", "sizes.png"]


@pytest.mark.parametrize(
    "arguments", [["show", "demo_digits"], ["angles", "--gaussians"], ["angles", "--help"]], ids=" ".join
)
def test_no_tensorflow(tmp_path, arguments):
    check = (
        "import sys\nfrom tffcl.lab.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"assert not {FORBIDDEN} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", check, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_gaussians(capsys):
    assert main(["angles", "--gaussians"]) == 0
    said = capsys.readouterr().out
    assert "Bhattacharyya" in said and "PACFL Table 5" in said and "10.73" in said


def test_angles_between_ones_own_choice_of_sets(capsys, tmp_path, monkeypatch):
    from tffcl.lab.batches import dataset_angles

    load = dataset_angles.load_dataset
    # Digits twice under two names: the angle is 0 and no other set is needed.
    monkeypatch.setattr(dataset_angles, "load_dataset", lambda _, **rest: load({"name": "digits"}, **rest))
    assert main(["angles", "digits", "mnist", "--vectors", "3", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if line.startswith("digits - mnist"))
    assert "0.00 (0.0)" in line
    assert (tmp_path / "out" / "angles.png").stat().st_size > 3000


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["show", "demo_digit"], "unknown task 'demo_digit'; did you mean 'demo_digits'"),
        (["show", "demo_digits", "--set", "dataset.name=mnits"], "did you mean 'mnist'"),
        (["show", "demo_digits", "--set", "partition.clients=3000"], "3000"),
        (["show", "demo_digits", "--seed", "-1"], "seed is -1"),
        (["angles", "digits"], "two or more data sets"),
        (["angles", "digits", "mnits"], "did you mean 'mnist'"),
        (["angles", "--vectors", "0"], "num_vectors is 0"),
        (["angles", "--gaussians", "digits"], "--gaussians needs no data sets; given: digits"),
        (["angles", "--gaussians", "--seed", "-1"], "seed is -1"),
        (["angle"], "unknown command 'angle'; did you mean 'angles'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_one_line_says_what_is_wrong(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, *arguments)
