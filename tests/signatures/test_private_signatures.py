"""Signatures that clients make private: the noise that they have, what is left of them, and that the ledger
counts them.
"""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy import stats

import tffcl
from tests.short_runs import TRAINING, cohort_of
from tffcl.algorithms.clove import build_clove
from tffcl.algorithms.composed import build_composed
from tffcl.algorithms.each_round_parameters import CLoVEParameters, FLUXParameters, IFCAParameters, StoCFLParameters
from tffcl.algorithms.flt import RefinedEncoders, group_flt
from tffcl.algorithms.flux import build_flux
from tffcl.algorithms.ifca import build_ifca
from tffcl.algorithms.parameters import ComposedParameters, FLTParameters, PACFLParameters, PCAKMHCParameters
from tffcl.algorithms.presets import build_pacfl, build_pca_km_hc
from tffcl.algorithms.stocfl import build_stocfl
from tffcl.clients.client_state import KeptStates
from tffcl.clients.simulation_context import simulating
from tffcl.errors import UserError
from tffcl.models.autoencoder import build_autoencoder
from tffcl.rounds.client_queries import build_signing, signature_transfer
from tffcl.runs.privacy import Ledger, PrivacySettings
from tffcl.signatures.anchor_gradient import build_anchor_gradient
from tffcl.signatures.embedding import CentreNoise, Centres, FineTuning, build_embedding
from tffcl.signatures.label_histogram import build_label_histogram
from tffcl.signatures.signature import OWN_NOISE, noised_centres
from tffcl.signatures.subspace import _noised_gram, build_subspace

Z = 0.3


def signed(signature, population):
    return build_signing(signature)(population)


def rows_sent(signature, population) -> np.ndarray:
    """What each client sends, or the first part of it, in a row."""
    found = signed(signature, population)
    return np.reshape(found if isinstance(found, np.ndarray) else next(iter(found.values())), [len(population), -1])


@pytest.fixture(scope="module")
def encoder():
    autoencoder = build_autoencoder((8, 8, 1), latent=6, seed=1)
    return autoencoder, autoencoder.initial


def test_shares_of_labels_get_the_stated_noise(tff_worker, model, population):
    plain = signed(build_label_histogram(model), population)
    drawn = np.concatenate(
        [
            signed(build_label_histogram(model, noise_multiplier=Z, noise_seed=seed), population) - plain
            for seed in range(3)
        ]
    )
    tail = stats.chi2.cdf(np.sum((drawn / Z) ** 2), drawn.size)
    assert 5e-4 < tail < 1 - 5e-4
    # No client and no seed draws what another drew.
    assert abs(np.corrcoef(drawn)[~np.eye(len(drawn), dtype=bool)]).max() < 0.999


PRIVATE = {"noise_multiplier": 1.0, "noise_seed": 1}
ALIKE = {
    "label_histogram": lambda model, encoder: build_label_histogram(model, **PRIVATE),
    "subspace": lambda model, encoder: build_subspace(model.example_spec, 2, **PRIVATE),
    "embedding": lambda model, encoder: build_embedding(*encoder, model.example_spec, num_centres=2, **PRIVATE),
}


# Of vectors and of centres; the others have their noise from the same place.
SIGNATURE = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "label_histogram" else pytest.mark.slow) for name in ALIKE]
)


@SIGNATURE
def test_clients_that_are_alike_draw_other_noise(tff_worker, model, digits, encoder, name):
    """What they send would else be the same, and group them as without noise."""
    x, y = digits[0][:12], digits[1][:12]
    twins = tffcl.Population.from_arrays({client: (x, y) for client in range(3)})
    signature = ALIKE[name](model, encoder)
    first = rows_sent(signature, twins)
    assert min(np.abs(first[i] - first[j]).max() for i, j in ((0, 1), (0, 2), (1, 2))) > 0.1
    np.testing.assert_array_equal(rows_sent(signature, twins), first)
    assert name != "label_histogram" or signature_transfer(signature).down is None  # the seed is the simulation's


@SIGNATURE
def test_what_is_deployed_draws_its_noise_anew(tff_worker, model, population, encoder, name):
    """In a simulation it follows from a seed that nobody deploys."""
    signature = ALIKE[name](model, encoder)
    few = population.restricted([0, 1])
    for kind, differs in ((signature, False), (signature.deployed, True)):
        assert (rows_sent(kind, few) != rows_sent(kind, few)).any() == differs
        assert (OWN_NOISE in str(kind.context_type)) != differs


