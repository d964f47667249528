"""A run of more clients than anybody reads: who is drawn is read, and few others."""

import collections.abc
import json
import re

import numpy as np
import pytest

import tffcl
from tests.short_runs import TRAINING
from tffcl.algorithms import one_shot
from tffcl.algorithms.each_round_parameters import IFCAParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.ifca import build_ifca
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.clients import client_examples
from tffcl.clients.cohort import sample_cohort
from tffcl.errors import UserError
from tffcl.runs.run_files import read_run

CLIENTS, MANY, ROUNDS, A_ROUND = 400, 25, 4, 9


class Read(collections.abc.Mapping):
    """Digits of each client, a quarter turned for those with odd numbers, and who was read."""

    def __init__(self, digits, examples: int):
        (self.x, self.y), self.examples, self.reads = digits, examples, []

    def __getitem__(self, client: int):
        self.reads.append(client)
        rows = (np.arange(self.examples) + self.examples * client) % len(self.y)
        return np.rot90(self.x[rows], client % 2, axes=(1, 2)), self.y[rows]

    def __iter__(self):
        return iter(range(CLIENTS))

    def __len__(self):
        return CLIENTS


@pytest.fixture
def many(digits, monkeypatch):
    """A population, and the mappings of its training and test examples."""
    monkeypatch.setattr(client_examples, "MANY", MANY)
    examples, tests = Read(digits, 10), Read(digits, 5)
    return tffcl.Population.from_arrays(examples, tests, lazy=True), examples, tests


@pytest.fixture(params=["pacfl", pytest.param("ifca", marks=pytest.mark.slow)])
def method(request, model):
    if request.param == "ifca":
        return build_ifca(model, TRAINING, IFCAParameters(num_clusters=2))
    how = PACFLParameters(num_vectors=3, threshold=25.0, linkage="average", when="as_they_join")
    return build_pacfl(model, TRAINING, how)


