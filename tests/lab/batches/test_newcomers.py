"""Clients that a run held out join it; and that run, loaded again."""

import dataclasses
import json
import shutil
from unittest import mock

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error, r2_score

import tffcl
from tests.lab.cli.test_cli import fails
from tests.runs.finished_runs import rows_of
from tffcl.algorithms.method import Views
from tffcl.clients import cohort
from tffcl.errors import UserError
from tffcl.files import read_toml
from tffcl.lab.batches import newcomers
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import build, resolve
from tffcl.lab.tasks.exports import export_run
from tffcl.runs.checkpoints import Checkpoints
from tffcl.runs.privacy import Ledger
from tffcl.runs.run_directory import RunDirectory

HELD_OUT = 8
SHORT = {"train": {"rounds": 4}, "evaluation": {"every": 4}, "newcomers": {"clients": HELD_OUT, "epochs": 5}}


def resolved(algorithm="pacfl", **more):
    return resolve.resolve("demo_digits", algorithm, overrides={**SHORT, **more})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run of each method and what joining gave: `{algorithm: (directory, summary, contents)}`."""
    found = {}
    for algorithm in ("pacfl", "fedavg", "solo"):
        out = tmp_path_factory.mktemp("newcomers") / algorithm
        summary = tffcl.run(resolved(algorithm), out, show_progress=False).summary
        found[algorithm] = out, summary, newcomers.join_newcomers(out, show_progress=False)
    return found


def last_state(out):
    chosen = resolve.load_run_config(out)
    federated = build.load_data(chosen)
    method = build.build_method(chosen, build.build_model(chosen, federated), federated)
    checkpoints = Checkpoints(out / "checkpoints", 2)
    return checkpoints.load(checkpoints.latest(), method.state_class)


def test_a_run_never_touches_who_is_held_out(finished):
    out, summary, contents = finished["pacfl"]
    participants, held_out = cohort.hold_out(40, HELD_OUT, 0)
    assert [row["client_id"] for row in contents["clients"]] == held_out.tolist()
    rows = rows_of(out / "clients.csv")
    assert [int(row["client_id"]) for row in rows] == participants.tolist()
    assert sum(int(row["rounds_trained"]) for row in rows) == 4 * 20
    assert sum(summary["clusters"]["sizes"]) == 40 - HELD_OUT
    assert summary["traffic"]["signature_bytes"] == (40 - HELD_OUT) * 5 * (64 * 4 + 1)
    state, progress = last_state(out)
    np.testing.assert_array_equal(state.client_ids, participants)
    assert len(progress.rounds_trained) == 40 - HELD_OUT
    with np.load(out / "clustering.npz") as saved:
        np.testing.assert_array_equal(saved["client_ids"], participants)


def test_a_participant_that_was_never_met_is_in_no_cluster_that_newcomers_found():
    before = Views(np.arange(3), np.array([0, 0, 1]), known=np.array([True, True, False]))
    assert newcomers.are_founded(np.array([0, 1]), before).tolist() == [False, True]


def test_newcomers_join_the_groups_that_they_are_of(finished):
    out, summary, contents = finished["pacfl"]
    assert summary["clusters"]["ari"] == 1.0
    assert contents["clusters"]["ari"] == 1.0
    assert contents["clusters"]["founded"] == 0
    assert sum(contents["clusters"]["joined"].values()) == HELD_OUT
    groups = {row["true_cluster"]: row["cluster"] for row in rows_of(out / "clients.csv")}
    for row in contents["clients"]:
        assert str(row["cluster"]) == groups[str(row["true_cluster"])]


def test_the_model_of_a_cluster_serves_newcomers_as_well_as_members(finished):
    """A newcomer's cluster accuracy is that of its cluster's model, computed by another implementation."""
    out, _, contents = finished["pacfl"]
    state, _ = last_state(out)
    chosen = resolve.load_run_config(out)
    federated = build.load_data(chosen)
    model = build.build_model(chosen, federated)
    for row in contents["clients"]:
        weights = (tuple(part.numpy() for part in model.unravel(state.models[row["cluster"]])), ())
        test = federated.test.take(federated.test_indices[row["client_id"]])
        answers = model.functional.predict_on_batch(weights, test.x, False).numpy().argmax(axis=1)
        assert row["cluster_accuracy"] == pytest.approx((answers == test.y).mean())


def test_the_files_are_what_is_returned(finished):
    for out, _, contents in finished.values():
        assert json.loads((out / "newcomers.json").read_text()) == contents
        rows = rows_of(out / "newcomers.csv")
        local = [float(row["local_accuracy"]) for row in rows]
        assert contents["accuracy"]["local"]["mean"] == pytest.approx(np.mean(local))
        assert contents["accuracy"]["local"]["std"] == pytest.approx(np.std(local))
        assert [row["founded"] for row in rows] == [str(each["founded"]) for each in contents["clients"]]


def test_fedavg_has_one_model_and_in_solo_newcomers_start_alone(finished):
    fedavg, solo = finished["fedavg"][2], finished["solo"][2]
    assert fedavg["clusters"]["joined"] == {"0": HELD_OUT}
    assert solo["clusters"]["founded"] == HELD_OUT and not solo["clusters"]["joined"]
    # The initial model knows nothing; five epochs of local training do.
    assert solo["accuracy"]["cluster"]["mean"] < 0.3 < solo["accuracy"]["local"]["mean"]


def test_joining_again_gives_the_same_and_resuming_holds_out_the_same(finished, tmp_path):
    out, summary, contents = finished["pacfl"]
    assert newcomers.join_newcomers(out, show_progress=False) == contents
    again = tffcl.run(resolved(), out, resume=True, show_progress=False).summary
    assert again["accuracy"] == summary["accuracy"]


def test_without_epochs_there_is_no_local_accuracy(tmp_path, tff_worker):
    chosen = resolved("fedavg", train={"rounds": 1}, newcomers={"clients": 3, "epochs": 0})
    tffcl.run(chosen, tmp_path / "run", show_progress=False)
    contents = newcomers.join_newcomers(tmp_path / "run", show_progress=False)
    assert contents["accuracy"]["local"]["mean"] is None
    assert contents["accuracy"]["cluster"]["mean"] > 0
    assert "local accuracy" not in newcomers.describe(contents)
    tffcl.run(chosen, tmp_path / "run", overwrite=True, show_progress=False)
    assert not list((tmp_path / "run").glob("newcomers.*"))


def test_newcomers_train_at_the_rate_of_the_round_after_the_last_also_where_a_run_ended_early(monkeypatch):
    config, trained_in = resolved(), []
    federated = build.load_data(config)
    model, arrivals = build.build_model(config, federated), newcomers.build_population(federated, [0, 1])

    def run_round(_, few, **__):
        trained_in.append(few.seed[1])
        return mock.Mock(reports={"test_examples": np.ones(2), "test_correct": np.ones(2)})

    monkeypatch.setattr(newcomers, "run_round", run_round)
    monkeypatch.setattr(newcomers, "build_own_round", lambda *_: None)
    early = mock.Mock(config=config, round_number=2, method=mock.Mock(model=mock.Mock(whole=model)))  # of 4
    newcomers._personalised(early, arrivals, model.initial[np.newaxis], np.zeros(2, int), False)
    assert trained_in == [3]


@pytest.mark.slow  # what newcomers of a private run tell is in tests/runs/test_privacy.py, too
def test_what_newcomers_tell_is_counted_and_an_export_says_what_was_spent(tmp_path, tff_worker):
    """Also of a run that has not ended, which has no summary."""
    overrides = {
        "train": {"rounds": 2, "clients_per_round": 6},
        "partition": {"clients": 8},
        "algorithms": {
            "pacfl": {"num_clusters": 2, "threshold": resolve.task_file.UNSET, "signature_noise_multiplier": 2.0}
        },
        "aggregation": {"name": "dp", "noise_multiplier": 2.0},
        "newcomers": {"clients": 2},
        "privacy": {"epsilon": 20.0},
    }
    tffcl.run(
        resolve.resolve("demo_digits", "pacfl", overrides=overrides), tmp_path / "run", show_progress=False, until=1
    )
    assert not (tmp_path / "run" / "summary.json").exists()
    told, spend = [], Ledger.spend
    with mock.patch.object(Ledger, "spend", lambda ledger, *given: (told.extend(given), spend(ledger, *given))):
        contents = newcomers.join_newcomers(tmp_path / "run", show_progress=False)
    assert [(each.what, each.repeats) for each in told] == [("the signatures", True)]  # again they are the same
    spent = contents["privacy"]
    assert spent["releases"] == 2 and 0 < spent["epsilon"] < 20 and spent["budget"] == 20
    said = newcomers.describe(contents).splitlines()[-1]
    assert said.startswith("privacy: epsilon") and said.endswith("of a budget of 20, newcomers included")
    assert export_run(tmp_path / "run", tmp_path / "to")["privacy"]["spent_by_this_run"] == spent


def test_strangers_found_a_cluster(finished):
    """With a threshold below all angles every newcomer is a cluster of its own, with the initial model."""
    strict = resolved(algorithms={"pacfl": {"threshold": 1.0}})
    federated = build.load_data(strict)
    model = build.build_model(strict, federated)
    method = build.build_method(strict, model, federated)
    state, _ = last_state(finished["pacfl"][0])
    state = dataclasses.replace(state, threshold=np.float64(1.0))
    arrivals = newcomers.build_population(federated, cohort.hold_out(40, HELD_OUT, 0)[1])
    admitted = method.admit(state, arrivals)
    assert sorted(admitted.clusters(arrivals.client_ids)) == list(range(4, 4 + HELD_OUT))
    np.testing.assert_array_equal(admitted.models[4:], np.repeat(model.initial[np.newaxis], HELD_OUT, axis=0))


def test_the_configuration_of_a_run_can_be_read_again(finished):
    out, *_ = finished["pacfl"]
    assert resolve.load_run_config(out) == resolved()
    assert resolve.load_run_config(out).as_dict() == resolved().as_dict()
    # Runs without newcomers keep the files that they had.
    assert "newcomers" not in resolved(newcomers={"clients": 0}).as_dict()


@pytest.fixture(scope="module")
def loaded(finished):
    return tffcl.load_run(finished["pacfl"][0])


def test_a_run_that_is_loaded_again_answers_as_well_as_it_said(finished, loaded):
    assert loaded.round_number == 4
    for row in rows_of(finished["pacfl"][0] / "clients.csv")[:5]:
        client = int(row["client_id"])
        test = loaded.federated.test.take(loaded.federated.test_indices[client])
        answers = loaded.predict(client, test.x)
        assert answers.dtype == np.int32
        assert (answers == test.y).mean() == pytest.approx(float(row["cluster_accuracy"]), abs=1e-6)
        assert loaded.cluster_of(client) == int(row["cluster"])


def test_of_a_loaded_run_one_line_says_what_is_wrong(loaded, tmp_path):
    stranger = np.setdiff1d(np.arange(40), loaded.state.client_ids)[0]
    with pytest.raises(UserError, match=f"client {stranger} is not known"):
        loaded.predict(int(stranger), loaded.federated.test.x[:1])
    with pytest.raises(
        UserError, match=r"the examples are float64\[8, 8, 1\]; the model takes uint8\[8, 8, 1\]: round them"
    ):
        loaded.predict(int(loaded.state.client_ids[0]), np.zeros((1, 8, 8, 1)))
    with pytest.raises(UserError, match="holds no run"):
        tffcl.load_run(tmp_path)


def test_holding_out():
    participants, held_out = cohort.hold_out(50, 20, 3)
    assert np.array_equal(np.sort(np.concatenate([participants, held_out])), np.arange(50))
    assert np.array_equal(cohort.hold_out(50, 20, 3)[1], held_out)
    assert not np.array_equal(cohort.hold_out(50, 20, 4)[1], held_out)
    everyone, nobody = cohort.hold_out(5, 0, 0)
    assert everyone.tolist() == [0, 1, 2, 3, 4] and not nobody.size


def test_the_command(capsys, finished, tmp_path):
    """Of a run that was stopped early, and is finished."""
    out, _, contents = finished["pacfl"]
    place = shutil.copytree(out, tmp_path / "run")
    config = place / "config.toml"
    config.write_text(config.read_text().replace("\nrounds = 4\n", "\nrounds = 6\n"))
    assert main(["newcomers", str(place)]) == 0
    text = capsys.readouterr().out
    assert "8 newcomers of demo_digits, pacfl seed 0, after round 4\n" in text
    assert "new clusters founded: 0" in text
    for row in contents["clients"]:
        assert f"{100 * row['local_accuracy']:.2f}" in text
    for kind in ("cluster", "local"):
        mean, std = (100 * contents["accuracy"][kind][each] for each in ("mean", "std"))
        assert f"{kind} accuracy: {mean:.2f} ± {std:.2f} %" in text


def test_one_line_says_what_is_wrong(capsys, tmp_path, finished):
    out, *_ = finished["fedavg"]
    assert "nowhere is not a directory" in fails(capsys, "newcomers", str(tmp_path / "nowhere"))
    assert "holds no run: there is neither config.toml nor" in fails(capsys, "newcomers", str(tmp_path))
    copy = tmp_path / "copy"
    copy.mkdir()
    text = (out / "config.toml").read_text()
    (copy / "config.toml").write_text(text)
    assert "has no checkpoint" in fails(capsys, "newcomers", str(copy))
    (copy / "config.toml").write_text(text[: text.index("[newcomers]")])
    assert "held no clients out" in fails(capsys, "newcomers", str(copy))
    (copy / "config.toml").write_text(text.replace("[train]", "[train"))
    assert "config.toml is damaged" in fails(capsys, "newcomers", str(copy))


@pytest.mark.parametrize(
    "was, now, named",
    [
        ("\nlocal_epochs = ", "\nlocal_epochs = 1", "train"),
        ("\nseed = 0\n", "\nseed = 1\n", "seed"),
        ("[train]", None, "model"),
    ],
)
def test_settings_that_were_edited_after_the_run_are_refused(capsys, tmp_path, finished, was, now, named):
    """What would come of them is no result of the run: by whatever reads it, also to go on with it."""
    out, *_ = finished["fedavg"]
    place = shutil.copytree(out, tmp_path / "run")
    text = (place / "config.toml").read_text()
    edited = text.replace(was, now) if now else text.replace(was, f"[model.more]\nx = 1\n\n{was}")
    assert edited != text
    (place / "config.toml").write_text(edited)
    wrong = (
        f"config.toml was edited since the run began: {named} is not what was run; undo that, or run these settings "
    )
    for command in (["newcomers"], ["export", "--to", str(tmp_path / "export")], ["report"]):
        assert wrong in fails(capsys, *command, str(place))
    again = read_toml(place / "config.toml")
    again.pop("versions")
    with pytest.raises(UserError, match="was edited since the run began"):
        RunDirectory(place).check_claim(again, resume=True, overwrite=False)
    (place / "config.toml").write_text(text.replace("[dataset]", "[dataset]\n# elsewhere"))
    assert RunDirectory(place).summary()["rounds"] == 4


@pytest.mark.parametrize(
    "values, message",
    [
        ({"clients": -1}, "newcomers.clients is -1; it must be a whole number from 0"),
        ({"epochs": -1}, "newcomers.epochs is -1"),
        ({"client": 3}, r"unknown key in \[newcomers\] 'client'; did you mean 'clients'"),
        ({"clients": 2.5}, "newcomers.clients is 2.5; it must be a whole number from 0"),
    ],
)
def test_wrong_settings(values, message):
    with pytest.raises(UserError, match=message):
        resolved(newcomers=values)


def test_somebody_must_take_part(tmp_path):
    with pytest.raises(UserError, match="newcomers.clients is 40; of 40 clients at least 1"):
        tffcl.run(resolved(newcomers={"clients": 40}), tmp_path / "run", show_progress=False)


@pytest.mark.slow
def test_the_newcomers_of_a_comparison_are_one_table(tmp_path, capsys):
    out = tmp_path / "compared"
    command = [*"compare demo_digits --algorithms pacfl,fedavg --seeds 0,1 --rounds 2 --out".split(), str(out)]
    few = ["--set", "newcomers.clients=8", "--set", "train.local_epochs=1", "--set", "train.clients_per_round=8"]
    assert main([*command, *few]) == 0
    capsys.readouterr()
    assert main(["newcomers", str(out)]) == 0
    captured = capsys.readouterr()
    assert "[4/4] fedavg seed 1" in captured.err and "the model that a newcomer is given" in captured.out
    rows = rows_of(out / "newcomers.csv")
    assert [(row["algorithm"], row["seeds"]) for row in rows] == [("pacfl", "2"), ("fedavg", "2")]
    for row in rows:
        joined = [
            json.loads((out / row["algorithm"] / f"seed-{seed}" / "newcomers.json").read_text()) for seed in (0, 1)
        ]
        for kind in ("cluster", "local"):
            means = [100 * each["accuracy"][kind]["mean"] for each in joined]
            assert float(row[f"{kind}_accuracy_percent"]) == pytest.approx(np.mean(means))
            assert float(row[f"{kind}_accuracy_percent_std"]) == pytest.approx(np.std(means, ddof=1))
        assert float(row["newcomers"]) == 8
    written = (out / "pacfl" / "seed-0" / "newcomers.json").stat().st_mtime_ns
    assert main(["newcomers", str(out)]) == 0
    assert (out / "pacfl" / "seed-0" / "newcomers.json").stat().st_mtime_ns == written


@pytest.mark.slow
def test_newcomers_of_numbers_have_the_metrics_of_scikit_learn(tmp_path, capsys):
    """A regression has no accuracy; a metric of one test example, R², is not defined."""
    few = ["clinics_diabetes_small", "--rounds", "1", "--set", "newcomers.clients=2", "--set", "newcomers.epochs=1"]
    few += ["--set", "train.clients_per_round=4", "--algorithms", "fedavg", "--out", str(tmp_path)]
    assert main(["compare", *few]) == main(["newcomers", str(tmp_path)]) == 0
    place = tmp_path / "fedavg" / "seed-0"
    loaded = tffcl.load_run(place)
    found = rows_of(place / "newcomers.csv")
    for row in found:
        tests = loaded.federated.test_indices[int(row["client_id"])]
        x, y = loaded.federated.test.x[tests], loaded.federated.test.y[tests]
        said = np.asarray(loaded.predict(loaded.population.shown_ids[0], x))
        assert float(row["cluster_mae"]) == pytest.approx(mean_absolute_error(y, said), rel=1e-5)
        assert float(row["cluster_r2"]) == pytest.approx(r2_score(y, said), rel=1e-4)
        assert row["cluster_accuracy"] == "" and row["local_mae"] != row["cluster_mae"]
    capsys.readouterr()
    assert main(["newcomers", str(place)]) == 0
    out = capsys.readouterr().out
    assert "cluster mae: 0." in out and "accuracy" not in out
    assert "cluster_mae" in (tmp_path / "newcomers.csv").read_text().splitlines()[0]
