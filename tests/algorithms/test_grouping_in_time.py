"""When a one-shot method groups its clients, and when again: warm-up, periods, signals, absent clients, private
signatures."""

import dataclasses
import functools

import numpy as np
import pytest

import tffcl
from tests.short_runs import TRAINING, cohort_of, models_of, train
from tffcl.algorithms.composed import build_composed
from tffcl.algorithms.each_round_parameters import FedDriftParameters, IFCAParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.feddrift import build_feddrift
from tffcl.algorithms.grouping_in_time import in_time
from tffcl.algorithms.parameters import ComposedParameters, FLHCParameters, PACFLParameters, WhenParameters
from tffcl.algorithms.presets import build_flhc, build_pacfl
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import simulating
from tffcl.errors import UserError
from tffcl.rounds.client_queries import build_signing
from tffcl.runs.checkpoints import pack, unpack
from tffcl.runs.privacy import BudgetSpent, Ledger, PrivacySettings
from tffcl.signatures.partial_weights import build_partial_weights

TURNS = [0, 1, 0, 1, 0, 1]
EVERYONE = np.arange(6)
LAST_LAYER = {"name": "partial_weights", "warm_up_epochs": 1}
DISPLACED = {"name": "anchor_gradient", "form": "displacement", "projection": 0}


@pytest.fixture(scope="module")
def clients(digit_clients):
    return digit_clients([60] * 6, turns=TURNS)


@pytest.fixture(scope="module")
def pacfl(model):
    def build(aggregation=None, **how):
        parameters = PACFLParameters(num_vectors=3, num_clusters=2, **how)
        return build_pacfl(model, TRAINING, parameters, noise_seed=3, aggregation=aggregation)

    return build


def composed(model, signature, **how):
    return build_composed(model, TRAINING, ComposedParameters(signature=signature, num_clusters=2, **how), seed=2)


def with_data_of(population: Population, source) -> Population:
    """The same clients, of which each holds the data of another; nobody says whose have changed."""
    held = dict(zip(population.client_ids.tolist(), source))
    of = {client: population.train(other) for client, other in held.items()}
    return Population(population.client_ids, of, {client: population.test(other) for client, other in held.items()})


def through(method, state, population, numbers, clients=EVERYONE):
    """The state after some rounds, and how often clusters were formed anew."""
    anew = []
    for number in numbers:
        state, metrics = method.next(state, cohort_of(population, clients, number))
        anew.append(metrics.scalars.get("formed_anew"))
    return state, anew


WITHOUT_A_TREE = {
    "k-means": {"grouping": "kmeans"},
    "decomposed": {"grouping": "kmeans", "metric": "decomposed_cosine"},
    "mixture": {"grouping": "gaussian_mixture"},
    "spectral": {"grouping": "spectral"},
}


# One that groups before training, one after a warm-up and one without a tree; the others are slow.
OTHERS = ("displacement after a warm-up", "k-means", "as they join", "decomposed", "spectral")


@pytest.mark.parametrize("kind", ["pacfl", *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)])
def test_grouping_unchanged_clients_again_changes_nothing(tff_worker, model, pacfl, clients, kind):
    """To the last bit, whatever the signature depends on."""
    again = {"regroup_every": 1, "regroup_on": {"signal": "signature", "bound": 1e-3}}
    build, how = {
        "pacfl": (pacfl, {}),
        "as they join": (pacfl, {"when": "as_they_join"}),
        "last layer": (lambda **how: composed(model, LAST_LAYER, **how), {}),
        "displacement after a warm-up": (lambda **how: composed(model, DISPLACED, **how), {"when": 1}),
        **{
            each: (functools.partial(composed, model, {"name": "anchor_gradient"}), grouping)
            for each, grouping in WITHOUT_A_TREE.items()
        },
    }[kind]
    plain, repeated = build(**how), build(**how, **again)
    expected, state = (train(each, clients, ((0, 1, 2, 3), (1, 2), (3, 4, 5))) for each in (plain, repeated))
    np.testing.assert_array_equal(models_of(repeated, state, clients), models_of(plain, expected, clients))
    np.testing.assert_array_equal(repeated.views(state).clusters, plain.views(expected).clusters)
    assert state.flags.formed_in == 2 and not state.flags.flagged_in.any() and not state.flags.moved_in.any()


