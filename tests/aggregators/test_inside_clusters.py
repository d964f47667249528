"""Private, secure, compressed and robust means inside clusters: right in clusters of any size, and against NumPy."""

import collections
import functools
import itertools
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from scipy import stats

import tffcl
from tffcl.aggregators import parameters, private_mean
from tffcl.aggregators.clustered_mean import ClusteredMeanFactory, UniformClusteredMeanFactory, keyed_factory
from tffcl.aggregators.per_cluster import rearranged_state
from tffcl.aggregators.secure_mean import simulated
from tffcl.errors import UserError

SIZE = 6
VALUE = tff.to_type(collections.OrderedDict(key=np.int32, value=tff.TensorType(np.float32, [SIZE])))
WEIGHT = tff.TensorType(np.float32)
BOUND = 4 * 2.0**-31 * 10_000  # of a secure mean, for one client of weight 1


def unequal(clusters):
    """Keys of clusters of 1, 2, 3, 4, 5, 1, 2, ... members, the last one empty; updates and weights."""
    keys = np.concatenate([[cluster] * (1 + cluster % 5) for cluster in range(clusters - 1)]).astype(np.int32)
    rng = np.random.default_rng(clusters)
    return rng.permutation(keys), rng.normal(size=(len(keys), SIZE)).astype(np.float32), rng.integers(1, 9, len(keys))


@functools.cache
def built(factory):
    """The process as a simulation runs it, with secure sums in the open; of one factory it is traced once."""
    process = factory.create(VALUE, WEIGHT)
    if (step := simulated(process.next)) is process.next:
        return process
    return types.SimpleNamespace(
        initialize=process.initialize, next=lambda *given: types.SimpleNamespace(**step(*given))
    )


def aggregated(factory, keys, values, weights, state=None):
    process = built(factory)
    clients = [collections.OrderedDict(key=np.int32(key), value=value) for key, value in zip(keys, values)]
    return process.next(process.initialize() if state is None else state, clients, [float(each) for each in weights])


def means(keys, values, weights, clusters):
    found = np.zeros((clusters, SIZE))
    for cluster in set(keys):
        found[cluster] = np.average(values[keys == cluster], axis=0, weights=weights[keys == cluster])
    return found


def of_rows(found, clusters):
    return np.concatenate([found, np.zeros((clusters - len(found), SIZE))])


CLUSTERS = pytest.mark.parametrize("clusters", [8, pytest.param(25, marks=pytest.mark.slow)])


@pytest.mark.parametrize("clusters, bounds", [(8, {}), (25, {"bound": 1.0, "largest_weight": 5.0})])
def test_secure_sums_are_the_weighted_mean(tff_worker, clusters, bounds):
    """Of coordinates within the bound, and of weights up to the largest."""
    keys, values, weights = unequal(clusters)
    factory = keyed_factory(tffcl.aggregation("secure_sum", min_cluster_size=1, **bounds), clusters)
    found = aggregated(factory, keys, values, weights)
    if bounds:
        values, weights = np.clip(values, -1, 1), np.minimum(weights, 5)
    expected = means(keys, values, weights, clusters)
    np.testing.assert_allclose(found.result, expected, rtol=1e-6, atol=BOUND)
    assert not np.any(np.asarray(found.result)[-1])  # the empty cluster's, exactly
    np.testing.assert_allclose(found.measurements["weight"], np.bincount(keys, weights, clusters), rtol=1e-5)
    assert list(found.measurements["clients"]) == list(np.bincount(keys, minlength=clusters))