@pytest.mark.slow
def test_a_run_reads_whom_it_draws_and_keeps_little_of_the_others(method, many, monkeypatch, tmp_path):
    """Newcomers are compared with few of those who are known, and are in the same clusters as if with all."""
    monkeypatch.setattr(one_shot, "MOST_COMPARED", 12)
    population, examples, tests = many
    assert population.sizes is None and "read when" in str(population.facts()) and len(population) == CLIENTS
    run = {"rounds": ROUNDS, "clients_per_round": A_ROUND, "evaluate_every": ROUNDS, "checkpoint_every": 1}
    assert tffcl.train(method, population, out=tmp_path, show_progress=False, until=2, **run) is None
    result = tffcl.train(method, population, out=tmp_path, show_progress=False, resume=True, **run)
    cohorts = [sample_cohort(population.client_ids, A_ROUND, 0, number + 1) for number in range(ROUNDS)]
    drawn, asked = set(np.concatenate(cohorts).tolist()), set(population.evaluated.client_ids.tolist())
    looked_at = set(client_examples.few_of(range(CLIENTS)))
    # Those of an evaluation choose their models on their training examples; some are shown as samples.
    choosing = asked if method.clients_choose else set()
    assert len(asked) == MANY and drawn <= set(examples.reads)
    assert len(set(examples.reads) - drawn - looked_at - choosing) <= 24
    assert asked <= set(tests.reads) <= asked | looked_at | drawn

    columns, found = result.clients, read_run(tmp_path)
    known = np.isfinite(np.asarray(columns["cluster_accuracy"], float))
    assert set(np.flatnonzero(known)) == asked and np.flatnonzero(found.clients.test_examples).tolist() == sorted(asked)
    what = "accuracies, and what clients choose," if method.clients_choose else "accuracies"
    note = f"{what} are of {MANY} of the {CLIENTS} clients"
    assert any(note in each for each in result.summary["notes"])
    together = [found.clients.cluster[[client for client in sorted(drawn) if client % 2 == turn]] for turn in (0, 1)]
    if method.name == "pacfl":
        assert [len(set(each.tolist())) for each in together] == [1, 1] and together[0][0] != together[1][0]
        state = result.trained.state.met
        assert len(state.client_ids) == len(drawn) > len(state.compared) == 12 == len(state.proximity)
        sizes = [np.load(path).shape[1] for path in sorted((tmp_path / "history").glob("*.npy"))]
        assert sizes[0] == CLIENTS and all(size < CLIENTS for size in sizes[1:])
    last = max(found.history)
    assert found.history[last].tolist() == found.clients.cluster.tolist()
    page = tffcl.write_report(tmp_path)
    assert page.stat().st_size < 2_000_000
    # Nobody has counted the training examples, and the page does not say that there are none.
    assert re.search("training examples</dt>\\s*<dd[^>]*>–", page.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ifca", "fedem"])
def test_who_was_not_asked_for_an_evaluation_chooses_when_its_model_is_asked_for(
    name, model, digits, monkeypatch, tmp_path, without_forms
):
    """The same run of the same clients, of whom all choose at the end, or few."""
    found = {}
    for most in (CLIENTS, MANY):
        monkeypatch.setattr(client_examples, "MANY", most)
        clients = tffcl.Population.from_arrays(Read(digits, 10), Read(digits, 5), lazy=True)
        clients = clients.restricted(range(40))
        method = getattr(tffcl.algorithms, f"build_{name}")(model, TRAINING)
        found[most] = tffcl.train(
            method, clients, rounds=3, clients_per_round=9, evaluate_every=3, out=tmp_path / str(most),
            show_progress=False,
        )  # fmt: skip
    every, few = found[CLIENTS], found[MANY]
    unknown = np.isnan(few.clients["cluster_accuracy"].to_numpy(float))
    assert few.summary["clusters"]["unknown"] == unknown.sum() == 40 - MANY
    assert "unknown" not in every.summary["clusters"]
    assert sum(few.summary["clusters"]["sizes"]) == MANY
    manifest = tffcl.export_result(few, tmp_path / "export")
    assert "few of so many were asked" in json.dumps(manifest)
    np.testing.assert_array_equal(few.clients["cluster"] == -1, unknown)  # in none
    np.testing.assert_array_equal(few.clients["cluster"][~unknown], every.clients["cluster"][~unknown])
    newcomers = tffcl.Population.from_arrays(Read(digits, 10), Read(digits, 5), lazy=True).restricted(range(50))
    joined = few.admit(newcomers)  # of whom others would be asked than of the clients so far
    for client in np.flatnonzero(unknown):
        assert few.trained.cluster_of(client) == joined.cluster_of(client) == every.trained.cluster_of(client)
        for one, other in zip(few.mixture_of(client), every.mixture_of(client)):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_what_nobody_looked_at_is_checked_when_it_is_read(digits, monkeypatch):
    monkeypatch.setattr(client_examples, "MANY", MANY)

    class Odd(Read):
        def __getitem__(self, client):
            x, y = super().__getitem__(client)
            return {1: (x[:0], y[:0]), 2: (x[..., 0], y), 3: (x, y.astype(str))}.get(client, (x, y))

    population = tffcl.Population.from_arrays(Odd(digits, 3), lazy=True)
    for client, message in (
        (1, "client 1 has no training"),
        (2, "the examples of client 2"),
        (3, "labels of client 3"),
    ):
        with pytest.raises(UserError, match=message):
            population.train(client)
    assert population.sizes_of([4, 5]).tolist() == [3, 3]


def test_examples_that_cannot_be_read_name_their_client_and_not_the_run_s_files(model, digits, monkeypatch, tmp_path):
    monkeypatch.setattr(client_examples, "MANY", MANY)
    away = []

    class Stored(Read):
        def __getitem__(self, client):
            if client in away:
                raise FileNotFoundError(2, "No such file or directory", f"/store/{client}.npz")
            return super().__getitem__(client)

    population = tffcl.Population.from_arrays(Stored(digits, 3), lazy=True)
    drawn = sample_cohort(population.client_ids, A_ROUND, 0, 2)
    first = set(sample_cohort(population.client_ids, A_ROUND, 0, 1).tolist())
    away.append(next(client for client in drawn.tolist() if client not in first))
    method = build_fedavg(model, TRAINING)
    run = {"rounds": 2, "clients_per_round": A_ROUND, "checkpoint_every": 1, "show_progress": False, "out": tmp_path}
    monkeypatch.setattr(client_examples, "_MEMORY_BYTES", 1)
    with pytest.raises(UserError, match=f"examples of client {away[0]} cannot be read: .*{away[0]}.npz"):
        tffcl.train(method, population, **run)
    away.clear()
    assert tffcl.train(method, population, resume=True, **run).summary["rounds"] == 2
