"""`tffcl.train` on objects: a population, a method of ours, a stranger's method in NumPy."""

import copy
import dataclasses
import json
import pickle
import re
import shutil
import tomllib
import types

import numpy as np
import pytest
from scipy.spatial.distance import squareform

import tffcl
from tests.runs.finished_runs import check_files_agree, rows_of, unfinished_copy, without_times
from tests.short_runs import TRAINING
from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.method import Method, MetricView, Views
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.clients.cohort import sample_cohort
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.classifiers import build_mlp
from tffcl.rounds.traffic import RoundMetrics, Traffic
from tffcl.runs import checks, population_changes, write_results
from tffcl.runs.population_changes import Stages
from tffcl.runs.run import Interrupted
from tffcl.runs.run_directory import RunDirectory, State

CLIENTS, EACH = 6, 40
PROTOCOL = {"rounds": 4, "clients_per_round": 3, "seed": 3, "evaluate_every": 2, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def population(digits):
    """Digits as they are for clients 1, 3, 5; a quarter turned for the others. Client 4 has no test examples."""
    x, y = digits
    train, test = {}, {}
    for client in range(CLIENTS):
        images = x if client % 2 else np.rot90(x, axes=(1, 2))
        start = client * EACH
        train[client] = (images[start : start + EACH], y[start : start + EACH])
        test[client] = (images[1000 + client : 1030], y[1000 + client : 1030])
    del test[4]
    return Population.from_arrays(train, test)


@pytest.fixture(scope="module")
def method(model):
    parameters = PACFLParameters(num_vectors=5, num_clusters=2)
    return build_pacfl(model, TRAINING, parameters)


def train(method, population, out, **more):
    return tffcl.train(method, population, out=out, show_progress=False, **{**PROTOCOL, **more})


@pytest.fixture(scope="module")
def finished(method, population, tmp_path_factory):
    return train(method, population, tmp_path_factory.mktemp("train") / "run")


def test_the_result_is_what_the_files_say(finished, population):
    check_files_agree(finished.out, finished.summary)
    assert json.loads((finished.out / "summary.json").read_text()) == finished.summary
    for take in (pickle.dumps, copy.deepcopy):
        with pytest.raises(UserError, match=f"cannot be pickled or copied.* resume=True reads {finished.out} again"):
            take(finished)
    rounds, clients = finished.rounds, finished.clients
    assert len(rounds["round"]) == 4 and list(rounds["round"]) == [1, 2, 3, 4]
    assert np.isnan(rounds["cluster_accuracy"]).tolist() == [True, False] * 2
    for name, text in rows_of(finished.out / "rounds.csv")[-1].items():
        np.testing.assert_equal(rounds[name][3], float(text or "nan"))
    for row, line in zip(rows_of(finished.out / "clients.csv"), range(CLIENTS), strict=True):
        assert int(row["client_id"]) == clients["client_id"][line] == line
        assert int(row["cluster"]) == clients["cluster"][line] == finished.trained.cluster_of(line)
        assert int(row["examples"]) == clients["examples"][line] == EACH
    assert sum(clients["rounds_trained"]) == 4 * 3
    assert np.isnan(clients["cluster_accuracy"]).tolist() == [False] * 4 + [True, False]  # one without test examples


def test_clients_that_are_alike_share_a_model_that_serves_them(finished, population):
    clusters = [finished.trained.cluster_of(client) for client in range(CLIENTS)]
    assert clusters[0::2] == clusters[:1] * 3 and clusters[1::2] == clusters[1:2] * 3 and clusters[0] != clusters[1]
    np.testing.assert_array_equal(finished.model_of(1), finished.trained.state.models[clusters[1]])
    tests = population.pooled_tests
    for client, places in enumerate(tests.indices):
        if not len(places):
            continue
        right = (finished.predict(client, tests.x[places]) == tests.y[places]).mean()
        assert right == pytest.approx(finished.clients["cluster_accuracy"][client]) and right > 0.3
    with pytest.raises(UserError, match="client 17 is not known; there are 6 clients, 0 to 5"):
        finished.model_of(17)


def test_a_result_says_what_it_is(finished):
    mean = 100 * finished.summary["accuracy"]["cluster"]["mean"]
    local = 100 * finished.summary["accuracy"]["local"]["mean"]
    assert repr(finished) == (
        f"Result(pacfl after 4 rounds: cluster {mean:.2f} %, local {local:.2f} %; 2 clusters; {finished.out})"
    )
    assert "2 clusters" in repr(finished) and repr(finished.trained.population).startswith(
        "Population(6 clients, 240 training"
    )


def test_tables_are_data_frames(finished):
    assert finished.rounds["round"].tolist() == [1, 2, 3, 4] and "cluster_accuracy" in finished.rounds.columns
    clients = finished.clients
    assert "true_cluster" not in clients and clients["client_id"].tolist() == list(range(CLIENTS))
    assert clients.groupby("cluster")["examples"].sum().tolist() == [3 * EACH, 3 * EACH]


def test_resuming_goes_on_after_the_newest_checkpoint_that_is_left(finished, method, population, tmp_path):
    again = tmp_path / "again"
    unfinished_copy(finished.out, again)
    resumed = train(method, population, again, resume=True)
    assert without_times(resumed.summary) == without_times(finished.summary)
    for client in range(CLIENTS):
        np.testing.assert_array_equal(resumed.model_of(client), finished.model_of(client))
    for name in ("client_id", "cluster", "rounds_trained", "cluster_accuracy", "local_accuracy"):
        np.testing.assert_array_equal(resumed.clients[name], finished.clients[name])
    for name in finished.round_columns:
        if name != "seconds":
            np.testing.assert_array_equal(resumed.rounds[name], finished.rounds[name])
    timed = [columns["seconds"][:3] for columns in (resumed.rounds, finished.rounds)]
    np.testing.assert_array_equal(*timed)  # rounds 1 to 3 were not run again


def test_a_finished_run_that_is_resumed_trains_no_more(finished, method, population):
    before = (finished.out / "rounds.csv").read_bytes()
    assert without_times(train(method, population, finished.out, resume=True).summary) == without_times(
        finished.summary
    )
    assert (finished.out / "rounds.csv").read_bytes() == before


def test_what_holds_a_run_is_left_alone(finished, method, population):
    with pytest.raises(UserError, match=r"holds a run already; resume=True goes on with it"):
        train(method, population, finished.out)
    with pytest.raises(UserError, match="holds another run: its seed is 3, not 4; resume with its own settings"):
        train(method, population, finished.out, resume=True, seed=4)
    with pytest.raises(
        UserError,
        match=r"holds a run of 4 rounds, not 3; it goes on for as many or more, .*; until= stops a run before its end",
    ):
        train(method, population, finished.out, resume=True, rounds=3)


@pytest.mark.parametrize(
    "name, told",
    [
        ("summary.json", r"summary.json is damaged: .*; without it, resume=True makes it again"),
        ("config.toml", r"config.toml is damaged: .*; overwrite=True starts anew"),
        ("rounds.csv", r"rounds.csv is damaged: .*; without it, resume=True goes on"),
    ],
)
def test_damage_is_told_with_what_mends_it_in_python(finished, method, population, tmp_path, name, told):
    out = shutil.copytree(finished.out, tmp_path / "run")
    (out / name).write_text("{ = ")
    with pytest.raises(UserError, match=told):
        train(method, population, out, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("until", [None, 1], ids=["finished", "interrupted"])
def test_a_run_that_is_resumed_for_more_rounds_is_the_longer_one(finished, method, population, tmp_path, until):
    """Three rounds are evaluated at their end, between two evaluations of the longer run, which its clients must
    not notice.
    """
    out = tmp_path / "run"
    shorter = train(method, population, out, rounds=3, until=until)
    assert (shorter is None) == (until == 1)
    RunDirectory(out).list_files(["newcomers.json"])
    (out / "newcomers.json").write_text("{}")  # of clients that joined after the third round
    longer = train(method, population, out, resume=True)
    assert without_times(longer.summary) == without_times(finished.summary) and not (out / "newcomers.json").exists()
    check_files_agree(out, longer.summary)
    for client in range(CLIENTS):
        np.testing.assert_array_equal(longer.model_of(client), finished.model_of(client))
    for name in ("client_id", "cluster", "rounds_trained", "cluster_accuracy", "local_accuracy"):
        np.testing.assert_array_equal(longer.clients[name], finished.clients[name])
    np.testing.assert_array_equal(longer.rounds["train_loss"], finished.rounds["train_loss"])
    assert np.isfinite(longer.rounds["cluster_accuracy"]).tolist() == [False, True, until is None, True]


class Interrupts(tffcl.Callback):
    """Ctrl-C after a round, or before the first."""

    def __init__(self, number):
        self.number = number

    def begin(self, run):
        if self.number == 0:
            raise KeyboardInterrupt

    def after_round(self, run):
        if run.round_number == self.number:
            raise KeyboardInterrupt


def test_the_result_of_fewer_rounds_stays_until_more_are_saved(method, population, tmp_path):
    """And with it what was made of it: who thinks better of it has lost nothing."""
    out = tmp_path / "run"
    shorter = train(method, population, out, rounds=2)
    RunDirectory(out).list_files(["newcomers.json"])
    (out / "newcomers.json").write_text("{}")
    with pytest.raises(Interrupted):
        train(method, population, out, rounds=400, resume=True, callbacks=[Interrupts(0)])
    again = train(method, population, out, rounds=2, resume=True)
    assert without_times(again.summary) == without_times(shorter.summary) and (out / "newcomers.json").exists()
    with pytest.raises(Interrupted):
        train(method, population, out, rounds=4, resume=True, callbacks=[Interrupts(3)])
    assert RunDirectory(out).state is State.BEGUN and not (out / "newcomers.json").exists()
    assert train(method, population, out, resume=True).summary["rounds"] == 4


def test_a_run_that_was_stopped_and_is_resumed_keeps_what_was_made_of_its_result(method, population, tmp_path):
    stopping = tffcl.EarlyStopping("train_loss", 1, min_delta=9.0)
    stopped = train(method, population, tmp_path, callbacks=[stopping])
    assert stopped.summary["rounds"] == 2
    RunDirectory(tmp_path).list_files(["newcomers.json"])
    (tmp_path / "newcomers.json").write_text("{}")
    again = train(method, population, tmp_path, callbacks=[stopping], resume=True)
    assert without_times(again.summary) == without_times(stopped.summary) and (tmp_path / "newcomers.json").exists()


@pytest.mark.slow
def test_a_finished_run_without_its_rounds_goes_on_and_has_a_report(method, population, tmp_path):
    train(method, population, tmp_path, rounds=2)
    (tmp_path / "rounds.csv").unlink()
    again = train(method, population, tmp_path, rounds=2, resume=True)
    assert again.rounds["round"].tolist() == [1, 2] and np.isnan(again.rounds["train_loss"]).all()
    assert tffcl.write_report(tmp_path).exists()


def built(model, rate=0.1, clusters=2, **more):
    """A method, which knows of what it was built however its builder was imported."""
    training = dataclasses.replace(TRAINING, learning_rate=rate)
    parameters = PACFLParameters(num_vectors=5, num_clusters=clusters)
    return build_pacfl(model, training, parameters, **more)


def test_a_run_is_resumed_with_the_method_that_it_had(model, population, tmp_path):
    out = tmp_path / "run"
    assert train(built(model), population, out, until=1) is None
    noted = tomllib.loads((out / "config.toml").read_text())["built_from"]
    assert noted["training"]["learning_rate"] == 0.1 and noted["parameters"]["num_clusters"] == 2
    assert noted["model"]["hidden"] == "16" and noted["aggregation"] == "none"
    other = build_mlp((8, 8, 1), 10, hidden=30, normalization=(0.3, 0.4))
    for method, message in (
        (built(model, rate=0.2), "its built_from.training.learning_rate is 0.1, not 0.2"),
        (built(model, clusters=3), "its built_from.parameters.num_clusters is 2, not 3"),
        (built(other), "its built_from.model.hidden is '16', not '30'"),
        (
            built(model, aggregation=tffcl.aggregation("robust")),
            "its built_from.aggregation is 'none', not {'kind': 'Robust",
        ),
    ):
        with pytest.raises(UserError, match=f"holds another run: {re.escape(message)}"):
            train(method, population, out, resume=True)
    assert train(built(model), population, out, resume=True).summary["rounds"] == 4


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"rounds": 0}, "rounds is 0; it must be a whole number from 1"),
        ({"clients_per_round": 2.5}, "clients_per_round is 2.5; it must be a whole number from 1"),
        ({"clients_per_round": 7}, "clients_per_round is 7, but there are only 6 clients"),
        ({"seed": -1}, "seed is -1; it must be a whole number from 0"),
        ({"keep_checkpoints": True}, "keep_checkpoints is True"),
        ({"shards": -1}, "shards is -1; it must be a whole number from 0"),
        ({"until": 0}, "until is 0; it must be a whole number from 1"),
    ],
)
def test_a_wrong_number_is_told_before_anything_is_written(method, population, tmp_path, wrong, message):
    with pytest.raises(UserError, match=message):
        train(method, population, tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


@dataclasses.dataclass(frozen=True)
class MeansState:
    """A state of its own, which derives from nothing."""

    ids: np.ndarray
    models: np.ndarray
    rounds: int = 0


class Means(Method):
    """A stranger's method: two models for even and odd clients, which move by a bit; uses no TFF."""

    name, state_class, joining = "means", MeansState, Traffic(0, 8)

    def __init__(self, model, views=None):
        self.model, self.more = model, views or {}

    def initialize(self, population):
        return MeansState(population.client_ids, np.stack([self.model.initial, self.model.initial + np.float32(0.01)]))

    def next(self, state, cohort):
        ids = np.asarray(cohort.client_ids)
        nothing = np.zeros(len(ids), np.int32)
        moved = dataclasses.replace(state, models=state.models * np.float32(0.99), rounds=state.rounds + 1)
        losses = np.ones(len(ids), np.float32) / moved.rounds
        return moved, RoundMetrics(ids, ids % 2, cohort.sizes, losses, nothing, nothing, Traffic(3, 5))

    def models_for(self, state, client_ids):
        return state.models, np.asarray(client_ids) % 2

    def admit(self, state, newcomers):
        return dataclasses.replace(state, ids=np.union1d(state.ids, newcomers.client_ids))

    def views(self, state):
        return Views(state.ids, state.ids % 2, **{name: make(len(state.ids)) for name, make in self.more.items()})


@pytest.mark.slow
def test_a_strangers_method_runs_resumes_and_is_reported(model, population, tmp_path):
    whole = train(Means(model), population, tmp_path / "run", keep_checkpoints=9)
    assert whole.summary["algorithm"] == "means" and whole.summary["clusters"]["sizes"] == [3, 3]
    assert whole.summary["traffic"] == {"down_bytes": 12, "up_bytes": 4 * 5 + 6 * 8, "signature_bytes": 6 * 8}
    np.testing.assert_allclose(whole.rounds["train_loss"], [1, 1 / 2, 1 / 3, 1 / 4])
    np.testing.assert_allclose(whole.model_of(2), model.initial * 0.99**4, rtol=1e-5)
    again = tmp_path / "again"
    unfinished_copy(tmp_path / "run", again, saved=2)
    resumed = train(Means(model), population, again, resume=True, keep_checkpoints=9)
    assert without_times(resumed.summary) == without_times(whole.summary) and resumed.trained.state.rounds == 4
    assert "means" in tffcl.write_report(tmp_path / "run").read_text()


def test_newcomers_and_changed_data_in_the_middle(model, population, tmp_path):
    first = population.restricted([0, 1, 2, 4])
    changed = dataclasses.replace(population, versions=np.array([0, 1, 0, 0, 0, 0], np.int32))
    run = train(Means(model), first, tmp_path / "run", later={3: changed})
    assert run.summary["notes"] == ["2 newcomers joined in round 3", "from round 3 on these clients held other data: 1"]
    assert run.clients["client_id"].tolist() == list(range(6)) and sum(run.clients["rounds_trained"]) == 12
    assert run.summary["traffic"]["signature_bytes"] == 6 * 8
    assert run.rounds["up_bytes"].tolist() == [5, 5, 5 + 2 * 8, 5]  # newcomers' signatures in the round they join
    for later, message in (
        ({3: first.restricted([0, 1])}, "^clients_per_round is 3, but there are only 2 clients"),
        ({0: population}, "a round of later is 0; it must be a whole number from 1"),
    ):
        with pytest.raises(UserError, match=message):
            train(Means(model), first, tmp_path / "other", later=later)
        assert not (tmp_path / "other").exists()


def test_clients_leave_and_come_back(model, population, tmp_path):
    """What is counted of them waits for them; evaluations and tables are of who is there."""
    fewer, ids = population.restricted([0, 1, 2, 4]), population.client_ids
    later = {2: fewer, 4: population.restricted([0, 1, 2, 3, 4])}
    how = {"clients_per_round": 4, "evaluate_every": 1, "rounds": 5}
    run = train(Means(model), population, tmp_path / "run", later=later, keep_checkpoints=9, **how)
    assert run.summary["notes"] == ["in round 2 left: 3, 5", "in round 4 came back: 3"]
    there, seed = [ids, fewer.client_ids, fewer.client_ids, later[4].client_ids, later[4].client_ids], PROTOCOL["seed"]
    drawn = np.concatenate([sample_cohort(each, 4, seed, number) for number, each in enumerate(there, 1)])
    assert run.clients["client_id"].tolist() == [0, 1, 2, 3, 4]
    assert run.clients["rounds_trained"].tolist() == np.bincount(drawn, minlength=6)[:5].tolist()
    assert run.client_columns["rounds_there"].tolist() == ["1-5", "1-5", "1-5", "1-1 4-5", "1-5"]
    assert run.summary["traffic"]["signature_bytes"] == 6 * 8  # nobody joins twice
    with pytest.raises(UserError, match="5"):
        run.model_of(5)
    assert "came back" in tffcl.write_report(tmp_path / "run").read_text()
    for saved in (1, 3):
        again = tmp_path / f"again-{saved}"
        unfinished_copy(tmp_path / "run", again, saved=saved)
        resumed = train(Means(model), population, again, resume=True, later=later, keep_checkpoints=9, **how)
        assert without_times(resumed.summary) == without_times(run.summary)


def of_clinics(data, known=None):
    return Population.from_arrays({f"clinic_{client}": pair for client, pair in data.items()}, known=known)


def test_data_that_change_in_the_middle_are_noticed_by_themselves(model, digits, tmp_path):
    """A later population of arrays says nothing of versions: the examples do, of clients that stay; versions that are
    said win.
    """
    x, y = digits
    data = {client: (x[20 * client :][:20], y[20 * client :][:20]) for client in range(4)}
    other = {**{client: (x.copy(), y.copy()) for client, (x, y) in data.items()}, 2: (data[2][0] + 1, data[2][1])}
    first = of_clinics(data)
    same, drifted = of_clinics(other | {2: data[2], 7: data[0]}, first), of_clinics(other | {7: data[0]}, first)
    stages = Stages(model, first, {2: same, 3: drifted, 5: drifted})
    assert [stages.at(start).changed.tolist() for start in (2, 3, 5)] == [[], [2], []]
    assert stages.at(2).arrivals.names.tolist() == ["clinic_7"]
    said = dataclasses.replace(drifted, versions=np.array([0, 1, 0, 0, 0], np.int32))
    assert Stages(model, first, {3: said}).at(3).changed.tolist() == [1]
    # Who comes back is held against what it had when it was there.
    stages = Stages(model, first, {2: of_clinics({0: data[0]}, first), 4: same, 5: of_clinics({2: other[2]}, first)})
    assert [stages.at(start).changed.tolist() for start in (2, 4, 5)] == [[], [], [2]]
    run = train(Means(model), first, tmp_path / "run", later={3: drifted})
    assert "from round 3 on these clients held other data: clinic_2" in run.summary["notes"]
    for later, message in (
        (of_clinics({-1: data[0], **data}), "client clinic_0 is called clinic_-1 in it; build it with known="),
        (of_clinics({2: data[2], 7: data[0]}), "client clinic_0 is called clinic_2 in it; build it with known="),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            Stages(model, first, {3: later})


def test_a_method_that_asks_when_others_do_not_says_what_was_exchanged(model, population, tmp_path):
    def joined_traffic(self, before, after):
        return Traffic(1, 2) if before is None else Traffic(0, 100) * (len(after.ids) - len(before.ids))

    method, first = changed(joined_traffic=joined_traffic)(model), population.restricted([0, 1, 2, 4])
    run = train(method, first, tmp_path / "run", later={3: population})
    assert run.summary["traffic"] == {"down_bytes": 4 * 3 + 1, "up_bytes": 4 * 5 + 2 + 200, "signature_bytes": 203}


def test_a_client_without_test_examples_has_trained_too(method, population, tmp_path):
    run = train(method, population, tmp_path / "run", rounds=1, clients_per_round=CLIENTS)
    local = run.summary["accuracy"]["local"]
    assert np.isnan(run.client_columns["local_accuracy"]).tolist() == [False] * 4 + [True, False]
    assert (
        local["share"]
        == run.rounds["local_share"].iloc[-1]
        == run.summary["accuracy"]["cluster"]["participants"]["share"]
        == 1
    )
    assert local["mean"] == pytest.approx(np.nanmean(run.client_columns["local_accuracy"]))


def test_the_share_that_has_trained_counts_those_whose_data_changed_since(method, population, tmp_path):
    """Their accuracy on the data of now is not known."""
    changed = dataclasses.replace(population, versions=np.ones(CLIENTS, np.int32))
    run = train(method, population, tmp_path / "run", later={4: changed})
    known, took_part = np.isfinite(run.client_columns["local_accuracy"]), run.client_columns["rounds_trained"] > 0
    assert known.sum() < took_part.sum() and run.summary["accuracy"]["local"]["share"] == took_part.mean()


def test_a_metric_without_merges_and_a_threshold(model, population, tmp_path):
    """Such as of a grouping without a tree: the run ends, clustering.npz has no tree, the report shows the matrix."""
    distances = np.abs(np.arange(CLIENTS)[:, np.newaxis] - np.arange(CLIENTS)).astype(np.float32)
    method = Means(
        model, {"metric": lambda count: MetricView(distances[:count, :count], "steps", "distance on a line")}
    )
    train(method, population, tmp_path / "run", rounds=1)
    with np.load(tmp_path / "run" / "clustering.npz", allow_pickle=False) as saved:
        np.testing.assert_array_equal(saved["proximity"], squareform(distances))  # the upper triangle
        assert saved["labels"].tolist() == [0, 1] * 3 and (saved["unit"], saved["measure"]) == (
            "steps",
            "distance on a line",
        )
        assert not {"merges", "threshold"} & set(saved.files) and str(saved["suggestion"]) == ""
    page = tffcl.write_report(tmp_path / "run")
    figures = {path.stem for path in (tmp_path / "run" / "figures").iterdir()}
    assert "proximity" in figures and "dendrogram" not in figures and 'data-name="proximity"' in page.read_text()


class Shrinking(Means):
    """A stranger's method that takes numbers."""

    def __init__(self, model, engine, shares=(0.5, 2), *, seed=0):
        super().__init__(model)


def test_a_strangers_method_is_resumed_and_compared_with_the_numbers_that_it_had(model, population, tmp_path):
    """Those that its class was called with, and the training of an engine."""
    engine, other = (build_clustered_training(model, tffcl.LocalTraining(learning_rate=rate)) for rate in (0.1, 0.2))
    assert train(Shrinking(model, engine), population, tmp_path / "run", until=1) is None
    for method, message in (
        (Shrinking(model, engine, (0.5, 3)), "shares is [0.5, 2], not [0.5, 3]"),
        (Shrinking(model, engine, seed=1), "seed is 0, not 1"),
        (Shrinking(model, other), "engine.learning_rate is 0.1, not 0.2"),
    ):
        with pytest.raises(UserError, match=f"holds another run: its built_from.{re.escape(message)}"):
            train(method, population, tmp_path / "run", resume=True)
    same = Shrinking(model, shares=[0.5, 2], engine=engine, seed=0)
    assert train(same, population, tmp_path / "run", resume=True).summary["rounds"] == 4


@dataclasses.dataclass(frozen=True)
class Fixed(Means):
    """A stranger's method that is a frozen dataclass."""

    model: object
    shares: tuple = (0.5,)
    name = "fixed"


def test_a_method_may_be_a_frozen_dataclass(model):
    assert Fixed(model).made_of == {"model": model, "shares": (0.5,)}


def changed(**attributes):
    """Makes the stranger's method with other attributes, as its class has them."""
    return lambda model: type("Other", (Means,), {"__module__": __name__, **attributes})(model)


def with_models(change):
    return changed(models_for=lambda self, state, ids: change(state.models, np.asarray(ids) % 2))


def with_views(**fields):
    return changed(views=lambda self, state: Views(**{"client_ids": state.ids, "clusters": state.ids % 2, **fields}))


def diverged(models, rows):
    models = models.copy()
    models[1, 5] = np.nan
    return models, rows


LINE = np.zeros([CLIENTS, CLIENTS], np.float32)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda model: model, "FlatModel is no method: its class does not derive from tffcl.algorithms.Method"),
        (changed(name=None), "Other is no method: its name must be text"),
        (changed(state_class=dict), "Other is no method: its state_class must be the dataclass of its state"),
        (changed(joining=12), "Other is no method: its joining must be a tffcl.parts.Traffic"),
        (changed(clients_choose=None), "Other is no method: its clients_choose must be True or False"),
        (lambda model: Means("mlp"), "Means is no method: its model must be a tffcl.FlatModel"),
        (changed(initialize=lambda self, population: {}), "means: its state is of dict, not of MeansState"),
        (with_models(lambda models, rows: (models[:, :-1], rows)), r"models_for gives models float32 \[2, 1209\]; "
                                                                   r"they must be float32 \[K, 1210\]"),
        (with_models(lambda models, rows: (models[0], rows)), r"models_for gives models float32 \[1210\]"),
        (with_models(lambda models, rows: (models.astype(float), rows)), r"models_for gives models float64 "
                                                                         r"\[2, 1210\]"),
        (with_models(lambda models, rows: (models, rows[:-1])), r"rows int32 \[5\]; they must be integers \[6\], one "
                                                                r"a client"),
        (with_models(lambda models, rows: (models, rows / 1)), r"models_for gives rows float64 \[6\]"),
        (with_models(lambda models, rows: (models, rows + 1)), "models_for gives rows 1 to 2, not 0 to 1"),
        (with_models(lambda models, rows: (models, rows - 1)), "models_for gives rows -1 to 0, not 0 to 1"),
        (with_models(diverged), "means: model 1 is not finite; a lower learning_rate helps, or features on a "
                                "smaller scale"),
        (changed(views=lambda self, state: {}), "views must return tffcl.algorithms.Views, not dict"),
        (with_views(client_ids=np.arange(1, 7)), "views must be of the 6 clients that take part, ascending"),
        (with_views(clusters=np.zeros(5, int)), r"views.clusters is int64 \[5\]; its shape must be \[6\]"),
        (with_views(known=np.ones(7, bool)), r"views.known is bool \[7\]; its shape must be \[6\]"),
        (with_views(global_model=np.zeros(3)), r"views.global_model is float64 \[3\]; its shape must be \[1210\]"),
        (with_views(relatedness=LINE[:5]), r"views.relatedness is float32 \[5, 6\]; its shape must be \[6, 6\]"),
        (with_views(metric=MetricView(LINE[:5, :5], "", "")), r"views.metric.proximity is float32 \[5, 5\]; its shape "
                                                              r"must be \[6, 6\]"),
        (with_views(metric=MetricView(LINE, "", "", np.zeros([6, 4]))), r"views.metric.merges is float64 \[6, 4\]; "
                                                                        r"its shape must be \[5, 4\]"),
        (with_views(representations=np.zeros([5, 9])), r"views.representations is float64 \[5, 9\]; its shape must be "
                                                       r"\[6, 9\]"),
    ],
)  # fmt: skip
def test_a_method_that_is_none_is_told_in_one_line_at_the_start(model, population, tmp_path, make, message):
    with pytest.raises(UserError, match=message) as raised:
        train(make(model), population, tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "run").glob("checkpoints/*")) and not (tmp_path / "run" / "rounds.csv").exists()


