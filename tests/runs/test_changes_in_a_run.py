"""Runs in which data change or clients join in the middle."""

import gc
import json
import weakref

import numpy as np
import pytest

import tffcl
from tests.runs.finished_runs import check_files_agree, check_first_client, check_resume, rows_of
from tests.runs.test_flt_runs import FLT
from tffcl.clients.cohort import sample_cohort
from tffcl.errors import UserError
from tffcl.lab.batches import newcomers
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import build, resolve
from tffcl.lab.tasks.populations import build_populations, drifting
from tffcl.runs.population_changes import Stages

CHANGES = {
    "train": {"rounds": 8, "local_epochs": 1},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 3, "keep": 9},
    "drift": {"clients": 6, "round": 3},
    "newcomers": {"clients": 4, "round": 5},
}
OWN = {"flt": {**FLT, "clusters": "disjoint", "change_flags": 2}, "pacfl": {}, "fedavg": {}}


def resolved(algorithm):
    return resolve.resolve("demo_digits", algorithm, overrides={**CHANGES, "algorithms": {algorithm: OWN[algorithm]}})


@pytest.fixture(params=["pacfl", pytest.param("flt", marks=pytest.mark.slow)])
def finished(request, finished_run):
    return finished_run(request.param)


def test_everyone_is_there_at_the_end_and_the_notes_say_what_happened(finished, kept):
    name, out, summary = finished
    assert len(rows_of(out / "clients.csv")) == 40
    notes = " | ".join(summary["notes"])
    assert "4 newcomers joined in round 5" in notes
    _, changed = stages_of(name)
    assert f"from round 3 on these clients held other data: {', '.join(map(str, sorted(changed)))}" in summary["notes"]
    check_files_agree(out, summary)
    check_first_client(out, kept)
    with pytest.raises(UserError, match="joined it in round 5; none are left"):
        newcomers.join_newcomers(out, data_dir=kept, show_progress=False)


@pytest.mark.slow
def test_the_report_of_flt_shows_when_clusters_were_formed_anew(finished_run):
    _, out, _ = finished_run("flt")
    formed = [int(row["round"]) for row in rows_of(out / "rounds.csv") if int(row["formed_anew"])]
    assert formed and min(formed) >= 3
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    # Rounds in which clients moved to another cluster are named; in some nobody does.
    assert any(f"clusters formed anew in round {number}; into another cluster moved: " in page for number in formed)
    assert "flags of change: " in page
    assert (out / "figures" / "relatedness.png").is_file()


@pytest.mark.slow
def test_a_report_is_made_of_it(finished_run):
    _, out, _ = finished_run("pacfl")
    assert main(["report", str(out)]) == 0
    assert (out / "figures" / "dendrogram.png").is_file()


@pytest.mark.slow  # newcomers of a later round are in test_own_data
@pytest.mark.parametrize("name, picture", [("flt", "relatedness"), ("stocfl", "merging")])
def test_newcomers_to_clusters_that_are_not_formed_anew(tmp_path, kept, name, picture):
    """They are in the report's pictures, and what they sent of their data is in the traffic."""
    overrides = {
        "train": {"rounds": 2, "local_epochs": 1, "clients_per_round": 36},
        "newcomers": {"clients": 4, "round": 2},
        "algorithms": {name: FLT if name == "flt" else {}},
    }
    whole = resolve.resolve("demo_digits", name, overrides=overrides)
    summary = tffcl.run(whole, tmp_path, data_dir=kept, show_progress=False).summary
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "figures" / f"{picture}.png").is_file()
    # Of all 36 before or in round 1, then of the 4.
    once = tffcl.load_run(tmp_path, data_dir=kept).method.joining
    assert summary["traffic"]["signature_bytes"] == 40 * (once.down + once.up) > 0
    if name == "stocfl":
        (row,) = [row for row in rows_of(tmp_path / "rounds.csv") if row["round"] == "2"]
        assert int(row["known_clients"]) == 40
        assert float(row["known_ari"]) == pytest.approx(summary["clusters"]["known_ari"], abs=1e-9)  # of nine digits