@pytest.mark.slow
@pytest.mark.parametrize("least, uniform", [(2, False), (3, False), (2, True)])
def test_secure_sums_of_too_few_members_are_not_told(tff_worker, least, uniform):
    """A member of weight 0 hides nobody, also in what is summed beside updates, as control variates, where all others
    count the same; the clusters have 3, 1, 2 and, with weights, 1 members."""
    keys, weights = np.array([0, 0, 0, 1, 2, 2, 3, 3]), np.array([1, 2, 3, 4, 5, 6, 7, 0])
    values = np.random.default_rng(1).normal(size=(8, SIZE)).astype(np.float32)
    factory = keyed_factory(tffcl.aggregation("secure_sum", min_cluster_size=least), 4)
    factory = factory.beside(UniformClusteredMeanFactory()) if uniform else factory
    found = aggregated(factory, keys, values, weights)
    weights = np.sign(weights) if uniform else weights
    expected, told = means(keys, values, weights, 4), np.array([3, 0, 2, 0])
    told[told < least] = 0
    np.testing.assert_allclose(found.result, expected * (told > 0)[:, None], rtol=1e-6, atol=BOUND)
    assert not np.any(np.asarray(found.result)[told == 0])
    assert list(found.measurements["clients"]) == list(told)
    assert not np.any(np.asarray(found.measurements["weight"])[told == 0])


@pytest.mark.slow
def test_secure_sums_of_equal_weights_lose_nothing_to_the_largest_weight(tff_worker):
    """Means of updates as small as those at the end of a training; rounded, they are not all too short."""
    values = 1e-5 * np.random.default_rng(2).normal(size=(5, SIZE)).astype(np.float32)
    factory = keyed_factory(tffcl.aggregation("secure_sum"), 1).with_equal_weights()
    found = aggregated(factory, np.zeros(5, int), values, np.ones(5))
    np.testing.assert_allclose(found.result, [values.mean(axis=0)], rtol=0, atol=BOUND / 10_000)
    found = aggregated(factory, np.zeros(50, int), np.full((50, SIZE), 0.3 * 2**-28, np.float32), np.ones(50))
    assert not np.any(found.result)  # cut off upwards it would be one unit, and downwards minus one
    below = aggregated(factory, np.zeros(4, int), np.full((4, SIZE), 0.8 * 2**-28, np.float32), np.ones(4))
    np.testing.assert_array_equal(below.result, np.full((1, SIZE), 2**-28, np.float32))


@pytest.mark.parametrize(
    "clusters, secure, clipping",
    [(8, False, "adaptive"), (8, True, "fixed"), pytest.param(25, False, "fixed", marks=pytest.mark.slow)],
)
def test_without_noise_a_private_mean_is_the_mean_over_members(tff_worker, clusters, secure, clipping):
    keys, values, _ = unequal(clusters)
    factory = tffcl.aggregation(
        "dp", noise_multiplier=0, clip=100, min_cluster_size=1, secure=secure, clipping=clipping
    )
    # Whatever the weights, those from 0 to 1 too.
    found = aggregated(factory.with_clusters(clusters), keys, values, np.arange(1, len(keys) + 1) / 4)
    expected = means(keys, values, np.ones(len(keys)), clusters)
    np.testing.assert_allclose(found.result, expected, atol=1e-5)
    np.testing.assert_allclose(found.measurements["clients"], np.bincount(keys, minlength=clusters), atol=1e-5)


@pytest.mark.slow
def test_updates_are_clipped_and_small_clusters_wait(tff_worker):
    keys, values = np.array([0, 0, 0, 1]), np.ones((4, SIZE), np.float32)
    factory = tffcl.aggregation("dp", noise_multiplier=0, clip=0.5).with_clusters(3)
    found = aggregated(factory, keys, values, np.ones(4))
    np.testing.assert_allclose(
        found.result, [np.full(SIZE, 0.5 / np.sqrt(SIZE)), np.zeros(SIZE), np.zeros(SIZE)], rtol=1e-6
    )


@pytest.mark.parametrize("clipping", ["fixed", "adaptive"])
def test_all_that_a_round_tells_is_as_private_as_its_noise_multiplier_says(clipping):
    """Sums in units of the clip, counts by one and votes by a half: their Gaussian mechanisms together are one of z."""
    noises = private_mean._noises(parameters.DPParameters(noise_multiplier=0.7, clipping=clipping))
    changes = {"value": 1.0, "count": 1.0, **({"vote": 0.5} if clipping == "adaptive" else {})}
    assert sum((change / noises[what]) ** 2 for what, change in changes.items()) == pytest.approx(0.7**-2)


