"""What the server can find out from what it sees, without defence and with it, each held against a bound that is
stated.

The attacks are those of a server that follows the protocol and is curious. Without noise they succeed; with it none
gets beyond what the Gaussian mechanism allows, whatever the attack.
"""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff
from scipy import stats

import tffcl
from tests.oracles.leakage import auc, most_auc, standard_error
from tests.short_runs import TRAINING, cohort_of, deployed_inputs
from tffcl.aggregators.clustered_mean import ClusteredMeanFactory
from tffcl.aggregators.secure_mean import simulated
from tffcl.algorithms.composed import build_composed
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.parameters import ComposedParameters
from tffcl.rounds.client_queries import build_signing
from tffcl.signatures.anchor_gradient import build_anchor_gradient
from tffcl.signatures.label_histogram import build_label_histogram
from tffcl.signatures.subspace import build_subspace

HELD, CLIENTS = 6, 40  # examples of a client


@pytest.fixture(scope="module")
def clients(digit_clients):
    """Forty clients with six digits each; the examples after theirs are nobody's."""
    return digit_clients([HELD] * CLIENTS)


@pytest.fixture(scope="module")
def pixels(digits):
    return digits[0].reshape(len(digits[0]), -1) / 255.0


def held(pixels, client):
    return pixels[client * HELD : (client + 1) * HELD]


def correlation(first, second):
    return np.corrcoef(np.ravel(first), np.ravel(second))[0, 1]


def subspaces(model, clients, **private):
    return build_signing(build_subspace(model.example_spec, 3, **private))(clients)["basis"]


def inside(basis, examples):
    """The share of each example's length that lies in the subspace, the score of a membership attack."""
    return np.linalg.norm(examples @ basis, axis=1) / np.linalg.norm(examples, axis=1)


def membership(bases, pixels):
    """The AUC of telling a client's digits from others of the same source."""
    strangers = pixels[CLIENTS * HELD : 2 * CLIENTS * HELD]
    members = np.concatenate([inside(basis, held(pixels, client)) for client, basis in enumerate(bases)])
    others = np.concatenate([inside(basis, held(strangers, client)) for client, basis in enumerate(bases)])
    return auc(members, others), standard_error(len(members), len(others))


def test_a_subspace_tells_who_is_a_member_and_a_noised_one_no_more_than_it_may(tff_worker, model, clients, pixels):
    """Of six digits three vectors hold most.

    One example moves the mean of x x' by √2 / n at most: its mechanism has that sensitivity.
    """
    found, _ = membership(subspaces(model, clients), pixels)
    assert found > 0.75
    for noise in (1.0, 0.05):
        private, error = membership(subspaces(model, clients, noise_multiplier=noise, noise_seed=1), pixels)
        assert private < most_auc(np.sqrt(2) / HELD, noise) + 3 * error
        assert private < found - 0.1


def test_a_subspace_shows_what_a_client_holds_and_a_noised_one_does_not(tff_worker, model, clients, pixels):
    """The first vector is nearly the mean image, and three examples of a client that has no more are in the span of
    its vectors.
    """
    means = [held(pixels, client).mean(axis=0) for client in range(CLIENTS)]
    seen = [abs(correlation(basis[:, 0], mean)) for basis, mean in zip(subspaces(model, clients), means)]
    assert np.mean(seen) > 0.9
    private = subspaces(model, clients, noise_multiplier=1.0, noise_seed=1)
    hidden = [abs(correlation(basis[:, 0], mean)) for basis, mean in zip(private, means)]
    # The least change that noise makes is a rotation at random: of d pixels, E|r| = √(2 / πd); the signal has norm 1 in
    # noise of 2 z √d.
    d = pixels.shape[1]
    assert np.mean(hidden) < np.sqrt(2 / (np.pi * d)) + 1 / (2 * np.sqrt(d)) + 3 * np.sqrt(1 / (d * CLIENTS))