def test_an_old_local_test_does_not_count_after_a_change(finished):
    """A client that has not trained since its data changed has no local accuracy: in the end all have."""
    name, out, _ = finished
    stages, changed = stages_of(name)
    before, now = {*cohort(stages, 1), *cohort(stages, 2)}, cohort(stages, 3)
    with np.load(out / "checkpoints" / "round_000003.npz") as saved:
        tested = dict(zip(stages.population(3).client_ids.tolist(), saved["totals.local_total"]))
    stale = {client: tested[client] > 0 for client in before.difference(now)}
    assert stale == {client: client not in changed for client in stale} and len(set(stale.values())) == 2


def stages_of(name):
    """The stages of a run, and the clients whose data change."""
    settings = resolved(name)
    federated = build.load_data(settings)
    model = build.build_model(settings, federated)
    return Stages(model, *build_populations(settings, federated)), drifting(settings, federated)


def cohort(stages, number):
    return sample_cohort(stages.population(number).client_ids, 20, 0, number).tolist()


def test_the_stages_of_a_run():
    stages, changed = stages_of("fedavg")
    assert [len(stages.population(number)) for number in (0, 1, 4, 5, 8)] == [36, 36, 36, 40, 40]
    assert [number for number in range(1, 9) if stages.begins(number)] == [3, 5]
    first, third, fifth = (stages.at(number) for number in (1, 3, 5))
    assert first.arrivals is None and not len(first.changed)
    assert len(changed) == 6  # none of those that join in round 5
    np.testing.assert_array_equal(third.changed, np.sort(changed))
    np.testing.assert_array_equal(fifth.population.client_ids[fifth.population.versions > 0], np.sort(changed))
    assert third.population.versions.sum() == np.isin(third.population.client_ids, changed).sum()
    assert len(fifth.arrivals.client_ids) == 4 and not len(fifth.changed)
    assert stages.at(6) is fifth  # a stage is entered in the round that begins it, and once


def test_the_stages_of_data_that_recur():
    recurrent = {"clients": 6, "round": 3, "pattern": "recurrent", "every": 2}
    settings = resolve.resolve("demo_digits", "fedavg", overrides={"train": {"rounds": 8}, "drift": recurrent})
    federated = build.load_data(settings)
    stages = Stages(build.build_model(settings, federated), *build_populations(settings, federated))
    changed = np.sort(drifting(settings, federated))
    assert stages.starts == [0, 3, 5, 7]
    for start, again in ((3, 7), (0, 5)):
        same = [stages.population(number).train(int(changed[0])).x for number in (start, again)]
        np.testing.assert_array_equal(*same)
    for start in (3, 5, 7):
        np.testing.assert_array_equal(stages.at(start).changed, changed)


def test_the_data_of_a_run_go_with_it():
    stages, _ = stages_of("fedavg")
    stage, examples = stages.at(5), weakref.ref(stages.at(5).population.train(0).dataset)
    assert stages.at(5) is stage and examples() is not None
    del stages, stage
    gc.collect()
    assert examples() is None


@pytest.mark.parametrize("saved", [pytest.param(3, marks=pytest.mark.slow), 6])
def test_a_resumed_run_ends_as_the_whole_one(finished, kept, tmp_path, saved):
    name, out, whole = finished
    again = tmp_path / "again"
    check_resume(resolved(name), out, whole, again, kept, saved)
    assert json.loads((again / "summary.json").read_text())["notes"] == whole["notes"]


@pytest.mark.parametrize(
    "values, message",
    [
        ({"drift": {"clients": 1}}, "drift.clients is 1; it must be 0 or a whole number from 2"),
        ({"drift": {"clients": 4, "round": 1}}, "drift.round is 1; it must be a whole number from 2"),
        ({"newcomers": {"clients": 4, "round": -1}}, "newcomers.round is -1"),
        ({"drift": {"client": 4}}, r"unknown key in \[drift\] 'client'"),
    ],
)
def test_impossible_changes(values, message):
    with pytest.raises(UserError, match=message):
        resolve.resolve("demo_digits", "fedavg", overrides=values)


@pytest.mark.slow  # a rehearsed round is in test_feddrift, too
def test_a_run_that_asks_for_flags_is_exported(finished_run, kept, tmp_path):
    """Clients whose data changed have told already: the rehearsed round of an export forms no clusters anew."""
    _, out, _ = finished_run("flt")
    from tffcl.lab.tasks.exports import export_run

    contents = export_run(out, tmp_path / "to", data_dir=kept)
    for computation in ("training", "training_summed"):
        assert "changed=int32" in contents["computations"][computation]["type"]
