"""What all methods share that cluster once, before training: what decides without a number, and newcomers with one."""

import dataclasses
import inspect

import numpy as np
import pytest

from tests.short_runs import TRAINING, cohort_of, split
from tffcl.algorithms import composed, presets
from tffcl.algorithms.composed import build_composed, group_composed
from tffcl.algorithms.grouping_in_time import build_one_shot
from tffcl.algorithms.one_shot import Signed
from tffcl.algorithms.parameters import (
    ComposedParameters,
    EMDCFLParameters,
    FedClustParameters,
    FLHCParameters,
    FLISHCParameters,
    KFedParameters,
    PACFLParameters,
    PCAKMHCParameters,
)
from tffcl.algorithms.presets import build_fedclust, build_flis_hc, build_pca_km_hc
from tffcl.choices import SELF
from tffcl.clients.population import Population
from tffcl.clustering.groupings import Grouping
from tffcl.errors import Diverged, UserError
from tffcl.registry import find, parameters_of

# Of answers, which a warm-up comes before, and of labels; the others are slow.
LIKE_THEM = [pytest.param(name, marks=pytest.mark.slow) for name in ("fedclust", "descriptors")]
METHODS = ["flis_hc", "label_histogram", *LIKE_THEM]


@pytest.fixture(scope="module")
def build(model, digits):
    """Builds a method by name, with `threshold` or `num_clusters`."""

    def built(name, **how):
        if name == "flis_hc":
            return build_flis_hc(model, TRAINING, FLISHCParameters(**how), server_images=digits[0][-100:])
        if name == "fedclust":
            return build_fedclust(model, TRAINING, FedClustParameters(warm_up_epochs=2, **how))
        if name == "pca_km_hc":
            return build_pca_km_hc(model, TRAINING, PCAKMHCParameters(num_components=8, num_centres=2, **how))
        return build_composed(model, TRAINING, ComposedParameters(signature=name, **how))

    return built


@pytest.mark.parametrize("name", METHODS)
def test_clients_that_are_alike_are_one_cluster_by_default(tff_worker, build, digits, name):
    """Whatever shuffling, k-means and a warm-up make of equal data."""
    x, y = digits
    same = (x[:60], y[:60])
    method = build(name)
    assert method.clustering.threshold == SELF
    state = method.initialize(Population.from_arrays(dict.fromkeys(range(6), same)))
    assert not state.assignment.any() and state.notes[0].startswith("nothing differs:")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_newcomers_to_a_number_of_clusters_found_none(tff_worker, build, digit_clients, name):
    known, newcomers = split(digit_clients([40] * 6 + [2, 1], turns=[0, 1, 0, 1, 0, 1, 2, 3]), [6, 7])
    method = build(name, num_clusters=2)
    state = method.initialize(known)
    admitted = method.admit(state, newcomers)
    assert len(admitted.models) == len(state.models) == 2
    np.testing.assert_array_equal(admitted.models, state.models)