def test_few_examples_are_in_the_span_of_their_subspace(tff_worker, model, digit_clients, pixels):
    few = digit_clients([3, 3])
    plain = subspaces(model, few)
    for client in range(2):
        own = pixels[3 * client : 3 * client + 3]
        lost = np.linalg.norm(own - own @ plain[client] @ plain[client].T, axis=1) / np.linalg.norm(own, axis=1)
        assert lost.max() < 1e-5
    private = subspaces(model, few, noise_multiplier=1.0, noise_seed=1)
    # Three directions at random of 64 hold √(3 / 64) of a vector.
    assert max(inside(private[client], pixels[3 * client : 3 * client + 3]).mean() for client in range(2)) < 0.45


def gradients(model, clients, **private):
    return build_signing(build_anchor_gradient(model, projection=0, **private))(clients)


def read_images(model, vectors):
    """The weights' gradient of the first layer's units, each row a multiple of the input where a client has
    one example.
    """
    slices = model.layer_slices()
    first = slices[next(iter(slices))]
    hidden = 16
    weights = vectors[:, first][:, : 64 * hidden].reshape(len(vectors), 64, hidden)
    strongest = np.argmax(np.linalg.norm(weights, axis=1), axis=1)
    return np.stack([own[:, unit] for own, unit in zip(weights, strongest)])


@pytest.mark.slow
@pytest.mark.parametrize("examples, least", [(1, 0.999), (HELD, 0.5)])
def test_a_gradient_has_the_image_in_its_rows_and_a_noised_one_does_not(
    tff_worker, model, digit_clients, pixels, examples, least
):
    clients = digit_clients([examples] * CLIENTS)
    images = np.stack([pixels[examples * client : examples * (client + 1)].mean(axis=0) for client in range(CLIENTS)])

    def seen(**private):
        found = read_images(model, gradients(model, clients, **private))
        return np.mean([abs(correlation(row, image)) for row, image in zip(found, images)])

    assert seen() > least
    # All of the gradient, of norm 1 at most, would have to be in this row: against noise of norm z √d.
    noise, d = 1.0, pixels.shape[1]
    chance = np.sqrt(2 / (np.pi * d))
    assert seen(noise_multiplier=noise, noise_seed=2) < chance + 1 / np.sqrt(1 + d * noise**2) + 3 / np.sqrt(
        d * CLIENTS
    )


def test_a_label_histogram_gives_every_label_away_and_a_noised_one_none_beyond_its_noise(
    tff_worker, model, clients, digits
):
    labels = digits[1][: CLIENTS * HELD].reshape(CLIENTS, HELD)
    counts = np.stack([np.bincount(own, minlength=10) for own in labels])
    plain = build_signing(build_label_histogram(model))(clients)
    np.testing.assert_array_equal(np.round(plain * HELD), counts)
    noise = 0.5
    private = build_signing(build_label_histogram(model, noise_multiplier=noise, noise_seed=1))(clients)
    right = np.mean(np.round(private * HELD) == counts)
    # A count is read right where its noise is below one half of an example, that of rounding; where it is 0, also
    # anywhere below.
    by_chance = 2 * stats.norm.cdf(0.5 / HELD / noise) - 1
    assert right < by_chance + 3 * np.sqrt(by_chance * (1 - by_chance) / counts.size)
    # Whether a client holds a class: its share is 1 / n at least. The bound is of the largest share that there is.
    present, absent = private[counts > 0], private[counts == 0]
    assert auc(plain[counts > 0], plain[counts == 0]) == 1
    most = most_auc(counts.max() / HELD, noise)
    assert auc(present, absent) < most + 3 * standard_error(len(present), len(absent))


SIZE, ROUNDS, COPIES = 5, 4, 50


def shown_sums(process, state, values, keys, rounds):
    """What the server sees of `rounds * COPIES` rounds: the sums of the first cluster and its number of members; and
    the state after them.

    Clusters are private each for itself, so that a round in which everyone is there `COPIES` times, in clusters apart,
    is as many rounds.
    """
    given = [
        collections.OrderedDict(key=np.int32(2 * copy + key), value=value)
        for copy in range(COPIES)
        for key, value in zip(keys, values)
    ]
    sums, counts = [], []
    for _ in range(rounds):
        output = process.next(state, given, [1.0] * len(given))
        counts.append(np.asarray(output.measurements["clients"], float)[::2])
        sums.append(np.asarray(output.result)[::2] * counts[-1][:, None])
        state = output.state
    return np.concatenate(sums), np.concatenate(counts), state


