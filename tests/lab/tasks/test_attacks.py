"""Malicious clients: what each attack uploads, and runs of tasks with them."""

import collections
import dataclasses
import json

import numpy as np
import pytest
import tensorflow_federated as tff

import tffcl
from tffcl.aggregators.clustered_mean import keyed_factory
from tffcl.aggregators.contract import FactoryTraits, traits
from tffcl.aggregators.upload_attacks import AttackedFactory
from tffcl.errors import UserError
from tffcl.lab.tasks import build, resolve, settings
from tffcl.lab.tasks.populations import build_population
from tffcl.runs.run import Interrupted
from tffcl.runs.run_directory import RunDirectory, State

SIZE = 400
VALUE = tff.to_type(
    collections.OrderedDict(
        client_id=np.int32, upload=collections.OrderedDict(key=np.int32, value=tff.TensorType(np.float32, [SIZE]))
    )
)
VALUES = np.random.default_rng(0).normal(1, 2, (6, SIZE)).astype(np.float32)
KEYS = [0, 0, 0, 1, 1, 1]  # clients 10 to 15


def attacked(kind, malicious, inner=None, **more):
    factory = AttackedFactory(inner, kind, malicious, **more)
    process = factory.create(VALUE, tff.TensorType(np.float32))
    clients = [
        collections.OrderedDict(
            client_id=np.int32(10 + i), upload=collections.OrderedDict(key=np.int32(key), value=value)
        )
        for i, (key, value) in enumerate(zip(KEYS, VALUES))
    ]
    return np.asarray(process.next(process.initialize(), clients, [1.0] * 6).result)


def means(changed):
    values = np.array([changed.get(i, value) for i, value in enumerate(VALUES)])
    return np.stack([values[:3].mean(axis=0), values[3:].mean(axis=0)])