@pytest.fixture(scope="module")
def by_labels(digits):
    """Nine clients in three groups, of three labels each."""
    x, y = digits
    clients = {}
    for client in range(9):
        rows = np.flatnonzero(np.isin(y, [(0, 1, 2), (3, 4, 5), (6, 7, 8)][client % 3]))
        rows = np.random.default_rng(client % 3).permutation(rows)[client // 3 :: 3][:120]
        clients[client] = (x[rows], y[rows])
    return Population.from_arrays(clients)


def test_groups_of_labels_are_found_by_any_signature_that_sees_them(tff_worker, build, by_labels):
    state = build("label_histogram").initialize(by_labels)
    assert state.assignment.tolist() == [0, 1, 2] * 3 and state.notes[0].startswith("3 groups:")


@pytest.mark.parametrize("metric", ["euclidean", pytest.param("cosine", marks=pytest.mark.slow), "decomposed_cosine"])
@pytest.mark.parametrize("grouping", ["kmeans", "gaussian_mixture", "spectral"])
def test_groups_are_found_without_a_tree_and_newcomers_join_them(tff_worker, build, by_labels, grouping, metric):
    known, newcomers = split(by_labels, [1, 5, 6])
    method = build("label_histogram", grouping=grouping, metric=metric, num_clusters=3)
    state = method.initialize(known)
    assert state.assignment.tolist() == [0, 1, 0, 2, 2, 1]  # clients 0, 2, 3, 4, 7 and 8, by their first members
    joined = method.admit(state, newcomers)
    assert joined.assignment.tolist() == [0, 2, 1] * 3 and len(joined.models) == 3
    view = method.views(joined).metric
    assert view.merges is None and view.threshold is None and view.proximity.shape == (9, 9)
    assert "linkage" not in method.exports().clustering


def test_density_finds_the_number_and_newcomers_near_to_nobody_found_clusters(tff_worker, build, by_labels):
    known, newcomers = split(by_labels, [2, 4, 5, 8])  # group 2 are newcomers all
    method = build("label_histogram", grouping="density", threshold=0.3)
    state = method.admit(method.initialize(known), newcomers)
    assert state.assignment.tolist() == [0, 1, 2] * 3 and len(state.models) == 3
    by_knee = build("label_histogram", grouping="density").initialize(by_labels)
    assert by_knee.threshold > 0 and by_knee.merges.shape == (8, 4)


@pytest.mark.parametrize("how", [{"grouping": "density"}, {"threshold": "gap"}], ids=str)
def test_a_rule_says_that_two_clients_show_it_nothing(tff_worker, build, by_labels, how):
    """One cluster, and newcomers would be placed by what these two show: that is no choice to make for a cohort."""
    two = by_labels.restricted([0, 1])
    state = build("label_histogram", **how).initialize(two)
    assert not state.assignment.any() and "two clients" in state.notes[0]
    joining = build("label_histogram", **how, when="as_they_join")
    with pytest.raises(UserError, match="the first round has 1 client, .* it needs 3 clients or more"):
        joining.next(joining.initialize(two), cohort_of(two, [0], 1))


OTHERS = {"preprocess": "centred", "encoder": "mnist", "form": "displacement", "layers": ["hidden"]}


def another(key, value):
    """Another value of a key than its default."""
    if isinstance(value, bool):
        return not value
    return OTHERS.get(key) or (7 if value is None else value + 1 if isinstance(value, int) else value / 2 or 0.5)


@pytest.fixture
def calls(monkeypatch):
    """In the place of each signature what its builder was called with."""
    for each in [each for each in vars(composed) if each.startswith("build_") and each != "build_grouping"]:
        monkeypatch.setattr(composed, each, lambda *args, **kwargs: (args, kwargs))


@pytest.mark.parametrize("name", composed.SIGNATURES)
def test_each_key_of_a_signature_and_what_a_run_gives_reach_its_builder(model, calls, name):
    """For one other value at a time."""

    def called_with(own=(), **changed):
        given = {"training": TRAINING, "seed": 1, "noise_seed": 2, "server_images": "images", **changed}
        given["find_encoder"] = lambda *args, **kwargs: (args, kwargs)
        how = parameters_of(find("signatures", name).parameter_class(), dict(own), name)
        build = composed.SIGNATURES[name].build
        return repr(build(model, how, **composed._taken(build, given))), how, inspect.signature(build).parameters

    usual, how, taken = called_with()
    for key, value in vars(how).items():
        other, meant, *_ = how.only_with.get(key, ("noise_multiplier", 2.0) if key == "clip" else ("", None))
        base = {other: meant} if other else {}
        assert called_with({**base, key: another(key, value)})[0] != called_with(base)[0], key
    for key, value in {
        "training": dataclasses.replace(TRAINING, learning_rate=9.0),
        "seed": 3,
        "noise_seed": 4,
    }.items():
        assert (called_with(**{key: value})[0] != usual) == (key in taken), key


NOISE, TOLD = {"signature_noise_multiplier": 2.0, "signature_clip": 3.0}, {"noise_multiplier": 2.0, "clip": 3.0}


@pytest.mark.parametrize("group, how, expected", [
    (presets.group_pacfl, PACFLParameters(num_clusters=2, num_vectors=4, **NOISE), TOLD),
    (presets.group_pca_km_hc, PCAKMHCParameters(num_clusters=2, num_components=9, **NOISE),
     {"num_components": 9, **TOLD}),
    (presets.group_kfed, KFedParameters(num_centres=3, **NOISE), {"num_centres": 3, **TOLD}),
    (presets.group_emd_cfl, EMDCFLParameters(samples=9, threshold=2.5, linkage="single"), {"samples": 9}),
    (presets.group_flhc, FLHCParameters(threshold=2.5, linkage="single"), {"form": "displacement", "projection": 0}),
])  # fmt: skip
def test_a_preset_passes_its_keys_on(model, calls, group, how, expected):
    private = "noise_multiplier" in expected
    found = group(model, TRAINING, how, **({"noise_seed": 5} if private else {"seed": 5}))
    _, told = found.signature
    assert {**told, **expected, ("noise_seed" if private else "seed"): 5} == told
    if not private:
        assert (found.threshold, found.num_clusters, found.linkage) == (2.5, None, "single")


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"grouping": "kmean"}, "grouping 'kmean'.*did you mean 'kmeans'"),
        ({"grouping": "kmeans"}, "grouping kmeans cuts no tree: give num_clusters, and no threshold"),
        ({"grouping": "spectral", "threshold": 0.5}, "grouping spectral cuts no tree: give num_clusters"),
        ({"grouping": "kmeans", "num_clusters": 2, "linkage": "ward"}, "grouping kmeans has no linkage"),
        ({"grouping": "density", "num_clusters": 2}, "density finds the number of clusters itself"),
        ({"metric": "decomposed_cosine"}, "decomposed_cosine is of as many directions as num_clusters says"),
        (
            {"grouping": "kmeans", "num_clusters": 2, "signature": "subspace"},
            "kmeans groups vectors, and smallest_angle",
        ),
        (
            {"grouping": "gaussian_mixture", "num_clusters": 2, "signature": "centres"},
            "gaussian_mixture groups vectors, and closest_pair is no distance between vectors; euclidean, cosine",
        ),
    ],
)
def test_what_does_not_go_together_is_one_line(wrong, message):
    with pytest.raises(UserError, match=message) as said:
        ComposedParameters(**{"signature": "label_histogram", **wrong})
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("grouping", ["kmeans", "hierarchical"])
def test_a_client_whose_signature_is_not_finite_is_named(build, by_labels, monkeypatch, grouping):
    """As that of one whose training diverges before it signs; scikit-learn would end the run with a traceback."""
    method, sent = build("label_histogram", grouping=grouping, num_clusters=3), np.ones([9, 10], np.float32)
    monkeypatch.setattr(method, "sign", lambda population, *given: Signed({"value": sent[population.client_ids]}))
    known, newcomers = split(by_labels, [7, 8])
    state = method.initialize(known)
    sent[[5, 8], 2] = np.nan, np.inf
    for join, called in ((lambda: method.initialize(known), 5), (lambda: method.admit(state, newcomers), 8)):
        with pytest.raises(Diverged, match=f"client {called} has a signature that is not finite"):
            join()