@pytest.mark.slow
@pytest.mark.parametrize(("quantile", "least", "most"), [(0.8, 2.6, 3.6), (0.3, 0.75, 1.2)])
def test_the_adaptive_clip_follows_the_members_whatever_the_number_of_clusters(tff_worker, quantile, least, most):
    """Half of the updates have norm 1, half 3: the clip that starts at 10 ends at one of them or between, also with
    seven empty clusters.
    """
    values = np.zeros((16, SIZE), np.float32)
    values[:, 0] = [1, 3] * 8
    how = {"clipping": "adaptive", "clip_learning_rate": 0.5, "quantile": quantile}
    factory = tffcl.aggregation("dp", noise_multiplier=0, clip=10, **how)
    process = built(factory.with_clusters(8))
    state = process.initialize()
    clients = [collections.OrderedDict(key=np.int32(place % 2), value=value) for place, value in enumerate(values)]
    for _ in range(20):
        state = process.next(state, clients, [1.0] * 16).state
    assert least < state["clip"] < most and state["round"] == 20


@pytest.mark.parametrize("secure", [False, True])
def test_the_noise_has_the_stated_standard_deviation(tff_worker, secure):
    """Chi-squared tests at 1 in 1000 of sums and counts, of all rounds and clusters together."""
    z, clip, share, clusters, rounds = 0.7, 2.0, 0.3, 3, 10
    factory = tffcl.aggregation(
        "dp", noise_multiplier=z, clip=clip, count_share=share, min_cluster_size=0.5, secure=secure, seed=5
    ).with_clusters(clusters)
    sizes = np.array([12, 6, 9])
    keys = np.repeat(np.arange(clusters), sizes)
    values = np.full((len(keys), SIZE), 0.1, np.float32)
    process = built(factory)
    state, sums, counts = process.initialize(), [], []
    clients = [collections.OrderedDict(key=np.int32(key), value=value) for key, value in zip(keys, values)]
    for _ in range(rounds):
        output = process.next(state, clients, [1.0] * len(keys))
        noisy = np.asarray(output.measurements["clients"])
        state = output.state
        sums.append((np.asarray(output.result) * noisy[:, None] - 0.1 * sizes[:, None])[noisy >= 0.5])
        counts.append(noisy - sizes)
    for drawn, deviation in ((np.concatenate(sums), z * clip / np.sqrt(1 - share)), (counts, z / np.sqrt(share))):
        drawn = np.ravel(drawn) / deviation
        tail = stats.chi2.cdf(np.sum(drawn**2), len(drawn))
        assert 5e-4 < tail < 1 - 5e-4
        assert abs(drawn.mean()) < 4 / np.sqrt(len(drawn))
    assert len(np.unique(np.round(np.ravel(counts), 6))) == rounds * clusters  # no draw comes twice


def test_every_noise_is_a_draw_of_its_own_in_units_of_its_share(tff_worker):
    """With one seed the standard normal numbers are the same whatever the shares: those of counts, sums and votes can
    be told from what the server gets, and none of them tells another."""
    z, clip, sizes, drawn = 0.7, 2.0, np.array([12, 6]), []
    values = np.repeat(np.float32([[0.1] * SIZE, [1] * SIZE]), sizes, axis=0)  # those of the second are too long
    sums = np.array([12 * 0.1, 6 * clip / np.sqrt(SIZE)])[:, np.newaxis]
    for share, voting in ((0.3, 0.05), (0.6, 0.1)):
        how = {"noise_multiplier": z, "clip": clip, "count_share": share, "min_cluster_size": 0.5, "seed": 5}
        how |= {"clipping": "adaptive", "quantile_share": voting, "quantile": 0.4, "clip_learning_rate": 0.3}
        factory = tffcl.aggregation("dp", **how).with_clusters(2)
        output = aggregated(factory, np.repeat([0, 1], sizes), values, np.ones(18))
        noisy = np.asarray(output.measurements["clients"], np.float64)
        of_counts = (noisy - sizes) * np.sqrt(share) / z
        of_sums = (output.result * noisy[:, np.newaxis] - sums) * np.sqrt(1 - share - voting) / (z * clip)
        short = 0.4 - np.log(output.state["clip"] / clip) / 0.3
        of_votes = ((short - 0.5) * noisy.sum() - (12 - 6) / 2) * np.sqrt(voting) / (0.5 * z)
        drawn.append(np.concatenate([of_counts, np.ravel(of_sums), [of_votes, 0.0]]))
    np.testing.assert_allclose(*drawn, atol=1e-3)
    assert np.diff(np.sort(drawn[0])).min() > 1e-3


