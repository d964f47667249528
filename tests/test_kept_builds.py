"""Builders whose results are kept: what counts as the same argument, and what does not."""

import collections
import dataclasses

import numpy as np
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import ClusteredMeanFactory
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.models.classifiers import build_mlp
from tffcl.registry import aggregation
from tffcl.trace_cache import built_once


def counted():
    calls = collections.Counter()

    @built_once
    def build(*args, **kwargs):
        calls["all"] += 1
        return object()

    return build, calls


def test_what_is_equal_is_built_once():
    build, calls = counted()
    first = build(build_mlp((8, 8, 1), 10, hidden=4, seed=1), LocalTraining(), images=np.arange(6))
    # Other initial weights are traced alike.
    assert build(build_mlp((8, 8, 1), 10, hidden=4, seed=2), LocalTraining(), images=np.arange(6)) is first
    assert calls["all"] == 1
    for args, images in (
        ((build_mlp((8, 8, 1), 10, hidden=5, seed=1), LocalTraining()), np.arange(6)),
        ((build_mlp((8, 8, 1), 10, hidden=4, seed=1), LocalTraining(momentum=0.5)), np.arange(6)),
        ((build_mlp((8, 8, 1), 10, hidden=4, seed=1), LocalTraining()), np.arange(6) + 1),
        ((build_mlp((8, 8, 1), 10, hidden=4, seed=1), LocalTraining()), np.arange(6).astype(np.float32)),
        ((build_mlp((8, 8, 1), 10, hidden=4, seed=1), LocalTraining()), np.arange(6).reshape(2, 3)),
    ):
        assert build(*args, images=images) is not first


def test_models_without_a_key_are_like_no_other():
    build, _ = counted()
    one, other = (dataclasses.replace(build_mlp((8, 8, 1), 10, hidden=4), key=None) for _ in range(2))
    assert build(one) is build(one)
    assert build(one) is not build(other)


def test_aggregations_are_the_same_by_all_their_options():
    build, _ = counted()
    mean = tff.aggregators.MeanFactory()
    makers = (
        lambda: aggregation("uniform_mean"),
        lambda: aggregation("secure_sum"),
        lambda: aggregation("secure_sum").with_clusters(2),
        lambda: aggregation("dp", seed=1),
        lambda: aggregation("dp", seed=2),
        lambda: aggregation("dp"),
        lambda: aggregation("dp", noise_multiplier=0.5, seed=1),
        lambda: aggregation("dp", seed=1).with_clusters(2),
        lambda: aggregation("dp", seed=1).with_clusters(3),
        lambda: aggregation("compression", seed=1),
        lambda: aggregation("compression", seed=1).with_layers([2, 3]),
        lambda: aggregation("robust", rule="median"),
        lambda: aggregation("robust", rule="trimmed_mean"),
        lambda: aggregation("robust", rule="clipping"),
        lambda: ClusteredMeanFactory(2),
        lambda: ClusteredMeanFactory(2, mean),
    )
    assert [build(make()) for make in makers] == [build(make()) for make in makers]
    assert len({id(build(make())) for make in makers}) == len(makers)
    # One of TFF's says nothing of its options: only the same object is the same.
    assert build(ClusteredMeanFactory(2, tff.aggregators.MeanFactory())) is not build(ClusteredMeanFactory(2, mean))


def test_the_least_recently_used_are_dropped(monkeypatch):
    monkeypatch.setattr("tffcl.trace_cache._MOST", 2)
    build, calls = counted()
    first, second = build(1), build(2)
    assert build(1) is first
    build(3)
    assert build(1) is first and calls["all"] == 3
    assert build(2) is not second
    build.forget()
    assert build(1) is not first
