"""FLT and PCA+kM+HC on digits: their limits, groups of labels, newcomers."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tests.algorithms.conftest import same_groups
from tests.models.test_keras_function import of_images
from tests.short_runs import TRAINING, assert_close, cohort_of, models_of, split, train
from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.each_round_parameters import FedSEMParameters, IFCAParameters
from tffcl.algorithms.fedsem import build_fedsem
from tffcl.algorithms.flt import FLTState, build_flt
from tffcl.algorithms.ifca import build_ifca
from tffcl.algorithms.method import ClusteredState
from tffcl.algorithms.parameters import FLTParameters, PCAKMHCParameters
from tffcl.algorithms.presets import build_pca_km_hc
from tffcl.algorithms.solo import build_solo
from tffcl.clustering.relatedness_graph import GAP, ClientRelatedness
from tffcl.errors import Diverged, UserError
from tffcl.models.autoencoder import build_autoencoder


def flt(model, encoder, seed=4, **how):
    return build_flt(
        model, TRAINING, FLTParameters(**{"num_neighbors": 3, "fine_tune_epochs": 0, **how}), encoder=encoder, seed=seed
    )


@pytest.mark.parametrize("fine_tune_epochs, seed", [pytest.param(0, 4, marks=pytest.mark.slow), (2, 1)])
def test_groups_of_labels_are_found(tff_worker, model, encoder, grouped, fine_tune_epochs, seed):
    tuned = {"fine_tune_epochs": fine_tune_epochs, "fine_tune_optimizer": "adam"}
    method = flt(model, encoder, seed, threshold=1.5, metric="matching", num_centres=2, **tuned)
    state = method.initialize(grouped)
    assert same_groups(state.assignment)
    assert state.centres.shape == (9, 2, 16)
    np.testing.assert_array_equal(np.diag(state.relatedness), np.ones(9))


@pytest.mark.slow
def test_the_signature_of_images_looks_at_the_one_input_that_its_encoder_takes(tff_worker):
    """Centres are those of the images alone; a client with few images is named as thin."""
    autoencoder = build_autoencoder((8, 8, 1), latent=3)
    model, clients = of_images("scan")
    clients["c3"] = tf.nest.map_structure(lambda each: each[:2], clients["c3"])
    method = flt(model, (autoencoder, autoencoder.initial), num_clusters=2, num_centres=3)
    state = method.initialize(tffcl.Population.from_arrays(clients, clients))
    assert state.assignment[0] == state.assignment[2] != state.assignment[1] == state.assignment[3]
    scans = tf.constant(clients["c0"][0]["scan"])
    codes = autoencoder.encode(
        autoencoder.unravel(tf.constant(autoencoder.initial)), autoencoder.preprocess(scans)
    ).numpy()
    nearest = np.linalg.norm(codes[:, np.newaxis] - state.centres[0], axis=2).argmin(axis=1)
    means = [codes[nearest == place].mean(axis=0) for place in range(3)]
    np.testing.assert_allclose(state.centres[0], means, rtol=1e-4, atol=1e-5)
    assert any("1 of 4 clients sent fewer centres than others" in note for note in method.views(state).notes)


@pytest.mark.slow  # as of a matrix of ones in test_related_training
def test_with_everyone_related_it_is_fedavg(tff_worker, model, encoder, population, reference):
    method = flt(model, encoder, threshold=1e9, clusters="joint")
    assert_close(models_of(method, train(method, population), population), reference("fedavg")[1])


@pytest.mark.slow  # as the identity in test_related_training
def test_with_nobody_related_it_is_solo(tff_worker, model, encoder, population, reference):
    method = flt(model, encoder, threshold=1e-9)
    assert_close(models_of(method, train(method, population), population), reference("solo")[1])


def test_disjoint_clusters_are_the_engines(tff_worker, model, encoder, grouped):
    method = flt(model, encoder, clusters="disjoint", threshold=1.5, metric="matching", num_centres=2)
    state = method.initialize(grouped)
    assert len(state.models) == 3
    engine = build_clustered_training(model, TRAINING)
    given = ClusteredState(**engine.start(grouped, state.assignment))
    np.testing.assert_array_equal(given.models, [model.initial] * 3)
    for number, clients in enumerate([(0, 4, 8), (1, 2, 5)], 1):
        cohort = cohort_of(grouped, clients, number)
        state, _ = method.next(state, cohort)
        given, _ = engine.next(given, cohort)
    assert_close(state.models, given.models)
    assert len(np.unique(state.models, axis=0)) == 3


@pytest.mark.parametrize("clusters", ["joint", pytest.param("disjoint", marks=pytest.mark.slow)])
def test_newcomers_join_the_nearest_cluster_and_nobody_moves(tff_worker, model, encoder, grouped, clusters):
    known, newcomers = split(grouped, [4, 8])
    method = flt(model, encoder, threshold=1.5, metric="matching", clusters=clusters, num_centres=2)
    state = method.initialize(known)
    state, _ = method.next(state, cohort_of(known, known.client_ids, 1))
    admitted = method.admit(state, newcomers)
    assert same_groups(admitted.assignment)
    np.testing.assert_array_equal(admitted.clusters(known.client_ids), state.assignment)
    before, after = models_of(method, state, known), models_of(method, admitted, known)
    np.testing.assert_array_equal(before, after)
    old = [0, 1, 2, 3, 5, 6, 7]
    np.testing.assert_array_equal(admitted.relatedness[np.ix_(old, old)], state.relatedness)
    after, _ = method.next(admitted, cohort_of(grouped, [3, 4, 8], 2))
    assert np.isfinite(after.models).all()
    with pytest.raises(UserError, match="client 4 is no newcomer"):
        method.admit(admitted, newcomers)


@pytest.mark.slow
@pytest.mark.parametrize("triggers", [{}, {"period": 5}], ids=["once", "anew"])
def test_the_client_whose_fine_tuning_diverges_is_named(tff_worker, model, encoder, grouped, triggers):
    method = flt(model, encoder, fine_tune_epochs=1, fine_tune_rate=1e30, **triggers)
    with pytest.raises(
        Diverged, match="client 0 has no finite centre to send: its fine-tuning diverged, and a lower fine_tune"
    ):
        method.initialize(grouped)


@pytest.mark.slow
@pytest.mark.parametrize("clusters", ["joint", "disjoint"])
def test_uniform_weights_do_not_ask_for_sizes(tff_worker, model, encoder, population, clusters):
    """The 1/|Ã_m| and 1/|C_c| of Alg. 3 lines 17 and 19, everyone related: the plain mean of the trained models."""
    assert len(set(population.sizes.tolist())) > 1
    method = flt(model, encoder, threshold=1e9, clusters=clusters, weighting="uniform")
    everyone = tuple(population.client_ids)
    solo = build_solo(model, TRAINING)
    alone = models_of(solo, train(solo, population, (everyone,)), population)
    assert_close(models_of(method, train(method, population, (everyone,)), population)[0], alone.mean(axis=0))


@pytest.mark.slow
def test_only_the_encoder_is_sent_unless_it_is_fine_tuned(model, encoder):
    autoencoder, vector = encoder
    plain, tuned = (flt(model, encoder, fine_tune_epochs=epochs).joining for epochs in (0, 1))
    assert tuned.down == 4 * vector.size + 8
    assert plain.down < tuned.down
    assert plain.up == tuned.up == 5 * (4 * autoencoder.latent + 1)
    assert flt(model, encoder, num_centres="classes").joining.up == 10 * (4 * autoencoder.latent + 1)


@pytest.mark.slow  # every method's is in the conformance checks
def test_the_traffic_is_that_of_table_vi(tff_worker, model, encoder, population):
    """M W_enc + k M e once, then 2 ρ M W T, as FedSEM without the first; IFCA (C + 1) ρ M W T; in numbers of four
    bytes.

    FedSEM's clients take part in every round, as in the paper: one that comes later trains the initial model first.
    """
    autoencoder, vector = encoder
    cohorts, clients, size = ((0, 1, 2), (0, 1, 2)), len(population), model.size
    sent = autoencoder.layer_slices()["decoder_input"].start  # a client that only encodes needs no decoder
    once = clients * sent + 5 * clients * autoencoder.latent
    methods = {
        flt(model, encoder): once + 2 * 3 * size * 2,
        build_fedsem(model, TRAINING, FedSEMParameters(num_clusters=2)): 2 * 3 * size * 2,
        build_ifca(model, TRAINING, IFCAParameters(num_clusters=4)): 3 * size * 2 * (4 + 1),
    }
    for method, numbers in methods.items():
        state, exchanged = method.initialize(population), method.joining * (clients if method.name == "flt" else 0)
        for number, cohort in enumerate(cohorts, 1):
            state, metrics = method.next(state, cohort_of(population, cohort, number))
            exchanged += metrics.traffic
        # Beside the models a client sends its number of examples and its loss.
        assert exchanged.down + exchanged.up == pytest.approx(4 * numbers, rel=0.01), method.name
    assert flt(model, encoder, fine_tune_epochs=1).joining.down - 8 == 4 * vector.size  # which the formula leaves out


@pytest.mark.parametrize(
    "values, message",
    [
        ({"metric": "closest"}, "unknown metric 'closest'"),
        ({"clusters": "disjiont"}, "did you mean 'disjoint'"),
        ({"mixes": "all"}, "unknown mixes 'all'"),
        ({"mixes": "everyon"}, "did you mean 'everyone'"),
        ({"threshold": 0.0}, "threshold is 0.0; it must be"),
        ({"fine_tune_optimizer": "adm"}, "did you mean 'adam'"),
        ({"min_dist": 1.5}, "min_dist is 1.5; it must be"),
        ({"map_dimensions": 0}, "map_dimensions is 0"),
        ({"num_centres": 0}, "num_centres is 0; it must be a whole number from 1"),
        ({"num_centres": "clases"}, "did you mean 'classes'"),
        ({"weighting": "equal"}, "unknown weighting 'equal'"),
        ({"encoder_epochs": 0}, "encoder_epochs is 0"),
    ],
)
def test_bad_parameters(values, message):
    with pytest.raises(UserError, match=message):
        FLTParameters(**values)


def test_an_encoder_of_other_images(model):
    other = build_autoencoder((28, 28, 1), latent=8)
    with pytest.raises(UserError, match="the encoder takes uint8 images of 28x28x1, the clients' are uint8 of 8x8x1"):
        build_flt(model, TRAINING, encoder=(other, other.initial))


@pytest.mark.parametrize("num_clusters, limit", [pytest.param(1, "fedavg", marks=pytest.mark.slow), (5, "solo")])
def test_pca_km_hc_at_its_limits(tff_worker, model, population, reference, num_clusters, limit):
    method = build_pca_km_hc(model, TRAINING, PCAKMHCParameters(num_components=8, num_clusters=num_clusters))
    assert_close(models_of(method, train(method, population), population), reference(limit)[1])


def test_newcomers_who_come_one_after_the_other_are_placed_as_if_they_came_together(
    tff_worker, model, encoder, grouped
):
    known, newcomers = split(grouped, [4, 8])
    (_, first), (_, second) = split(grouped, [4]), split(grouped, [8])
    method = flt(model, encoder, threshold=1.5, metric="matching", num_centres=2)
    state = method.initialize(known)
    together = method.admit(state, newcomers)
    apart = method.admit(method.admit(state, first), second)
    for key in ("points", "proximity", "relatedness", "merges", "mapped"):
        np.testing.assert_allclose(getattr(apart, key), getattr(together, key), rtol=1e-5, err_msg=key)
    assert together.merges.shape == (8, 4)
    np.testing.assert_array_equal(apart.assignment, together.assignment)
    np.testing.assert_array_equal(np.flatnonzero(~together.mapped), [4, 8])


def test_newcomers_of_another_encoder_are_refused(tff_worker, model, encoder, grouped):
    known, newcomers = split(grouped, [4, 8])
    state = flt(model, encoder).initialize(known)
    with pytest.raises(UserError, match="the clients' centres are of another encoder"):
        flt(model, (encoder[0], encoder[1] * 1.01)).admit(state, newcomers)


def test_newcomers_are_held_against_the_map_that_they_are_placed_in(tff_worker, model, encoder, grouped):
    """On another machine UMAP may lay the same centres out in another way: the stored points are then of no use."""
    known, newcomers = split(grouped, [4, 8])
    method = flt(model, encoder, threshold=1.5, metric="matching", num_centres=2)
    state = method.initialize(known)
    elsewhere = dataclasses.replace(state, points=100 - 3 * state.points)
    here, there = method.admit(state, newcomers), method.admit(elsewhere, newcomers)
    for key in ("points", "proximity", "relatedness"):
        np.testing.assert_array_equal(getattr(there, key), getattr(here, key), err_msg=key)
    assert same_groups(there.assignment)


@pytest.mark.slow
def test_the_map_has_the_dimensions_and_the_density_that_are_asked_for(tff_worker, model, encoder, grouped):
    plain, deep, wide = (
        flt(model, encoder, **how).initialize(grouped) for how in ({}, {"map_dimensions": 3}, {"min_dist": 0.9})
    )
    assert plain.points.shape == (9, 5, 2) and deep.points.shape == (9, 5, 3)
    assert np.abs(wide.points - plain.points).max() > 0.1


def test_gamma_where_the_distances_have_a_gap(tff_worker):
    apart = np.where(np.equal.outer([0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 1, 1, 2, 2, 2]), 0.3, 7.0)
    np.fill_diagonal(apart, 0)
    relations = ClientRelatedness("closest_pair", GAP, None, {}, 0)
    labels, kept = relations.flattened(apart)
    assert labels.tolist() == [0, 0, 0, 1, 1, 2, 2, 2] and 0.3 < kept["gamma"] < 7
    labels, kept = relations.flattened(np.zeros([3, 3]))
    assert labels.tolist() == [0, 0, 0] and kept["relatedness"].all()


def test_fewer_clusters_than_asked_for_and_a_gap_that_does_not_stand_out_are_noted(model, encoder, grouped):
    few = flt(model, encoder, threshold=2.0, num_clusters=2)
    labels, cut = few._relations.flattened(1 - np.eye(9))
    given = build_clustered_training(model, TRAINING).start(grouped, labels)
    here = {"mapped": np.ones(9, bool), "mask": np.ones([9, 5], bool), "points": np.zeros([9, 5, 2])}
    state = FLTState(**given, **here, **cut, proximity=1 - np.eye(9))
    (note,) = few.views(state).notes
    assert note.startswith("num_clusters is 2, but there is 1 cluster: clients with the same relatives, nearer than")
    assert not flt(model, encoder, threshold=2.0).views(state).notes
    (note,) = flt(model, encoder, threshold="gap").views(state).notes
    assert note == "the clients look alike: no merge takes more than the one before it (1.0 distance in the UMAP map)"


@pytest.mark.parametrize("mixes", ["everyone", "cohort", "stored"])
def test_who_gets_a_mix_is_as_it_is_asked_for(model, encoder, mixes):
    assert flt(model, encoder, mixes=mixes)._rounds.mixes == mixes


def test_without_an_encoder_it_is_told_in_a_line(model):
    with pytest.raises(UserError, match="encoder is None; it must be an autoencoder and its parameters"):
        build_flt(model, TRAINING, encoder=None)