@pytest.mark.slow
def test_clients_are_grouped_after_rounds_of_fedavg_with_its_model(tff_worker, model, clients):
    """FL+HC's order; the signatures are those of clients that are given that model."""
    method = composed(model, LAST_LAYER, when=2)
    fedavg, cohorts = build_fedavg(model, TRAINING), ((0, 1, 2, 3), (1, 4))
    state, averaged = (train(each, clients, cohorts) for each in (method, fedavg))
    np.testing.assert_array_equal(models_of(method, state, clients), models_of(fedavg, averaged, clients))
    assert method.joined_traffic(None, state).up == 0 and not method.views(state).clusters.any()
    assert method.views(state).notes == ("for 2 rounds one model is trained (when), and this run ended in that time",)
    with pytest.raises(UserError, match="for 2 rounds one model is trained .when."):
        method.exports().server_values(state)
    state, metrics = method.next(state, cohort_of(clients, [0, 1], 3))
    assert metrics.signatures == method.joining * 6
    sign = build_signing(build_partial_weights(model, training=dataclasses.replace(TRAINING, epochs=1), seed=2))
    np.testing.assert_array_equal(state.met.signatures["value"], sign(clients, model=averaged.models[0]))
    assert np.abs(sign(clients) - state.met.signatures["value"]).max() > 1e-3
    untouched = models_of(method, state, clients)[~np.isin(method.views(state).clusters, state.met.clusters([0, 1]))]
    np.testing.assert_array_equal(untouched, np.repeat(averaged.models, len(untouched), axis=0))
    newcomer = Population.from_arrays({9: (clients.train(0).x, clients.train(0).y)})
    admitted = method.admit(state, newcomer)
    assert admitted.met.clusters([9]) == admitted.met.clusters([0])


@pytest.mark.slow
def test_flhc_is_the_composition_of_updates_after_some_rounds(tff_worker, model, clients):
    """To the last bit; of clients whose examples are turned it finds who is."""
    preset = build_flhc(model, TRAINING, FLHCParameters(num_clusters=2, when=2), seed=2)
    parts = composed(model, DISPLACED, metric="euclidean", linkage="complete", when=2)
    first, second = (train(each, clients, ((0, 1, 2, 3), EVERYONE, (1, 2, 4))) for each in (preset, parts))
    np.testing.assert_array_equal(models_of(preset, first, clients), models_of(parts, second, clients))
    assert len(set(zip(TURNS, preset.views(first).clusters.tolist()))) == len(first.met.models) == 2


@pytest.mark.parametrize("signal, bound", [("signature", 5.0), pytest.param("loss", 0.3, marks=pytest.mark.slow)])
def test_clients_whose_data_change_are_grouped_again_when_enough_of_them_tell(
    tff_worker, pacfl, clients, signal, bound
):
    method = pacfl(regroup_on={"signal": signal, "bound": bound, "share": 0.3})
    state, anew = through(method, method.initialize(clients), clients, range(5, 9))
    assert not any(anew)
    after = with_data_of(clients, [1, 0, 2, 3, 4, 5])  # two of six are a third
    before = state.met
    state, metrics = method.next(state, cohort_of(after, [0, 2], 9))
    assert dict(metrics.scalars) == {"change_flags": 1, "formed_anew": 0}
    state, metrics = method.next(state, cohort_of(after, [1], 10))
    assert dict(metrics.scalars) == {"change_flags": 2, "formed_anew": 1}
    assert metrics.signatures.up == 4 + 6 * method.joining.up  # a flag, and everybody's signature
    np.testing.assert_array_equal(state.met.assignment, before.assignment[[1, 0, 2, 3, 4, 5]])
    assert np.isnan(state.losses).all()  # those of before are of other models
    views = method.views(state)
    assert views.moves.moved_in.tolist() == [10, 10, 0, 0, 0, 0] and views.moves.flagged_in.tolist()[:2] == [9, 10]
    state, anew = through(method, state, after, (11, 12))
    assert not any(anew) and not state.flags.raised.any()