@pytest.mark.parametrize(
    "kind, factor, more",
    [("sign_flip", -3, {}), ("sign_flip", -1, {"strength": 1.0}), ("model_replacement", 10, {}), ("label_flip", 1, {})],
)
def test_scaled_uploads(tff_worker, kind, factor, more):
    np.testing.assert_allclose(attacked(kind, [11], **more), means({1: factor * VALUES[1]}), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_little_is_enough(tff_worker):
    """Two attackers of one cluster and one of the other: each lies by the honest members of its own."""
    honest = VALUES[[0]], VALUES[[4, 5]]
    lies = [each.mean(axis=0) - 1.5 * each.std(axis=0) for each in honest]
    expected = means({1: lies[0], 2: lies[0], 3: lies[1]})
    np.testing.assert_allclose(attacked("lie", [11, 12, 13]), expected, atol=1e-2)


def test_noise_has_the_size_of_the_update(tff_worker):
    noise = (attacked("gaussian", [14]) - means({4: 0 * VALUES[4]}))[1] * 3
    assert np.std(noise) == pytest.approx(10 * np.sqrt(np.mean(VALUES[4] ** 2)), rel=0.15)
    assert abs(np.corrcoef(noise, VALUES[4])[0, 1]) < 0.2


@pytest.mark.slow
def test_nobody_malicious_changes_nothing_and_rules_are_attacked_too(tff_worker):
    np.testing.assert_allclose(attacked("sign_flip", []), means({}), atol=1e-5)
    np.testing.assert_allclose(attacked("sign_flip", [], tffcl.aggregation("uniform_mean")), means({}), atol=1e-5)
    found = attacked("model_replacement", [10], tffcl.aggregation("robust", rule="median"), strength=1e6)
    assert np.abs(found).max() < 10


def test_what_is_attacked_keeps_its_promises():
    """A soft grouping refuses means in which all count the same, attacked ones too."""
    for name in ("uniform_mean", "secure_sum", "dp", "robust", "compression"):
        seed = {"seed": 3} if name in ("dp", "compression") else {}
        own = traits(keyed_factory(tffcl.aggregation(name, **seed), 2))
        under = AttackedFactory(tffcl.aggregation(name, **seed), "sign_flip", [11]).with_clusters(2)
        for each in set(vars(FactoryTraits)["__annotations__"]) - {"key", "by_parts", "takes_client_ids"}:
            assert getattr(under, each) == getattr(own, each), (name, each)


TASK = """
description = "d"
[dataset]
name = "digits"
[partition]
name = "rotated"
clients = 10
rotations = 2
reuse = false
test = "share"
[model]
name = "mlp"
hidden = 64
[train]
rounds = 4
clients_per_round = 10
local_epochs = 5
batch_size = 10
learning_rate = 0.1
momentum = 0.5
[algorithms.fedavg]
[algorithms.solo]
[algorithms.pacfl]
num_clusters = 2
[attack]
kind = "sign_flip"
share = 0.2
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    path = tmp_path_factory.mktemp("attacks") / "attacked.toml"
    path.write_text(TASK)
    return path


def test_whom_imitators_imitate_stays_when_others_join(population):
    everyone = dataclasses.replace(population, groups=np.array([0, 0, 0, 1, 1], np.int32))
    at_first, malicious = everyone.restricted([1, 2, 3, 4]), np.array([3, 4], np.int32)
    before = settings.with_imitators(at_first, malicious, 0)
    assert before.signed_as == {3: 1, 4: 2} != settings.with_imitators(everyone, malicious, 0).signed_as
    assert settings.with_imitators(everyone, malicious, 0, before).signed_as == before.signed_as
    named = dataclasses.replace(at_first, group_names=("MRI", "1"))  # a number is a name, too, and no place
    assert settings.with_imitators(named, malicious, "MRI").signed_as == before.signed_as
    assert settings.with_imitators(named, np.array([1, 4], np.int32), 1).signed_as == {1: 3}
    with pytest.raises(UserError, match="imitates is 0; it must be a group with benign clients, one of 1, MRI"):
        settings.with_imitators(named, malicious[:1], 0)


def run(task, out, label="fedavg", **overrides):
    return tffcl.run(resolve.resolve(task, label, overrides=overrides), out, show_progress=False)


@pytest.mark.slow
def test_those_who_join_later_are_not_among_the_malicious(task, tmp_path):
    for seed in range(2):
        how = {"newcomers": {"clients": 4}, "attack": {"share": 0.5}, "train": {"rounds": 1, "clients_per_round": 3}}
        config = resolve.resolve(task, "fedavg", seed=seed, overrides=how)
        found = tffcl.run(config, tmp_path / str(seed), show_progress=False)
        malicious = found.summary["attack"]["malicious"]
        assert len(malicious) == 3 and set(malicious) <= set(found.client_columns["client_id"].tolist())


def test_a_run_has_not_ended_before_it_says_who_was_malicious(task, tmp_path, monkeypatch):
    """Where one was taken for finished, a comparison had no accuracy of benign clients for it."""

    def killed(*_):
        raise KeyboardInterrupt

    how = {"attack": {"share": 0.2}, "train": {"rounds": 1, "clients_per_round": 3}}
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr("tffcl.lab.batches.run.outcome_of", killed)
        run(task, tmp_path / "run", **how)
    assert RunDirectory(tmp_path / "run").state is State.BEGUN
    config = resolve.resolve(task, "fedavg", overrides=how)
    assert len(tffcl.run(config, tmp_path / "run", resume=True, show_progress=False).summary["attack"]["ended"]) == 2


@pytest.mark.slow  # the rules are in tests/aggregators/test_inside_clusters.py
def test_a_robust_rule_saves_what_the_mean_loses(task, tmp_path):
    attack = {"strength": 5}
    lost = run(task, tmp_path / "mean", "pacfl", attack=attack)
    saved = run(task, tmp_path / "median", "pacfl", attack=attack, aggregation={"name": "robust", "rule": "median"})
    benign = [each.summary["attack"]["benign_accuracy"] for each in (lost, saved)]
    assert benign[1]["mean"] > benign[0]["mean"] + 0.2
    told = json.loads((tmp_path / "median" / "summary.json").read_text())
    assert told["attack"]["malicious"] == settings.AttackSettings(share=0.2).malicious(np.arange(10), 0).tolist()
    assert len(told["attack"]["malicious"]) == 2 and set(benign[1]["clusters"]) == {"0", "1"}
    members = told["attack"]["members"].values()
    assert sum(each["malicious"] for each in members) == 2 and sum(each["benign"] for each in members) == 8
    assert any("attack sign_flip by 2 clients; accuracy of the others" in note for note in told["notes"])
    bad = np.isin(saved.client_columns["client_id"], told["attack"]["malicious"])
    assert benign[1]["mean"] == pytest.approx(saved.client_columns["cluster_accuracy"][~bad].mean())


def test_wrong_labels_are_trained_on_and_not_tested(task, tmp_path):
    result = run(task, tmp_path / "run", attack={"kind": "label_flip", "share": 0.5}, train={"rounds": 1})
    population, bad = result.trained.population, result.summary["attack"]["malicious"]
    plain = build_population(build.load_data(resolve.resolve(task, "fedavg")))
    loaded = tffcl.load_run(tmp_path / "run").population  # in which clients choose again
    assert len(bad) == 5
    for client in range(10):
        held, own = population.train(client).stacked, plain.train(client).stacked
        np.testing.assert_array_equal(held["y"], 9 - own["y"] if client in bad else own["y"])
        read = np.array([each["y"] for each in population.train(client).dataset.as_numpy_iterator()])
        np.testing.assert_array_equal(read, held["y"])
        np.testing.assert_array_equal(loaded.train(client).y, held["y"])
        np.testing.assert_array_equal(population.test(client).y, plain.test(client).y)
    np.testing.assert_array_equal(population.label_counts[bad], plain.label_counts[bad][:, ::-1])


def test_imitators_end_in_the_cluster_of_the_group_that_they_imitate(task, tmp_path):
    """Without imitation each client of these groups is found where it belongs."""
    imitation = {"kind": "imitation", "imitates": 1, "share": 0.4}
    result = run(task, tmp_path / "run", "pacfl", attack=imitation, train={"rounds": 1})
    told = result.summary["attack"]
    groups = result.trained.population.groups
    clusters = result.client_columns["cluster"]
    bad = np.isin(np.arange(10), told["malicious"])
    home = clusters[~bad & (groups == 1)]
    assert len(np.unique(home)) == 1 and len(np.unique(clusters[~bad & (groups == 0)])) == 1
    assert np.any(groups[bad] == 0), "somebody must imitate another group"
    assert (clusters[bad] == home[0]).all()
    assert told["imitates"] == 1 and told["members"][str(home[0])]["malicious"] == 4 == len(told["ended"])
    for client, where in told["ended"].items():
        assert where == {"cluster": clusters[int(client)], "group": groups[int(client)]}
    assert any(
        " to be of group 1; accuracy" in note and "malicious members by cluster" in note
        for note in result.summary["notes"]
    )
    for client in range(10):  # what they train on is their own
        assert len(result.trained.population.train(client).y) == result.trained.population.sizes[client]


def test_malicious_clients_are_told_by_name():
    columns = {"client_id": np.array(["a", "b"]), "cluster": np.zeros(2, int), "cluster_accuracy": np.ones(2)}
    how, everyone = settings.AttackSettings(share=0.5), np.ones(2, bool)
    told = settings.outcome_of(how, np.array([1]), columns, np.arange(2), None, everyone)
    assert told["malicious"] == ["b"] and told["ended"] == {"b": {"cluster": 0}}
    told["imitates"] = 2
    assert "1 client, who pretends to be of group 2; accuracy" in settings.note_of(told)
    imitated = settings.note_of(told, users=True)  # of a method that nobody here knows
    assert "of group 2 where tffcl.parts.build_signing asks them for a signature, and nowhere else; acc" in imitated
    told["ended"]["b"]["group"] = 2  # who is of that group itself signs its own
    assert "1 client, of whom none pretend to be of group 2; accuracy" in settings.note_of(told)


def test_who_was_never_met_is_in_no_cluster_of_an_attack():
    """As in the count of clusters; StoCFL gives each such client a number of its own."""
    columns = {name: np.array(values) for name, values in {"client_id": [*"abc"], "cluster": [0, 0, 2]}.items()}
    columns["cluster_accuracy"] = np.array([1.0, 0.5, 0.0])
    met, how = np.array([True, True, False]), settings.AttackSettings(share=0.5)
    told = settings.outcome_of(how, np.array([1]), columns, np.arange(3), None, met)
    assert told["benign_accuracy"] == {"mean": 0.5, "clusters": {"0": 1.0}}
    assert told["members"] == {"0": {"benign": 1, "malicious": 1}}


@pytest.mark.slow
def test_a_run_says_how_many_malicious_clients_each_cluster_of_those_has_that_were_met(task, tmp_path):
    found = run(task, tmp_path / "run", "stocfl", train={"rounds": 1, "clients_per_round": 3}).summary
    members = found["attack"]["members"].values()
    assert sum(sum(each.values()) for each in members) == 3 == 10 - found["clusters"]["unknown"]


def test_what_cannot_be_is_said(task, tmp_path):
    with pytest.raises(UserError, match="attack.share is 1; it must be a number from 0 to below 1"):
        resolve.resolve(task, "fedavg", overrides={"attack": {"share": 1}})
    with pytest.raises(UserError, match="attack.share is 0.02, which is none of 12 clients; give a larger one, or 0"):
        settings.AttackSettings(share=0.02).malicious(np.arange(12), seed=0)
    with pytest.raises(UserError, match="unknown attack.kind 'flip'"):
        resolve.resolve(task, "fedavg", overrides={"attack": {"kind": "flip"}})
    imitation = {"attack": {"kind": "imitation"}}
    with pytest.raises(
        UserError,
        match="fedavg asks clients for no signature, so that nobody can imitate one; methods that do are pacfl",
    ):
        resolve.resolve(task, "fedavg", overrides=imitation)
    with pytest.raises(UserError, match="imitates is 7; it must be a group with benign clients, one of 0, 1"):
        run(task, tmp_path / "run", "pacfl", attack={"imitates": 7})
    with pytest.raises(UserError, match="solo takes no .aggregation. and no .attack. on uploads"):
        run(task, tmp_path / "run", "solo")
