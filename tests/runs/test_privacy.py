"""The privacy ledger: against dp-accounting called by hand, budgets that end runs, and what is said of it."""

import dataclasses
import functools
import json
import pickle
from unittest import mock

import dp_accounting
import numpy as np
import pytest
import tensorflow_federated as tff
import tomli_w
from dp_accounting import pld, rdp

import tffcl
from tests.lab.tasks.own.my_methods import Histograms
from tests.oracles.privacy import epsilon_of_gaussian
from tests.runs.finished_runs import rows_of
from tests.short_runs import TRAINING
from tffcl.algorithms.cfl import build_cfl
from tffcl.algorithms.clove import build_clove
from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.composed import build_composed
from tffcl.algorithms.each_round_parameters import CLoVEParameters, IFCAParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.flux import build_flux
from tffcl.algorithms.ifca import build_ifca
from tffcl.algorithms.parameters import ComposedParameters, PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.clients import cohort
from tffcl.clients.cohort import Cohort
from tffcl.clients.simulation_context import simulating
from tffcl.errors import UserError
from tffcl.export.phases import Releases
from tffcl.rounds import privacy_releases as releases
from tffcl.rounds.privacy_releases import Release
from tffcl.runs import privacy as ledgers
from tffcl.runs.loop import accounted
from tffcl.runs.privacy import BudgetSpent, Ledger, PrivacySettings, privacy_notes
from tffcl.runs.run import Interrupted
from tffcl.runs.run_directory import RunDirectory

DELTA = 1e-3
SETTINGS = PrivacySettings(delta=DELTA)


def ledger_of(releases, **settings):
    ledger = Ledger(PrivacySettings(delta=DELTA, **settings), 100)
    for release in releases:
        ledger.spend(release)
    return ledger


@pytest.mark.parametrize(
    "noise, expected", [(4, 0.93), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 7.10), (2, 2.30)))]
)
def test_poisson_cohorts_as_dp_accounting_has_them(noise, expected):
    ledger = ledger_of(200 * [Release("a round", noise, 10, 100, 0.1)])
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(noise))
    accountant = pld.PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(event, 200))
    assert ledger.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)
    assert ledger.epsilon == pytest.approx(expected, abs=0.005)
    assert ledger.summary()["neighbours"] == "add or remove a client"


@pytest.mark.slow
@pytest.mark.parametrize("noise", [2, 8])
def test_fixed_cohorts_count_half_of_the_noise(noise):
    """Replacing a client changes a sum by up to twice the clip."""
    ledger = ledger_of(50 * [Release("a round", noise, 10, 100)])
    event = dp_accounting.SampledWithoutReplacementDpEvent(100, 10, dp_accounting.GaussianDpEvent(noise / 2))
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE).compose(
        event, 50
    )
    assert ledger.epsilon == pytest.approx(accountant.get_epsilon(DELTA))
    assert ledger.summary()["neighbours"] == "replace a client"


def test_a_poisson_cohort_beside_fixed_ones_counts_as_everybody():
    """Its size is random, and replacing a client in it is not what its amplification is about."""
    fixed, poisson, all_of_them = Release("a", 2, 10, 100), Release("a", 2, 10, 100, 0.1), Release("a", 2, 100, 100)
    least, both, bound = (ledger_of([fixed, *3 * [each]]).epsilon for each in (fixed, poisson, all_of_them))
    assert least < both == pytest.approx(bound)


@pytest.mark.slow
def test_sampling_without_replacement_never_costs_more_than_it_would_without_amplification():
    """At little noise the theorem's bound is the larger one."""
    ledger = ledger_of([Release("a round", 0.2, 10, 100)])
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    assert ledger.epsilon < 0.95 * accountant.compose(dp_accounting.GaussianDpEvent(0.1)).get_epsilon(DELTA)
    assert ledger.epsilon == pytest.approx(epsilon_of_gaussian(10.0, DELTA))


@pytest.mark.parametrize(
    "noise", [*(pytest.param(noise, marks=pytest.mark.slow) for noise in (0.03, 0.1, 0.199, 0.201, 1)), 0.2, 3]
)
def test_everyone_taking_part_is_one_gaussian_mechanism_exactly(noise):
    """Also where there is little noise: ε has no jump."""
    everyone = Release("a round", noise, 100, 100), Release("a round", noise, 100, 100, 1.0)  # also drawn at rate 1
    ledger = ledger_of([*everyone, Release("the signatures", noise, 100, 100, once=True)])
    assert ledger.epsilon == pytest.approx(epsilon_of_gaussian(np.sqrt(3) / noise, DELTA), rel=1e-6)