@pytest.mark.slow
def test_a_client_sees_its_data_change_whoever_is_in_the_cohort(tff_worker, model, clients):
    # Decomposed cosines are with directions, which must be those of all: by its own alone it is 0.91 apart, not 1.17.
    method = composed(model, DISPLACED, grouping="kmeans", metric="decomposed_cosine", regroup_on={"bound": 1.0})
    state, after = method.initialize(clients), with_data_of(clients, [1, 0, 2, 3, 4, 5])
    for cohort in ([0], [0, 2], EVERYONE):
        flagged, _ = method._flagged(state, cohort_of(after, cohort, 2))
        assert flagged.flags.raised[0] == 1


@pytest.mark.slow
def test_a_loss_is_held_against_the_least_that_was_told(tff_worker, pacfl, clients):
    """Or many small rises would go unseen."""
    method = pacfl(regroup_on={"signal": "loss", "bound": 100.0})
    state, _ = method.next(method.initialize(clients), cohort_of(clients, EVERYONE, 1))
    state = dataclasses.replace(state, losses=np.array([0, 0, 9, 9, np.nan, np.nan], np.float32))
    after, _ = method.next(state, cohort_of(clients, [0, 2, 4], 2))
    assert after.losses[:2].tolist() == [0, 0] and after.losses[3] == 9 and np.isnan(after.losses[5])
    assert 0 < after.losses[2] < 9 and after.losses[4] > 0


def test_cluster_models_go_on_and_new_ones_start_from_their_members(tff_worker, model, digits):
    x, y = digits

    def holding(pairs):
        rows = [np.flatnonzero(np.isin(y, (2 * pair, 2 * pair + 1)))[:40] for pair in pairs]
        return Population.from_arrays({client: (x[own], y[own]) for client, own in enumerate(rows)})

    first, changed = holding([0, 1, 0, 1, 2, 2]), holding([0, 3, 2, 1, 2, 2])
    method = build_composed(
        model, TRAINING, ComposedParameters(signature="label_histogram", threshold=0.5, regroup_every=2)
    )
    known = first.restricted(range(4))
    state, _ = through(method, method.initialize(known), known, (1,), [0, 1])
    state, before = method.admit(state, first.restricted([4, 5])), state.met
    assert state.met.assignment.tolist() == [0, 1, 0, 1, 2, 2]
    state, _ = through(method, state, changed, (2,), [4])
    trained = models_of(method, state, changed)
    # Now 2 is as 4 and 5 are, whose cluster goes on; and of 1 and 3 each is alone.
    state, metrics = method.next(state, cohort_of(changed, [5], 3))
    assert metrics.scalars["formed_anew"] == 1
    groups = state.met.assignment
    assert groups[2] == groups[4] == groups[5] and len(set(groups.tolist())) == 4 and groups[0] == 0
    models = models_of(method, state, changed)
    np.testing.assert_array_equal(models[[0, 1, 3]], trained[[0, 1, 1]])
    np.testing.assert_array_equal(models[1], before.models[1])
    moves = method.views(state).moves
    assert np.flatnonzero(moves.moved_in).tolist() in ([1, 2], [2, 3]) and moves.flagged_in is None


@pytest.mark.slow
def test_who_has_left_is_grouped_by_what_it_sent_and_comes_back(tff_worker, pacfl, clients):
    method, there = pacfl(regroup_every=1), clients.restricted([0, 1, 2, 4])
    state, _ = through(method, method.initialize(clients), clients, (1,))
    whole, _ = through(method, state, clients, (2,), [0, 1])
    state, metrics = method.next(state, cohort_of(there, [0, 1], 2))
    assert metrics.signatures == method.joining * 4
    np.testing.assert_array_equal(models_of(method, state, clients), models_of(method, whole, clients))
    np.testing.assert_array_equal(state.met.assignment, whole.met.assignment)
    back, _ = through(method, state, clients, (3,))
    assert not back.flags.moved_in.any()