def test_the_same_client_noises_other_data_by_other_numbers(tff_worker, model, population):
    """Or what it sends after a change would tell the change as it is."""
    other, drawn = population.map(lambda x, y: (x, (y + 1) % 10)), []
    for each in (population, other):
        plain, private = (build_label_histogram(model, **noise) for noise in ({}, PRIVATE))
        drawn.append(signed(private, each) - signed(plain, each))
    assert np.abs(drawn[0] - drawn[1]).max(axis=1).min() > 0.1


def test_a_gradient_is_clipped_and_noised(tff_worker, model, population):
    plain = signed(build_anchor_gradient(model, projection=64, seed=1), population)
    norms = np.linalg.norm(plain, axis=1, keepdims=True)
    clip = float(np.median(norms))
    private = build_anchor_gradient(model, projection=64, seed=1, noise_multiplier=Z, clip=clip, noise_seed=2)
    expected = plain / np.maximum(norms, clip)
    drawn = (signed(private, population) - expected) / Z
    # So much noise hides whether there is a clip.
    little = build_anchor_gradient(model, projection=64, seed=1, noise_multiplier=1e-7, clip=clip, noise_seed=2)
    np.testing.assert_allclose(signed(little, population), expected, atol=1e-5)
    assert np.abs(plain - expected).max() > 1e-2
    assert np.linalg.norm(expected, axis=1).max() <= 1 + 1e-6 and private.noise_multiplier == Z
    tail = stats.chi2.cdf(np.sum(drawn**2), drawn.size)
    assert 5e-4 < tail < 1 - 5e-4


def test_a_gram_matrix_is_that_of_clipped_examples_with_the_stated_noise_and_none_of_its_eigenvalues_below_zero():
    rng, clip, seed = np.random.default_rng(0), 2.5, np.array([1, 2], np.int32)
    data = rng.normal(size=(40, 30)) * np.linspace(0.1, 1, 30)
    clipped = data / np.maximum(np.linalg.norm(data, axis=0), clip)
    assert (np.linalg.norm(data, axis=0) > clip).any() and np.linalg.norm(clipped @ clipped.T / 30) <= 1
    for noise, expected in ((1e-12, clipped @ clipped.T / 30), (Z, np.zeros([40, 40]))):
        found = _noised_gram(data if noise < Z else 0 * data, clip, noise, seed).numpy()
        np.testing.assert_array_equal(found, found.T)
        assert np.linalg.eigvalsh(found)[0] >= 0
        shift = np.linalg.eigvalsh(found - expected).mean()  # a multiple of the identity; the noise's trace is little
        drawn = (found - expected)[np.triu_indices(40, 1)] / noise
        tail = stats.chi2.cdf(np.sum(drawn**2), drawn.size)
        assert 5e-4 < tail < 1 - 5e-4 and np.ptp(np.diag(found - expected) - shift) < 7 * noise + 1e-9


@pytest.mark.slow
def test_little_noise_leaves_the_subspace_of_clipped_examples(tff_worker, model, population):
    """With a clip that none reaches the noised Gram matrix has the plain one's eigenvectors."""
    plain = signed(build_subspace(model.example_spec, 3), population)["basis"]
    found = signed(build_subspace(model.example_spec, 3, noise_multiplier=1e-11, clip=1e3, noise_seed=1), population)
    np.testing.assert_allclose(found["basis"], plain, atol=1e-2)
    # With one that all reach they count the same, however long they are.
    small = signed(build_subspace(model.example_spec, 1, noise_multiplier=1e-11, clip=1e-3, noise_seed=1), population)
    for client, basis in zip(population.client_ids, small["basis"]):
        rows = population.train(client).x.reshape(-1, 64).astype(float)
        longest = np.linalg.svd(rows / np.linalg.norm(rows, axis=1, keepdims=True))[2][0]
        np.testing.assert_allclose(np.abs(basis[:, 0]), np.abs(longest), atol=1e-4)
        assert np.abs(np.abs(np.linalg.svd(rows)[2][0]) - np.abs(longest)).max() > 1e-3
    much = signed(build_subspace(model.example_spec, 3, noise_multiplier=10, noise_seed=1), population)["basis"]
    overlap = np.abs(np.einsum("ndp,ndq->npq", plain, much)).max()
    assert overlap < 0.8 and np.all(found["mask"])
    np.testing.assert_allclose(np.einsum("ndp,ndq->npq", much, much), np.tile(np.eye(3), (len(much), 1, 1)), atol=1e-5)
    with pytest.raises(UserError, match="with per_class or energy it must be 0"):
        build_subspace(model.example_spec, 3, per_class=True, num_classes=10, noise_multiplier=1)