def test_what_a_client_tells_under_its_name_is_its_data_that_are_left_out_and_replacing_them_costs_more():
    """Of a client whose row is there it shows what they are; zeros are 1 away at most, other data 2."""
    told = ledger_of([Release("the signatures", 1.0, 5, 5, once=True)]).summary()
    assert told["neighbours"] == "a client's data left out, as if zeros"
    assert told["epsilon"] == pytest.approx(epsilon_of_gaussian(1.0, DELTA), rel=1e-6)
    assert told["replacing_epsilon"] == pytest.approx(epsilon_of_gaussian(2.0, DELTA), rel=1e-6)
    said = (
        "privacy: epsilon 3.139 at delta 0.001 (a client's data left out, as if zeros; 7.581 with other "
        "data in their place)"
    )
    assert privacy_notes(told) == [said]
    mixed = [Release("the signatures", 3.0, 100, 100, once=True), *20 * [Release("a round", 2.0, 10, 100, 0.1)]]
    several = ledger_of(mixed).summary()
    all_of_everybody = 2 * np.sqrt(1 / 9 + 20 / 4)
    assert 2 * several["epsilon"] < several["replacing_epsilon"] < epsilon_of_gaussian(all_of_everybody, DELTA) / 3
    rounds, unnoised = Release("a round", 1.0, 10, 100, 0.1), Release("the signatures", 0, 100, 100, once=True)
    for others in ([rounds], [rounds, unnoised], [*mixed, Release("a round", 1.0, 10, 100)]):
        assert "replacing_epsilon" not in ledger_of(others).summary()


@pytest.mark.slow
def test_an_upper_bound_in_two_parts_shares_delta_between_them(monkeypatch):
    """A round that hardly anybody is drawn for adds next to nothing to signatures, whose part has half of delta; and
    two steps of (ε, δ') are together 2 ε at (1 + exp ε) δ'."""
    told = ledger_of([Release("the signatures", 1.0, 1000, 1000, once=True), Release("a round", 1.0, 1, 1000, 0.001)])
    least = epsilon_of_gaussian(2.0, DELTA / 2)
    assert least <= told.summary()["replacing_epsilon"] < 1.1 * least
    asked = []
    monkeypatch.setattr(ledgers, "epsilon_of", lambda counts, delta: asked.append(delta) or 1.0)
    assert ledgers._two_steps({}, DELTA) == 2 and DELTA / 2 < (1 + np.e) * asked[-1] <= DELTA


def test_beside_open_rounds_of_drawn_cohorts_signatures_cost_what_they_cost_alone():
    """The neighbours that are told are those of the epsilon that stands beside them."""
    signatures = Release("the signatures", 1.0, 5, 5, once=True)
    alone, told = ledger_of([signatures]).summary(), ledger_of([signatures, Release("a round", 0, 2, 5)]).summary()
    assert told["epsilon"] is None and told["noised_epsilon"] == alone["epsilon"]
    assert all(told[key] == alone[key] for key in ("neighbours", "replacing_epsilon"))
    assert "7.581 with other data in their place" in privacy_notes(told)[0]


@pytest.mark.slow
def test_little_noise_of_cohorts_that_are_drawn_makes_no_jump():
    less, more = (ledger_of(10 * [Release("a round", noise, 10, 100, 0.1)]).epsilon for noise in (0.1999, 0.2001))
    assert 1 < less / more < 1.01


def test_a_release_without_noise_costs_everything_and_no_budget_allows_it():
    ledger = ledger_of([Release("a round", 1, 10, 100, 0.1), Release("the signatures", 0, 100, 100)])
    assert ledger.epsilon == float("inf") and not ledger.is_private
    told, rounds = ledger.summary(), ledger_of([Release("a round", 1, 10, 100, 0.1)]).epsilon
    assert told["epsilon"] is None and told["open_releases"] == 1 and told["noised_epsilon"] == rounds
    assert privacy_notes(told)[0].startswith("not private: 1 release came without noise")
    assert ledger_of([Release("the signatures", 0, 100, 100)]).summary() is None and privacy_notes(None) == []
    with pytest.raises(UserError, match="privacy.epsilon is 5, and no noise is counted on the signatures"):
        ledger_of([Release("the signatures", 0, 100, 100)], epsilon=5)


@pytest.mark.slow
def test_a_budget_is_never_overspent_and_entries_go_on():
    release, ledger = Release("a round", 1, 10, 100, 0.1), ledger_of([], epsilon=2)
    with pytest.raises(BudgetSpent, match="privacy.epsilon is 2; 1.9.* is spent, and a round would make it 2.0"):
        for _ in range(100):
            ledger.spend(release)
    spent = ledger.epsilon
    assert 1.9 < spent <= 2 and ledger_of(int(ledger.as_array()[0, 4]) * [release]).epsilon == spent
    more = Ledger(PrivacySettings(epsilon=3, delta=DELTA), 100, ledger.as_array())
    assert more.epsilon == spent
    more.spend(release)
    assert more.epsilon > 2