@pytest.mark.slow
def test_who_has_left_counts_nowhere_for_a_signal(tff_worker, pacfl, clients):
    method = pacfl(regroup_on={"signal": "signature", "bound": 5.0, "share": 0.5})
    state, after = method.initialize(clients), with_data_of(clients, [1, 0, 3, 2, 4, 5])
    state, _ = method.next(state, cohort_of(clients, EVERYONE, 1))
    state, metrics = method.next(state, cohort_of(after, [2, 3], 2))
    assert dict(metrics.scalars) == {"change_flags": 2, "formed_anew": 0}
    _, metrics = method.next(state, cohort_of(after.restricted([0, 1, 4, 5]), [0], 3))  # who raised flags has left
    assert dict(metrics.scalars) == {"change_flags": 1, "formed_anew": 0}
    _, metrics = method.next(state, cohort_of(after.restricted([0, 2, 3, 4]), [0], 3))
    assert dict(metrics.scalars) == {"change_flags": 3, "formed_anew": 1}
    _, metrics = method.next(state, cohort_of(after.restricted([2, 3, 4]), [4], 3))
    assert dict(metrics.scalars) == {"change_flags": 2, "formed_anew": 1}  # two of three


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"when": 1}, {"regroup_on": {"signal": "loss", "bound": 0.1}, "when": "as_they_join"}])
def test_a_state_goes_on_from_its_arrays(tff_worker, pacfl, clients, how):
    method = pacfl(regroup_every=2, **how)
    state = method.initialize(clients)
    for number in range(1, 5):
        arrays, _ = pack({"state": state})
        again = unpack(arrays, {"state": method.state_class})["state"]
        (state, _), (resumed, _) = (through(method, each, clients, (number,)) for each in (state, again))
        np.testing.assert_array_equal(models_of(method, resumed, clients), models_of(method, state, clients))


@pytest.mark.parametrize("when", ["before_training", 1])
def test_clients_are_grouped_again_after_every_so_many_rounds(tff_worker, model, clients, when):
    """After rounds 3 and 6, which is before rounds 4 and 7 are computed; a warm-up counts as rounds."""
    method = composed(model, "label_histogram", when=when, regroup_every=3)
    _, anew = through(method, method.initialize(clients), clients, range(1, 9), [0])
    assert anew == [0, 0, 0, 1, 0, 0, 1, 0]


@pytest.mark.slow
def test_each_private_signature_is_a_release_of_its_own_with_other_noise(tff_worker, pacfl, clients):
    method, noised = pacfl(regroup_every=1, signature_noise_multiplier=4.0), []
    ledger = Ledger(PrivacySettings(delta=1e-3), 6)
    with simulating(ledger=ledger):
        state = method.initialize(clients)
        noised.append(state.met.signatures["basis"])
        once = ledger.epsilon
        for number in (1, 2, 3):
            with np.errstate(all="ignore"):
                state, _ = method.next(state, cohort_of(clients, [], number, rate=0.5))
            noised.append(state.met.signatures["basis"])
    np.testing.assert_array_equal(noised[0], noised[1])  # round 1 groups nobody again
    assert np.abs(noised[1] - noised[2]).max() > 0.1 and np.abs(noised[2] - noised[3]).max() > 0.1
    alone = Ledger(PrivacySettings(delta=1e-3, epsilon=once * 1.01), 6)
    with simulating(ledger=alone), pytest.raises(BudgetSpent, match="the signatures would make it"):
        through(method, method.initialize(clients), clients, (1, 2), [])
    assert ledger.epsilon > 1.5 * once


@pytest.mark.parametrize(
    "values, message",
    [
        ({"when": 0}, "when is 0"),
        ({"when": "later"}, "unknown when 'later'"),
        ({"regroup_every": 0}, "regroup_every is 0; it must be a whole number from 1"),
        ({"regroup_on": {"signal": "los"}}, "unknown regroup_on.signal 'los'"),
        ({"regroup_on": {"sinal": "loss"}}, "unknown key in .regroup_on. 'sinal'"),
        ({"regroup_on": {"signal": "loss", "share": 2}}, "regroup_on.share is 2; it must be a number above 0"),
    ],
)
def test_times_that_there_are_not(values, message):
    with pytest.raises(UserError, match=message):
        ComposedParameters(**values)


