"""What an installation lacks, and that the list of packages that mends it is the one that tffcl asks for."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from tffcl.errors import UserError
from tffcl.lab.cli import doctor
from tffcl.lab.cli.main import main

ROOT = pathlib.Path(__file__).parents[3]


def pins():
    lines = [line for line in doctor.requirements_file().read_text().splitlines() if not line.startswith("#")]
    found = {Requirement(line).name.lower(): Requirement(line) for line in lines}
    assert len(found) == len(lines) > 80
    return found


def test_every_dependency_has_a_pin_that_fits():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for wanted in map(Requirement, project["project"]["dependencies"]):
        (pin,) = pins()[wanted.name.lower().replace("_", "-")].specifier
        assert pin.operator == "==" and wanted.specifier.contains(pin.version), wanted


def test_the_overrides_are_those_of_a_checkout_and_of_the_list():
    overrides = (ROOT / "tffcl" / "install" / "overrides.txt").read_text().splitlines()
    stated = [line for line in overrides if not line.startswith("#")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert stated == project["tool"]["uv"]["override-dependencies"]
    assert stated[0] == str(pins()["jax"])
    for wanted in map(Requirement, stated):
        (pin,) = pins()[wanted.name].specifier
        assert wanted.specifier.contains(pin.version), wanted


def test_no_address_of_a_registry():
    for file in (ROOT / "tffcl" / "install").iterdir():
        assert not re.search(r"://|--index|--find-links|@ ", file.read_text()), file


def test_the_wheel_has_them():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["tffcl"] and doctor.requirements_file().is_relative_to(ROOT / "tffcl")


def test_nothing_is_missing_here(capsys):
    assert doctor.missing_packages() == []
    assert main(["doctor", "--fix"]) == 0
    assert capsys.readouterr().out == "nothing is missing\n"


def test_a_data_directory_that_cannot_be_read_is_a_fact_and_not_the_end(tmp_path, monkeypatch):
    def closed(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pathlib.Path, "iterdir", closed)
    assert doctor._data_directory(str(tmp_path)) == f"{tmp_path} (--data-dir; cannot be read: Permission denied)"


@pytest.fixture
def bare(monkeypatch):
    """An installation of tffcl alone."""
    real = importlib.metadata.version

    def version(name):
        if name != "tffcl":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_what_is_missing_is_named(bare):
    told = dict(doctor.facts())
    assert "tensorflow-federated" in told["missing"] and told["to install them"] == "tffcl doctor --fix"
    assert "cores" not in told


def test_fix_installs_the_list_without_looking_at_what_packages_ask_for(bare, monkeypatch):
    asked = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: asked.append(command) or subprocess.CompletedProcess(command, 3)
    )
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "pip" else version(name))
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/bin/uv")
    assert main(["doctor", "--fix"]) == 3
    file = str(doctor.requirements_file())
    assert asked == [["/bin/uv", "pip", "install", "--python", sys.executable, "--no-deps", "-r", file]]
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    with pytest.raises(UserError, match="no pip, and there is no uv"):
        doctor.fix_command()


def test_a_command_that_needs_them_says_so(bare, monkeypatch, capsys):
    def fail(*_):
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    from tffcl.lab.cli import listing

    monkeypatch.setattr(listing, "listing", fail)
    assert main(["list"]) == 2
    assert capsys.readouterr().err == "tffcl: numpy is not installed; tffcl doctor --fix installs what is missing\n"


def test_the_image_is_of_files_that_are_there_and_runs_a_worker_without_rights():
    lines = (ROOT / "tffcl" / "install" / "Containerfile").read_text().splitlines()
    steps = [line.partition(" ")[::2] for line in lines if line and not line.startswith("#")]
    copied = [name for step, rest in steps if step == "COPY" for name in rest.split()[:-1]]
    assert copied and all((ROOT / name).exists() for name in copied)
    assert any(step == "RUN" and "--no-deps -r tffcl/install/requirements.txt" in rest for step, rest in steps)
    names = [step for step, _ in steps]
    assert dict(steps)["USER"] == "10001" and names.index("USER") < names.index("ENTRYPOINT")
    assert dict(steps)["ENTRYPOINT"] == '["tffcl", "worker"]' and dict(steps)["CMD"] == '["--port", "10000"]'