def test_poisson_cohorts_have_the_expected_size_and_are_independent():
    ids = np.arange(50, dtype=np.int32)
    drawn = [cohort.sample_cohort(ids, 10, 0, number, "poisson") for number in range(1, 2001)]
    counts = np.bincount(np.concatenate(drawn), minlength=50)
    assert abs(counts - 400).max() < 5 * np.sqrt(2000 * 0.2 * 0.8)
    assert np.var([len(each) for each in drawn]) == pytest.approx(50 * 0.2 * 0.8, rel=0.15)
    needed = cohort.needs_local_test(lambda _: ids, 10, 0, 1, 5, 5, "poisson")
    assert len(needed) == len(drawn[0])


@functools.cache
def private_mean(**options):
    """The same factory for the same options, so that rounds with it are traced once; of much noise, whose losses are
    accounted for in less time."""
    return tffcl.aggregation("dp", **{"noise_multiplier": 4.0, "seed": 1, **options})


def private(model, clusters, **options):
    aggregation = private_mean(**options)
    if clusters == 1:
        return build_fedavg(model, TRAINING, aggregation=aggregation)
    return build_ifca(model, TRAINING, IFCAParameters(num_clusters=clusters), seed=0, aggregation=aggregation)


@pytest.mark.parametrize("clusters", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_round_is_one_release_whatever_the_number_of_clusters(model, population, tmp_path, clusters):
    """By the files that a run of Poisson cohorts writes."""
    rate, method = 3 / len(population), private(model, clusters)
    result = tffcl.train(
        method, population, rounds=2, clients_per_round=3, out=tmp_path / "run", sampling="poisson", privacy=SETTINGS,
        show_progress=False,
    )  # fmt: skip
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(4.0))
    by_hand = [pld.PLDAccountant().compose(event, count).get_epsilon(DELTA) for count in (1, 2)]
    np.testing.assert_allclose(
        [float(row["epsilon"]) for row in rows_of(result.out / "rounds.csv")], by_hand, rtol=1e-3
    )
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["privacy"]["epsilon"] == pytest.approx(by_hand[1], rel=1e-3) and told["privacy"]["budget"] is None
    assert told["privacy"]["releases"] == 2 and told["privacy"]["neighbours"] == "add or remove a client"
    assert any(note.startswith("privacy: epsilon") for note in result.summary["notes"])


def test_all_clusters_of_a_round_are_one_release_together(model, population):
    """What a round of four releases is what that of one does: each client is in one of them."""
    of_one, of_four = (private(model, clusters) for clusters in (1, 4))
    ledgers_of = [ledger_of([]) for _ in range(2)]
    for ledger, uploads in zip(ledgers_of, (of_one.engine.round_for(1).uploads, of_four._round.uploads)):
        with simulating(ledger=ledger):
            releases.release_round(uploads, Cohort(population, population.client_ids[:3], (1, 1)))
    assert ledgers_of[0].epsilon == ledgers_of[1].epsilon == ledger_of([Release("a round", 4.0, 3, 5)]).epsilon


def test_all_uploads_of_a_round_are_one_release_together(population):
    """1/16 + 1/9 is 1/2.4². Beside one in the open none is private; noise repeats where all of it does."""
    factories = [tffcl.aggregation("dp", noise_multiplier=4.0, seed=1), tffcl.aggregation("dp", noise_multiplier=3.0)]
    summed, plain = tffcl.aggregation("secure_sum"), tffcl.aggregation("mean")
    cohort = Cohort(population, population.client_ids[:3], (1, 1), rate=0.5, seen=True)

    def told(*uploads):
        with mock.patch.object(releases, "current") as current:
            releases.release_round(dict(zip("ab", uploads)), cohort)
        return current().release.call_args.args

    round_of = functools.partial(Release, clients=3, population=5, rate=0.5)
    both, seen = told(*factories)
    assert both == round_of("a round", both.noise_multiplier) and both.noise_multiplier == pytest.approx(2.4)
    assert dataclasses.replace(seen, what="a round", once=False, rate=0.5) == both and seen.once and seen.rate is None
    assert told(factories[0], factories[0])[0].repeats and not told(*factories[::-1])[0].repeats
    assert told(factories[0], plain) == (round_of("the upload 'b'", 0.0),)
    assert told(summed, summed) == (round_of("the upload 'a'", 0.0, hidden=True),)
    assert told(summed, plain) == (round_of("the upload 'a'", 0.0),)


