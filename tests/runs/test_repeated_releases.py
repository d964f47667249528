"""Private runs that are killed and resumed: what was told is counted, whether or not its results are lost."""

import errno
import functools
import json
import os
from unittest import mock

import numpy as np
import pytest

import tffcl
from tests.short_runs import TRAINING
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.errors import OVERWRITE, UserError
from tffcl.rounds import simulation
from tffcl.rounds.privacy_releases import Release
from tffcl.runs.privacy import NOTHING, BudgetSpent, Ledger, PrivacySettings

SETTINGS = PrivacySettings(delta=1e-3)
ROUND, SIGNATURES = Release("a round", 2.0, 3, 5), Release("the signatures", 4.0, 5, 5, once=True)


class Killed(BaseException):
    """Ends a run as SIGKILL does: nobody saves anything."""


def epsilon_of(*releases):
    """What releases cost that no client tells twice without being counted."""
    ledger = Ledger(SETTINGS, 5)
    for release in releases:
        ledger.spend(release)
    return ledger.epsilon


@pytest.fixture(scope="module")
def averaging(model):
    """FedAvg with noise of a seed, or of none: each is built once."""
    noisy = functools.cache(lambda seed: tffcl.aggregation("dp", noise_multiplier=2.0, seed=seed))
    return functools.cache(lambda seed: build_fedavg(model, TRAINING, aggregation=noisy(seed)))


@pytest.fixture(scope="module")
def signing(model):
    """PACFL with noise of no seed on its signatures, and on its rounds of a seed or of none: `(seed, when)
    -> method`.
    """

    @functools.cache
    def build(seed, when="before_training"):
        how = PACFLParameters(num_vectors=2, num_clusters=1, when=when, signature_noise_multiplier=4.0)
        return build_pacfl(model, TRAINING, how, aggregation=tffcl.aggregation("dp", noise_multiplier=2.0, seed=seed))

    return build


@pytest.fixture
def go(averaging, population, tmp_path):
    """Trains, and is killed in a round, after its release has been counted: `(out, seed=None, kill=round, ...) ->
    result or None`.
    """

    def run(out="run", seed=None, kill=None, method=None, settings=SETTINGS, **more):
        method = method or averaging(seed)
        ran = simulation._run_whole
        how = {"rounds": 4, "clients_per_round": 3, "out": tmp_path / out, "privacy": settings, "show_progress": False}

        def killed(composed, cohort, *rest):
            if cohort.seed[1] == kill:
                raise Killed
            return ran(composed, cohort, *rest)

        if kill is None:
            return tffcl.train(method, population, **how, **more)
        killing = (
            mock.patch("tffcl.rounds.simulation._run_whole", killed),
            mock.patch("tffcl.runs.loop.SaveCheckpoints.end"),
        )
        with killing[0], killing[1], pytest.raises(Killed):
            tffcl.train(method, population, **how, **more)

    return run


def test_rounds_that_are_told_again_with_other_noise_count_again(go, tmp_path, capsys):
    """However often, and whatever checkpoints are left; a budget holds for all of it, and another run knows
    of nothing.
    """
    go(kill=3)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["round_000000.npz"]
    go(kill=2, resume=True, checkpoint_every=10)
    assert "3 private releases after round 0 came to nothing" in capsys.readouterr().err
    (tmp_path / "run" / "checkpoints" / "round_000000.npz").unlink()
    with pytest.raises(UserError, match="holds a run already"):
        go()
    resumed = go(resume=True)
    assert "5 private releases before the first checkpoint came to nothing" in capsys.readouterr().err
    assert resumed.summary["privacy"]["releases"] == 3 + 2 + 4
    assert resumed.summary["privacy"]["epsilon"] == pytest.approx(epsilon_of(*9 * [ROUND]))
    assert resumed.rounds["epsilon"].tolist() == pytest.approx([epsilon_of(*count * [ROUND]) for count in (6, 7, 8, 9)])
    again = go(resume=True)
    assert again.summary["privacy"] == resumed.summary["privacy"] and "private releases" not in capsys.readouterr().err
    new = go(overwrite=True)
    assert new.summary["privacy"]["releases"] == 4 and "held a private run" in capsys.readouterr().err


def test_a_budget_holds_over_all_that_was_told(go, tmp_path):
    budget = PrivacySettings(epsilon=epsilon_of(*5 * [ROUND]) * 1.001, delta=1e-3)
    go(kill=3, settings=budget)
    stopped = go(resume=True, settings=budget)
    assert stopped.summary["rounds"] == 2 and stopped.summary["privacy"]["releases"] == 5
    assert "stopped after round 2" in stopped.summary["privacy"]["stopped"]


@pytest.mark.slow
def test_rounds_that_a_seed_tells_again_are_the_same_release(go, tmp_path):
    go(seed=1, kill=3)
    resumed, whole = go(seed=1, resume=True), go("whole", seed=1)
    assert resumed.summary["privacy"] == whole.summary["privacy"]
    np.testing.assert_array_equal(resumed.model_of(0), whole.model_of(0))
    assert not list(tmp_path.rglob("ledger.json"))


def test_a_run_is_not_resumed_with_another_seed_of_its_noise(go):
    go(seed=1, kill=3)
    for other in (2, None):
        with pytest.raises(UserError, match="its built_from.aggregation.noise_seed is 1, not"):
            go(seed=other, resume=True)


