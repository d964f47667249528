"""What signatures are traced by, before any is: those that differ in what clients compute share no computation."""

import collections
import dataclasses
import inspect
import types

import numpy as np
import pytest
import tensorflow as tf

from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError
from tffcl.models.autoencoder import build_autoencoder
from tffcl.models.classifiers import build_mlp
from tffcl.signatures import (
    anchor_gradient,
    centres,
    embedding,
    label_histogram,
    parameters,
    partial_weights,
    predictions,
    subspace,
)
from tffcl.signatures.signature import OWN_NOISE, Signature, build_signature

MODEL = build_mlp((8, 8, 1), 10, hidden=2, seed=1)
IGNORING = dataclasses.replace(MODEL, objective=dataclasses.replace(MODEL.objective, ignored=(0,)))
ENCODER = build_autoencoder((8, 8, 1), latent=3, seed=1)
OTHER, NOISE = LocalTraining(epochs=3), {"noise_multiplier": 1.0}
PRIVATE = [NOISE, {"noise_multiplier": 2.0}, {**NOISE, "clip": 2.0}]
CLASSES = {"per_class": True, "num_classes": 10}
# A file, what builds with options, the options that clients compute by, and how many examples a signature needs.
BUILDS = {
    "anchor_gradient": (
        anchor_gradient,
        lambda **how: anchor_gradient.build_anchor_gradient(MODEL, **how),
        [{}, {"form": "displacement"}, {"form": "displacement", "local": OTHER}, {"projection": 8}, *PRIVATE],
        1,
    ),
    "subspace": (
        subspace,
        lambda **how: subspace.build_subspace(MODEL.example_spec, **how),
        [
            {}, {"num_vectors": 2}, {"preprocess": "centred"}, {"samples": 5}, {"energy": 0.9}, {"method": "power"},
            CLASSES, {**CLASSES, "max_classes": 3}, {**CLASSES, "num_classes": 9}, *PRIVATE,
        ],
        3,
    ),
    "centres": (
        centres,
        lambda **how: centres.build_centres(MODEL.example_spec, **how),
        [{}, {"num_centres": 2}, *PRIVATE],
        1,
    ),
    "pca_centres": (
        centres,
        lambda **how: centres.build_pca_centres(MODEL.example_spec, **how),
        [{}, {"num_centres": 2}, {"num_components": 3}, *PRIVATE],
        5,
    ),
    "embedding": (
        embedding,
        lambda **how: embedding.build_embedding(ENCODER, ENCODER.initial, MODEL.example_spec, **how),
        [
            {}, {"num_centres": 2}, {"by_class": True}, {"fine_tune_epochs": 1},
            {"fine_tune_epochs": 1, "optimizer": "adam"}, {"fine_tune_epochs": 1, "learning_rate": 0.5},
            {"fine_tune_epochs": 1, "batch_size": 7}, *PRIVATE,
        ],
        5,
    ),
    "partial_weights": (
        partial_weights,
        lambda training=LocalTraining(), **how: partial_weights.build_partial_weights(MODEL, training=training, **how),
        [{}, {"training": OTHER}, {"layers": ["hidden"]}, {"layers": ["hidden", "output"]}],
        1,
    ),
    "inference": (
        predictions,
        lambda training=LocalTraining(), **how: predictions.build_inference(
            MODEL, training, np.zeros([4, 8, 8, 1], np.uint8), **how
        ),
        [{}, {"training": OTHER}, {"soft": True}],
        1,
    ),
    "label_histogram": (
        label_histogram,
        lambda model=MODEL, **how: label_histogram.build_label_histogram(model, **how),
        [{}, {"model": IGNORING}, {"model": build_mlp((8, 8, 1), 9, hidden=2)}, *PRIVATE[:2]],
        1,
    ),
    "outputs": (predictions, lambda **how: predictions.build_outputs(MODEL, **how), [{}, {"samples": 5}], 1),
}  # fmt: skip