def gives(change):
    """Makes the stranger's method whose rounds give something else than a state and metrics."""
    return changed(next=lambda self, state, cohort: change(*Means.next(self, state, cohort)))


def tells(**fields):
    """Makes the stranger's method whose metrics have something else, by the IDs of the cohort."""
    return gives(
        lambda state, metrics: (
            state,
            dataclasses.replace(metrics, **{name: make(metrics.client_ids) for name, make in fields.items()}),
        )
    )


@dataclasses.dataclass(frozen=True)
class Halved(MeansState):
    half: np.ndarray | None = dataclasses.field(init=False, default=None)


@pytest.mark.parametrize(
    "make, message",
    [
        (gives(lambda state, metrics: state), "means: next gives MeansState; it must give the next state"),
        (gives(lambda state, metrics: (vars(state), metrics)), "means: its state is of dict, not of MeansState"),
        (gives(lambda state, metrics: (state, None)), "means: next gives metrics of NoneType; they must be tffcl"),
        # A run would else end well, and lose all its rounds where it is resumed.
        (gives(lambda state, metrics: (dataclasses.replace(state, rounds={1, 2}), metrics)), "state.rounds is a set$"),
        (changed(next=lambda self, state, cohort: (state, Means.next(self, state, cohort)[1])), "gives the state that"),
        (changed(state_class=Halved, initialize=lambda self, given: Halved(**vars(Means.initialize(self, given)))),
         "^means: no checkpoint could make a state again, Halved of its fields: TypeError: .* argument 'half'$"),
        (tells(client_ids=lambda ids: ids + 1), "client_ids are 2, 4, 5; they must be different ones of the cohort's$"),
        (tells(client_ids=lambda ids: ids[[0, 0, 1]]), "client_ids are 1, 1, 3; they must be different"),
        (tells(losses=lambda ids: np.ones(2)), r"losses is float64 \[2\]; its shape must be \[3\]$"),
        (tells(relatedness=lambda ids: LINE), r"relatedness is float32 \[6, 6\]; its shape must be \[3, 3\]$"),
        (tells(test_correct=lambda ids: ids + 1), "test_correct is 2, 4, 5; each must be a whole number from 0 to tes"),
        (tells(examples=lambda ids: -ids), "examples is -1, -3, -4; each must be a whole number from 0$"),
        (tells(traffic=lambda ids: 8), "traffic is of int; it must be a tffcl.parts.Traffic$"),
        (tells(scalars=lambda ids: {"cluster_accuracy": 0.9}), "scalars have cluster_accuracy, which is a column of"),
        (tells(scalars=lambda ids: {"drawn": ids}), r"scalars have drawn = array\(.*; it must be a number$"),
        (gives(lambda state, metrics: state.velocity), r"^means failed: AttributeError: .* \(test_train.py:"),
        (changed(initialize=lambda self, population: 1 / 0), r"^means failed: ZeroDivisionError: .* \(test_train.py:"),
        (changed(choose=lambda self, state, population: state["a"]), "^means failed: TypeError: .*subscriptable"),
    ],
)  # fmt: skip
def test_what_a_method_gives_in_a_round_or_raises_is_told_in_one_line(model, population, tmp_path, make, message):
    with pytest.raises(UserError, match=message) as raised:
        train(make(model), population, tmp_path / "run", evaluate_every=1)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "joined, message",
    [
        (lambda state, newcomers: None, "means: its state is of NoneType, not of MeansState$"),
        (lambda state, newcomers: state, "means: views must be of the 6 clients that take part, ascending$"),
    ],
)
def test_what_a_method_makes_of_newcomers_after_a_run_is_checked(model, population, tmp_path, joined, message):
    method = changed(admit=lambda self, state, newcomers: joined(state, newcomers))(model)
    run = train(method, population.restricted([0, 1, 2, 4]), tmp_path / "run", rounds=1)
    with pytest.raises(UserError, match=message):
        run.admit(population)