@pytest.mark.slow
def test_a_round_of_a_fixed_cohort_is_one_release(model, population, tmp_path):
    fixed = tffcl.train(
        private(model, 4), population, rounds=2, clients_per_round=3, out=tmp_path, privacy=SETTINGS,
        show_progress=False,
    )  # fmt: skip
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    halved = dp_accounting.GaussianDpEvent(2.0)
    drawn = dp_accounting.SampledWithoutReplacementDpEvent(len(population), 3, halved)
    amplified = rdp.RdpAccountant(neighboring_relation=relation).compose(drawn, 2).get_epsilon(DELTA)
    assert fixed.summary["privacy"]["epsilon"] == pytest.approx(
        min(amplified, epsilon_of_gaussian(np.sqrt(2) * 2 / 4, DELTA))
    )


def test_a_budget_ends_a_run_which_goes_on_with_a_larger_one(model, population, tmp_path, capsys):
    """Stopped and resumed it is the run that had the larger budget from the beginning; interrupted where the budget
    ends, and resumed, the one that came there at once."""

    def run(out, epsilon, **more):
        return tffcl.train(
            private(model, 1),
            population,
            rounds=4,
            clients_per_round=3,
            out=tmp_path / out,
            privacy=PrivacySettings(epsilon=epsilon, delta=DELTA),
            **more,
        )

    costs = [ledger_of(count * [Release("a round", 4.0, 3, len(population))]).epsilon for count in range(1, 5)]
    stopped = run("run", costs[1] * 1.01)
    assert stopped.summary["rounds"] == 2 and stopped.summary["privacy"]["epsilon"] == pytest.approx(costs[1])
    assert "stopped after round 2: privacy.epsilon is" in capsys.readouterr().err
    (first, last), mean = rows_of(tmp_path / "run" / "rounds.csv"), stopped.summary["accuracy"]["cluster"]["mean"]
    assert not first["cluster_accuracy"] and float(last["cluster_accuracy"]) == pytest.approx(mean)
    assert run("cut", costs[1] * 1.01, until=2) is None and not (tmp_path / "cut" / "summary.json").exists()
    finished = run("cut", costs[1] * 1.01, resume=True)
    assert all(finished.summary[name] == stopped.summary[name] for name in ("privacy", "notes", "accuracy", "traffic"))
    assert finished.summary["privacy"]["stopped"].startswith("stopped after round 2")
    np.testing.assert_array_equal(finished.model_of(0), stopped.model_of(0))
    capsys.readouterr()
    again = run("run", costs[1] * 1.02, resume=True)
    assert again.summary["rounds"] == 2 and "stopped after round 2: privacy.epsilon is" in capsys.readouterr().err
    with pytest.raises(UserError, match="privacy.epsilon is .* is spent, and a round would make it"):
        run("none", costs[0] * 0.99)
    resumed, whole = run("run", costs[3] * 1.01, resume=True), run("whole", costs[3] * 1.01)
    assert resumed.summary["rounds"] == 4
    assert resumed.summary["privacy"] == whole.summary["privacy"]
    np.testing.assert_array_equal(resumed.model_of(0), whole.model_of(0))


def test_what_else_ends_a_run_is_not_told_of_its_privacy_and_a_large_delta_is_warned_of(
    model, population, tmp_path, capsys
):
    class Enough(tffcl.Callback):
        def after_round(self, run):
            return "that will do"

    summary = tffcl.train(
        private(model, 1), population, rounds=2, clients_per_round=3, out=tmp_path / "run", callbacks=[Enough()],
        privacy=PrivacySettings(epsilon=1e6, delta=1 / len(population)), show_progress=False,
    ).summary  # fmt: skip
    assert summary["stopped"] == "stopped after round 1: that will do" and "stopped" not in summary["privacy"]
    assert f"privacy.delta is 0.2; with {len(population)} clients it should be below" in capsys.readouterr().err


def test_clients_in_a_run_that_the_budget_ended_have_their_local_accuracy(model, population, tmp_path):
    """Every client that trained counts, also who was planned to train again before the next evaluation."""
    cost = ledger_of(3 * [Release("a round", 4.0, 3, len(population))]).epsilon
    result = tffcl.train(
        private(model, 1),
        population,
        rounds=8,
        clients_per_round=3,
        evaluate_every=8,
        out=tmp_path / "run",
        privacy=PrivacySettings(epsilon=cost * 1.01, delta=DELTA),
        show_progress=False,
    )
    assert result.summary["rounds"] == 3
    drawn = [cohort.sample_cohort(population.client_ids, 3, 0, number) for number in (1, 2, 3)]
    trained = len(np.unique(np.concatenate(drawn)))
    assert result.summary["accuracy"]["local"]["share"] == pytest.approx(trained / len(population))


def test_what_each_client_tells_once_counts_once_for_each_thing():
    told = [Release(what, 3.0, 5, 100, once=True) for what in ("the signatures", "the codes", "the signatures")]
    accountant = pld.PLDAccountant().compose(dp_accounting.GaussianDpEvent(3 / np.sqrt(2)))
    assert ledger_of(told).epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)