@pytest.mark.slow  # the noise itself is in tests/aggregators/test_inside_clusters.py
def test_a_private_mean_hides_a_member_as_well_as_its_noise_says_and_no_better(tff_worker):
    """The best attack, which knows all others and the update that it looks for, gets what the bound allows: noise is
    neither less nor more.
    """
    rng = np.random.default_rng(0)
    others = rng.normal(size=(3, SIZE)).astype(np.float32)
    target = np.ones(SIZE, np.float32) / np.sqrt(SIZE, dtype=np.float32)  # as long as the clip
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    keys, z, share = np.array([0, 0, 1]), 1.0, 0.2
    groups = {"with": (np.concatenate([others, target[None]]), np.append(keys, 0)), "without": (others, keys)}

    def attacked(factory, rounds):
        value_type = tff.to_type(collections.OrderedDict(key=np.int32, value=tff.TensorType(np.float32, [SIZE])))
        process, scores = factory.create(value_type, tff.TensorType(np.float32)), {}
        state = process.initialize()
        for name, (values, own) in groups.items():
            sums, counts, state = shown_sums(process, state, values, own, rounds)  # each round has noise of its own
            # The likelihood ratio of two Gaussians: the sum along the target, and the count, each by its variance.
            scores[name] = (1 - share) * sums @ target + share * counts
        return auc(scores["with"], scores["without"])

    noised = tffcl.aggregation(
        "dp", noise_multiplier=z, clip=1.0, count_share=share, min_cluster_size=1e-6, seed=0
    ).with_clusters(2 * COPIES)
    private = attacked(noised, ROUNDS)
    most, error = most_auc(1, z), standard_error(ROUNDS * COPIES, ROUNDS * COPIES)
    assert most - 4 * error < private < most + 3 * error
    assert attacked(ClusteredMeanFactory(2 * COPIES), 1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("least", [1, 2])
def test_the_update_of_a_lone_member_is_in_what_secure_sums_tell_only_where_one_member_is_enough(
    tff_worker, model, digit_clients, least
):
    """Clusters of 3 and 1: the server reads the update off the model that moves, of the library's round and of the
    exported one.
    """
    turned = digit_clients([40, 40, 40, 40], turns=[0, 0, 0, 1])
    alone, _ = (fedavg := build_fedavg(model, TRAINING)).next(
        fedavg.initialize(turned.restricted([3])), cohort_of(turned.restricted([3]), [3], 1)
    )
    update = alone.models[0] - model.initial
    secure = tffcl.aggregation("secure_sum", min_cluster_size=least)
    method = build_composed(model, TRAINING, ComposedParameters(num_clusters=2), aggregation=secure)
    state, cohort = method.initialize(turned), cohort_of(turned, [0, 1, 2, 3], 1)
    lone = state.assignment[3]
    assert list(np.bincount(state.assignment)[[1 - lone, lone]]) == [3, 1]
    after, metrics = method.next(state, cohort)
    exported = simulated(method.exports().computations(state)["training"])
    server = collections.OrderedDict(models=state.models, aggregators=state.aggregators)
    moved, told = exported(server, deployed_inputs(cohort, key=state.assignment))
    for models in (after.models, moved["models"]):
        read = models[lone] - model.initial
        assert np.abs(models[1 - lone] - model.initial).max() > 1e-2
        assert np.allclose(read, update, atol=1e-4) if least == 1 else not np.any(read)
    weights = np.asarray(told["measurements"]["update"]["weight"])
    assert weights[lone] == pytest.approx(40 * (least == 1), abs=1e-2)  # and its number of examples
    assert list(metrics.client_ids) == [0, 1, 2, 3][: 5 - least] and metrics.traffic.up % (5 - least) == 0