def test_a_method_that_fails_with_nobody_in_a_private_round_is_told_so(model, population, tmp_path):
    method = changed(
        next=lambda self, state, cohort: cohort.client_ids[0], hides_empty_rounds=lambda self, state: True
    )(model)
    told = "^means failed with the empty cohort of a private round that nobody was drawn for: IndexError: "
    with pytest.raises(UserError, match=told):
        train(method, population, tmp_path / "run", clients_per_round=1, sampling="poisson", seed=6)


def test_a_fault_of_this_package_is_told_whole_where_a_strangers_method_calls_it(model, population, tmp_path):
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute"):
        train(changed(initialize=lambda self, population: checks.may_wait(None))(model), population, tmp_path / "run")


def test_a_model_that_is_not_finite_later_is_told_at_the_evaluation(model, population, tmp_path):
    def models_for(self, state, ids):
        rows = np.asarray(ids) % 2
        return diverged(state.models, rows) if state.rounds == 2 else (state.models, rows)

    with pytest.raises(UserError, match=r"means: model 1 is not finite; .* \(rounds 1 to 1 are saved\)") as raised:
        train(changed(models_for=models_for)(model), population, tmp_path / "run")
    assert "\n" not in str(raised.value)


def test_the_training_loss_of_a_round_is_a_mean_over_examples(digits, model, tmp_path):
    x, y = digits
    sizes = {0: 5, 1: 80, 2: 20}
    population = Population.from_arrays({client: (x[:size], y[:size]) for client, size in sizes.items()})
    method, told = built(model, clusters=1), []
    trained = method.next

    def noted(state, cohort):
        found = trained(state, cohort)
        told.append(found[1])
        return found

    method.next = noted
    result = tffcl.train(method, population, rounds=2, clients_per_round=3, out=tmp_path / "run", show_progress=False)
    expected = [np.average(each.losses, weights=[sizes[client] for client in each.client_ids]) for each in told]
    np.testing.assert_allclose(result.rounds["train_loss"], expected, rtol=1e-6)
    assert all(abs(mean - each.losses.mean()) > 1e-3 for mean, each in zip(expected, told))


