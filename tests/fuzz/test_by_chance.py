"""Inputs that a seeded generator has damaged: no traceback, no silent acceptance, no time-out; a few here, 1,000 with
`-m slow`.
"""

import pytest

from tests.fuzz import client_data, command, command_lines, files_of_runs, odd_runs, task_files


def test_task_files(directory, monkeypatch):
    command.assert_none_wrong(task_files.cases(directory, monkeypatch, 12, seed=0))


@pytest.mark.slow
def test_values_of_set(directory, monkeypatch):
    command.assert_none_wrong(command_lines.settings_cases(monkeypatch, 8))


def test_command_lines(directory, monkeypatch):
    command.assert_none_wrong(command_lines.line_cases(monkeypatch, 80, seed=0))


def test_npz_files(directory):
    command.assert_none_wrong(client_data.file_cases(directory, 150, seed=0))


def test_client_data():
    command.assert_none_wrong(client_data.array_cases(60))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return files_of_runs.make_runs(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.slow  # of files of runs and exports there are tests by name, too
def test_1000_cases(directory, monkeypatch, runs, tmp_path):
    from tffcl.lab.tasks.exports import export_run

    export_run(runs["pacfl"], tmp_path / "export-whole")
    found = [
        *client_data.file_cases(directory, 140, seed=1),
        *client_data.array_cases(60),
        *files_of_runs.export_cases(tmp_path / "export-whole", tmp_path, 100, seed=1),
        *files_of_runs.run_cases(runs, tmp_path, 180, seed=1),
        *task_files.cases(directory, monkeypatch, 260, seed=1),
        *command_lines.settings_cases(monkeypatch, 140),
        *command_lines.line_cases(monkeypatch, 120, seed=1),
    ]
    assert len(found) > 900
    command.assert_none_wrong(found)


@pytest.mark.slow  # there are tests of each kind by name, too
def test_runs_with_what_is_no_file_or_was_forged(runs, tmp_path):
    finished = {name: place for name, place in runs.items() if not name.endswith("-stopped")}
    odd = odd_runs.odd_cases(finished, tmp_path, 10, seed=1)
    command.assert_none_wrong([*odd, *odd_runs.forged_cases(finished, tmp_path, 12, seed=1)])
