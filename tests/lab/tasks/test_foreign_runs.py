"""A run or an export that somebody else has made: what its config.toml names is neither imported nor called."""

import dataclasses
import json
import pathlib
import shutil
import tomllib

import pytest
import tomli_w

import tffcl
from tffcl.errors import UserError
from tffcl.export import deployment_forms, manifest
from tffcl.lab.batches import batch, study
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import resolve
from tffcl.lab.tasks.exports import export_run

OVERRIDES = {"train": {"rounds": 1, "clients_per_round": 2}, "partition": {"clients": 8}, "newcomers": {"clients": 2}}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A comparison of one run, and the export of that: `(OUT, DIR)`."""
    place = tmp_path_factory.mktemp("honest")
    out = place / "out"
    tffcl.run(
        resolve.resolve("demo_digits", "fedavg", overrides=OVERRIDES), out / "fedavg" / "seed-0", show_progress=False
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deployment_forms, "PARTS", {})  # forms of rounds are not looked at here
        export_run(out / "fedavg" / "seed-0", place / "to")
    return out, place / "to"


# What a forger writes into config.toml; FILE is what the function makes when it is called, or its module when it is
# imported.
FORGED = {
    "aggregation": lambda file: {"aggregation": {"builder": "subprocess:getoutput", "cmd": f"touch {file}"}},
    "method": lambda file: {"base": "evil:build", "directory": str(file.parent)},
    "signature": lambda file: {
        "base": "composed",
        "method": {"signature": "evil:build"},
        "directory": str(file.parent),
    },
    "signature's table": lambda file: {
        "base": "composed",
        "method": {"signature": {"builder": "evil:build"}},
        "directory": str(file.parent),
    },
    "model": lambda file: {"model": {"builder": "evil:build"}, "directory": str(file.parent)},
    "dataset": lambda file: {"dataset": {"builder": "evil:build"}, "directory": str(file.parent)},
    "partition": lambda file: {"partition": {"builder": "evil:build"}, "directory": str(file.parent)},
    "a list": lambda file: {"dataset": {"name": "mixture", "names": ["evil:build"]}, "directory": str(file.parent)},
}


@pytest.fixture
def forged(honest, tmp_path):
    """`(what) -> (OUT, DIR, canary)`: copies whose config.toml was forged."""

    def forge(what):
        out, to, canary = tmp_path / "out", tmp_path / "to", tmp_path / "canary"
        (tmp_path / "evil.py").write_text(f"open({str(canary)!r}, 'w').close()\ndef build(*given, **more): pass\n")
        shutil.copytree(honest[0], out)
        shutil.copytree(honest[1], to)
        run = out / "fedavg" / "seed-0"
        for file in (run / "config.toml", to / "config.toml"):
            file.write_text(tomli_w.dumps({**tomllib.loads(file.read_text()), **FORGED[what](canary)}))
        marker = json.loads((run / "run.json").read_text())
        del marker["settings"]  # which would tell that config.toml was edited
        (run / "run.json").write_text(json.dumps(marker))
        contents = json.loads((to / manifest.NAME).read_text())
        manifest.write_manifest(to, {key: value for key, value in contents.items() if key not in ("files", "sha256")})
        return out, to, canary

    return forge


@pytest.mark.parametrize("what", FORGED)
def test_what_a_foreign_file_names_is_not_run(forged, tmp_path, capsys, what):
    out, to, canary = forged(what)
    run = out / "fedavg" / "seed-0"
    for arguments, file in (
        (["export", "--check", str(to)], to),
        (["export", str(run), "--to", str(tmp_path / "again")], run),
        (["newcomers", str(run)], run),
        (["newcomers", str(out)], run),
    ):
        assert main(arguments) == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        named = "subprocess:getoutput" if what == "aggregation" else "evil:build"
        assert said.startswith(f"tffcl: {file / 'config.toml'} names {named!r}") and said.count("--trust-builders") == 1
        assert not canary.exists(), arguments
    with pytest.raises(UserError, match="trust_builders=True"):
        tffcl.load_run(run)


@pytest.mark.parametrize("what", ["aggregation", pytest.param("method", marks=pytest.mark.slow)])
def test_no_command_runs_it(forged, tmp_path, capsys, what):
    """Whatever a command says of the directory: a report reads results alone, and who resumes has given a task
    of her own.
    """
    out, _, canary = forged(what)
    run = out / "fedavg" / "seed-0"
    own = [f"--set={each}" for each in ("partition.clients=8", "newcomers.clients=2", "train.clients_per_round=2")]
    own += ["--rounds", "1"]
    for arguments in (
        ["report", str(run)],
        ["report", str(out)],
        ["run", "demo_digits", "--algorithm", "fedavg", *own, "--out", str(run), "--resume"],
        ["compare", "demo_digits", "--algorithms", "fedavg", *own, "--out", str(out), "--resume"],
        ["compare", "demo_digits", "--algorithms", "solo", *own, "--out", str(out), "--resume"],
        ["sweep", "demo_digits", "--algorithm", "fedavg", *own, "--over=momentum=0,0.5", "--out", str(out), "--resume"],
        ["results", str(out)],
    ):
        main(arguments)
        assert not canary.exists(), arguments
    capsys.readouterr()


@pytest.mark.slow
def test_who_trusts_it_or_names_the_same_herself_goes_on(forged, capsys):
    out, to, canary = forged("aggregation")
    run = out / "fedavg" / "seed-0"
    resolved = resolve.resolve("demo_digits", "fedavg", overrides=OVERRIDES)
    asked = dataclasses.replace(resolved, **FORGED["aggregation"](canary))
    assert resolve.load_run_config(run, trust_builders=asked).aggregation == asked.aggregation
    for another in (resolved, dataclasses.replace(asked, directory="elsewhere")):
        with pytest.raises(UserError, match="names 'subprocess:getoutput'"):
            resolve.load_run_config(run, trust_builders=another)
    assert not study.has_results(batch.Job(resolved, pathlib.PurePath("fedavg", "seed-0"), "a cell"), out)
    assert not canary.exists()
    assert main(["export", "--check", str(to), "--trust-builders"]) == 2  # it is called, and gives no factory
    # What the command printed.
    assert canary.exists() and "aggregation is ''; it must be an aggregation factory" in capsys.readouterr().err