def noted(name, example_spec, compute, *, key=None, **told):
    return types.SimpleNamespace(key=key, **{"least_examples": 1, **told})


@pytest.mark.parametrize("name", BUILDS)
def test_signatures_are_traced_by_all_that_clients_compute_by_and_not_by_seeds(monkeypatch, name):
    file, build, options, least = BUILDS[name]
    monkeypatch.setattr(file, "build_signature", noted)
    keys = [build(**how).key for how in options]
    assert None not in keys and len(set(keys)) == len(options)
    assert build().least_examples == least
    if name not in ("subspace", "label_histogram"):
        other = build(seed=2**31 + 5)
        assert other.key == keys[0]
        seeds = [seed.tolist() for part, seed in other.context.items() if "seed" in part]
        assert seeds and all(seed == [5, 0] for seed in seeds)
    if NOISE in options:
        private = build(**NOISE, noise_seed=3)
        assert private.key == build(**NOISE).key and (private.noise_multiplier, private.noise_seed) == (1.0, 3)


def test_a_signature_of_ones_own_preprocessing_is_like_no_other(monkeypatch):
    for file, build in ((subspace, subspace.build_subspace), (centres, centres.build_pca_centres)):
        monkeypatch.setattr(file, "build_signature", noted)
        assert build(MODEL.example_spec, preprocess=lambda x: tf.cast(x, tf.float32)).key is None


def test_a_client_that_makes_centres_by_its_classes_needs_one_example(monkeypatch):
    monkeypatch.setattr(embedding, "build_signature", noted)
    assert BUILDS["embedding"][1](by_class=True).least_examples == 1


@pytest.mark.parametrize(
    "build, of_tasks",
    [
        (anchor_gradient.build_anchor_gradient, parameters.AnchorGradientSignatureParameters),
        (subspace.build_subspace, parameters.SubspaceSignatureParameters),
        (centres.build_centres, parameters.CentresParameters),
        (centres.build_pca_centres, parameters.PCACentresSignatureParameters),
        (embedding.build_embedding, parameters.EmbeddingSignatureParameters),
        (predictions.build_outputs, parameters.OutputsParameters),
        (predictions.build_inference, parameters.InferenceParameters),
        (label_histogram.build_label_histogram, parameters.LabelHistogramParameters),
    ],
)
def test_what_a_task_leaves_out_is_what_a_call_leaves_out(build, of_tasks):
    called = {name: each.default for name, each in inspect.signature(build).parameters.items()}
    called["preprocess"] = "raw"  # None in a call
    shared = [each for each in dataclasses.fields(of_tasks) if each.name in called]
    assert shared and {each.name: each.default for each in shared} == {each.name: called[each.name] for each in shared}


def test_a_context_that_is_no_table_has_no_place_for_the_seed_of_noise():
    made = {"context": np.zeros(3, np.float32), "noise_multiplier": 1.0}
    with pytest.raises(UserError, match="signature own: the seed of its noise is in its context, which must be"):
        build_signature("own", collections.OrderedDict(MODEL.example_spec), lambda *given: None, **made, noise_seed=0)


def test_in_the_middle_of_a_run_another_model_is_broadcast_and_noise_has_another_seed_in_each_round():
    model, now = np.zeros(3, np.float32), np.ones(3, np.float32)
    context = collections.OrderedDict(model=model, **{OWN_NOISE: np.array([5, 1], np.int32)})
    signature = Signature("own", None, None, None, context, model="model")
    assert signature.context_with(None, 0) is context
    later = signature.context_with(now, 3)
    assert list(later) == list(context) and later["model"] is now and later[OWN_NOISE].tolist() == [5, 4]
    assert signature.context_with(None, 3)["model"] is model and context[OWN_NOISE].tolist() == [5, 1]
    assert dataclasses.replace(signature, model=None).context_with(now, 0)["model"] is model
    assert dataclasses.replace(signature, context=model, model="").context_with(now, 3) is now
