"""Validation accuracies, accuracies of those that took part, of those that never trained, and of those placed without
training.
"""

import gc
import json
import types

import numpy as np
import pytest
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function.atomic_function import RUNTIME_FUNCTION_REFS

import tffcl
from tests import own_data
from tests.runs.finished_runs import rows_of
from tffcl.errors import UserError
from tffcl.lab.datasets.federated import load_federated
from tffcl.lab.tasks import build, resolve
from tffcl.lab.tasks.populations import build_population
from tffcl.runs.evaluator import Evaluator, _build_predict_here
from tffcl.runs.metrics import BY_KEY, METRICS
from tffcl.runs.run_files import read_run
from tffcl.runs.summary import local_of_all

DATA = {"name": "digits"}
SPLIT = {"name": "rotated", "clients": 40, "rotations": 4, "reuse": False, "test": "share"}
SHORT = {"train": {"rounds": 3, "clients_per_round": 4}, "evaluation": {"every": 1}}


def resolved(algorithm, **more):
    overrides = {key: {**SHORT.get(key, {}), **more.get(key, {})} for key in {*SHORT, *more}}
    return resolve.resolve("demo_digits", algorithm, overrides=overrides)


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    """FedAvg with a tenth of each client's examples held out: `(config, Result)`; only read by tests."""
    chosen = resolved("fedavg", dataset={"validation": 0.1}, evaluation={"metrics": ["log_loss"]})
    return chosen, tffcl.run(chosen, tmp_path_factory.mktemp("validated") / "run", show_progress=False)


def test_a_share_of_each_clients_training_examples_is_held_out():
    whole = load_federated(DATA, SPLIT, seed=3)
    parted = load_federated({**DATA, "validation": 0.25}, SPLIT, seed=3)
    again = load_federated({**DATA, "validation": 0.25}, SPLIT, seed=3)
    other = load_federated({**DATA, "validation": 0.25}, SPLIT, seed=4)
    assert whole.validation_indices is None
    for client, index in enumerate(whole.train_indices):
        train, held = parted.train_indices[client], parted.validation_indices[client]
        assert len(held) == round(0.25 * len(index)) and not set(train) & set(held)
        assert sorted([*train, *held]) == sorted(index)
        np.testing.assert_array_equal(held, again.validation_indices[client])
        np.testing.assert_array_equal(parted.test_indices[client], whole.test_indices[client])
    assert any(set(a) != set(b) for a, b in zip(parted.validation_indices, other.validation_indices, strict=True))


def test_every_client_keeps_an_example_to_train_on():
    parted = load_federated({**DATA, "validation": 0.99}, SPLIT, seed=0)
    assert {len(index) for index in parted.train_indices} == {1}


@pytest.mark.parametrize("share", [-0.1, 1, "a"])
def test_a_wrong_share_is_said(share):
    with pytest.raises(UserError, match="validation"):
        load_federated({**DATA, "validation": share}, SPLIT, seed=0)


def test_validation_accuracies_are_of_the_examples_that_were_held_out(validated):
    """An evaluation of one's own: the global model on each client's held-out examples, client by client, and on all."""
    chosen, result = validated
    federated = build.load_data(chosen)

    def by_hand(client, held):
        given = result.predict(client, federated.train.x[held], probabilities=True)
        y = federated.train.y[held]
        return np.mean(given.argmax(axis=1) == y), -np.mean(np.log(given[np.arange(len(y)), y]))

    each = [by_hand(client, held) for client, held in enumerate(federated.validation_indices)]
    found, last = result.summary["validation"], rows_of(result.out / "rounds.csv")[-1]
    expected = *np.mean(each, axis=0), *by_hand(0, np.concatenate(federated.validation_indices))
    kinds = [(kind, metric) for kind in ("cluster", "global") for metric in ("accuracy", "log_loss")]
    for (kind, metric), value in zip(kinds, expected, strict=True):
        of_metric = found if metric == "accuracy" else found["metrics"][metric]
        tested = result.summary["accuracy" if metric == "accuracy" else "metrics"]
        tested = tested if metric == "accuracy" else tested[metric]
        assert of_metric[kind]["mean"] == pytest.approx(value, rel=1e-5) != pytest.approx(tested[kind]["mean"])
        assert float(last[f"validation_{kind}_{metric}"]) == pytest.approx(value, rel=1e-5)


