"""How far two results of a computation are apart, and the random clients that a round is rehearsed with."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tffcl
from tests.short_runs import TRAINING, cohort_of
from tffcl.algorithms.method import ClusteredState, Exports, Views
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.clients.client_state import KeptStates
from tffcl.errors import UserError
from tffcl.export.dry_run import _some_of_each_model, difference, rehearse, synthetic_examples
from tffcl.lab.tasks.exports import _compared_noise
from tffcl.models.classifiers import build_mlp

ROWS = {"client_id": np.array([7, 3]), "loss": np.array([0.5, 2.0])}


@pytest.mark.parametrize(
    "first, second, largest, close",
    [
        (np.array([1.0, -2000]), np.array([1.15, -2000]), 0.15, True),  # 1e-4 of the largest, or of 1
        (np.array([1.0, -2000]), np.array([1.25, -2000]), 0.25, False),
        ([np.float32(2000), np.array([0.0])], [np.float32(2000), np.array([2e-4])], 2e-4, False),  # a tensor by itself
        ([np.array([1e-5])], [np.array([9e-5])], 8e-5, True),
        (np.zeros([2, 0]), np.zeros([2, 0]), 0, True),
        (np.zeros([2, 1]), np.zeros([1, 2]), np.inf, False),
        (np.array([1.0, 2]), np.array([np.nan, 2]), np.nan, False),
        ({"a": np.array([np.nan]), "b": 1.0}, {"a": np.array([0.0]), "b": 2.0}, np.nan, False),
        (np.array([1.0]), np.array([np.inf]), np.inf, False),
        (ROWS, {"client_id": np.array([3, 7]), "loss": np.array([2.0, 0.5])}, 0, True),
        (ROWS, {**ROWS, "client_id": np.array([3, 7])}, 1.5, False),
        ([dict(client_id=i, x=7.0 - i) for i in (2, 1)], [dict(client_id=i, x=7.0 - i) for i in (1, 2)], 0, True),
        (tff.structure.Struct.named(a=1.0, b=(2.0, 3.0)), {"a": 1.0, "b": [2.0, 3.5]}, 0.5, False),
        ([b"gaussian", 1.0], [b"gaussian", 1.5], 0.5, False),
        ([np.array([b"a", b"b"], object), 1.0], [np.array([b"a", b"b"], object), 1.0], 0, True),
        ([b"gaussian", 1.0], [b"laplace", 1.0], np.inf, False),
        ([b"1.0"], [1.0], np.inf, False),
    ],
)  # fmt: skip
def test_the_difference_of_two_results(first, second, largest, close):
    with np.errstate(invalid="ignore"):
        found = difference(first, second)
    np.testing.assert_allclose(found.largest, largest, rtol=1e-6, atol=1e-12)
    assert found.close is close


def test_a_private_computation_that_gives_no_numbers_is_refused(tmp_path):
    """In whatever noise is beside them."""
    drawn = iter(np.random.default_rng(0).normal(size=[4, 3]))
    result = lambda: {"models": next(drawn), "loss": np.array([1.0])}  # noqa: E731
    expected = result()
    assert "noise drawn anew" in _compared_noise(tmp_path, result, expected, "the library")
    with pytest.raises(UserError, match="draws no noise: two runs give the same; the library does"):
        _compared_noise(tmp_path, lambda: expected, expected, "the library")
    for loss in (np.nan, np.inf):
        drawn = iter(np.random.default_rng(0).normal(size=[4, 3]))
        refused = pytest.raises(UserError, match="other shapes than the library, or some that are not finite")
        with refused, np.errstate(invalid="ignore"):
            _compared_noise(tmp_path, lambda: {**result(), "loss": np.array([loss])}, expected, "the library")


def test_random_clients_have_all_pixel_values_all_classes_and_numbers_of_their_own():
    examples = synthetic_examples(build_mlp((8, 8, 1), 10, hidden=2), seed=3)
    one, other = examples(0), examples(1)
    assert one.x.dtype == np.uint8 and one.x.max() > 250 and one.x.min() < 5
    assert one.y.dtype == np.int32 and set(one.y) | set(other.y) <= set(range(10)) and len({*one.y, *other.y}) > 6
    assert (one.x != other.x).any() and (examples(0).x == one.x).all()
    assert (synthetic_examples(build_mlp((8, 8, 1), 10, hidden=2), seed=4)(0).x != one.x).any()
    label = types.SimpleNamespace(label=tf.TensorSpec([], tf.int32))
    texts = types.SimpleNamespace(example_spec={"x": tf.TensorSpec([5], tf.int32)}, objective=label, num_classes=4)
    assert set(np.unique(synthetic_examples(texts)(0).x)) == {0, 1}  # which any vocabulary has


@pytest.mark.parametrize(
    "rows, needed, expected",
    [
        ([0, 1, 1, 1, 2, 0], 2, [10, 11, 12, 14, 15]),
        ([0, 1, 1, 1, 2, 0], 1, [10, 11, 14]),
        ([0] * 6, 1, [10, 11, 12]),  # three at least
        ([1, 1, 0, 0, 1, 1], 1, [10, 11, 12]),
        ([0, 0], 1, [10, 11]),
    ],
)
def test_a_round_is_rehearsed_by_as_many_clients_of_each_model_as_it_needs(rows, needed, expected):
    ids = 10 + np.arange(len(rows))
    method = types.SimpleNamespace(
        views=lambda state: types.SimpleNamespace(client_ids=ids),
        exports=lambda: types.SimpleNamespace(members_needed=lambda: needed),
        models_for=lambda state, clients: (np.zeros([3, 1]), np.array(rows)),
    )
    assert _some_of_each_model(method, None).tolist() == expected


def test_a_round_is_rehearsed_by_clients_that_have_been_met(tff_worker, model, population):
    """Others might found clusters, and an aggregation inside clusters is built for those that there are; nor do flags
    of change that stand form clusters anew of random images."""
    how = PACFLParameters(num_vectors=2, threshold=1.0, when="as_they_join", regroup_every=9)
    method = build_pacfl(model, TRAINING, how, aggregation=tffcl.aggregation("robust", rule="clipping"))
    state, _ = method.next(method.initialize(population), cohort_of(population, [0, 1, 2], 1))
    flags = dataclasses.replace(state.flags, raised=np.ones_like(state.flags.raised))
    assert not method.exports().rehearsal(dataclasses.replace(state, flags=flags)).flags.raised.any()
    computations = {"training": method.exports().computations(state)["training"]}
    context = tff.framework.get_context_stack().current
    server, clients = rehearse(method, computations, state, synthetic_examples(model), context)["training"]
    assert sorted(int(each["client_id"]) for each in clients) == [0, 1, 2]
    assert len(server["models"]) == len(server["aggregators"]["update"]["clip"]) == len(state.met.models) == 3


def test_nothing_that_the_clients_of_a_run_keep_is_rehearsed_with(population):
    """It stays on their devices; the arguments of a rehearsal are in the export."""
    ids, began = population.client_ids[:3], []
    kept = KeptStates(np.zeros(2)).updated(ids, np.ones([3, 2]))
    inner = ClusteredState(ids, np.zeros(3, np.int32), np.zeros([1, 2]), (), kept=kept, optimizers=kept)
    state = dataclasses.make_dataclass("Outer", ["inner"], frozen=True)(inner)
    method = types.SimpleNamespace(
        exports=lambda: Exports(dict), next=lambda state, cohort: began.append(state.inner),
        views=lambda state: Views(ids, inner.assignment), models_for=lambda state, clients: (inner.models, [0, 0, 0]),
    )  # fmt: skip
    rehearse(method, {}, state, population.train, tff.framework.get_context_stack().current)
    assert not len(began[0].kept) and began[0].optimizers is None
    np.testing.assert_array_equal(began[0].kept.initial, [0, 0])
