"""Exports of runs whose aggregation hides uploads: what is written of them, that it runs, and that it promises no more
than it keeps.
"""

import re
import runpy
import shutil

import pytest
import tensorflow_federated as tff

import tffcl
from tffcl.export import deployment_forms
from tffcl.export.manifest import read_manifest, write_manifest
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import resolve
from tffcl.lab.tasks.exports import export_run

pytestmark = pytest.mark.slow  # which forms there are is tested without a run, see aggregators/test_deployed_forms
# Aggregation, its options, and whether the server sees sums alone, so that TFF can make a DistributeAggregateForm.
RULES = {
    "secure_sum": ("secure_sum", {}, True),
    "dp": ("dp", {"noise_multiplier": 0.5}, False),
    "dp with secure sums": ("dp", {"noise_multiplier": 0.5, "secure": True}, True),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Runs FedAvg, or a method, on a few digits and exports it: `label -> directory of the export`."""
    made = {}

    def export(label, method="fedavg", **own):
        if (label, method) not in made:
            place = tmp_path_factory.mktemp("private")
            name, options, _ = RULES[label]
            overrides = {
                "train": {"rounds": 1, "local_epochs": 1}, "model": {"hidden": 8}, "partition": {"clients": 8},
                "aggregation": {"name": name, **options}, "algorithms": {method: own},
            }  # fmt: skip
            overrides["train"]["clients_per_round"] = 4
            chosen = resolve.resolve("demo_digits", method, overrides=overrides)
            tffcl.run(chosen, place / "out", show_progress=False)
            export_run(place / "out", place / "to")
            made[label, method] = place / "to"
        return made[label, method]

    return export


@pytest.mark.parametrize("label", RULES)
def test_what_is_exported_runs_and_shows_no_client(exported, capsys, label):
    to = exported(label)
    manifest = read_manifest(to)
    training, (_, _, sums_alone) = manifest["computations"]["training"], RULES[label]
    assert "directory" in training["forms"]["map_reduce"]
    assert ("directory" in training["forms"]["distribute_aggregate"]) == sums_alone
    assert sums_alone or "federated_aggregate" in training["forms"]["distribute_aggregate"]["impossible"]
    (told,) = manifest["privacy"]["releases"]
    assert told["secure_sums"] == sums_alone
    serialized = (to / training["file"]).read_bytes()
    assert (b"federated_secure_sum_bitwidth" in serialized) == sums_alone
    # Nothing but models, sums and noisy counts comes to the server: no report and no client ID.
    result = deployment_forms.read_computation(to / training["file"]).type_signature.result
    assert tff.structure.name_list(result[1].member) == ["measurements"] and "loss" not in str(result)
    assert main(["export", "--check", str(to)]) == 0
    said = capsys.readouterr().out
    place = f"{to}/computations/training"
    noised = RULES[label][0] == "dp"
    way = "shapes as" if noised else "as"
    assert f"{place}/computation.pb: {way} the library when it was exported" in said
    assert f"{place}/computation.pb: {way} the library on clients of the task" in said
    assert f"{place}/map_reduce: {way} the whole computation" in said
    assert (f"{place}/distribute_aggregate: {way} the whole computation" in said) == sums_alone
    assert ("noise drawn anew" in said) == noised


def test_the_script_runs_secure_rounds(exported, worker, capfd):
    to = exported("secure_sum")
    (training,) = [phase for phase in read_manifest(to)["phases"] if phase["phase"] == "training"]
    assert training["asks"].startswith("no clients of a cluster of which fewer than 2 take part")
    try:
        runpy.run_path(str(to / "run_one_round.py"))["main"]()
    finally:
        worker.use_local_worker()
    (moved,) = re.findall(r"clients moved 1 model by (\d+\.\d+)", capfd.readouterr().out)
    assert 0 < float(moved) < 1


def test_a_file_that_draws_no_noise_is_refused(exported, capsys, tmp_path):
    """The computation of an open run in the place of a private one."""
    to = tmp_path / "to"
    shutil.copytree(exported("secure_sum"), to)
    contents = {key: value for key, value in read_manifest(to).items() if key not in ("files", "sha256")}
    contents["computations"]["training"]["check"]["noise"] = "drawn anew in each run"
    write_manifest(to, contents)
    assert main(["export", "--check", str(to)]) == 2
    assert "draws no noise: two runs give the same" in capsys.readouterr().err


def test_private_signatures_are_exported_with_noise(exported, capsys):
    to = exported("dp", "pacfl", num_clusters=2, threshold=None, signature_noise_multiplier=0.5)
    about = read_manifest(to)["computations"]["signature"]
    assert about["check"]["noise"] and deployment_forms.draws_noise(
        deployment_forms.read_computation(to / about["file"])
    )
    assert main(["export", "--check", str(to)]) == 0
    assert f"{to}/computations/signature/computation.pb: shapes as" in capsys.readouterr().out


def test_each_cluster_is_rehearsed_by_as_many_as_secure_sums_need(exported, capsys):
    to = exported("secure_sum", "pacfl", num_clusters=2, threshold=None)
    assert main(["export", "--check", str(to)]) == 0
    assert f"{to}/computations/training/computation.pb: as the library on clients" in capsys.readouterr().out
