"""FedGWC against NumPy, its limits, its splits and newcomers, and what it finds in real data."""

import dataclasses

import numpy as np
import pytest
from sklearn.cluster import SpectralClustering
from sklearn.manifold import SpectralEmbedding
from sklearn.metrics import davies_bouldin_score

import tffcl
from tests.algorithms.conftest import as_arrays
from tests.oracles import fedgwc as oracle
from tests.short_runs import TRAINING, cohort_of, split, train
from tffcl.algorithms import fedgwc
from tffcl.algorithms.each_round_parameters import FedGWCParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.fedgwc import build_fedgwc
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.classifiers import build_mlp

NEVER = FedGWCParameters(tolerance=1e-30)
WHOLE = LocalTraining(epochs=3, batch_size=0, learning_rate=0.2, momentum=0.5)


def test_interactions_are_the_plain_ones(tff_worker, convex, digit_clients):
    """Five rounds of some clients each, on softmax regression, against NumPy in float64."""
    population = digit_clients([31, 40, 25, 50, 12, 33], turns=[0, 1, 0, 1, 0, 0])
    method = build_fedgwc(convex, WHOLE, NEVER)
    state = method.initialize(population)
    model = tuple(tensor.numpy().astype(float) for tensor in convex.unravel(state.models[0]))
    seen, change = [[1 / 36] * 6] * 6, 1.0
    for number, clients in enumerate([(0, 1, 2, 3, 4, 5), (0, 2, 4), (1, 3, 5), (0, 1), (2, 3, 4, 5)], 1):
        data = [as_arrays(population, client) for client in clients]
        told = [oracle.trained(model, *each, epochs=3, learning_rate=0.2, momentum=0.5) for each in data]
        sizes = [len(y) for _, y in data]
        model = tuple(sum(n * each[0][part] for n, each in zip(sizes, told)) / sum(sizes) for part in range(2))
        before, seen = seen, oracle.weighed(seen, 6, clients, [each[1] for each in told], sizes)
        block, share = np.ix_(clients, clients), len(clients) / 6
        change = (1 - share) * change + share * np.mean((np.array(seen)[block] - np.array(before)[block]) ** 2)
        state, metrics = method.next(state, cohort_of(population, clients, number))
        np.testing.assert_allclose(state.interactions, seen, rtol=1e-3)
        np.testing.assert_allclose(state.changes, [change], rtol=1e-3)
        np.testing.assert_allclose(state.models[0], convex.ravel(model), rtol=0, atol=1e-5)
        np.testing.assert_allclose(metrics.losses, [each[1][-1] for each in told], rtol=1e-4)
    found = fedgwc.affinity_of_perceptions(state.interactions, 2.0)
    np.testing.assert_allclose(found, oracle.affinity(state.interactions, 2.0), rtol=1e-9)
    assert method.views(state).notes[0].startswith("no cluster has split: interactions change by ")


def test_who_has_left_is_no_part_of_the_share_that_takes_part(tff_worker, convex, digit_clients):
    """All that are there take part: what is seen is that round's alone."""
    population = digit_clients([31, 40, 25, 50, 12, 33], turns=[0, 1, 0, 1, 0, 0])
    method, here = build_fedgwc(convex, WHOLE, NEVER), [0, 1, 3]
    state, alone = (method.initialize(each) for each in (population, population.restricted(here)))
    state, expected = (method.next(each, cohort_of(population.restricted(here), here, 1))[0] for each in (state, alone))
    np.testing.assert_allclose(state.interactions[np.ix_(here, here)], expected.interactions, rtol=1e-6)


def test_groups_are_found_by_their_losses():
    """Losses of two groups, with noise of a fifth of what they are apart: the rule alone, cohorts of five."""
    groups, rng, seen = np.repeat([0, 1], [12, 6]), np.random.default_rng(0), np.full([18, 18], 18**-2.0)
    assert fedgwc.split(fedgwc.affinity_of_perceptions(seen, 0.1), 4, 0) is None
    for _ in range(300):
        some = rng.choice(18, 5, replace=False)
        losses = 1 + groups[some][:, np.newaxis] + 0.2 * rng.standard_normal((5, 5))
        weights = fedgwc.gaussian_weights(losses, np.ones(5, int))
        assert weights.sum() == pytest.approx(1)
        block = np.ix_(some, some)
        seen[block] = 13 / 18 * seen[block] + 5 / 18 * weights[:, np.newaxis]
    labels = fedgwc.split(fedgwc.affinity_of_perceptions(seen, 0.1), 4, 0)
    assert len(set(zip(groups, labels))) == len(set(labels)) == 2


