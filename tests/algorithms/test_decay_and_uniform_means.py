"""Learning rates that decay from round to round, and means in which every client counts the same."""

import dataclasses

import numpy as np
import pytest

import tffcl
from tests.short_runs import TRAINING, assert_close, cohort_of, models_of
from tffcl.aggregators.clustered_mean import UniformClusteredMeanFactory
from tffcl.algorithms.ditto import build_ditto
from tffcl.algorithms.each_round_parameters import IFCAParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.fednova import build_fednova
from tffcl.algorithms.ifca import build_ifca
from tffcl.algorithms.lg_fedavg import build_lg_fedavg
from tffcl.algorithms.per_fedavg import build_per_fedavg
from tffcl.algorithms.scaffold import build_scaffold
from tffcl.algorithms.stocfl import build_stocfl
from tffcl.algorithms.training_parameters import FedNovaParameters
from tffcl.client_work.local_sgd import build_local_sgd
from tffcl.errors import UserError
from tffcl.lab.tasks import build as prepare
from tffcl.lab.tasks import resolve

PLAIN = dataclasses.replace(TRAINING, momentum=0.0)
BUILDERS = {
    "fedavg with weight decay": lambda model, training: build_fedavg(
        model, dataclasses.replace(training, weight_decay=0.1)
    ),
    "fednova": build_fednova,
    "scaffold": build_scaffold,
    "ditto": build_ditto,
    "lg_fedavg": build_lg_fedavg,
    "stocfl": build_stocfl,
    "ifca": lambda model, training: build_ifca(model, training, IFCAParameters(num_clusters=2)),
}


# FedAvg's rate halves from round to round in test_optimizers; StoCFL, which gets it in another way, in test_stocfl.
@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_the_rate_of_a_round_is_that_of_the_round_before_times_the_decay(tff_worker, model, population, name):
    """Rounds against methods with the rates 0.1 and 0.05, of which the second goes on from the first."""
    build, state, expected = BUILDERS[name], None, None
    decaying = build(model, dataclasses.replace(PLAIN, learning_rate_decay=0.5))
    for number, clients in enumerate([(0, 1, 2), (1, 3, 4)], 1):
        fixed = build(model, dataclasses.replace(PLAIN, learning_rate=0.1 * 0.5 ** (number - 1)))
        if state is None:
            state, expected = decaying.initialize(population), fixed.initialize(population)
        cohort = cohort_of(population, clients, number)
        state, expected = decaying.next(state, cohort)[0], fixed.next(expected, cohort)[0]
        assert_close(models_of(decaying, state, population), models_of(fixed, expected, population))


def test_what_has_rates_of_its_own_is_refused(model):
    decaying = dataclasses.replace(PLAIN, learning_rate_decay=0.9)
    with pytest.raises(UserError, match="Per-FedAvg takes steps by α and β: it takes no learning_rate_decay"):
        build_per_fedavg(model, decaying)
    with pytest.raises(UserError, match="learning_rate_decay and proximal_weight together"):
        build_fednova(model, decaying, FedNovaParameters(proximal_weight=0.1))


def two_clients(model, population):
    """A cohort of clients of 40 and 12 examples, what they have trained and by which weights these count in a
    plain mean.
    """
    cohort = cohort_of(population, [1, 4], 1)
    trained = []
    for client in (1, 4):
        data = next(iter(population.train(client).dataset.batch(1000)))
        trained.append(
            build_local_sgd(model, PLAIN)(model.initial, data["x"], data["y"], cohort.client_seed(client))[0]
        )
    return cohort, np.stack(trained), np.array([40, 12]) / 52


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["uniform_mean", "median"])
def test_fednovas_steps_count_as_its_directions_do(tff_worker, model, population, aggregation):
    """τ_eff and the mean direction have the same p_i (Eq. 7): one half each, of two clients the median, too."""
    given = (
        UniformClusteredMeanFactory() if aggregation == "uniform_mean" else tffcl.aggregation("robust", rule="median")
    )
    method = build_fednova(model, PLAIN, aggregation=given)
    cohort, trained, shares = two_clients(model, population)
    state, _ = method.next(method.initialize(population), cohort)
    steps = PLAIN.epochs * np.ceil(np.array([40, 12]) / PLAIN.batch_size)
    directions = (trained - model.initial) / steps[:, np.newaxis]
    assert_close(state.models[0], model.initial + steps.mean() * directions.mean(axis=0))
    assert np.abs((shares @ steps - steps.mean()) * directions.mean(axis=0)).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("build", [build_stocfl, build_fedavg])
def test_every_client_counts_the_same_in_a_uniform_mean(tff_worker, model, population, build):
    """In StoCFL's global model, which is its row 0, as in its clusters'."""
    method = build(model, PLAIN, aggregation=UniformClusteredMeanFactory())
    cohort, trained, shares = two_clients(model, population)
    state, _ = method.next(method.initialize(population), cohort)
    assert_close(state.models[0], trained.mean(axis=0))
    assert np.abs(shares @ trained - trained.mean(axis=0)).max() > 1e-3


def test_a_task_asks_for_both():
    said = resolve.parse_overrides(["train.learning_rate_decay=0.99", "aggregation.name=uniform_mean"])
    found = resolve.resolve("demo_digits", "fedavg", overrides=said)
    assert found.train.local.learning_rate_decay == 0.99
    assert type(prepare.build_aggregation(found)) is type(UniformClusteredMeanFactory())
