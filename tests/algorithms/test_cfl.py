"""CFL: against FedAvg at its limit, against a plain server, and what becomes of those who are absent or come later."""

import dataclasses

import numpy as np
import pytest

from tests.oracles import cfl as oracle
from tffcl.algorithms.cfl import build_cfl
from tffcl.algorithms.each_round_parameters import CFLParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clustering import hierarchical
from tffcl.clustering.hierarchical import bipartition, nearer_second
from tffcl.clustering.stochastic import cosine_distances
from tffcl.errors import UserError
from tffcl.rounds.traffic import Traffic

TRAINING = LocalTraining(epochs=2, batch_size=10, learning_rate=0.1, momentum=0.5)
TURNS = [0, 2, 0, 2, 0, 2, 0, 2]  # two groups: upright and upside down
EAGER = CFLParameters(stationary_norm=1e3, progress_norm=1e-3, first_rounds=2)


@pytest.fixture(scope="module")
def turned(digit_clients):
    return digit_clients([40, 30, 35, 45, 25, 30, 40, 35], TURNS)


def train(method, population, rounds, state=None, start=1, cohort=None):
    state = state or method.initialize(population)
    for number in range(start, start + rounds):
        ids = population.client_ids if cohort is None else np.array(cohort(number))
        state, _ = method.next(state, Cohort(population, ids, (7, number)))
    return state


def partition_of(assignment):
    return {frozenset(np.flatnonzero(assignment == each)) for each in np.unique(assignment)}


def recording(method):
    """Lets the method note the updates of every round."""
    seen, updates = [], method.updates

    def noted(models, keys, cohort, **others):
        found, result = updates(models, keys, cohort, **others)
        seen.append((cohort.seed[1], dict(zip(cohort.client_ids.tolist(), found)), result.reports["examples"]))
        return found, result

    method.updates = noted
    return seen


@pytest.mark.slow  # a plain server has it round by round
def test_without_splits_it_is_fedavg(tff_worker, model, population):
    never = build_cfl(model, TRAINING, CFLParameters(stationary_norm=1e-6, progress_norm=1e3, first_rounds=0))
    ours, theirs = train(never, population, 3), train(build_fedavg(model, TRAINING), population, 3)
    np.testing.assert_allclose(ours.models, theirs.models, rtol=0, atol=2e-6)
    assert np.abs(ours.models[0] - model.initial).max() > 0.05 and not len(ours.splits)


def test_it_splits_as_a_plain_server_does(tff_worker, model, turned):
    method = build_cfl(model, TRAINING, EAGER)
    seen = recording(method)
    plain = oracle.Server(turned.client_ids.tolist(), model.initial, 1e3, 1e-3, 2)
    cohorts = {1: [0, 1, 2, 3, 4, 5], 2: [1, 2, 4, 5, 6], 3: [0, 1, 2, 3, 5, 6], 4: [0, 1, 2, 3, 4, 5, 6]}
    state = train(method, turned, 4, cohort=cohorts.get)
    for number, updates, examples in seen:
        plain.round(number, {c: u.astype(float) for c, u in updates.items()}, dict(zip(updates, examples)))
    # Both have split the same sets of clients in the same rounds; the numbers of clusters may differ.
    assert partition_of(state.assignment) == {frozenset(each) for each in plain.members if each}
    assert [int(row[0]) for row in state.splits] == [number for number, *_ in plain.splits] and len(plain.splits) >= 2
    for members, expected in zip(plain.members, plain.models):
        models, rows = method.models_for(state, sorted(members))
        np.testing.assert_allclose(models[rows[0]], expected, rtol=0, atol=1e-5)


def test_two_groups_are_found_and_their_models_part(tff_worker, model, turned):
    method = build_cfl(model, TRAINING, EAGER)
    state = train(method, turned, 3)
    assert partition_of(state.assignment) == {frozenset({0, 2, 4, 6}), frozenset({1, 3, 5, 7})}
    assert state.splits.tolist() == [[3, 0, 1]]
    np.testing.assert_array_equal(state.models[0], state.models[1])  # both go on from the cluster's model
    # What newcomers train is the model that the members' updates were of, before the round that split it.
    np.testing.assert_array_equal(state.tree[0][0], train(method, turned, 2).models[0])
    waiting = build_cfl(model, TRAINING, dataclasses.replace(EAGER, first_rounds=99))
    told = waiting.views(waiting.initialize(turned)).notes[0]
    assert told.startswith("no cluster has split: one does after 99 rounds (first_rounds)")
    assert not waiting.views(state).notes
    shares = build_cfl(model, TRAINING, dataclasses.replace(EAGER, relative=True))
    assert "both times the longest update of the first round, and" in shares.views(shares.initialize(turned)).notes[0]
    later = train(waiting, turned, 1, state, 4)
    assert np.abs(later.models[0] - later.models[1]).max() > 0.01