def test_clients_with_other_training_data_are_tested_anew(digits, model):
    """Their own models were of the data of before, also where their tests stay the same."""
    x, y = digits
    tests = {client: (x[500:520], y[500:520]) for client in range(3)}
    first, later = (
        Population.from_arrays({c: (x[rows], y[rows]) for c, rows in enumerate(each)}, tests)
        for each in ([slice(0, 9), slice(9, 18), slice(18, 27)], [slice(0, 9), slice(30, 39), slice(18, 27)])
    )
    stage = Stages(model, first, {2: later}).at(2)
    assert stage.changed.tolist() == stage.retested.tolist() == [1]


def test_notes_are_of_all_that_has_happened_up_to_the_last_round(model, population):
    """Who left, whose data changed, who moved when, and who did not tell."""
    versions = np.array([1, 1, 0, 0], np.int32)
    fewer = dataclasses.replace(population.restricted([0, 1, 2, 3]), versions=versions)
    stages, views = Stages(model, population, {2: fewer}), types.SimpleNamespace(client_ids=np.arange(4), moves=None)
    assert population_changes.notes(stages, 1, views) == []
    happened = ["in round 2 left: 4, 5", "from round 2 on these clients held other data: 0, 1"]
    assert population_changes.notes(stages, 2, views) == happened
    views.moves = types.SimpleNamespace(moved_in=np.array([0, 1, 2, 1]), flagged_in=np.array([2, 0, 0, 0]))
    moved, later, flags, silent = population_changes.notes(stages, 2, views)[2:]
    assert moved == "clusters formed anew in round 1; into another cluster moved: 1, 3"
    assert later == "clusters formed anew in round 2; into another cluster moved: 2"
    assert flags == "flags of change: 0 (round 2)" and silent.startswith("no flag of 1: none was asked of them")
    views.moves.flagged_in = None  # of a method that groups anew without asking anybody
    assert population_changes.notes(stages, 2, views) == [*happened, moved, later]