@pytest.mark.slow
def test_a_cluster_waits_by_its_noisy_number_and_not_by_its_own(tff_worker):
    """Which nobody is told: whether a result is zero would tell of it."""
    factory = tffcl.aggregation("dp", noise_multiplier=1.0, min_cluster_size=4, seed=3).with_clusters(3)
    keys, sizes = np.repeat(np.arange(3), [3, 4, 5]), np.array([3, 4, 5])
    process, shown, noisy = built(factory), [], []
    state, values = process.initialize(), np.ones((12, SIZE), np.float32)
    clients = [collections.OrderedDict(key=np.int32(key), value=value) for key, value in zip(keys, values)]
    for _ in range(8):
        output = process.next(state, clients, [1.0] * 12)
        state = output.state
        shown.append(np.any(output.result, axis=1))
        noisy.append(np.asarray(output.measurements["clients"]))
    np.testing.assert_array_equal(shown, np.array(noisy) >= 4)
    assert np.any(shown != (sizes >= 4))


def test_noise_repeats_with_the_seed_only(tff_worker):
    keys, values, weights = unequal(2)

    def draw(**seed):
        return np.asarray(
            aggregated(tffcl.aggregation("dp", **seed).with_clusters(2), keys, values, weights).measurements["clients"]
        )

    np.testing.assert_array_equal(draw(seed=1), draw(seed=1))
    assert not np.array_equal(draw(seed=1), draw(seed=2))
    assert not np.array_equal(draw(), draw())


@CLUSTERS
def test_compression_is_off_by_a_step_of_each_layer_at_most(tff_worker, clusters):
    keys, values, weights = unequal(clusters)
    values[:, 4:] *= 1000  # the other layer's steps stay fine
    layers = [slice(0, 4), slice(4, 6)]
    factory = tffcl.aggregation("compression", bits=6, layers=(4, 2), seed=3)
    first = aggregated(factory, keys, values, weights)
    again = aggregated(factory, keys, values, weights, first.state)
    assert np.any(again.result != first.result)  # each round rounds anew, and errors do not gather
    found = of_rows(np.asarray(first.result), clusters)
    error = np.abs(found - means(keys, values, weights, clusters))
    for layer in layers:
        steps = np.ptp(values[:, layer], axis=1) / (2**6 - 1)
        assert error[:, layer].max() <= steps.max() * (1 + 1e-5)
        alone = [member for member, key in enumerate(keys) if list(keys).count(key) == 1]
        codes = (found[keys[alone], layer] - values[alone, layer].min(axis=1)[:, None]) / steps[alone][:, None]
        np.testing.assert_allclose(codes, np.round(codes), atol=1e-3)  # in 6 bits
    sent = factory.uploaded_type(VALUE)
    assert (sent["ranges"].shape, sent["bits"].shape) == ((4,), (5,))


@pytest.mark.slow
def test_rounding_has_the_value_as_its_expectation(tff_worker):
    factory = tffcl.aggregation("compression", bits=1, seed=3)
    values = np.tile(np.array([0, 1, 0.25, 0.25, 0.25, 0.25], np.float32), (400, 1))
    values += np.random.default_rng(0).normal(0, 1e-4, values.shape).astype(np.float32)
    found = np.asarray(aggregated(factory, np.zeros(400, int), values, np.ones(400)).result)[0]
    np.testing.assert_allclose(found[2:], 0.25, atol=4 * np.sqrt(0.25 * 0.75 / 400))