@pytest.mark.slow
def test_a_round_in_which_clients_sign_is_not_cheaper_for_being_drawn(tff_worker, model, digit_clients):
    """PACFL as its clients join: who signs is seen to take part, once."""
    clients = digit_clients([40] * 8)
    how = PACFLParameters(num_vectors=3, num_clusters=1, when="as_they_join", signature_noise_multiplier=5.0)
    method = build_pacfl(model, TRAINING, how, aggregation=private_mean())
    ledger, state = ledger_of([]), method.initialize(clients)
    with simulating(ledger=ledger):
        for number, drawn in enumerate([(0, 1, 2), (3, 4), (1, 2)], 1):
            state, _ = method.next(state, Cohort(clients, np.array(drawn), (7, number), rate=0.4))
    round_of = dp_accounting.PoissonSampledDpEvent(0.4, dp_accounting.GaussianDpEvent(4.0))
    seen = dp_accounting.GaussianDpEvent
    accountant = pld.PLDAccountant().compose(seen(5.0)).compose(seen(4.0)).compose(round_of, 3)
    assert ledger.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)


def test_what_is_not_private_meets_no_budget(model, population, tmp_path):
    budget = PrivacySettings(epsilon=5.0)
    foreign = tff.learning.dp_aggregator(0.5, 100.0)  # whose noise no ledger knows
    for aggregation in (None, tffcl.aggregation("dp", noise_multiplier=0), foreign):
        method = build_fedavg(model, TRAINING, aggregation=aggregation)
        with pytest.raises(UserError, match="privacy.epsilon is 5, and no noise is counted on the upload 'update'; an"):
            tffcl.train(
                method,
                population,
                rounds=1,
                clients_per_round=2,
                out=tmp_path / "run",
                privacy=budget,
                show_progress=False,
                overwrite=True,
            )


def test_what_a_later_round_tells_without_noise_is_refused_before_the_first(model, population):
    private = {"aggregation": tffcl.aggregation("dp", noise_multiplier=2.0)}
    flux = build_flux(model, TRAINING, **private)
    pacfl = build_pacfl(model, TRAINING, PACFLParameters(num_clusters=2, when=3), **private)
    with simulating(ledger=ledger_of([], epsilon=5.0)):
        for method, what in ((flux, "the descriptors"), (pacfl, "the signatures")):
            refused = f"no noise is counted on {what}; signature_noise_multiplier would add some in methods that have"
            with pytest.raises(UserError, match=refused):
                method.initialize(population)


def test_losses_that_clients_tell_from_the_second_round_on_are_refused_before_the_first(model, population):
    signal = {"signal": "loss", "bound": 1.0, "share": 0.5}
    how = PACFLParameters(num_clusters=2, signature_noise_multiplier=2.0, regroup_on=signal)
    pacfl = build_pacfl(model, TRAINING, how, aggregation=tffcl.aggregation("dp", noise_multiplier=2.0))
    refused = "no noise is counted on the losses by which .* have changed; regroup_every needs none of them"
    with simulating(ledger=ledger_of([], epsilon=5.0)), pytest.raises(UserError, match=refused):
        pacfl.initialize(population)


@pytest.mark.slow
def test_delta_is_of_all_clients_newcomers_included(model, population, tmp_path, capsys):
    """One of the first few alone would allow to give a later client away."""
    result = tffcl.train(
        private(model, 1),
        population.restricted(population.client_ids[:2]),
        later={2: population},
        rounds=2,
        clients_per_round=2,
        out=tmp_path / "run",
        privacy=PrivacySettings(epsilon=1e6),
        show_progress=False,
    )
    assert result.summary["privacy"]["delta"] == pytest.approx(len(population) ** -1.1)


@pytest.mark.parametrize(
    "settings, message",
    [({"epsilon": 0}, "epsilon is 0"), ({"delta": 1}, "delta is 1"), ({"epsilon": -1}, "epsilon is -1")],
)
def test_bad_settings(settings, message):
    with pytest.raises(UserError, match=message):
        PrivacySettings(**settings)


def test_a_raised_budget_is_the_same_run_and_another_delta_is_not(tmp_path):
    settings = {"task": "t", "privacy": {"epsilon": 2.0, "delta": 1e-3}}
    (tmp_path / "config.toml").write_text(tomli_w.dumps(settings))
    directory = RunDirectory(tmp_path)
    directory.check_same({"task": "t", "privacy": {"epsilon": 3.0, "delta": 1e-3}})
    directory.check_same({"task": "t", "privacy": {"delta": 1e-3}})
    with pytest.raises(UserError, match="its privacy.delta is 0.001, not 0.01"):
        directory.check_same({"task": "t", "privacy": {"epsilon": 2.0, "delta": 1e-2}})


