"""The round in which every client gets its own mix of models, as what a deployment takes of it."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.short_runs import TRAINING, cohort_of, deployed_inputs
from tffcl.algorithms.related_training import build_related_round
from tffcl.rounds.traffic import type_bytes


@pytest.mark.slow
def test_traffic_and_the_map_reduce_form(tff_worker, through_map_reduce, model, population):
    composed, places = build_related_round(model, TRAINING), np.arange(3, dtype=np.int32)
    inputs = deployed_inputs(cohort_of(population, places, 1), row=np.array([0, 1, 0], np.int32), key=places)
    matrix = np.array([[1, 0, 1], [0, 1, 1]], np.float32)
    models = np.stack([model.initial, 2 * model.initial])
    state = {"models": models, "aggregators": {"trained": matrix}}
    direct, _ = composed.deployed(state, inputs)
    assert direct["models"].shape == (2, model.size)
    assert np.abs(direct["models"] - models).max(axis=1).min() > 0.01
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(composed.deployed)
    assert composed.transfer.down_bytes() == 4 * model.size
    assert composed.transfer.up_bytes() == type_bytes(form.work.type_signature.result)
    again, _ = through_map_reduce(composed.deployed, state, inputs)
    np.testing.assert_allclose(again["models"], direct["models"], atol=1e-6)