def test_layers_of_the_same_values_are_rounded_by_draws_of_their_own(tff_worker):
    factory = tffcl.aggregation("compression", bits=1, layers=(3, 3), seed=3)
    values = np.tile(np.array([0, 1, 0.5], np.float32), (8, 2)) * np.arange(1, 9, dtype=np.float32)[:, np.newaxis]
    found = np.asarray(aggregated(factory, np.arange(8), values, np.ones(8)).result) / np.arange(1, 9)[:, np.newaxis]
    assert set(found[:, [2, 5]].ravel()) == {0, 1} and np.any(found[:, 2] != found[:, 5])


@CLUSTERS
@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "multi_krum"])
def test_robust_rules_against_numpy_and_within_their_bound(tff_worker, rule, clusters):
    keys, values, weights = unequal(clusters)
    found = of_rows(
        np.asarray(aggregated(tffcl.aggregation("robust", rule=rule), keys, values, weights).result), clusters
    )
    for cluster in range(clusters):
        own = values[keys == cluster].astype(np.float64)
        n, left_out = len(own), round(0.2 * len(own))
        if not n:
            assert not found[cluster].any()
            continue
        if rule == "median":
            expected, bound = np.median(own, axis=0), own.std(axis=0)
        elif rule == "trimmed_mean":
            cut = min(left_out, (n - 1) // 2)
            expected, bound = stats.trim_mean(own, cut / n + 1e-9), own.std(axis=0) * np.sqrt(2 * cut / (n - 2 * cut))
        else:
            expected = krum(own, left_out)
            bound = np.sqrt(own.var(axis=0).sum() * left_out / (n - left_out))
        if expected is not None:
            np.testing.assert_allclose(found[cluster], expected, atol=1e-5)
        difference = np.abs(found[cluster] - own.mean(axis=0))
        assert np.all((np.linalg.norm(difference) if rule == "multi_krum" else difference) <= bound + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4, 5])
def test_multi_krum_breaks_ties_whatever_the_order_of_members(tff_worker, count):
    """Two that are each other's nearest have equal scores."""
    values = np.random.default_rng(1).normal(size=(count, SIZE)).astype(np.float32)
    process = built(tffcl.aggregation("robust", rule="multi_krum", attackers=0.4))
    members = [collections.OrderedDict(key=np.int32(0), value=value) for value in values]
    found = [
        np.asarray(process.next(process.initialize(), [members[each] for each in order], [1.0] * count).result)
        for order in itertools.islice(itertools.permutations(range(count)), 0, None, {2: 1, 4: 5, 5: 5}[count])
    ]
    np.testing.assert_allclose(found, np.broadcast_to(found[0], np.shape(found)), atol=1e-6)


def krum(own, left_out):
    """The mean of the chosen members; None where two that are each other's nearest compete for the last place."""
    n = len(own)
    if n == 1:
        return own[0]
    distances = np.sort(((own[:, None] - own[None]) ** 2).sum(-1), axis=1)[:, 1:]
    scores = distances[:, : max(1, n - left_out - 2)].sum(axis=1)
    order = np.argsort(scores)
    if left_out and np.isclose(*scores[order][n - left_out - 1 : n - left_out + 1]):
        return None
    return own[order[: n - left_out]].mean(axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "multi_krum"])