def test_more_clusters_than_clients_are_refused(tff_worker, build, by_labels):
    with pytest.raises(UserError, match="num_clusters is 10; it must be from 1 to the number of clients, 9"):
        build("label_histogram", grouping="kmeans", num_clusters=10).initialize(by_labels)


def test_a_grouping_of_ones_own_groups_clients_and_places_newcomers(tff_worker, model, by_labels):
    """By the label that most examples have."""
    by_most = Grouping(
        lambda proximity, points, number, seed: points.argmax(axis=1) // 3,
        lambda proximity, points, labels: points[len(labels) :].argmax(axis=1) // 3,
    )
    parts = ComposedParameters(signature="label_histogram", num_clusters=3)
    how = dataclasses.replace(group_composed(model, TRAINING, parts), grouping=by_most)
    method = build_one_shot("mine", model, TRAINING, how)
    known, newcomers = split(by_labels, [1, 5, 6])
    assert method.initialize(by_labels).assignment.tolist() == [0, 1, 2] * 3
    state = method.initialize(known)
    assert method.admit(state, newcomers).assignment[[1, 5, 6]].tolist() == [1, 2, 0]
    for places, told in (([-1, 0, 0], r"int64 \[3\], from -1 on"), ([0.5, 1, 2], "float64"), ([0] * 9, r"int64 \[9\]")):
        odd = Grouping(by_most.group, lambda *_, places=places: np.array(places))
        method = build_one_shot("mine", model, TRAINING, dataclasses.replace(how, grouping=odd))
        with pytest.raises(UserError, match=f"^the grouping places newcomers in {told}.* from 0 on, .*of 3 newcomers$"):
            method.admit(state, newcomers)