def test_a_method_that_forms_no_groups_of_signatures_has_no_signal():
    with pytest.raises(UserError, match="unknown parameter of IFCAParameters 'regroup_on'"):
        IFCAParameters(regroup_on={"signal": "loss"})


@pytest.mark.slow
def test_noised_signatures_tell_no_change(pacfl):
    with pytest.raises(UserError, match="signatures have noise: two of a client differ by it"):
        pacfl(signature_noise_multiplier=1.0, regroup_on={"signal": "signature"})


def test_control_variates_are_not_grouped_after_training(model):
    """Which is known before anything is built; of a method of one's own, when it is."""
    how = {"signature": "label_histogram", "num_clusters": 2, "training": "scaffold"}
    joined = build_composed(model, TRAINING, ComposedParameters(when="as_they_join", **how))
    alone = build_composed(model, TRAINING, ComposedParameters(**how))
    for when in ({"regroup_every": 2}, {"when": 2}, {"regroup_on": {"signal": "loss"}, "when": "as_they_join"}):
        with pytest.raises(UserError, match="keeps sums over the members of each cluster"):
            ComposedParameters(**how, **when)
        with pytest.raises(UserError, match="keeps sums over the members of each cluster"):
            in_time(alone, WhenParameters(**when))
    assert joined.name == alone.name


def test_where_too_few_are_there_to_be_grouped_the_grouping_waits(tff_worker, pacfl, clients):
    method = pacfl(regroup_every=1)
    state, _ = method.next(method.initialize(clients), cohort_of(clients, EVERYONE, 1))
    alone = clients.restricted([0])
    state, metrics = method.next(state, cohort_of(alone, [0], 2))
    assert metrics.scalars["formed_anew"] == 0
    _, metrics = method.next(state, cohort_of(clients, EVERYONE, 3))
    assert metrics.scalars["formed_anew"] == 1


@pytest.mark.slow
def test_after_a_sudden_swap_who_groups_again_recovers_and_pacfl_without_does_not(
    tff_worker, model, digit_clients, tmp_path
):
    """Of eight clients, half upright and half upside down, four hold the others' examples from round 9 on: FedDrift,
    whose clients have merged to both groups by then, and PACFL that groups again on a signal come back."""
    before = digit_clients([120] * 8, turns=[0, 2] * 4)
    after, local = with_data_of(before, [1, 0, 3, 2, 4, 5, 6, 7]), LocalTraining(3, batch_size=10, learning_rate=0.1)
    groups = {"num_vectors": 3, "num_clusters": 2}
    methods = {
        "alone": build_pacfl(model, local, PACFLParameters(**groups)),
        "signature": build_pacfl(model, local, PACFLParameters(regroup_on={"bound": 5.0, "share": 0.3}, **groups)),
        "loss": build_pacfl(model, local, PACFLParameters(regroup_on={"signal": "loss", "bound": 0.5}, **groups)),
        "feddrift": build_feddrift(model, local, FedDriftParameters(start="each")),
    }
    ended = {}
    for name, method in methods.items():
        run = tffcl.train(
            method, before, rounds=20, clients_per_round=6, later={9: after}, seed=4, evaluate_every=20,
            out=tmp_path / name, show_progress=False,
        )  # fmt: skip
        ended[name] = run.summary["accuracy"]["cluster"]["mean"], run.summary["clusters"]["count"]
    print(ended)
    alone = ended.pop("alone")[0]
    assert all(accuracy > alone + 0.05 for accuracy, _ in ended.values())
    assert all(count == 2 for _, count in ended.values())


WARM_LAYERS = {"name": "lg_fedavg", "fedavg_rounds": 1, "local_layers": 1}