def test_two_of_seven_attackers_move_a_robust_mean_by_little(tff_worker, rule):
    values = np.random.default_rng(1).normal(1, 0.1, (7, SIZE)).astype(np.float32)
    values[:2] = 1e4
    factory = tffcl.aggregation("robust", rule=rule, attackers=0.3)
    found = aggregated(factory, np.ones(7, int), values, [1e6, 1e6, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(found.result, [np.zeros(SIZE), np.full(SIZE, 1)], atol=0.3)


@pytest.mark.slow
def test_updates_longer_than_the_clip_count_with_its_length(tff_worker):
    """And shorter ones as they are; where the clip goes follows the quantile."""
    keys, values = np.zeros(3, np.int32), np.float32([[3, 4, 0, 0, 0, 0], [0, 0, 0.5, 0, 0, 0], [0, 0, 0, 0, 0, 8]])
    clips = []
    for quantile in (0.5, 0.9):
        factory = tffcl.aggregation("robust", rule="clipping", initial_clip=2.0, quantile=quantile).with_clusters(1)
        found = aggregated(factory, keys, values, [2, 1, 1])
        np.testing.assert_allclose(found.result, [[0.6, 0.8, 0.125, 0, 0, 0.5]], rtol=1e-5)
        clips.append(found.state["clip"][0])
    # One of three is short, whatever their weights.
    np.testing.assert_allclose(clips, 2 * np.exp(-0.2 * (1 / 3 - np.array([0.5, 0.9]))), rtol=1e-5)


@CLUSTERS
def test_each_cluster_is_clipped_by_its_own_members(tff_worker, clusters):
    """The clip of each cluster finds the quantile of its members' norms; one that is empty keeps its first."""
    keys, values, weights = unequal(clusters)
    scale = np.exp(np.arange(clusters) % 3 - 1)
    values = (values / np.linalg.norm(values, axis=1, keepdims=True) * scale[keys, None]).astype(np.float32)
    factory = tffcl.aggregation("robust", rule="clipping", quantile=0.5, clip_learning_rate=0.3).with_clusters(clusters)
    process = built(factory)
    clients = [collections.OrderedDict(key=np.int32(key), value=value) for key, value in zip(keys, values)]
    state = process.initialize()
    for _ in range(15):
        output = process.next(state, clients, [float(each) for each in weights])
        state = output.state
    clips, found = np.asarray(state["clip"]), np.asarray(output.result)
    assert np.all(np.abs(np.log(clips[:-1] / scale[:-1])) <= 0.16) and clips[-1] == 1
    norms = np.linalg.norm(values, axis=1)
    expected = means(keys, values, weights, clusters)
    for cluster in range(clusters - 1):
        own = keys == cluster
        # The clips of the last round were at most one step of 0.15 from those after it.
        bound = np.average(np.maximum(0, norms[own] - clips[cluster] * np.exp(-0.15)), weights=weights[own])
        assert np.linalg.norm(found[cluster] - expected[cluster]) <= bound + 1e-5


def test_zeroing_takes_out_what_is_so_many_clips_long(tff_worker):
    """The clip is 2, five times that 10: an update of length 9 counts with 2, one of 11 not at all."""
    values = np.zeros((4, SIZE), np.float32)
    values[:, 0] = [11, 9, 1, 1]
    factory = tffcl.aggregation("robust", rule="clipping", initial_clip=2.0, zeroing=5).with_clusters(1)
    found = aggregated(factory, np.zeros(4, int), values, np.ones(4))
    np.testing.assert_allclose(found.result, [[1, *[0] * (SIZE - 1)]], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, options",
    [
        ("robust", {"rule": "median"}),
        ("secure_sum", {"min_cluster_size": 1}),
        ("robust", {"rule": "clipping", "initial_clip": 2}),
        ("dp", {"noise_multiplier": 0, "clip": 2.0, "clipping": "adaptive"}),
        ("dp", {"noise_multiplier": 0, "clip": 2.0, "clipping": "adaptive", "secure": True}),
    ],
)
def test_a_client_of_weight_zero_is_nobody(tff_worker, name, options):
    """As one whose training was not finite, which a deployed round goes on without: neither the mean nor the clip,
    which the two others are too long for, counts it as a short upload."""
    values = np.array([[1] * SIZE, [2] * SIZE, [0] * SIZE, [1e9] * SIZE], np.float32)
    factory = keyed_factory(tffcl.aggregation(name, **options), 1)
    there, beside = (
        aggregated(factory, np.zeros(count, int), values[:count], [1, 1, 0, 0][:count]) for count in (2, 4)
    )
    for part in ("result", "state"):
        found, expected = (tf.nest.flatten(getattr(each, part)) for each in (beside, there))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, err_msg=part)


@pytest.mark.parametrize(
    "name, options, expected",
    [
        ("robust", {"rule": "median", "attackers": 0.4}, 1),
        ("robust", {"rule": "trimmed_mean", "attackers": 0.4}, 1),
        ("robust", {"rule": "multi_krum", "attackers": 0.4}, 1),
        ("robust", {"rule": "clipping", "initial_clip": 9}, 0.8),  # it counts as zero
        ("secure_sum", {"min_cluster_size": 1, "bound": 4}, 0.8),
        ("dp", {"noise_multiplier": 0, "clip": 9.0}, 0.8),
    ],
)
def test_one_member_of_five_that_is_not_a_number_moves_the_others_by_little(tff_worker, name, options, expected):
    values = np.ones((5, SIZE), np.float32)
    values[2] = np.nan
    found = aggregated(keyed_factory(tffcl.aggregation(name, **options), 1), np.zeros(5, int), values, np.ones(5))
    np.testing.assert_allclose(found.result, [np.full(SIZE, expected)], rtol=1e-4)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("dp", {"noise_multiplier": -1}, "aggregation.noise_multiplier is -1; it must be a number from 0"),
        ("dp", {"clip": 0}, "aggregation.clip is 0; it must be a number above 0"),
        ("dp", {"clipping": "none"}, "unknown aggregation.clipping 'none'"),
        ("dp", {"clipping": "adaptive", "count_share": 0.97}, "aggregation.quantile_share is 0.05; with count_share"),
        ("robust", {"attackers": 0.5}, "aggregation.attackers is 0.5; it must be a number from 0 to below 0.5"),
        ("robust", {"rule": "mode"}, "unknown aggregation.rule 'mode'"),
        ("robust", {"rule": "clipping", "zeroing": 0.5}, "aggregation.zeroing is 0.5; it must be 0 or a number from 1"),
        ("compression", {"bits": 9}, "aggregation.bits is 9; it must be a whole number from 1 to 8"),
        ("secure_sum", {"clip": 1}, "unknown key in .aggregation. 'clip'"),
        ("secure", {}, "unknown aggregation 'secure'"),
    ],
)
def test_what_cannot_be_is_said(name, options, message):
    with pytest.raises(UserError, match=message):
        tffcl.aggregation(name, **options)


