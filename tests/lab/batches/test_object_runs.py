"""`tffcl.compare` and `sweep` on methods and clients that were made in Python: their runs are those of `train`."""

import html

import numpy as np
import pandas as pd
import pytest

import tffcl
from tests import own_data
from tests.runs.finished_runs import rows_of
from tffcl.algorithms.ditto import build_ditto
from tffcl.algorithms.each_round_parameters import IFCAParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.ifca import build_ifca
from tffcl.algorithms.lg_fedavg import build_lg_fedavg
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.algorithms.training_parameters import DittoParameters
from tffcl.errors import UserError
from tffcl.lab.batches.sweep import plan_given

TRAINING = tffcl.LocalTraining(epochs=2, batch_size=10, learning_rate=0.1)  # as in tests/runs
PROTOCOL = {"rounds": 2, "clients_per_round": 3, "evaluate_every": 1, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def clients():
    return tffcl.Population.from_arrays(*own_data.clinics())


@pytest.fixture(scope="module")
def model():
    return own_data.perceptron()


@pytest.fixture(scope="module")
def methods(model):
    parameters = PACFLParameters(num_clusters=2)
    return {"PACFL": build_pacfl(model, TRAINING, parameters), "one model": lambda: build_fedavg(model, TRAINING)}


def compare(methods, clients, out, **how):
    return tffcl.compare(methods, clients, out, **{"show_progress": False, **PROTOCOL, **how})


@pytest.fixture(scope="module")
def compared(methods, clients, tmp_path_factory):
    """Its tests leave the directory as it is."""
    return compare(methods, clients, tmp_path_factory.mktemp("objects") / "out", seeds=range(2), task="clinics")


def test_runs_are_those_of_train(compared, methods, clients, tmp_path):
    assert [(each["algorithm"], each["seed"]) for each in compared] == [
        (label, seed) for seed in (0, 1) for label in methods
    ]
    alone = tffcl.train(methods["PACFL"], clients, seed=1, out=tmp_path / "alone", show_progress=False, **PROTOCOL)
    assert compared[2]["accuracy"] == alone.summary["accuracy"] and compared[2]["task"] == "clinics"
    again = compared.result("PACFL", seed=1)
    assert again.summary == compared[2], "it is read, and not evaluated once more"
    pd.testing.assert_frame_equal(again.clients, alone.clients, check_dtype=False, atol=1e-6)
    pd.testing.assert_frame_equal(again.rounds.drop(columns="seconds"), alone.rounds.drop(columns="seconds"))
    for client in ("clinic_0", "clinic_5"):
        np.testing.assert_array_equal(again.model_of(client), alone.model_of(client))
    with pytest.raises(UserError, match="there is no run of PACLF, seed 7; there are PACFL, seed 0; one model, seed 0"):
        compared.result("PACLF", seed=7)


def test_there_are_page_table_and_frames(compared):
    assert "clinics: 2 methods compared" in (compared.out / "report.html").read_text()
    frame, means = compared.frame, compared.summary_frame
    assert frame[["algorithm", "seed"]].values.tolist() == [
        ["PACFL", 0], ["PACFL", 1], ["one model", 0], ["one model", 1]
    ]  # fmt: skip
    column = "cluster_accuracy_percent"
    assert frame[column].tolist() == [100 * compared[place]["accuracy"]["cluster"]["mean"] for place in (0, 2, 1, 3)]
    assert means[column].to_dict() == pytest.approx(frame.groupby("algorithm")[column].mean().to_dict())
    assert means[f"{column}_std"].to_dict() == pytest.approx(frame.groupby("algorithm")[column].std().to_dict())
    written = rows_of(compared.out / "table.csv")
    assert [row["algorithm"] for row in written] == means.index.tolist() and [*written[0]][1:] == [*means.columns]
    assert float(written[0][column]) == pytest.approx(means.loc["PACFL", column])
    assert "accuracy %" in repr(compared) and "one model" in repr(compared)
    assert compared._repr_html_().count("<tr>") == 3
    groups, best, cost = compared.verdict.splitlines()
    assert "PACFL" in groups and best.startswith("Best by cluster accuracy is ") and cost.endswith(" here.")
    page = html.unescape((compared.out / "report.html").read_text())
    assert all(f'<p class="verdict">{each}</p>' in page and each in repr(compared) for each in (groups, best, cost))


@pytest.mark.slow
def test_seeds_are_added_and_what_is_there_must_be_of_the_same_clients_and_settings(methods, clients, tmp_path):
    alone = {"PACFL": methods["PACFL"]}
    first = compare(alone, clients, tmp_path)
    assert compare(alone, clients, tmp_path, seeds=[0, 1])[0] == first[0]
    others = tffcl.Population.from_arrays(*own_data.clinics(5))
    with pytest.raises(UserError, match="the data have changed since the run in .*PACFL/seed-0: clients differ"):
        compare(alone, others, tmp_path, seeds=[0])
    with pytest.raises(UserError, match="the data have changed since the run in .*PACFL/seed-0: clients differ"):
        compare({"one model": methods["one model"]}, others, tmp_path)
    with pytest.raises(UserError, match=r"_every 1, not 2; .* give another out, .*\(overwrite=True with PA"):
        compare({"one model": methods["one model"]}, clients, tmp_path, evaluate_every=2)
    with pytest.raises(UserError, match="PACFL/seed-0 was run with built_from.noise_seed .none., not not set"):
        compare({"PACFL": methods["one model"]}, clients, tmp_path)
    with pytest.raises(UserError, match="PACFL/seed-0 was run with privacy not set, not {'delta': 1e-06}"):
        compare(alone, clients, tmp_path, privacy=tffcl.PrivacySettings(delta=1e-6))
    assert compare(alone, others, tmp_path, overwrite=True, seeds=[0, 1])[0] != first[0]


@pytest.mark.slow
def test_a_result_does_not_answer_with_models_of_a_run_that_was_written_in_its_place(model, clients, tmp_path):
    """Personal models are read when they are asked for."""
    ditto = {"Ditto": build_ditto(model, TRAINING)}
    first = compare(ditto, clients, tmp_path, rounds=1)
    before = first.result("Ditto")
    compare(ditto, clients.map(lambda x, y: (2 * x, y)), tmp_path, rounds=1, overwrite=True)
    with pytest.raises(UserError, match=r"kept, cannot be read \(it is of another run, which was written there since"):
        [before.model_of(client) for client in clients.shown_ids]
    nearer = build_ditto(model, TRAINING, DittoParameters(proximal_weight=7.0))
    compare({"Ditto": nearer}, clients, tmp_path, rounds=1, overwrite=True)
    with pytest.raises(UserError, match="holds another run: its built_from.parameters.proximal_weight is 7.0"):
        first.result("Ditto")


@pytest.mark.slow
def test_without_test_examples_a_verdict_does_not_say_who_has_which_model(model, tmp_path):
    train, _ = own_data.clinics()
    methods = {"one": build_fedavg(model, TRAINING), "parts": build_lg_fedavg(model, TRAINING)}
    found = compare(methods, tffcl.Population.from_arrays(train), tmp_path, rounds=1)
    assert found.verdict == "No groups were formed; one and parts end in one cluster."


class Ending(tffcl.Callback):
    """Fails in a round, and counts the runs that begin."""

    def __init__(self, at):
        self.at, self.begun = at, 0

    def begin(self, run):
        self.begun += 1

    def after_round(self, run):
        if (run.protocol.seed, run.round_number) == self.at:
            raise RuntimeError("ended")


@pytest.mark.slow
def test_what_has_failed_goes_on(compared, methods, clients, tmp_path):
    ending = Ending((1, 1))
    with pytest.raises(UserError, match="RuntimeError: ended"):
        compare({"PACFL": methods["PACFL"]}, clients, tmp_path, seeds=[0, 1], callbacks=[ending], task="clinics")
    assert ending.begun == 2
    with pytest.raises(UserError, match="seed-1 holds a run already; resume=True"):
        compare({"PACFL": methods["PACFL"]}, clients, tmp_path, seeds=[0, 1], task="clinics")
    found = compare({"PACFL": methods["PACFL"]}, clients, tmp_path, seeds=[0, 1], resume=True, task="clinics")
    assert [each["accuracy"] for each in found] == [compared[place]["accuracy"] for place in (0, 2)]


@pytest.mark.slow
def test_a_function_is_given_each_seed_and_a_run_that_diverges_leaves_the_others(model, clients, tmp_path):
    given = []

    def build(seed):
        given.append(seed)
        return build_fedavg(model, TRAINING if seed else tffcl.LocalTraining(learning_rate=1e38))

    found = compare({"mine": build}, clients, tmp_path, seeds=[0, 1])
    assert given == [0, 1] and found[0] is None and found[1]["seed"] == 1
    failed = found.frame.set_index("seed")
    assert "not finite" in failed.loc[0, "failed"] and failed.loc[1, "failed"] == ""
    assert np.isnan(failed.loc[0, "cluster_accuracy_percent"]) and found.summary_frame.loc["mine", "seeds"] == 1
    assert found.result("mine", seed=1).summary["accuracy"] == found[1]["accuracy"]
    with pytest.raises(UserError, match="mine, seed 0 diverged; it has no result"):
        found.result("mine", seed=0)


@pytest.mark.slow
def test_a_method_that_is_made_for_each_seed_goes_on(model, clients, tmp_path):
    def build(seed):
        return build_ifca(model, TRAINING, IFCAParameters(num_clusters=2), seed=seed)

    how = {"rounds": 1, "resume": True}
    found = compare({"mine": build}, clients, tmp_path, seeds=[0, 1], rounds=1)
    again = compare({"mine": build}, clients, tmp_path, seeds=[0, 1, 2], **how)
    assert again[2]["seed"] == 2 and again[0] == found[0] and found.result("mine", seed=0).summary == found[0]
    kept = {"always": build(0)}  # the seed of the first run only by chance
    compare(kept, clients, tmp_path / "kept", seeds=[0, 1], rounds=1)
    assert compare(kept, clients, tmp_path / "kept", seeds=[0], **how)[0]["seed"] == 0
    with pytest.raises(UserError, match="mine/seed-0 was run with built_from.seed 0, not 5"):
        compare({"mine": lambda: build(5)}, clients, tmp_path, **how)


@pytest.mark.slow
def test_clients_that_join_later_are_in_all_runs(methods, clients, tmp_path):
    train, test = own_data.clinics(7)
    everyone = tffcl.Population.from_arrays(train, test, known=clients)
    found = compare(methods, clients, tmp_path, later={2: everyone})
    assert [len(found.result(label).clients) for label in methods] == [7, 7]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"methods": "list"}, "methods is a list of methods; it must be a dict of what tables call each method, "),
        ({"methods": "one"}, "methods is of OneShot; it must be a dict of what tables call each method"),
        ({"methods": {}}, "methods is empty; it must be a dict"),
        ({"methods": {"a": PACFLParameters}}, r"methods\['a'\] is the class PACFLParameters; it must be a method, as "),
        ({"methods": {"a": PACFLParameters()}}, r"methods\['a'\] is of PACFLParameters; it must be a method, as "),
        ({"methods": {"a": build_pacfl}}, "the function build_pacfl, which needs model, training, and is called with "),
        ({"methods": {"a": lambda: 3}}, r"methods\['a'\] returned int; it must return a tffcl.algorithms.Method"),
        ({"methods": {"a/b": lambda: 3}}, "'a/b' cannot be what tables call a method"),
        ({"population": "dict"}, "population is of dict; it must be a tffcl.Population"),
        ({"population": "runs/x"}, "population is of str; it must be a tffcl.Population"),
        ({"later": {2: "x"}}, r"later\[2\] is of str; it must be a tffcl.Population"),
        ({"seeds": 3}, r"seeds is 3; it must be a list of whole numbers, e.g. \[0, 1, 2\]"),
        ({"seeds": [0, 0]}, r"seeds are \[0, 0\]; give one or more, each once"),
        ({"seeds": [0.5]}, "one of seeds is 0.5; it must be a whole number"),
        ({"rounds": 0}, "rounds is 0; it must be a whole number from 1"),
        ({"clients_per_round": 99}, "99"),
        ({"epochs": 3}, r"unknown argument 'epochs' \(allowed: checkpoint_every, clients_per_round"),
        ({"seed": 3}, r"unknown argument 'seed'; did you mean 'seeds'\?"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(methods, clients, tmp_path, change, message):
    named = {"list": [methods["PACFL"]], "one": methods["PACFL"], "dict": {"a": clients}}
    given = {"methods": methods, "population": clients, **change}
    given = {name: named.get(each, each) if isinstance(each, str) else each for name, each in given.items()}
    with pytest.raises(UserError, match=message) as told:
        compare(given.pop("methods"), given.pop("population"), tmp_path / "out", **given)
    assert "\n" not in str(told.value) and not (tmp_path / "out").exists()


def test_what_is_missing_and_what_a_task_has_of_its_own_is_told(methods, clients, tmp_path):
    with pytest.raises(UserError, match="rounds is missing; give it as to tffcl.train, e.g. rounds=10"):
        tffcl.compare(methods, clients, tmp_path)
    with pytest.raises(UserError, match="rounds is for methods made in Python; tffcl.resolve has a task's own"):
        tffcl.compare([tffcl.resolve("demo_digits", "pacfl")], tmp_path, rounds=3)


def sweep(method, over, clients, out, **how):
    return tffcl.sweep(method, over, clients, out, **{"show_progress": False, **PROTOCOL, **how})


@pytest.fixture(scope="module")
def build(model):
    def built(num_clusters):
        return build_pacfl(model, TRAINING, PACFLParameters(num_clusters=num_clusters))

    return built


@pytest.mark.slow
def test_a_sweep_is_over_what_the_function_and_the_protocol_take(build, compared, clients, tmp_path):
    settings = {"num_clusters": [1, 2], "clients_per_round": np.array([3, 6])}
    protocol = {name: value for name, value in PROTOCOL.items() if name != "clients_per_round"}
    found = tffcl.sweep(build, settings, clients, tmp_path, **protocol, seeds=[0], show_progress=False)
    frame = found.frame
    assert frame[["num_clusters", "train.clients_per_round"]].values.tolist() == [[1, 3], [1, 6], [2, 3], [2, 6]]
    assert [each["clusters"]["count"] for each in found] == frame["clusters"].tolist() == [1, 1, 2, 2]
    assert found.result(2, 3).summary["accuracy"] == compared[0]["accuracy"], "the same run as in a comparison"
    assert found.summary_frame.loc[(2, 6), "seeds"] == 1 and (tmp_path / "sweep.csv").exists()
    assert "train: pacfl over num clusters and clients per round" in (tmp_path / "report.html").read_text()
    with pytest.raises(UserError, match="only a comparison has a verdict; tffcl.search picks the best value"):
        found.verdict


@pytest.mark.slow
def test_a_sweep_of_a_task_is_that_of_the_command_line(tmp_path):
    short = {"train": {"rounds": 1, "local_epochs": 1}, "partition": {"clients": 8}, "model": {"hidden": 4}}
    how = {"task": "demo_digits", "overrides": short, "show_progress": False}
    found = tffcl.sweep("pacfl", {"clients_per_round": [3, 4]}, out=tmp_path / "swept", **how)
    assert [each["algorithm"] for each in found] == ["pacfl"] * 2
    assert found.frame["train.clients_per_round"].tolist() == [3, 4]
    alone = tffcl.run(
        tffcl.resolve("demo_digits", "pacfl", overrides={**short, "train": {**short["train"], "clients_per_round": 4}}),
        tmp_path / "alone", show_progress=False,
    )  # fmt: skip
    assert found[1]["accuracy"] == alone.summary["accuracy"] == found.result(4).summary["accuracy"]


@pytest.mark.parametrize(
    "method, over, more, message",
    [
        (None, {"num_clusters": [2]}, {}, "over num_clusters has 1 value; a sweep needs two or more"),
        (None, {"num_clusters": [2, 2]}, {}, "over num_clusters names 2 twice"),
        (None, {"num_clusters": 2}, {}, r"over\['num_clusters'\] is '2'; it must be a list of values"),
        (None, {"num_clusters": [2, tffcl]}, {}, r"a value of over\['num_clusters'\] is .*; it must be true or false"),
        (None, {"num_clusters": [2, 50]}, {}, "num_clusters is 50; it must be from 1 to the number of clients, "),
        (None, {"threshold": [2, 3]}, {}, "method has no parameter threshold, which the sweep is over"),
        ("by seed", {"seed": [2, 3]}, {}, "over names seed, which is no setting: seeds= says with which seeds"),
        (None, {"rounds": [1, 2], "num_clusters": [1, 2]}, {"rounds": 3}, "train.rounds is swept over and set to 3"),
        (None, {}, {}, "a sweep is over one setting or two, not 0"),
        (None, ["num_clusters"], {}, "over is of list; it must be a dict of settings to their values"),
        ("a method", {"num_clusters": [2, 3]}, {}, "method is of OneShot; it must be a function of num_clusters"),
        ("pacfl", {"num_clusters": [2, 3]}, {}, "method is the label 'pacfl' of a task: give task="),
    ],
)
def test_a_sweeps_mistakes_are_told_before_anything_is_written(
    build, methods, clients, tmp_path, method, over, more, message
):
    given = {None: build, "a method": methods["PACFL"], "by seed": lambda seed: None}.get(method, method)
    with pytest.raises(UserError, match=message) as told:
        sweep(given, over, clients, tmp_path / "out", **more)
    assert "\n" not in str(told.value) and not (tmp_path / "out").exists()


def test_a_function_that_ignores_what_is_swept_over_is_told_of(build, clients, capsys):
    how = {"task": None, "seeds": [0], "later": None, "memory": None, "overrides": None, "protocol": PROTOCOL}
    plan_given(build, {"num_clusters": [1, 2]}, clients, **how)
    assert capsys.readouterr().err == ""
    plan_given(lambda num_clusters: build(2), {"num_clusters": [1, 2]}, clients, **how)
    assert "num clusters 1 and num clusters 2 make the same method, as far as" in capsys.readouterr().err


@pytest.fixture(scope="module")
def held_out(clients):
    return clients.with_validation(0.2)


@pytest.fixture(scope="module")
def rates(model):
    """A method for each learning rate, whose model measures a metric of the user's own, too."""

    def surprise_error(labels, outputs):
        return float(np.mean(1 - outputs[np.arange(len(labels)), labels]))

    measuring = model.with_metrics(["accuracy", "log_loss", surprise_error])
    return lambda learning_rate: build_fedavg(measuring, tffcl.LocalTraining(learning_rate=learning_rate))


@pytest.mark.slow
def test_a_search_picks_by_validation_examples_and_tests_the_picked_values_alone(rates, held_out, tmp_path):
    settings = {"learning_rate": [0.0001, 0.1, 1e30]}
    how = {**PROTOCOL, "show_progress": False, "fresh_seeds": 2, "seeds": [3]}
    found = tffcl.search(rates, settings, held_out, tmp_path, halving=2, **how)
    assert found.picked == {"learning_rate": 0.1} and [each["seed"] for each in found] == [4, 5]
    frame, column = found.frame, "validation_cluster_accuracy_percent"
    assert frame["learning_rate"].tolist()[:2] == [0.1, 0.0001] and frame["compared_after"].tolist() == [2, 2, 1]
    alone = tffcl.train(rates(0.1), held_out, seed=3, out=tmp_path / "alone", show_progress=False, **PROTOCOL).summary
    assert frame[column][0] == pytest.approx(100 * alone["validation"]["cluster"]["mean"])
    assert np.isnan(frame[column][2])
    tested = [100 * each["accuracy"]["cluster"]["mean"] for each in found]
    assert found.tests["cluster_accuracy_percent"].tolist() == tested
    assert found.result(seed=5).summary == found[1]
    assert found.result(seed=5).facts()["cluster accuracy"].endswith(" %")
    assert "picked: learning rate 0.1, on test data" in repr(found)
    again = tffcl.search(rates, settings, held_out, tmp_path, halving=2, callbacks=[Ending((3, 1))], **how)
    assert again == found, "nothing is run twice"


@pytest.mark.slow
def test_a_search_over_more_values_may_pick_another(rates, held_out, tmp_path, capsys):
    how = {**PROTOCOL, "rounds": 1, "fresh_seeds": 1}
    first = tffcl.search(rates, {"learning_rate": [0.0001, 0.01]}, held_out, tmp_path, show_progress=False, **how)
    assert first.picked == {"learning_rate": 0.01}
    more = tffcl.search(rates, {"learning_rate": [0.0001, 0.01, 0.1]}, held_out, tmp_path, **how)
    assert more.picked == {"learning_rate": 0.1} and more[0] != first[0]
    assert "seed-1 is deleted: it was of other values, which were picked before" in capsys.readouterr().err
    assert more.result().summary == more[0]
    fewer = tffcl.search(rates, {"learning_rate": [0.0001, 0.01]}, held_out, tmp_path, show_progress=False, **how)
    assert fewer[0]["accuracy"] == first[0]["accuracy"]
    with pytest.raises(UserError, match="holds another run: its train.clients_per_round is 3, not 2"):
        tffcl.search(rates, {"learning_rate": [0.1, 0.2]}, held_out, tmp_path, **{**how, "clients_per_round": 2})


def test_a_search_needs_validation_examples_in_all_rounds_and_when_it_compares(rates, clients, held_out, tmp_path):
    how, settings = {"show_progress": False, **PROTOCOL}, {"learning_rate": [0.01, 0.1]}
    with pytest.raises(UserError, match="select needs validation examples"):
        tffcl.search(rates, settings, held_out, tmp_path / "out", later={2: clients}, **how)
    with pytest.raises(UserError, match="halving 2 compares points after 1 round, and clients join .* from round 2 on"):
        tffcl.search(rates, settings, held_out, tmp_path / "out", later={2: held_out}, halving=2, **how)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_search_goes_by_any_metric_of_the_model_in_its_own_direction(rates, held_out, tmp_path):
    """Of a user's own function less is better where it is called an error."""
    rng = {"learning_rate": "0.0001..0.1"}
    how = {**PROTOCOL, "show_progress": False, "fresh_seeds": 1, "samples": 3}
    found = tffcl.search(rates, rng, held_out, tmp_path, select="cluster_surprise_error", **how)
    scores = found.frame["validation_cluster_surprise_error"]
    assert scores.is_monotonic_increasing and found.picked["learning_rate"] == found.frame["learning_rate"].max()
    assert found.tests["cluster_surprise_error"][0] == found[0]["metrics"]["surprise_error"]["cluster"]["mean"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"population": "clients"}, r"needs validation examples.*: clients.with_validation\(0.1\)"),
        ({"select": "local"}, "^select 'local' must be cluster or global: local accuracy is taken on test examples"),
        ({"select": "cluster_auc"}, r"^select cluster_auc needs the metric: .* metrics=\(.auc., ...\) of a model"),
        ({"select": "cluster_log_los"}, "'cluster_log_los'; did you mean 'cluster_log_loss'"),
        ({"over": {"learning_rate": "0.1..1"}}, "'0.1..1'; it must be a list of values"),
        ({"over": {"learning_rate": "0.1,1"}, "samples": 3}, 'must be a list of values, or a range, "0.001..0.1"'),
        ({"over": {"learning_rate": [0.1, 1]}, "samples": 3}, "over gives only 2 different points"),
        ({"halving": 1}, "^halving 1 must be 2 or more"),
    ],
)
def test_a_searchs_mistakes_are_told_before_anything_is_written(rates, clients, held_out, tmp_path, change, message):
    given = {"over": {"learning_rate": [0.1, 1.0]}, "population": held_out, **PROTOCOL, **change}
    given |= {"population": clients} if given["population"] == "clients" else {}
    with pytest.raises(UserError, match=message) as told:
        tffcl.search(rates, out=tmp_path / "out", **given)
    assert "\n" not in str(told.value) and not (tmp_path / "out").exists()