@pytest.mark.slow
def test_clusters_after_rounds_of_fedavg_start_from_its_local_layers_too(tff_worker, model, clients):
    method = composed(model, "centres", when=2, training=WARM_LAYERS)
    state = train(method, clients, ((0, 1, 2, 3), (0, 1)))
    before = models_of(method, state, clients)
    state, _ = method.next(state, cohort_of(clients, [0], 3))
    away = np.flatnonzero(method.views(state).clusters != method.views(state).clusters[0])
    assert len(away)
    np.testing.assert_array_equal(models_of(method, state, clients)[away], before[away])


@pytest.mark.slow
def test_clusters_that_go_on_from_none_start_from_their_members_local_layers_too(tff_worker, model, digit_clients):
    """Of four alike two come to be of a third kind."""
    alike, changed = (digit_clients([60] * 6, turns=turns) for turns in ([0, 0, 0, 0, 1, 1], [0, 0, 2, 2, 1, 1]))
    how = ComposedParameters(signature="centres", threshold=0.45, regroup_every=2, training=WARM_LAYERS)
    method = build_composed(model, TRAINING, how, seed=2)
    state = train(method, alike, ((0, 1, 5), (0, 4)))
    before = models_of(method, state, alike)
    state, metrics = method.next(state, cohort_of(changed, [0], 3))
    assert metrics.scalars["formed_anew"] == 1 and method.views(state).clusters.tolist() == [0, 0, 2, 2, 1, 1]
    np.testing.assert_allclose(models_of(method, state, changed)[[2, 3]], before[[2, 3]], rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("signature", ["anchor_gradient", LAST_LAYER, "outputs"])
def test_clients_sign_with_the_whole_model_where_a_part_of_it_is_shared(tff_worker, model, clients, signature):
    """With the shared part as it was learned, and the local layers that all start from."""
    method = composed(model, signature, when=1, training="lg_fedavg")
    state = train(method, clients, ((0, 1, 2, 3),))
    start = models_of(method, state, clients)[4]
    state, _ = method.next(state, cohort_of(clients, [0, 1], 2))
    np.testing.assert_array_equal(state.met.signed_with, start)


@pytest.mark.slow
@pytest.mark.parametrize("training", ["sgd", "lg_fedavg"])
def test_who_comes_after_the_rounds_of_one_model_starts_from_it(tff_worker, model, digit_clients, training):
    """Who was away when clients were grouped, and the clusters of newcomers."""
    clients = digit_clients([60] * 6, turns=[0, 1, 0, 1, 0, 2])
    few, late = clients.restricted(EVERYONE[:5]), clients.restricted([5])
    how = ComposedParameters(signature="centres", threshold=0.45, when=2, training=training)
    method = build_composed(model, TRAINING, how, seed=2)
    state = train(method, few, ((0, 1, 2, 3), (0, 2)))
    (warm,) = method.models_for(state, [4])[0]
    state, _ = method.next(state, cohort_of(few.restricted([0, 1, 2, 3]), [0, 1], 3))
    np.testing.assert_array_equal(models_of(method, state, few)[4], warm)
    admitted = method.admit(state, late)
    assert method.views(admitted).clusters[5] not in method.views(admitted).clusters[:4]
    np.testing.assert_array_equal(models_of(method, admitted, clients)[5], warm)
    back, _ = method.next(state, cohort_of(few, [0], 4))
    np.testing.assert_array_equal(models_of(method, back, few)[4], warm)


@pytest.mark.slow
def test_who_joined_while_too_few_could_tell_is_grouped_by_itself_when_it_has_left(tff_worker, model, clients):
    # Three clients cannot tell whether they differ, six can.
    method = build_composed(model, TRAINING, ComposedParameters(signature="label_histogram", regroup_every=1))
    state = method.initialize(clients.restricted([0, 1, 2]))
    state = method.admit(state, clients.restricted([3, 4, 5]))
    state, _ = method.next(state, cohort_of(clients, [0], 1))
    state, metrics = method.next(state, cohort_of(clients.restricted([1, 2, 3, 4, 5]), [1], 2))
    assert metrics.scalars["formed_anew"] and len(state.met.examples) == 6