@pytest.mark.slow
def test_a_private_round_that_draws_nobody_is_as_any_other(model, population, tmp_path):
    """One of five clients on average: a third of the rounds has none. Models move by noise, or who watches
    would know.
    """
    result = tffcl.train(
        private(model, 1, min_cluster_size=0.01),
        population,
        rounds=6,
        clients_per_round=1,
        out=tmp_path / "run",
        sampling="poisson",
        privacy=SETTINGS,
        seed=1,
        show_progress=False,
    )
    ids = population.client_ids
    drawn = [len(cohort.sample_cohort(ids, 1, 1, number, "poisson")) for number in range(1, 7)]
    rows = rows_of(tmp_path / "run" / "rounds.csv")
    assert 0 in drawn[1:] and [row["train_loss"] == "" for row in rows] == [not each for each in drawn]
    assert result.summary["privacy"]["releases"] == 6
    method = private(model, 1, min_cluster_size=0.01)
    state, moved = method.initialize(population), []
    nobody = Cohort(population, np.zeros(0, np.int32), (1, 1), rate=0.2)
    for _ in range(8):
        after, metrics = method.next(state, nobody)
        moved.append(np.abs(after.models - state.models).max())
        assert not len(metrics.losses) and metrics.traffic.up == 0
        state = after
    assert sum(each > 0.01 for each in moved) >= 2  # wherever the noisy number of members is large enough


def test_an_open_round_that_draws_nobody_moves_nothing_and_costs_nothing(model, population, tmp_path):
    """Nor does it repeat what was told before, as private signatures."""
    signature = {"name": "label_histogram", "noise_multiplier": 4.0}
    method = build_composed(model, TRAINING, ComposedParameters(signature=signature, num_clusters=1), noise_seed=1)
    seed = next(
        seed for seed in range(50) if not len(cohort.sample_cohort(population.client_ids, 1, seed, 1, "poisson"))
    )
    result = tffcl.train(
        method,
        population,
        rounds=1,
        clients_per_round=1,
        out=tmp_path / "run",
        sampling="poisson",
        privacy=SETTINGS,
        seed=seed,
        show_progress=False,
    )
    assert result.summary["privacy"]["releases"] == 1
    np.testing.assert_array_equal(result.model_of(0), model.initial)


@pytest.mark.slow
@pytest.mark.parametrize("training", ["ditto", "per_fedavg", "scaffold"])
def test_every_local_training_has_private_rounds_of_nobody(tff_worker, model, population, training):
    """Models move by noise alone, and what clients keep stays as it is: a model, a second upload, or nothing."""
    how = ComposedParameters(signature="label_histogram", training=training, num_clusters=2)
    noisy = tffcl.aggregation("dp", noise_multiplier=5.0, min_cluster_size=0.01, seed=1)
    method = build_composed(model, TRAINING, how, aggregation=noisy)
    state = method.initialize(population)
    assert method.hides_empty_rounds(state)
    for number in range(1, 5):
        state, metrics = method.next(state, Cohort(population, np.zeros(0, np.int32), (1, number), rate=0.2))
        assert not len(metrics.client_ids)
    assert np.abs(state.models - method.initialize(population).models).max() > 0.01
    assert state.kept is None or not len(state.kept)


@pytest.mark.slow
def test_rounds_of_nobody_are_hidden_where_all_that_clients_tell_has_noise(model, population):
    clove = build_clove(model, TRAINING, CLoVEParameters(num_clusters=2), aggregation=tffcl.aggregation("dp"))
    assert not clove.hides_empty_rounds(clove.initialize(population))  # its losses have none
    for aggregation, hidden in (("mean", False), ("secure_sum", False), ("dp", True)):
        method = build_fedavg(model, TRAINING, aggregation=tffcl.aggregation(aggregation))
        assert method.hides_empty_rounds(method.initialize(population)) == hidden


@pytest.mark.slow
def test_what_secure_sums_do_not_hide_is_told_by_a_run_that_was_ended_in_its_last_steps_too(
    model, population, tmp_path
):
    def run(**more):
        method = build_pacfl(
            model, TRAINING, PACFLParameters(num_vectors=3, num_clusters=2), aggregation=tffcl.aggregation("secure_sum")
        )
        how = {"rounds": 1, "clients_per_round": 3, "out": tmp_path / "run", "show_progress": False}
        return tffcl.train(method, population, **how, **more)

    with mock.patch("tffcl.runs.train.finish", side_effect=KeyboardInterrupt), pytest.raises(Interrupted):
        run()
    assert "secure sums hide the updates only" in " ".join(run(resume=True).summary["notes"])