def test_names_stand_for_factories():
    assert type(keyed_factory(tffcl.aggregation("mean"))) is ClusteredMeanFactory
    waiting = keyed_factory(tffcl.aggregation("dp"))
    assert waiting.waits_for_clusters and waiting.noise_multiplier == 1 and keyed_factory(waiting, 3).num_clusters == 3
    with pytest.raises(
        UserError, match="PrivateClusteredMeanFactory aggregates inside each cluster, so it needs num_clusters"
    ):
        waiting.create(VALUE, WEIGHT)


@pytest.mark.parametrize(
    "old, fresh, expected",
    [
        ({"clip": np.array([1.0, 2, 3])}, {"clip": np.full(4, 9.0)}, {"clip": [3, 9, 1, 9]}),  # robust clipping's
        ({"clip": 0.5, "round": 7}, {"clip": 9.0, "round": 0}, {"clip": 0.5, "round": 7}),  # dp's: no noise comes again
        (["a", "b", "c"], ["new"] * 4, ["c", "new", "a", "new"]),  # of inner factories of TFF's
        ((), (), ()),
        (7, 0, 7),
        (
            {"inner": {"clip": np.array([1.0, 2, 3]), "states": ["a", "b", "c"]}, "own": [5, ()]},
            {"inner": {"clip": np.full(4, 9.0), "states": ["new"] * 4}, "own": [0, ()]},
            {"inner": {"clip": [3, 9, 1, 9], "states": ["c", "new", "a", "new"]}, "own": [5, ()]},
        ),  # of a user's own, around another one
    ],
)
def test_clusters_that_stay_keep_the_states_of_their_aggregation(old, fresh, expected):
    """The third is the first now, the first the third, the second is gone, and two are new."""
    found = rearranged_state(old, fresh, np.array([2, -1, 0, -1]))
    assert tf.nest.map_structure(lambda leaf: np.asarray(leaf).tolist(), found) == expected