def test_the_single_linkage_bipartition_is_the_best_of_all():
    rng = np.random.default_rng(3)
    for _ in range(20):
        updates = rng.standard_normal([7, 5]).astype(np.float32)
        (rest, chosen), best = oracle.best_bipartition(updates)
        labels = hierarchical.cut(hierarchical.build_dendrogram(cosine_distances(updates), "single"), num_clusters=2)
        assert partition_of(labels) == {frozenset(rest), frozenset(chosen)}
        apart = cosine_distances(updates)[labels == 0][:, labels == 1].min()
        assert 1 - apart == pytest.approx(best, abs=1e-5)


def test_the_gate_looks_at_the_members_of_the_halves_that_are_most_alike():
    """γ < sqrt((1 - α) / 2), α the largest cosine across: of 90 degrees, and not of 100."""
    angles = np.radians([0, 10, 100])
    updates = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert bipartition(updates, gate=0.70).tolist() == [False, False, True]
    assert bipartition(updates, gate=0.72) is None


@pytest.mark.parametrize("linkage, second", [("single", [0, 0, 0, 1]), ("complete", [0, 0, 1, 1])])
def test_halves_are_of_the_linkage_that_is_asked_for(model, turned, linkage, second):
    """Of updates at 0, 38, 80 and 128 degrees."""
    method, angles = build_cfl(model, TRAINING, CFLParameters(linkage=linkage)), np.radians([0, 38, 80, 128])
    updates, ids = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32), np.arange(4)
    state = method.initialize(turned.restricted(ids))
    assert method._split(state, 0, ids, updates, model.initial, 1).assignment.tolist() == second


def test_an_update_goes_with_the_half_that_has_the_one_most_like_it():
    """Also where the others of that half are far from it."""

    def at(*degrees):
        return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1)

    assert nearer_second(at(0, 45, 0), (at(40, 50), at(10, 170))).tolist() == [True, False, True]


def test_absent_members_go_with_the_half_that_is_like_their_last_update(tff_worker, model, turned):
    method = build_cfl(model, TRAINING, EAGER)
    # 6 and 7 take part before the split and are absent in it; nobody has ever seen 4 and 5.
    state = train(method, turned, 3, cohort={1: [0, 1, 2, 6, 7], 2: [0, 1, 3, 6, 7], 3: [0, 1, 2, 3]}.get)
    assert state.splits.tolist() == [[3, 0, 1]]
    up, down = state.assignment[[0, 1]]
    assert (
        up != down
        and state.assignment[[2, 6]].tolist() == [up, up]
        and state.assignment[[3, 7]].tolist() == [down, down]
    )
    assert state.assignment[[4, 5]].tolist() == [0, 0]


@pytest.mark.parametrize(
    "change", [{"gate": 0.99}, {"first_rounds": 3}, {"progress_norm": 900.0}, {"stationary_norm": 1e-3}]
)
def test_each_condition_alone_holds_a_split_back(tff_worker, model, turned, change):
    state = train(build_cfl(model, TRAINING, dataclasses.replace(EAGER, **change)), turned, 3)
    assert not len(state.splits) and len(state.models) == 1


def test_the_norms_are_of_the_mean_by_examples_and_of_the_longest_update(tff_worker, model, turned):
    waiting = build_cfl(model, TRAINING, dataclasses.replace(EAGER, first_rounds=99))
    seen = recording(waiting)
    state = train(waiting, turned, 2)
    train(waiting, turned, 1, state, 3)
    number, updates, examples = seen[-1]
    assert number == 3
    mean = float(np.linalg.norm(np.average(list(updates.values()), axis=0, weights=examples)))
    longest = float(np.linalg.norm(list(updates.values()), axis=1).max())
    for norms, splits in (
        ({"stationary_norm": 1.001 * mean}, 1), ({"stationary_norm": 0.999 * mean, "progress_norm": 1e-9}, 0),
        ({"progress_norm": 0.999 * longest}, 1), ({"progress_norm": 1.001 * longest}, 0),
    ):  # fmt: skip
        due = build_cfl(model, TRAINING, dataclasses.replace(EAGER, **norms))
        assert len(train(due, turned, 1, state, 3).splits) == splits, norms


def test_a_cluster_of_two_that_take_part_is_not_split(tff_worker, model, turned):
    state = train(build_cfl(model, TRAINING, EAGER), turned, 3, cohort=lambda number: [0, 1])
    assert not len(state.splits)


def test_newcomers_go_down_the_tree_by_their_update_from_each_model_that_was_split(tff_worker, model, turned):
    method = build_cfl(model, TRAINING, EAGER)
    few = turned.restricted([0, 1, 2, 3, 4, 5])
    state = train(method, few, 3)
    joined = method.admit(state, turned.restricted([6, 7]))
    assert joined.client_ids.tolist() == list(range(8))
    assert joined.assignment[6] == joined.assignment[0] != joined.assignment[1] == joined.assignment[7]
    np.testing.assert_array_equal(joined.models, state.models)
    with pytest.raises(UserError, match="client 6 is no newcomer"):
        method.admit(joined, turned.restricted([6]))


