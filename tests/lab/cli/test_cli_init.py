"""`tffcl init` and shell completion."""

import contextlib
import functools
import io
import shutil
import subprocess
import sys

import pytest

from tffcl.lab.cli.main import main
from tffcl.lab.tasks import resolve, task_file


def test_the_task_file_runs_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    assert "next: tffcl show my_task.toml" in capsys.readouterr().out
    contents = (tmp_path / "my_task.toml").read_text()
    assert "{" not in contents.replace("{ name", "") and "tffcl show my_task.toml" in contents
    for name in task_file.named_algorithms("my_task.toml"):
        resolve.resolve("my_task.toml", name)
    assert main(["run", "my_task.toml", "--algorithm", "angles_proximal", "--rounds", "1"]) == 0
    assert "1.000" in capsys.readouterr().out, "the four groups are found"


@pytest.mark.slow
def test_all_of_it_runs_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    assert main(["compare", "my_task.toml"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in ("pacfl", "fedavg", "angles_proximal"))


def test_every_comment_that_is_a_setting_may_be_one(tmp_path):
    """Lines that a user would uncomment name keys that there are; builders and files are the user's own."""
    assert main(["init", str(tmp_path / "mine.toml")]) == 0
    file = tmp_path / "mine.toml"
    text = file.read_text()
    for commented, live in (
        ("# validation = 0.1", "validation = 0.1"),
        ("# [newcomers]\n# clients = 4", "[newcomers]\nclients = 4"),
        (
            '# name = "dp"                       # differential privacy; also secure_sum, compression, robust\n# clip '
            "= 0.5\n"
            "# noise_multiplier = 1.0",
            'name = "dp"\nclip = 0.5\nnoise_multiplier = 1.0',
        ),
        ("# [aggregation]", "[aggregation]"),
    ):
        assert commented in text
        text = text.replace(commented, live)
    file.write_text(text)
    assert resolve.resolve(str(file), "pacfl").aggregation["name"] == "dp"
    assert task_file.named_algorithms(str(file)) == ["pacfl", "fedavg", "angles_proximal"]


@pytest.mark.parametrize("name, message", [("my_task.toml", "is there already"), ("my_task.txt", "must end in .toml")])
def test_nothing_is_written_over(tmp_path, monkeypatch, capsys, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("mine")
    assert main(["init", name]) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "mine"


@functools.cache
def completion(shell):
    """The script of a shell."""
    with contextlib.redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit) as stop:
        main(["--print-completion", shell])
    assert stop.value.code == 0
    return said.getvalue()


@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=pytest.mark.slow)])
def test_completion_knows_commands_and_names(shell):
    script = completion(shell)
    for word in ("similarity", "--algorithm", "demo_digits", "stocfl", "pacfl_table_1", "--overwrite"):
        assert word in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True).returncode == 0


@pytest.mark.slow
def test_nobody_need_read_the_whole_script():
    """As `tffcl --print-completion bash | head`: it is longer than what a pipe holds of what nobody reads."""
    command = [sys.executable, "-m", "tffcl", "--print-completion", "bash"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 0


def test_bash_completes():
    script = completion("bash")
    ask = 'COMP_WORDS=(tffcl run demo_dig); COMP_CWORD=2; _shtab_tffcl tffcl demo_dig run; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["demo_digits"], done.stderr
