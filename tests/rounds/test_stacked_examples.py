"""Clients who bring their examples as tensors (simulations) and as sequences (devices) give the same, to the
last bit.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.short_runs import TRAINING, cohort_of, deployed_inputs
from tffcl.aggregators.collect import by_client
from tffcl.algorithms.each_round_parameters import IFCAParameters
from tffcl.algorithms.ifca import build_ifca_round
from tffcl.algorithms.scaffold import build_controlled_round
from tffcl.algorithms.stocfl import build_bilevel_round
from tffcl.algorithms.training_parameters import ScaffoldParameters
from tffcl.client_work.client_work import stack
from tffcl.client_work.training import CHOOSE
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.population import Population

IDS = [0, 2, 4]
# Without a kept value, some without a second upload; exported rounds of IFCA and StoCFL are in the conformance suite.
SIMPLER = ("bilevel", "choosing")


def rounds(model):
    """`name: (round, server's values, clients' fields)`."""
    models, keys = np.stack([model.initial, model.draw(5)]), np.array([0, 1, 0], np.int32)
    zeros = np.zeros([2, model.size], np.float32)
    clustered = {"key": keys}
    return {
        "controlled": (
            build_controlled_round(model, TRAINING, ScaffoldParameters("gradient")),
            {"models": models, "control_sums": zeros + 0.01, "members": np.array([3, 2], np.float32)},
            {**clustered, "kept": list(np.full([3, model.size], -0.02, np.float32))},
        ),
        "bilevel": (
            build_bilevel_round(model, TRAINING, TRAINING),
            {"models": models, "global_model": model.initial},
            clustered,
        ),
        "choosing": (
            build_ifca_round(model, TRAINING, IFCAParameters(2)),
            {"models": models},
            {"forced": np.full(3, CHOOSE)},
        ),
    }


@pytest.mark.parametrize("name", ["controlled", *(pytest.param(each, marks=pytest.mark.slow) for each in SIMPLER)])
def test_both_forms_of_a_round_give_the_same(tff_worker, model, population, name):
    composed, values, fields = rounds(model)[name]
    cohort = cohort_of(population, IDS, 1)
    state = {**values, "aggregators": composed.initial_aggregators}
    simulated = composed.simulated(state, cohort.inputs(**fields))
    deployed = (composed.deployed_with_kept or composed.deployed)(state, deployed_inputs(cohort, **fields))
    for value in values:
        np.testing.assert_array_equal(simulated[0][value], deployed[0][value])
    assert np.abs(simulated[0]["models"] - values["models"]).max() > 1e-3
    ours, theirs = (by_client(each[1]["reports"], np.array(IDS)) for each in (simulated, deployed))
    for field in ("examples", "loss", "finite"):
        np.testing.assert_array_equal(ours[field], theirs[field])


def test_stack_makes_tensors_of_either(digits):
    x, y = (each[:7] for each in digits)
    of_sequence = stack(ClientExamples(x, y).dataset)
    same = stack({"x": tf.constant(x), "y": tf.constant(y)})
    for name, expected in (("x", x), ("y", y)):
        np.testing.assert_array_equal(of_sequence[name], expected)
        np.testing.assert_array_equal(same[name], expected)
    assert stack(ClientExamples(x, y).nothing.dataset)["x"].shape == (0, 8, 8, 1)


def test_more_examples_than_are_put_together_at_a_time(digits):
    x, y = (np.concatenate([each, each])[:2500] for each in digits)
    np.testing.assert_array_equal(stack(ClientExamples(x, y).dataset)["x"], x)


def test_a_population_has_its_examples_both_ways(population, digits):
    x, y = (each[:20] for each in digits)
    of_arrays = Population.from_arrays({"ann": (x, y), "bob": (x[:5], y[:5])}, {"ann": (x[5:9], y[5:9])})
    for clients, ids in ((population, [0, 3]), (of_arrays, [0, 1])):
        for client in ids:
            stacked, read = clients.train(client).stacked, stack(clients.train(client).dataset)
            tests, tested = clients.test(client).stacked, stack(clients.test(client).dataset)
            for name in ("x", "y"):
                np.testing.assert_array_equal(stacked[name], read[name])
                np.testing.assert_array_equal(tests[name], tested[name])
            nothing = clients.test(client).nothing.stacked
            assert nothing["x"].shape == (0, 8, 8, 1) and nothing["y"].dtype == np.int32
