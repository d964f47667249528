import numpy as np
import pytest

from tffcl.algorithms.contracts import Cohort, Population
from tffcl.algorithms.pacfl import PrincipalAngleClustering, build_pacfl
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError
from tffcl.models.mlp import build_mlp

HOW = PrincipalAngleClustering(num_vectors=5, measure="angle_sum", num_clusters=2)


@pytest.fixture(scope="module")
def model():
    return build_mlp((8, 8, 1), 10, hidden=8, seed=3)


def split(population, newcomers):
    def part(ids):
        ids = np.array(ids, np.int32)
        return Population(ids, population.sizes[ids], population.examples, population.test_examples)

    return part([client for client in population.client_ids if client not in newcomers]), part(newcomers)


def test_it_finds_who_sees_digits_on_the_side(tff_worker, model, digit_clients):
    population = digit_clients([60] * 8, turns=[0, 1, 0, 1, 1, 0, 0, 1])
    state = build_pacfl(model, LocalTraining(), HOW).initialize(population)
    assert state.assignment.tolist() == [0, 1, 0, 1, 1, 0, 0, 1]
    assert state.models.shape == (2, model.size)
    np.testing.assert_array_equal(state.models, [model.initial] * 2)


def test_a_threshold_and_its_count_give_the_same_clusters(tff_worker, model, digit_clients):
    population = digit_clients([60] * 6, turns=[0, 1, 0, 1, 1, 0])
    by_count = build_pacfl(model, LocalTraining(), HOW).initialize(population)
    how = PrincipalAngleClustering(num_vectors=5, measure="angle_sum", threshold=float(by_count.extra["threshold"]))
    by_threshold = build_pacfl(model, LocalTraining(), how).initialize(population)
    np.testing.assert_array_equal(by_count.assignment, by_threshold.assignment)
    suggested = build_pacfl(model, LocalTraining(), PrincipalAngleClustering(num_vectors=5, measure="angle_sum")).initialize(
        population
    )
    np.testing.assert_array_equal(suggested.assignment, by_count.assignment)


def test_newcomers_join_and_nobody_moves(tff_worker, model, digit_clients):
    everyone = digit_clients([60] * 8, turns=[0, 1, 0, 1, 1, 0, 0, 1])
    known, newcomers = split(everyone, [3, 6])
    algorithm = build_pacfl(model, LocalTraining(learning_rate=0.1), HOW)
    state = algorithm.initialize(known)
    state, _ = algorithm.next(state, Cohort(known, known.client_ids, (1, 1)))
    admitted = algorithm.admit(state, newcomers)
    assert admitted.client_ids.tolist() == list(range(8))
    assert admitted.assignment.tolist() == [0, 1, 0, 1, 1, 0, 0, 1]
    np.testing.assert_array_equal(admitted.models, state.models)
    whole = build_pacfl(model, LocalTraining(), HOW).initialize(everyone)
    np.testing.assert_allclose(admitted.extra["proximity"], whole.extra["proximity"], atol=1e-3)
    with pytest.raises(UserError, match="client 3 is no newcomer"):
        algorithm.admit(admitted, newcomers)


def test_newcomers_that_are_like_nobody_found_a_cluster(tff_worker, model, digit_clients):
    everyone = digit_clients([60] * 6, turns=[0, 0, 0, 0, 1, 1])
    known, newcomers = split(everyone, [4, 5])
    how = PrincipalAngleClustering(num_vectors=5, measure="angle_sum", threshold=205.0)
    algorithm = build_pacfl(model, LocalTraining(), how)
    state = algorithm.initialize(known)
    assert state.assignment.tolist() == [0] * 4
    trained, _ = algorithm.next(state, Cohort(known, known.client_ids, (1, 1)))
    admitted = algorithm.admit(trained, newcomers)
    assert admitted.assignment.tolist() == [0] * 4 + [1] * 2
    np.testing.assert_array_equal(admitted.models[1], model.initial)
    algorithm.next(admitted, Cohort(everyone, everyone.client_ids, (1, 2)))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"threshold": 3.0, "num_clusters": 2}, "threshold or num_clusters, not both"),
        ({"measure": "smalest_angle"}, "did you mean 'smallest_angle'"),
        ({"linkage": "ward"}, "unknown linkage 'ward'"),
    ],
)
def test_bad_parameters(values, message):
    with pytest.raises(UserError, match=message):
        PrincipalAngleClustering(**values)


def test_more_clusters_than_clients(tff_worker, model, digit_clients):
    algorithm = build_pacfl(model, LocalTraining(), PrincipalAngleClustering(num_clusters=4))
    with pytest.raises(UserError, match="num_clusters is 4; it must be from 1 to the number of clients, 3"):
        algorithm.initialize(digit_clients([20] * 3))


def test_copies_of_one_client_can_be_cut_by_count(tff_worker, model, digits):
    """All merges have height 0, so no threshold gives two clusters; the count is met all the same."""
    import collections

    import tensorflow as tf

    from tffcl.algorithms.contracts import population_of

    x, y = digits
    copy = tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x[:30], y=y[:30]))
    state = build_pacfl(model, LocalTraining(), HOW).initialize(population_of(dict.fromkeys(range(4), copy)))
    assert state.assignment.max() == 1
    assert state.extra["threshold"] == 0