def test_those_that_took_part_and_those_that_never_trained(validated):
    chosen, result = validated
    summary, clients = result.summary["accuracy"], result.client_columns
    took_part = clients["rounds_trained"] > 0
    assert 0 < took_part.sum() < 40
    found = summary["cluster"]["participants"]
    assert found["share"] == pytest.approx(took_part.mean())
    assert found["mean"] == pytest.approx(clients["cluster_accuracy"][took_part].mean())
    assert found["gap"] == pytest.approx(found["mean"] - clients["cluster_accuracy"][~took_part].mean())
    right = clients["cluster_accuracy"] * clients["test_examples"]
    assert len(np.unique(clients["test_examples"])) > 1
    assert summary["cluster"]["pooled"] == pytest.approx(right.sum() / clients["test_examples"].sum(), abs=1e-6)
    assert found["pooled"] == pytest.approx(
        right[took_part].sum() / clients["test_examples"][took_part].sum(), abs=1e-6
    )
    federated = build.load_data(chosen)
    model = build.build_model(chosen, federated)
    population = build_population(federated)
    held = np.stack([clients[f"label_{label}"] for label in range(10)], axis=1)
    np.testing.assert_array_equal(held, population.label_counts)
    untrained = Evaluator(model, population).cluster_accuracy(model.initial[np.newaxis], np.zeros(40, int))
    everyone = np.where(took_part, clients["local_accuracy"], untrained)
    assert summary["local"]["all"]["mean"] == pytest.approx(everyone.mean())
    assert summary["local"]["all"]["mean"] < summary["local"]["mean"]
    last = rows_of(result.out / "rounds.csv")[-1]
    assert float(last["local_accuracy_all"]) == pytest.approx(everyone.mean(), abs=1e-6)
    assert float(last["cluster_accuracy_participants"]) == pytest.approx(found["mean"], abs=1e-6)
    np.testing.assert_allclose(
        summary["cluster"]["deciles"],
        np.quantile(clients["cluster_accuracy"], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
    )
    assert "deciles" in summary["local"] and "deciles" not in found and "deciles" not in summary["local"]["all"]


def test_who_trained_and_was_not_tested_since_does_not_count_with_the_untrained_model():
    """One that has an accuracy counts with it, also where it trained in no round."""
    totals = types.SimpleNamespace(
        local_accuracies=np.array([0.5, np.nan, np.nan, 0.7]), rounds_trained=np.array([2, 1, 0, 0])
    )
    found = local_of_all({"untrained": np.array([0.1, 0.2, 0.3, 0.4])}, totals)
    np.testing.assert_array_equal(found, [0.5, np.nan, 0.3, 0.7])


def test_metrics_at_the_end_are_those_of_the_last_round(validated):
    """Where rounds.csv and summary.json have the same number."""
    run = read_run(validated[1].out)
    found = {
        each.column: each.of_run(run) / each.scale for each in METRICS if each.column in run.rounds and each.source
    }
    del found["seconds"], found["down_bytes"], found["up_bytes"]  # which rounds.csv has of each round
    assert {"local_accuracy_all", "cluster_accuracy_participants", "validation_global_accuracy", "ari"} < found.keys()
    last = {column: run.rounds[column][-1] for column in found}
    assert found == pytest.approx(last, abs=1e-6, nan_ok=True)
    seconds = run.summary["seconds"]
    parts = [seconds[part] for part in ("clustering", "training", "evaluation")]
    with np.load(run.path / "checkpoints" / "round_000003.npz") as saved:
        assert parts == pytest.approx(saved["totals.seconds"].tolist()) and seconds["total"] == pytest.approx(
            sum(parts)
        )
    took_part = run.summary["accuracy"]["cluster"]["participants"]
    for key, part in (("participants_pooled", "pooled"), ("participation_gap", "gap")):
        assert BY_KEY[key].of_run(run) == pytest.approx(100 * took_part[part])


@pytest.mark.slow
def test_who_was_not_sampled_can_be_placed_without_training(tmp_path):
    """StoCFL gives strangers the global model, or, when asked, that of the closest cluster (section 3.3); the training
    is the same.
    """
    groups = {"stocfl": {"threshold": 0.3, "form": "displacement"}}
    plain, placed = (
        tffcl.run(
            resolved("stocfl", algorithms=groups, evaluation={"every": 3, "place_unseen": place}),
            tmp_path / str(place),
            show_progress=False,
        )
        for place in (False, True)
    )
    for one, two in zip(rows_of(plain.out / "rounds.csv"), rows_of(placed.out / "rounds.csv"), strict=True):
        assert (
            one["train_loss"] == two["train_loss"]
            and one["cluster_accuracy_participants"] == two["cluster_accuracy_participants"]
        )
    took_part = plain.client_columns["rounds_trained"] > 0
    first, second = (each.client_columns["cluster_accuracy"] for each in (plain, placed))
    np.testing.assert_array_equal(first[took_part], second[took_part])
    assert (first[~took_part] != second[~took_part]).any()
    notes = [note for note in placed.summary["notes"] if "place_unseen" in note]
    assert len(notes) == 1 and notes[0].startswith(
        f"those who have not taken part ({sum(~took_part)} clients) were tested"
    )
    strangers = placed.trained.model_of(np.flatnonzero(~took_part)[0])  # which is not the one that all start from
    assert notes[0].endswith("have in the result and its export that of clients of whom nothing is known")
    np.testing.assert_array_equal(strangers, placed.trained.state.models[0])
    assert not np.array_equal(strangers, placed.trained.method.model.initial)
    with np.load(placed.out / "confusion.npz") as found:  # the members are those of clients.csv
        tested = {cluster: counts.sum() for cluster, counts in zip(found["clusters"], found["counts"])}
    who = placed.client_columns
    assert tested == {each: who["test_examples"][who["cluster"] == each].sum() for each in tested}
    method, state = placed.trained.method, placed.trained.state
    population = placed.trained.population
    seen = method.place(state, population)
    assert method.views(seen).known_or_all.all() and not method.views(state).known_or_all.all()
    models, rows = method.models_for(seen, population.client_ids)
    truth = population.groups
    for client in np.flatnonzero(~took_part):  # nearly all are with clients of their own group
        mates = np.flatnonzero((rows == rows[client]) & took_part)
        assert len(mates)
    same = [
        truth[client] == np.bincount(truth[(rows == rows[client]) & took_part]).argmax()
        for client in np.flatnonzero(~took_part)
    ]
    assert np.mean(same) > 0.5
    assert len(models) == len(state.models)


def test_an_unchanged_model_is_not_asked_again(tff_worker, monkeypatch):
    chosen = resolved("solo")
    federated = build.load_data(chosen)
    model, population = build.build_model(chosen, federated), build_population(federated)
    evaluator, asked = Evaluator(model, population), []
    answers = evaluator._answers
    monkeypatch.setattr(
        evaluator, "_answers", lambda models, wanted, _: asked.extend(wanted) or answers(models, wanted, _)
    )
    few = population.restricted([0, 1])  # of one model all test examples of these count, and no others
    ours, one = Evaluator(model, few), model.initial[np.newaxis]
    expected = np.average(ours.cluster_accuracy(one, np.zeros(2, int)), weights=few.test_sizes)
    assert ours.global_accuracy(model.initial) == pytest.approx(expected)
    models = np.stack([model.initial, model.initial + 0.01, model.initial + 0.02])
    keys = np.arange(40) % 3
    first = evaluator.cluster_accuracy(models, keys)
    assert set(asked) == {0, 1, 2}
    asked.clear()
    models[1] += 0.5
    second = evaluator.cluster_accuracy(models, keys)
    assert set(asked) == {1}
    np.testing.assert_array_equal(second, Evaluator(model, population).cluster_accuracy(models, keys))
    assert (first[keys != 1] == second[keys != 1]).all() and (first != second).any()
    asked.clear()
    models[2, :4] *= -1  # the highest bit of each, which sums of whole words may lose
    evaluator.cluster_accuracy(models, keys)
    assert set(asked) == {2}
    asked.clear()
    whole = evaluator.cluster_answers(models, keys)  # probabilities, which predictions do not tell
    assert set(asked) == {0, 1, 2} and whole[0].outputs.shape == (len(whole[0]), 10)


def test_confusions_are_of_the_clusters_with_most_clients(monkeypatch):
    monkeypatch.setattr("tffcl.runs.cluster_history.MOST_CLUSTERS", 2)
    model, rng = own_data.perceptron(), np.random.default_rng(0)
    tests = {c: (rng.normal(size=(3, 30)).astype(np.float32), rng.integers(0, 2, 3)) for c in range(7)}
    population, clusters = tffcl.Population.from_arrays(tests, tests), np.array([0, 1, 1, 1, 2, 3, 3])
    found = Evaluator(model, population).confusion(model.initial[np.newaxis], np.zeros(7, int), clusters)
    assert {cluster: counts.sum() for cluster, counts in found.items()} == {1: 9, 3: 6}
    nothing = Evaluator(model, population).confusion(np.nan * model.initial[np.newaxis], np.zeros(7, int), clusters)
    assert [counts.sum() for counts in nothing.values()] == [0, 0]  # what is no answer is taken for no label
    # Two of the largest cluster have no test examples, and so no accuracy.
    few = tffcl.Population.from_arrays(tests, {client: own for client, own in tests.items() if client not in (1, 2)})
    given = model.initial[np.newaxis], np.zeros(7, int)
    found = Evaluator(model, few).confusion(*given, clusters)
    assert {cluster: counts.sum() for cluster, counts in found.items()} == {3: 6, 0: 3}
    accuracies = Evaluator(model, few).cluster_accuracy(*given)
    assert np.isnan(accuracies).tolist() == [False, True, True, False, False, False, False]


@pytest.mark.slow
def test_a_run_that_stops_early_goes_on_to_the_same_end(validated, tmp_path):
    chosen, whole = validated
    assert tffcl.run(chosen, tmp_path / "run", until=2, show_progress=False) is None
    assert len(rows_of(tmp_path / "run" / "rounds.csv")) == 2 and not (tmp_path / "run" / "summary.json").exists()
    result = tffcl.run(chosen, tmp_path / "run", resume=True, show_progress=False)
    assert {**result.summary, "seconds": 0} == {**whole.summary, "seconds": 0}
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of functions that are forgotten twice
def test_answers_in_the_process_need_no_function_of_eager_tensorflow():
    """It forgets functions while graphs that were imported still name them."""
    chosen = resolved("solo")
    federated = build.load_data(chosen)
    model = build.build_model(chosen, federated)
    before = set(RUNTIME_FUNCTION_REFS)
    predict = _build_predict_here.__wrapped__(model)
    for _, name in set(RUNTIME_FUNCTION_REFS) - before:
        if context.context().has_function(name):
            context.context().remove_function(name)
    images = federated.test.x[:3]
    weights = (tuple(part.numpy() for part in model.unravel(model.initial)), ())
    wanted = model.functional.predict_on_batch(weights, images, False).numpy().argmax(axis=1)
    np.testing.assert_array_equal(predict(model.initial, images), wanted)
    del predict
    gc.collect()