def test_a_cluster_that_has_settled_is_split_and_newcomers_take_the_better_model(tff_worker, model, digit_clients):
    everyone = digit_clients([30] * 8, turns=[0, 0, 0, 2, 2, 2, 0, 2])
    known, newcomers = split(everyone, [6, 7])
    method = build_fedgwc(model, TRAINING, FedGWCParameters(tolerance=1.0))
    state = method.initialize(known)
    seen = np.where(np.equal.outer(np.arange(6) < 3, np.arange(6) < 3), 0.3, 0.1)
    state = dataclasses.replace(state, interactions=seen, changes=np.zeros(1))
    waiting, _ = method.next(state, cohort_of(known, [0, 3], 5))
    assert len(waiting.models) == 1 and waiting.settled.tolist() == [1]  # three such rounds meet all six
    moving = dataclasses.replace(state, changes=np.full(1, 9.0), settled=np.array([2], np.int32))
    assert method.next(moving, cohort_of(known, [0, 3], 5))[0].settled.tolist() == [0]  # they change again
    waiting = dataclasses.replace(state, settled=np.array([2], np.int32))
    larger = build_fedgwc(model, TRAINING, FedGWCParameters(tolerance=1.0, least_clients=7))
    assert len(larger.next(waiting, cohort_of(known, [1, 4], 6))[0].models) == 1  # six are too few
    after, metrics = method.next(waiting, cohort_of(known, [1, 4], 6))
    assert len(set(after.assignment[:3])) == len(set(after.assignment[3:])) == 1 and len(after.models) == 2
    np.testing.assert_array_equal(after.models[0], after.models[1])
    views = method.views(after)
    assert views.splits.tolist() == [[6, 0, 1]] and not views.notes and metrics.clusters.tolist() == [0, 0]
    assert after.changes.tolist() == [1, 1] and after.settled.tolist() == [0, 0]
    apart = train(method, known, [range(6)] * 3, after)
    joined = method.admit(apart, newcomers)
    assert joined.clusters([6, 7]).tolist() == [apart.assignment[0], apart.assignment[3]]
    np.testing.assert_array_equal(joined.interactions[:6, :6], apart.interactions)
    assert (joined.interactions[6:] == 1 / 64).all()
    assert "as many as were exported: where there are more after a split, run it" in method.exports().when["losses"]


def test_into_how_many_parts_a_cluster_is_split_follows_the_parameters(tff_worker, model, grouped):
    """Of interactions by chance that split in three; with a small γ nobody is told apart."""
    seen = np.random.default_rng(39).uniform(size=(9, 9))
    for how, parts in (({}, 3), ({"most_parts": 2}, 2), ({"gamma": 1e-12}, 1)):
        method = build_fedgwc(model, TRAINING, FedGWCParameters(**how))
        state = dataclasses.replace(method.initialize(grouped), interactions=seen)
        after = method._split(state, 0, 0, 5)
        assert len(after.models) == parts, how
        assert ("told no parts apart" in "".join(method.views(after).notes)) == (parts == 1), how


@pytest.mark.parametrize("seed, parts", [(34, 2), (11, 3), (33, 4)])
def test_of_the_parts_with_a_score_below_one_those_with_the_least_are_taken(seed, parts):
    """Neither the first nor the last: of scores by scikit-learn alone."""
    seen, scores = np.random.default_rng(seed).uniform(size=(9, 9)), {}
    affinity = fedgwc.affinity_of_perceptions(seen, 0.1)
    for count in (2, 3, 4, 5):
        how = {"n_components": count, "affinity": "precomputed", "random_state": 0}
        labels = SpectralClustering(count, assign_labels="cluster_qr", **how).fit_predict(affinity)
        scores[count] = davies_bouldin_score(SpectralEmbedding(**how).fit_transform(affinity), labels)
    assert min(scores, key=scores.get) == parts and sum(score < 1 for score in scores.values()) > 2
    assert len(set(fedgwc.split(affinity, 5, 0))) == parts


def test_bad_parameters(model):
    with pytest.raises(UserError, match="most_parts is 1; it must be a whole number from 2"):
        FedGWCParameters(most_parts=1)
    with pytest.raises(UserError, match="upload 'losses' beside 'update'"):
        method = build_fedgwc(model, TRAINING, aggregation=tffcl.aggregation("secure_sum"))
        method.engine.round_for(1).simulated


def called_otherwise(digits, seed: int) -> Population:
    """Twenty clients with all labels, of whom six call each digit by the fifth after it."""
    x, y = digits
    rng = np.random.default_rng(seed)
    train_rows, test_rows = np.split(rng.permutation(len(x)), [1300])
    groups = np.isin(np.arange(20) % 10, (0, 1, 2)).astype(np.int32)
    held = [{}, {}]
    for each, rows, count in zip(held, (train_rows, test_rows), (200, 60)):
        for client, group in enumerate(groups):
            own = rng.choice(rows, count, replace=False)
            each[client] = x[own], (y[own] + 5 * group) % 10
    return dataclasses.replace(Population.from_arrays(*held), groups=groups)


@pytest.mark.slow
def test_it_finds_who_calls_digits_otherwise_in_cohorts_of_five(digits, tmp_path):
    """Where losses of groups differ and each two clients have met some fifteen times. The tolerance is from training
    losses alone: with cohorts of five the interactions change by more than with ten."""
    population, local = called_otherwise(digits, 0), LocalTraining(epochs=4, batch_size=50, learning_rate=0.05)
    model = build_mlp((8, 8, 1), 10, hidden=32, normalization=(0.3, 0.4), seed=0)
    methods = build_fedgwc(model, local, FedGWCParameters(tolerance=2e-4)), build_fedavg(model, local)
    found = [
        tffcl.train(
            method, population, rounds=rounds, clients_per_round=5, seed=0, out=tmp_path / method.name,
            evaluate_every=rounds, show_progress=False,
        ).summary
        for method, rounds in zip(methods, (350, 100))  # more do not help one model
    ]  # fmt: skip
    split, whole = (each["accuracy"]["cluster"]["mean"] for each in found)
    print(found[0]["clusters"], split, whole)
    assert found[0]["clusters"]["ari"] > 0.7 and split > whole + 0.2