@pytest.mark.slow  # as of R-DPCFL's run
@pytest.mark.parametrize("signature", ["anchor_gradient", "subspace"])
def test_the_ledger_counts_signatures_and_rounds(model, population, tmp_path, signature):
    how = ComposedParameters(signature={"name": signature, "noise_multiplier": 4.0}, num_clusters=2)
    method = build_composed(
        model, TRAINING, how, noise_seed=3, aggregation=tffcl.aggregation("dp", noise_multiplier=2.0, seed=1)
    )
    result = tffcl.train(
        method, population, rounds=1, clients_per_round=len(population), out=tmp_path / "run", show_progress=False,
        privacy=PrivacySettings(delta=1e-3),
    )  # fmt: skip
    by_hand = (
        pld.PLDAccountant().compose(dp_accounting.GaussianDpEvent(4.0)).compose(dp_accounting.GaussianDpEvent(2.0))
    )
    assert result.summary["privacy"]["epsilon"] == pytest.approx(by_hand.get_epsilon(1e-3), rel=2e-3)
    assert result.summary["privacy"]["releases"] == 2


def test_an_open_signature_meets_no_budget(model, population, tmp_path):
    how = ComposedParameters(signature="label_histogram", num_clusters=2)
    method = build_composed(model, TRAINING, how, aggregation=tffcl.aggregation("dp"))
    with pytest.raises(UserError, match="privacy.epsilon is 5, and no noise is counted on the signatures"):
        tffcl.train(
            method, population, rounds=1, clients_per_round=2, out=tmp_path / "run", privacy=PrivacySettings(epsilon=5)
        )


def test_centres_are_clipped_noised_and_all_there(tff_worker):
    """A client with fewer different examples than centres sends as many as all others."""
    centres = np.random.default_rng(0).normal(size=(60, 5, 8)).astype(np.float32)
    mask = np.arange(5) < np.arange(60)[:, None] % 6
    centres[~mask] = 0
    norms, clip = np.linalg.norm(centres, axis=2, keepdims=True), 2.5
    expected = centres * np.minimum(1, clip / np.maximum(norms, 1e-9))
    assert np.linalg.norm(expected / (clip * np.sqrt(5)), axis=(1, 2)).max() <= 1 + 1e-6
    seeds = np.stack([np.arange(60), np.ones(60)], axis=1).astype(np.int32)
    found = [noised_centres(*each[:2], Z, clip, each[2]) for each in zip(centres, mask, seeds)]
    assert all(np.all(each["mask"]) for each in found)
    drawn = (np.stack([each["centres"] for each in found]) - expected) / (Z * clip * np.sqrt(5))
    tail = stats.chi2.cdf(np.sum(drawn**2), drawn.size)
    assert 5e-4 < tail < 1 - 5e-4
    anew = [np.asarray(noised_centres(centres[0], mask[0], Z, clip, None)["centres"]) for _ in range(2)]
    assert np.abs(anew[0] - anew[1]).max() > 0.01


def spent_by(act) -> Ledger:
    """The ledger of what an act lets the server know."""
    ledger = Ledger(PrivacySettings(delta=1e-3), 5)
    with simulating(ledger=ledger):
        act()
    return ledger


NOISE = {"signature_noise_multiplier": 4.0}


def test_pacfls_own_signature_takes_noise(tff_worker, model, population):
    pacfl = build_pacfl(model, TRAINING, PACFLParameters(num_clusters=2, **NOISE), noise_seed=1)
    by_hand = pld.PLDAccountant().compose(dp_accounting.GaussianDpEvent(4.0)).get_epsilon(1e-3)
    assert spent_by(lambda: pacfl.initialize(population)).epsilon == pytest.approx(by_hand, rel=2e-3)
    assert pacfl.clustering.device_signature.noise_multiplier == 4  # what is exported is private, too
    with pytest.raises(UserError, match="signature_noise_multiplier is 1.0; it is for a fixed number of vectors"):
        PACFLParameters(per_class=True, signature_noise_multiplier=1)