@pytest.mark.slow
def test_what_newcomers_tell_in_a_round_of_nobody_is_in_its_checkpoint(model, population, tmp_path):
    known = population.restricted(population.client_ids[:4])

    def drawn(seed):
        cohorts = (each.client_ids for each in (known, population, population))
        return [len(cohort.sample_cohort(ids, 1, seed, number, "poisson")) for number, ids in enumerate(cohorts, 1)]

    seed = next(seed for seed in range(200) if [each > 0 for each in drawn(seed)] == [True, False, True])

    def run(out, **more):
        noisy = tffcl.aggregation("dp", noise_multiplier=4.0, seed=1)
        return tffcl.train(
            build_clove(model, TRAINING, CLoVEParameters(num_clusters=2), aggregation=noisy),
            known,
            later={2: population},
            rounds=3,
            clients_per_round=1,
            seed=seed,
            sampling="poisson",
            privacy=SETTINGS,
            out=tmp_path / out,
            show_progress=False,
            **more,
        )

    run("run", until=2)
    resumed, whole = run("run", resume=True).summary["privacy"], run("whole").summary["privacy"]
    assert resumed == whole and whole["open_releases"] == 3  # losses: of two cohorts, and of the newcomers


def test_who_relies_on_secure_sums_is_told_what_the_server_sees_all_the_same(model, population):
    """Signatures of PACFL; FedAvg's clients tell nothing beside their updates."""
    signatures, ledger = Release("the signatures", 0, 5, 5, once=True), ledger_of([])
    with simulating(ledger=ledger):
        uploads = build_fedavg(model, TRAINING, aggregation=tffcl.aggregation("secure_sum")).engine.round_for(1).uploads
        releases.release_round(uploads, Cohort(population, population.client_ids, (1, 1)))
        # A mean over all clients is no client's.
        releases.release_measured(dataclasses.replace(population, measured_noise=0.0))
    assert ledger.notes == []
    ledger.spend(signatures)
    assert ledger.notes == [
        "secure sums hide the updates only: the server has each client's signature, or what the method reads of "
        "its examples itself, as it is, which has no noise"
    ]
    # Of everybody, both of them.
    hidden, losses = (Release("a round", 0, 5, 5, hidden=True), Release("the losses", 0, 5, 5))
    (note,) = ledger_of(2 * [losses, hidden]).notes
    assert note.startswith("secure sums hide the updates only: clients also told") and note.endswith("(asked 2 times)")
    assert ledger_of([signatures, Release("a round", 0, 3, 5)]).notes == []  # where nothing is hidden nobody is misled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("aggregation", "hidden"),
    [
        (tffcl.aggregation("secure_sum"), True), (tffcl.aggregation("dp", secure=True, seed=0), True),
        (tffcl.aggregation("dp", seed=0), False), (tff.learning.secure_aggregator(zeroing=False, clipping=False), True),
    ],
)  # fmt: skip
def test_a_round_says_of_itself_that_its_sums_are_secure(tff_worker, model, population, aggregation, hidden):
    """With noise, too; TFF's own aggregator does not tell. Noise alone is no secure sum."""
    method, told = build_fedavg(model, TRAINING, aggregation=aggregation), Releases()
    with simulating(ledger=told):
        method.next(method.initialize(population), Cohort(population, population.client_ids, (1, 1)))
    (found,) = told.found
    assert found.hidden is hidden


def test_a_round_whose_uploads_are_all_collected_has_no_secure_sums(tff_worker, model, population):
    """CFL's server has each client's update: there is no sum at all, and so none that is not secure."""
    method, told = build_cfl(model, TRAINING), Releases()
    with simulating(ledger=told):
        method.next(method.initialize(population), Cohort(population, population.client_ids, (1, 1)))
    assert [each.hidden for each in told.found] == [False] and not told.hide_clients


@pytest.mark.slow
def test_clients_that_secure_sums_would_not_hide_are_in_the_notes(model, population, tmp_path):
    def notes(clients_per_round, build=build_fedavg):
        return tffcl.train(
            build(model, TRAINING, aggregation=tffcl.aggregation("secure_sum")),
            population,
            rounds=2,
            show_progress=False,
            clients_per_round=clients_per_round,
            out=tmp_path / f"{build.__name__}-{clients_per_round}",
        ).summary["notes"]

    assert notes(2) == []
    assert any(note.startswith("never moved: model 0, 1; with secure sums") for note in notes(1, build_ifca))
    (note,) = notes(1)
    assert note.startswith("never asked to train: 2 of the 2 clients that were drawn") and note.endswith(
        "no client has trained"
    )


@pytest.mark.slow
def test_what_clients_tell_beside_secure_sums_in_every_round_is_noted(tff_worker, model, population):
    """CLoVE's losses; and, at the start alone, which of IFCA's models attracts whom."""
    first = Cohort(population, population.client_ids, (1, 1))
    how = IFCAParameters(num_clusters=2, start="attracting", least_share=0.01)
    for method in (
        build_clove(model, TRAINING, CLoVEParameters(num_clusters=2), aggregation=tffcl.aggregation("secure_sum")),
        build_ifca(model, TRAINING, how, seed=0, aggregation=tffcl.aggregation("secure_sum")),
    ):
        ledger = ledger_of([])
        with simulating(ledger=ledger):
            method.next(method.initialize(population), first)
        assert [note.partition(":")[0] for note in ledger.notes] == ["secure sums hide the updates only"], method