@pytest.mark.slow
def test_newcomers_train_each_split_model_at_the_learning_rate_of_its_round(tff_worker, model, turned):
    few = turned.restricted([0, 1, 2, 3, 4, 5])
    decaying = build_cfl(model, dataclasses.replace(TRAINING, learning_rate_decay=0.5), EAGER)
    state = train(decaying, few, 3)
    ((number, _, founded),) = state.splits.tolist()
    assert (number, founded) == (3, 1)
    seen = recording(decaying)
    decaying.admit(state, turned.restricted([6]))
    fixed = build_cfl(model, dataclasses.replace(TRAINING, learning_rate=0.1 * 0.5 ** (number - 1)), EAGER)
    before = recording(fixed)
    fixed.updates(state.tree[0][0][np.newaxis], [0], Cohort(turned, np.array([6]), (0, number)))
    np.testing.assert_allclose(seen[0][1][6], before[0][1][6], atol=1e-6)


@pytest.mark.slow
def test_what_newcomers_exchange_on_their_way_down_the_tree_is_counted(tff_worker, model, turned):
    """The first cluster is split twice: some newcomers meet two splits, others one."""
    method = build_cfl(model, TRAINING, EAGER)
    few = turned.restricted([0, 1, 2, 3, 4, 5])
    start = method.initialize(few)
    assert method.joined_traffic(None, start) == Traffic()
    # There is no split yet.
    assert method.joined_traffic(start, method.admit(start, turned.restricted([6, 7]))) == Traffic()
    state = train(method, few, 5)
    assert len(state.splits) >= 2
    updates, asked, exchanged = method.updates, [], []

    def noted(models, keys, cohort, **others):
        found, result = updates(models, keys, cohort, **others)
        asked.append(len(cohort.client_ids))
        exchanged.append(result.traffic)
        return found, result

    method.updates = noted
    joined = method.admit(state, turned.restricted([6, 7]))
    assert sum(asked) > 2 and len(asked) <= len(state.splits), "one round for all newcomers at a split"
    assert method.joined_traffic(state, joined) == sum(exchanged, Traffic())


def test_last_updates_are_kept_apart_from_the_models(tff_worker, model, turned):
    state = train(build_cfl(model, TRAINING, EAGER), turned, 1, cohort=lambda number: [2, 5])
    assert isinstance(state.updates, KeptStates) and len(state.updates) == 2
    assert state.updates.has([2, 3, 5]).tolist() == [True, False, True]


def test_the_last_update_of_a_client_is_that_of_its_last_round(tff_worker, model, turned):
    method = build_cfl(model, TRAINING, EAGER)
    seen = recording(method)
    state = train(method, turned, 2, cohort={1: [2, 5], 2: [5, 6]}.get)
    (_, first, _), (_, second, _) = seen
    assert np.abs(first[5] - second[5]).max() > 1e-3
    np.testing.assert_array_equal(state.updates.of([2, 5, 6]), [first[2], second[5], second[6]])


@pytest.mark.slow
def test_it_finds_the_four_rotations(tmp_path):
    import tffcl

    task = tffcl.resolve("flis_rotated_mnist", "cfl", overrides={"train": {"rounds": 11}, "evaluation": {"every": 11}})
    result = tffcl.run(task, tmp_path / "run", show_progress=False)
    assert result.summary["clusters"]["count"] == 4 and result.summary["clusters"]["ari"] == 1


@pytest.mark.slow
def test_relative_norms_are_shares_of_the_first_rounds_longest(tff_worker, model, turned):
    relative = build_cfl(model, TRAINING, CFLParameters(0.9, 0.2, relative=True, first_rounds=2))
    seen = recording(relative)
    state = train(relative, turned, 4)
    unit = float(state.unit)
    assert unit == pytest.approx(np.linalg.norm(list(seen[0][1].values()), axis=1).max(), rel=1e-5)
    assert float(train(relative, turned, 1).unit) == unit
    absolute = build_cfl(model, TRAINING, CFLParameters(0.9 * unit, 0.2 * unit, first_rounds=2))
    assert 0.1 < unit < 10 and len(state.splits)
    np.testing.assert_array_equal(train(absolute, turned, 4).splits, state.splits)


def test_norms_that_are_the_wrong_way_round_are_told_in_one_line(capsys):
    for _ in range(2):
        CFLParameters(stationary_norm=1.25, progress_norm=0.5)
    told = "progress_norm 0.5 is not above stationary_norm 1.25: members that agree are split, too\n"
    assert capsys.readouterr().err == told
    CFLParameters()
    assert capsys.readouterr().err == ""