@pytest.mark.slow
def test_centres_of_methods_take_noise(tff_worker, model, population, encoder):
    """PCA+kM+HC as it begins, FLT's centres as it asks for them: each is one Gaussian mechanism."""
    centres = build_pca_km_hc(
        model, TRAINING, PCAKMHCParameters(num_clusters=2, num_components=8, **NOISE), noise_seed=1
    )
    flt = group_flt(model, TRAINING, FLTParameters(fine_tune_epochs=0, **NOISE), encoder=encoder, noise_seed=1)
    by_hand = pld.PLDAccountant().compose(dp_accounting.GaussianDpEvent(4.0)).get_epsilon(1e-3)
    for act in (lambda: centres.initialize(population), lambda: flt.build_signing()(population)):
        assert spent_by(act).epsilon == pytest.approx(by_hand, rel=2e-3)


@pytest.mark.slow
def test_clients_that_sign_one_after_the_other_cost_what_one_costs(tff_worker, model, population):
    """Of StoCFL's rounds only the signatures have noise; each client signs once, whenever it is met."""
    method = build_stocfl(model, TRAINING, StoCFLParameters(projection=16, **NOISE), noise_seed=1)

    def two_rounds():
        state = method.initialize(population.restricted([0, 1, 2, 3]))
        state, _ = method.next(state, cohort_of(population.restricted([0, 1, 2, 3]), [0, 1], 1))
        state, _ = method.next(state, cohort_of(population.restricted([0, 1, 2, 3]), [1, 2, 3], 2))
        method.admit(state, population.restricted([4]))

    told = spent_by(two_rounds).summary()
    by_hand = pld.PLDAccountant().compose(dp_accounting.GaussianDpEvent(4.0)).get_epsilon(1e-3)
    assert told["epsilon"] is None and told["open_releases"] == 2  # two rounds of plain means
    assert told["noised_epsilon"] == pytest.approx(by_hand, rel=2e-3)


@pytest.mark.slow
def test_clients_that_sign_again_cost_again(tff_worker, model, population):
    sign = build_signing(build_label_histogram(model, noise_multiplier=4.0, noise_seed=1))
    few, others = population.restricted([0, 1]), population.restricted([2, 3, 4])
    by_hand = [
        pld.PLDAccountant().compose(dp_accounting.GaussianDpEvent(4.0), times).get_epsilon(1e-3) for times in (1, 2)
    ]
    assert spent_by(lambda: (sign(few), sign(others))).epsilon == pytest.approx(by_hand[0], rel=2e-3)
    assert spent_by(lambda: (sign(population), sign(population, again=True))).epsilon == pytest.approx(
        by_hand[1], rel=2e-3
    )


@pytest.mark.slow
def test_clients_that_go_on_with_their_encoders_sign_again(tff_worker, model, population, encoder):
    """FLT's, when clusters are formed anew."""
    refined = RefinedEncoders(encoder[0], model.example_spec, Centres(3), FineTuning(1), 0, CentreNoise(4.0, 1.0, 1))
    private = build_embedding(*encoder, model.example_spec, num_centres=3, noise_multiplier=4.0, noise_seed=1)

    def twice():
        build_signing(private)(population)
        centres, _ = refined.sign(population, KeptStates(encoder[1]), 1, 3)
        assert centres["mask"].all() and np.abs(centres["centres"]).max() > 4

    by_hand = pld.PLDAccountant().compose(dp_accounting.GaussianDpEvent(4.0), 2).get_epsilon(1e-3)
    assert spent_by(twice).epsilon == pytest.approx(by_hand, rel=2e-3)


@pytest.mark.slow
def test_what_else_clients_tell_is_in_the_ledger(tff_worker, model, population):
    """Losses and choices among models are no uploads of a round, and still leave the clients."""
    clove = build_clove(model, TRAINING, CLoVEParameters(num_clusters=2))
    ifca = build_ifca(model, TRAINING, IFCAParameters(start="attracting", least_share=0.01))
    few, late = population.restricted([0, 1, 2, 3]), population.restricted([4])
    for act in (lambda: clove.admit(clove.initialize(few), late), lambda: ifca.initialize(population)):
        told = spent_by(act)
        assert told.epsilon == float("inf") and not told.is_private


@pytest.mark.slow
def test_descriptors_are_told_once_when_they_are_asked_for(tff_worker, model, population):
    noised = tffcl.aggregation("dp", noise_multiplier=2.0, seed=1)
    flux = build_flux(model, TRAINING, FLUXParameters(warm_up_rounds=1), aggregation=noised)
    for number, open_releases in ((1, 0), (2, 1)):
        act = lambda: flux.next(flux.initialize(population), cohort_of(population, [0, 1, 2], number))  # noqa: E731
        assert spent_by(act).summary().get("open_releases", 0) == open_releases