@pytest.mark.slow
def test_signatures_that_are_told_again_count_again(go, signing, tmp_path):
    """Killed before the first checkpoint; and what a seed would repeat after them is of other clusters now."""
    with mock.patch("tffcl.runs.checkpoints.Checkpoints.save", side_effect=Killed), pytest.raises(Killed):
        go(method=signing(1))
    go(method=signing(1), resume=True, kill=2)
    (tmp_path / "run" / "checkpoints" / "round_000000.npz").unlink()
    told = go(method=signing(1), resume=True).summary["privacy"]
    same = [Release(f"the signatures {number}", 4.0, 5, 5, once=True) for number in range(3)]
    assert told["releases"] == 3 + 2 + 4 and told["epsilon"] == pytest.approx(epsilon_of(*same, *6 * [ROUND]))


def test_signatures_of_a_round_that_the_budget_refuses_were_told(go, signing):
    """PACFL as its clients join: they sign before their round is refused."""
    seen = Release("a round in which the server sees who takes part", 2.0, 3, 5, once=True)
    budget = epsilon_of(SIGNATURES, seen, ROUND) * 1.001
    method = signing(None, "as_they_join")
    stopped = go(method=method, settings=PrivacySettings(epsilon=budget, delta=1e-3))
    assert stopped.summary["rounds"] == 1 and stopped.summary["privacy"]["epsilon"] == pytest.approx(budget / 1.001)


def test_what_cannot_be_counted_is_not_told(go, tmp_path):
    """A full disk: the round is not computed."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "run" / "ledger.json.partial"))
    with mock.patch("tffcl.files.os.fsync", side_effect=full), mock.patch("tffcl.rounds.simulation._run_whole") as ran:
        with pytest.raises(
            UserError, match="ledger.json.partial cannot be written: No space left on device .no round is saved"
        ):
            go()
    assert not ran.called and not list(tmp_path.rglob("ledger.json*"))
    assert go(resume=True).summary["privacy"]["releases"] == 4


def test_a_ledger_that_is_damaged_missing_or_another_is_told_in_a_line(go, tmp_path):
    go(kill=4, checkpoint_every=2)
    go("other", kill=4, checkpoint_every=2)
    file = tmp_path / "run" / "ledger.json"
    right = file.read_text()
    less = json.loads(right) | {"releases": []}
    foreign = (tmp_path / "other" / "ledger.json").read_text()
    for contents in (right[:-9], "", "[]", right.replace("2.0", "9.0"), json.dumps(less), foreign, None):
        file.unlink() if contents is None else file.write_text(contents)
        with pytest.raises(UserError, match="ledger.json, which counts what was released") as refused:
            go(resume=True, checkpoint_every=2)
        assert "\n" not in str(refused.value) and f"{OVERWRITE} starts anew" in str(refused.value)
    file.write_text(right)
    assert go(resume=True, checkpoint_every=2).summary["privacy"]["releases"] == 4 + 2


@pytest.mark.parametrize("release", [ROUND, SIGNATURES])
def test_a_ledger_goes_back_to_what_was_saved_without_what_no_seed_repeats(release):
    seeded = Ledger(SETTINGS, 5)
    seeded.spend(Release(**{**vars(release), "repeats": True}))
    assert seeded.rewind(NOTHING) == 0 and not len(seeded.as_array())
    fresh, saved = Ledger(SETTINGS, 5), NOTHING
    for times in (1, 2, 3):
        fresh.spend(release)
        fresh.spend(release)  # of another client, where each tells it once
        saved = fresh.as_array()
        assert Ledger(SETTINGS, 5, saved).epsilon == fresh.epsilon
        assert fresh.rewind(NOTHING) == 2 * times
        assert fresh.as_array()[0, 4] == (times if release.once else 2 * times)
    assert fresh.rewind(fresh.as_array()) == 0
    fewer = Ledger(SETTINGS, 5, saved)
    fewer.spend(release)
    fewer.check_holds(saved, "the checkpoint")
    with pytest.raises(UserError, match="is missing, or older than the checkpoint"):  # by one that no seed repeats
        Ledger(SETTINGS, 5, saved).check_holds(fewer.as_array(), "the checkpoint")


def test_what_a_seed_repeats_goes_back_up_to_what_it_does_not(tmp_path):
    """A round of a seed is told again as it was, but for one that follows noise of no seed, as its clusters do. What
    has no noise is no such release. The file is there as soon as one is."""
    ledger, seeded = Ledger(SETTINGS, 5), Release(**{**vars(ROUND), "repeats": True})
    ledger.file = tmp_path / "ledger.json"
    ledger.spend(seeded)
    ledger.spend(Release("the losses", 0.0, 3, 5))
    assert not ledger.file.exists()
    for release in (SIGNATURES, seeded):
        ledger.spend(release)
        assert ledger.file.exists()
    assert ledger.epsilon == np.inf and not ledger.is_private and not Ledger(SETTINGS, 5).is_private
    assert ledger.rewind(NOTHING) == 2 and ledger.epsilon == pytest.approx(epsilon_of(SIGNATURES, ROUND))


def test_a_refused_release_is_not_counted_nor_those_beside_it():
    ledger = Ledger(PrivacySettings(epsilon=epsilon_of(ROUND) * 1.00001, delta=1e-3), 5)
    with pytest.raises(BudgetSpent):
        ledger.spend(ROUND, SIGNATURES)
    assert not len(ledger.as_array())
    ledger.spend(ROUND)
    with pytest.raises(BudgetSpent):
        Ledger(PrivacySettings(epsilon=epsilon_of(ROUND) * 0.99999, delta=1e-3), 5).spend(ROUND)
