"""What cannot fit into memory or on the disk is refused in a line before it starts, and nothing else is."""

import dataclasses
import types

import numpy as np
import pytest

import tffcl
from tffcl.algorithms.ditto import build_ditto
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.flt import FLT, FLTState
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.algorithms.scaffold import build_scaffold
from tffcl.algorithms.solo import build_solo
from tffcl.algorithms.stocfl import build_stocfl
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError
from tffcl.runs import checks
from tffcl.runs.population_changes import Stages
from tffcl.runs.run import Protocol
from tffcl.runtime import memory

TRAINING = LocalTraining()


@pytest.fixture
def free(monkeypatch):
    """Lets the machine have so much of memory and disk."""

    def have(in_memory=10**12, on_disk=10**12):
        monkeypatch.setattr(memory, "free_bytes", lambda: in_memory)
        monkeypatch.setattr(checks, "_disk_room", lambda out: on_disk)

    have()
    return have


def large(method, size=6_600_000):
    """The method as if its model had so many parameters."""
    return types.SimpleNamespace(
        model=types.SimpleNamespace(size=size),
        kept_bytes=method.kept_bytes // method.model.size * size,
        pair_bytes=method.pair_bytes,
        pairs_of=method.pairs_of,
        models_held=method.models_held,
    )


def test_what_clients_keep_is_counted_on_the_disk(free, model, tmp_path):
    solo = large(build_solo(model, TRAINING))
    checks.check_before(solo, 12_000, 12_000, tmp_path, 10**10)
    free(on_disk=316 * 10**9)
    with pytest.raises(UserError) as told:
        checks.check_before(solo, 12_000, 12_000, tmp_path, 10**10)
    assert str(told.value).startswith(
        "12,000 clients × 6.6 M parameters that each of them keeps need 317 GB on the disk of "
    )
    assert str(told.value).endswith("; 316 GB are free")
    checks.check_before(solo, 12_000, 11_900, tmp_path, 10**10)  # not all take part
    kept = tmp_path / "kept"
    kept.mkdir()
    with open(kept / "1.1.npz", "wb") as file:
        file.truncate(10**9)
    checks.check_before(solo, 12_000, 12_000, tmp_path, 10**10)  # a resumed run has a part of it there already


def test_distances_of_all_pairs_are_counted_in_memory(free, model, tmp_path):
    pacfl = build_pacfl(model, TRAINING, PACFLParameters(num_clusters=2))
    free(in_memory=16 * 10**9)
    checks.check_before(pacfl, 40_000, 100, tmp_path, 10**10)
    with pytest.raises(
        UserError, match="the distances of 100,000 × 100,000 clients need 80 GB of memory; 16 GB are free"
    ):
        checks.check_before(pacfl, 100_000, 100, tmp_path, 10**10)
    checks.check_before(build_solo(model, TRAINING), 100_000, 100, tmp_path, 10**10)  # which holds none


def test_one_client_is_counted_against_the_budget(free, model, tmp_path):
    method = large(build_solo(model, TRAINING))
    with pytest.raises(UserError, match="memory is 50 MB; one client that trains 6.6 M parameters takes 317 MB"):
        checks.check_before(method, 10, 10, tmp_path, 50 * 10**6)
    checks.check_before(method, 10, 10, tmp_path, 320 * 10**6)


def flt_state(relatedness):
    fields = {field.name: None for field in dataclasses.fields(FLTState)}
    ids = np.arange(len(relatedness), dtype=np.int32)
    return FLTState(**{**fields, "client_ids": ids, "models": np.zeros([1, 3], np.float32), "relatedness": relatedness})


def test_joint_clusters_hold_a_model_for_each_that_is_related_like_no_other(free):
    flt = types.SimpleNamespace(_joint=True, model=types.SimpleNamespace(size=6_600_000))
    flt.models_held = lambda state, ids: FLT.models_held(flt, state, ids)
    alone, everyone = flt_state(np.eye(1200)), flt_state(np.ones([1200, 1200]))
    assert FLT.models_held(flt, alone, np.arange(0, 1200, 2)) == 600  # those that take part
    assert FLT.models_held(flt, alone, np.arange(2400)) == 1200  # newcomers are not known yet
    assert FLT.models_held(flt, everyone, np.arange(1200)) == 1
    free(in_memory=16 * 10**9)
    checks.check_models_fit(flt, everyone, np.arange(1200))
    with pytest.raises(UserError, match="1,200 models × 6.6 M parameters that the server holds need 31.7 GB of memory"):
        checks.check_models_fit(flt, alone, np.arange(1200))


def test_clusters_are_counted_before_their_models_are_made(free, model, population, tff_worker):
    method = build_pacfl(model, TRAINING, PACFLParameters(num_clusters=3))
    free(in_memory=2 * model.initial.nbytes)
    with pytest.raises(UserError, match="3 models × .* parameters need .* of memory"):
        method.engine.start(population, np.array([0, 1, 2, 0, 1]))
    assert len(method.engine.start(population, np.array([0, 1, 0, 0, 1]))["models"]) == 2


def test_a_model_that_is_too_large_is_refused_before_it_is_drawn(free):
    from tffcl.models.classifiers import build_mlp

    with pytest.raises(UserError, match="the model's 161,061,273,535 parameters need 644 GB of memory; 1 GB are free"):
        free(in_memory=10**9)
        build_mlp((8, 8, 1), 10, hidden=2**31 - 1)


def test_a_run_that_cannot_fit_writes_nothing(free, model, population, tmp_path):
    method = build_scaffold(model, TRAINING)
    assert method.kept_bytes >= 4 * model.size
    free(on_disk=4 * method.kept_bytes)
    with pytest.raises(UserError, match="5 clients × .* parameters that each of them keeps need .* on the disk"):
        tffcl.train(method, population, rounds=9, clients_per_round=4, out=tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists()
    assert tffcl.train(method, population, rounds=1, clients_per_round=4, out=tmp_path / "run", show_progress=False)


@pytest.mark.parametrize("build, models, states", [(build_fedavg, 0, 1), (build_ditto, 1, 2), (build_stocfl, 0, 2)])
def test_the_state_of_each_optimizer_counts(free, model, population, tmp_path, build, models, states):
    """Adam has two moments of each parameter and five numbers more."""
    training = LocalTraining(optimizer="adam", optimizer_state="kept")
    needed = 5 * 4 * (models * model.size + states * (2 * model.size + 5))
    free(on_disk=needed - 1)
    with pytest.raises(UserError, match="5 clients × .* parameters that each of them keeps need .* on the disk"):
        tffcl.train(build(model, training), population, rounds=9, clients_per_round=5, out=tmp_path / "run")


@pytest.mark.parametrize("how", ["fixed", "poisson"])
def test_who_takes_part_is_who_is_drawn(model, population, how):
    from tffcl.clients import cohort

    for rounds in (1, 2, 40, 10**9):
        protocol = Protocol(rounds, 2, seed=3, sampling=how)
        found = checks.who_takes_part(Stages(model, population), protocol)
        drawn = [
            cohort.sample_cohort(population.client_ids, 2, 3, number, how) for number in range(1, min(rounds, 60) + 1)
        ]
        assert found.tolist() == sorted(set(np.concatenate(drawn).tolist()))
