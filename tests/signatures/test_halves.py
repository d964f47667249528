"""Signatures of halves of a client's examples, of any signature, in the runtime."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.short_runs import TRAINING
from tffcl.aggregators.collect import by_client
from tffcl.rounds.client_queries import build_collection, build_signing, signature_transfer
from tffcl.signatures.anchor_gradient import build_anchor_gradient
from tffcl.signatures.label_histogram import build_label_histogram
from tffcl.signatures.partial_weights import build_partial_weights
from tffcl.signatures.signature import Signature, with_halves
from tffcl.signatures.subspace import build_subspace

PARTS = ("whole", "first", "second")


@pytest.mark.slow
def test_two_halves_are_all_of_the_examples_at_random(tff_worker, model, digit_clients):
    population = digit_clients([40, 41, 1])
    signature = build_label_histogram(model)
    value = build_signing(with_halves(signature))(population)
    whole, first, second = (
        np.asarray(value[part]["value"] if isinstance(value[part], dict) else value[part]) for part in PARTS
    )
    np.testing.assert_array_equal(whole, build_signing(signature)(population))
    np.testing.assert_allclose((first + second)[0] / 2, whole[0], atol=1e-6)
    np.testing.assert_array_equal(value["examples"], [40, 41, 1])
    np.testing.assert_array_equal(first[2], whole[2])  # there are no two halves of one example
    assert np.abs(first - second)[:2].max() > 0
    # The deployed form, of sequences, splits alike.
    cohort = [
        collections.OrderedDict(examples=population.train(client).dataset, client_id=client)
        for client in population.client_ids
    ]
    told = with_halves(signature)
    deployed = by_client(build_collection(told)(told.context, cohort)[1], population.client_ids)
    tf.nest.map_structure(np.testing.assert_array_equal, dict(deployed), dict(value))


@pytest.mark.slow
@pytest.mark.parametrize("build", ["own", "anchor_gradient", "partial_weights"])
def test_any_signature_has_halves_and_is_sent_three_times(tff_worker, model, digits, digit_clients, build):
    signature = {
        "subspace": lambda: build_subspace(model.example_spec, 2),
        "anchor_gradient": lambda: build_anchor_gradient(model, projection=50),
        "partial_weights": lambda: build_partial_weights(model, training=TRAINING),
        "own": lambda: own_signature(model),
    }[build]()
    told = with_halves(signature)
    sent, once = signature_transfer(told), signature_transfer(signature)
    assert sent.up == tff.to_type(
        collections.OrderedDict(whole=once.up, first=once.up, second=once.up, examples=tff.TensorType(np.int32))
    )
    population = digit_clients([30, 50])
    value = build_signing(told)(population)
    tf.nest.map_structure(np.testing.assert_array_equal, value["whole"], build_signing(signature)(population))
    halves = [np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(value[part])]) for part in PARTS]
    assert all(np.abs(one - halves[0]).max() > 0 for one in halves[1:])


def own_signature(model):
    """One of a stranger that knows nothing of stacked examples, with a context that is one tensor."""

    @tff.tensorflow.computation(
        tff.TensorType(np.float32, [3]), tff.SequenceType(tff.types.tensorflow_to_type(model.example_spec))
    )
    def computation(context, examples):
        total = examples.reduce(
            np.float32(0), lambda sum_so_far, one: sum_so_far + tf.reduce_mean(tf.cast(one["x"], tf.float32))
        )
        return context * total

    kind = computation.type_signature.result
    return Signature("own", tff.TensorType(np.float32, [3]), kind, computation, np.array([1, 2, 3], np.float32))