@pytest.mark.parametrize(
    ("how", "hides"),
    [({"noise_multiplier": 0.0}, False), ({"noise_multiplier": 0.0, "secure": True}, True), ({}, True)],
)
def test_a_private_mean_hides_uploads_by_noise_or_secure_sums(how, hides):
    """Without either the server has all updates as they are, and no note may say that secure sums hide them."""
    factory = tffcl.aggregation("dp", **how)
    assert factory.hides_uploads is hides
    if not hides:
        # Nothing is promised beside it.
        releases.check_hidden({"update": factory, "steps": tffcl.aggregation("uniform_mean")})


@pytest.mark.slow
def test_what_a_method_reads_itself_is_no_private_release(tff_worker, model, population, tmp_path):
    """The server of this one sees each client's labels, whatever noise its updates have."""
    noisy = tffcl.aggregation("dp", noise_multiplier=1.0, clip=1.0, min_cluster_size=1)
    method = Histograms(build_clustered_training(model, TRAINING, aggregation=noisy), 2, seed=0)
    plain = build_fedavg(model, TRAINING, aggregation=noisy)
    options = {"rounds": 2, "clients_per_round": 3, "sampling": "poisson", "show_progress": False}
    told = tffcl.train(method, population, out=tmp_path / "read", **options).summary["privacy"]
    assert told["epsilon"] is None and told["open_releases"] == 1 and told["noised_epsilon"] > 0
    (note, *_) = privacy_notes(told)
    assert note.startswith("not private: 1 release came without noise") and "what the method reads itself" in note
    assert tffcl.train(plain, population, out=tmp_path / "plain", **options).summary["privacy"]["epsilon"] > 0


READINGS = {
    "train": lambda clients: clients.train(0),
    "test": lambda clients: clients.test(0),
    "validation": lambda clients: clients.validation(0),
    "the mapping": lambda clients: clients.train_examples[0],
    "get": lambda clients: clients.validation_examples.get(0),
    "items": lambda clients: next(iter(clients.train_examples.items())),
    "values": lambda clients: next(iter(clients.test_examples.values())),
    "a copy": lambda clients: {**clients.train_examples},
    "pooled tests": lambda clients: clients.pooled_tests,
    "pooled validation": lambda clients: clients.pooled_validation,
    "label counts": lambda clients: clients.label_counts,
    "of some clients": lambda clients: clients.restricted([0]).train_examples[0],
    "their label counts": lambda clients: clients.restricted([0]).label_counts,
    "mapped": lambda clients: clients.map(lambda x, y: (x, y)),
    "pickled": lambda clients: pickle.loads(pickle.dumps(clients)).train_examples[0],
    "replaced": lambda clients: dataclasses.replace(clients, note="other").train_examples[0],
}


@pytest.fixture
def labelled(population):
    counts = np.stack([np.bincount(population.train(client).y, minlength=10) for client in population.client_ids])
    held = dataclasses.replace(population, validation_examples=population.test_examples, label_counts=counts)
    assert len(held.pooled_tests.y) == len(held.pooled_validation.y)  # an evaluation has read them before
    return held


@pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)
def test_in_whichever_way_a_method_reads_what_clients_hold_it_counts(labelled, read):
    ledger = ledger_of([])
    with simulating(ledger=ledger), accounted(labelled):
        read(labelled)
    assert ledger.summary() is None and len(ledger.as_array()) == 1


def test_who_the_clients_are_and_how_much_they_hold_counts_as_no_reading(labelled):
    ledger = ledger_of([])
    with simulating(ledger=ledger), accounted(labelled):
        few = labelled.restricted([0, 1])
        assert few.sizes.all() and few.test_sizes.all() and list(few.train_examples) == list(range(len(labelled)))
        assert 0 in few.train_examples and few.read_before == [0, 1] and repr(few)
    assert not len(ledger.as_array())


@pytest.mark.slow
@pytest.mark.parametrize("choose_by", ["validation_loss", "test_accuracy"])
def test_what_clients_choose_on_stays_on_their_devices(tff_worker, model, labelled, choose_by):
    ledger = ledger_of([])
    method = build_ifca(model, TRAINING, IFCAParameters(num_clusters=2, choose_by=choose_by), seed=0)
    with simulating(ledger=ledger), accounted(labelled):
        method.next(method.initialize(labelled), Cohort(labelled, labelled.client_ids, (1, 1)))
    assert [bool(kind.once) for kind in ledger._counts] == [False] * len(ledger._counts) != []
