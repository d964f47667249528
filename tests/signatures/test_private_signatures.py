"""Signatures that clients make private: the noise that they have, what is left of them, and that the ledger counts them."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy import stats

import tffcl
from tests.short_runs import TRAINING
from tffcl.algorithms.composed import ComposedParameters, build_composed
from tffcl.errors import UserError
from tffcl.rounds.asking import build_signing
from tffcl.runner.privacy import PrivacySettings
from tffcl.signatures.anchor_gradient import build_anchor_gradient
from tffcl.signatures.label_histogram import build_label_histogram
from tffcl.signatures.subspace import build_subspace

Z = 0.3


def signed(signature, population):
    return build_signing(signature)(population)


def test_shares_of_labels_get_the_stated_noise(tff_worker, model, population):
    plain = signed(build_label_histogram(model), population)
    drawn = np.concatenate(
        [signed(build_label_histogram(model, noise_multiplier=Z, noise_seed=seed), population) - plain for seed in range(8)]
    )
    tail = stats.chi2.cdf(np.sum((drawn / Z) ** 2), drawn.size)
    assert 5e-4 < tail < 1 - 5e-4
    assert (
        abs(np.corrcoef(drawn)[~np.eye(len(drawn), dtype=bool)]).max() < 0.999
    )  # no client and no seed draws what another drew


def test_a_gradient_is_clipped_and_noised(tff_worker, model, population):
    plain = signed(build_anchor_gradient(model, projection=64, seed=1), population)
    norms = np.linalg.norm(plain, axis=1, keepdims=True)
    clip = float(np.median(norms))
    private = build_anchor_gradient(model, projection=64, seed=1, noise_multiplier=Z, clip=clip, noise_seed=2)
    expected = plain / np.maximum(norms, clip)
    drawn = (signed(private, population) - expected) / Z
    assert np.linalg.norm(expected, axis=1).max() <= 1 + 1e-6 and private.noise_multiplier == Z
    tail = stats.chi2.cdf(np.sum(drawn**2), drawn.size)
    assert 5e-4 < tail < 1 - 5e-4


def test_little_noise_leaves_the_subspace_of_clipped_examples(tff_worker, model, population):
    """With a clip that none reaches the noised Gram matrix has the plain one's eigenvectors."""
    plain = signed(build_subspace(model.example_spec, 3), population)["basis"]
    found = signed(build_subspace(model.example_spec, 3, noise_multiplier=1e-9, clip=1e3, noise_seed=1), population)
    np.testing.assert_allclose(found["basis"], plain, atol=1e-2)
    much = signed(build_subspace(model.example_spec, 3, noise_multiplier=10, noise_seed=1), population)["basis"]
    overlap = np.abs(np.einsum("ndp,ndq->npq", plain, much)).max()
    assert overlap < 0.8 and np.all(found["mask"])
    np.testing.assert_allclose(np.einsum("ndp,ndq->npq", much, much), np.tile(np.eye(3), (len(much), 1, 1)), atol=1e-5)
    with pytest.raises(UserError, match="with per_class or energy it must be 0"):
        build_subspace(model.example_spec, 3, per_class=True, num_classes=10, noise_multiplier=1)


@pytest.mark.parametrize("signature", ["label_histogram", "anchor_gradient", "subspace"])
def test_the_ledger_counts_signatures_and_rounds(model, population, tmp_path, signature):
    how = ComposedParameters(signature={"name": signature, "noise_multiplier": 4.0}, num_clusters=2)
    method = build_composed(
        model, TRAINING, how, noise_seed=3, aggregation=tffcl.aggregation("dp", noise_multiplier=2.0, seed=1)
    )
    result = tffcl.train(
        method, population, rounds=1, clients_per_round=len(population), out=tmp_path / "run", show_progress=False,
        privacy=PrivacySettings(delta=1e-3),
    )  # fmt: skip
    by_hand = pld.PLDAccountant().compose(dp_accounting.GaussianDpEvent(4.0)).compose(dp_accounting.GaussianDpEvent(2.0))
    assert result.summary["privacy"]["epsilon"] == pytest.approx(by_hand.get_epsilon(1e-3), rel=2e-3)
    assert result.summary["privacy"]["releases"] == 2


def test_an_open_signature_meets_no_budget(model, population, tmp_path):
    how = ComposedParameters(signature="label_histogram", num_clusters=2)
    method = build_composed(model, TRAINING, how, aggregation="dp")
    with pytest.raises(UserError, match="privacy.epsilon is 5, and there is no noise on the signatures"):
        tffcl.train(method, population, rounds=1, clients_per_round=2, out=tmp_path / "run", privacy=PrivacySettings(epsilon=5))