def test_a_matrix_is_kept_by_its_upper_triangle_where_that_is_all_of_it():
    """As SciPy, which reads it again, has it."""
    symmetric = squareform(np.arange(1.0, 7.0))
    np.testing.assert_array_equal(write_results._condensed(symmetric), np.arange(1.0, 7.0))
    for whole in (symmetric + np.eye(4), np.triu(symmetric), np.zeros([1, 1])):
        assert write_results._condensed(whole) is whole


def test_the_map_of_representations_is_of_the_clients_that_sent_them(monkeypatch, tmp_path):
    monkeypatch.setattr(write_results, "project_directions", lambda vectors, seed: vectors[:, :2])
    known = np.array([False, True, True, False, True, True])
    views = types.SimpleNamespace(representations=np.arange(12.0).reshape(4, 3), known_or_all=known)
    write_results.write_representations(tmp_path, views, types.SimpleNamespace(shown_ids=np.array([*"abcdef"])), 0)
    with np.load(tmp_path / "representations.npz") as found:
        assert found["client_ids"].tolist() == [*"bcef"] and found["places"].tolist() == [1, 2, 4, 5]
        np.testing.assert_array_equal(found["points"], views.representations[:, :2])


@dataclasses.dataclass(frozen=True)
class PlannedRounds:
    """Of a run that ended earlier."""

    rounds: int


def test_who_was_drawn_and_never_asked_to_train_is_counted(monkeypatch):
    monkeypatch.setattr(write_results.checks, "who_takes_part", lambda stages, protocol: np.arange(protocol.rounds))
    run = types.SimpleNamespace(
        totals=types.SimpleNamespace(rounds_trained=np.array([2, 0, 0, 0])), stages=None, round_number=3,
        protocol=PlannedRounds(9), population=types.SimpleNamespace(client_ids=np.arange(4)),
    )  # fmt: skip
    (note,) = write_results._notes_of_waiting(run)
    assert note.startswith("never asked to train: 2 of the 3 clients that were drawn (with secure sums")
    run.totals.rounds_trained = np.ones(4)
    assert write_results._notes_of_waiting(run) == []


def test_other_labels_of_the_same_examples_are_other_data(model, population):
    held = {client: population.train(client) for client in range(6)}
    relabelled = {client: (each.x, (each.y + (client == 2)) % 10) for client, each in held.items()}
    first, later = (Population.from_arrays(each) for each in ({c: (e.x, e.y) for c, e in held.items()}, relabelled))
    assert Stages(model, first, {2: later}).at(2).changed.tolist() == [2]
