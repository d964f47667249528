"""Clients who have left a run are known in what it gives: an export's table, newcomers, a run that goes on."""

import types

import numpy as np
import pytest

import tffcl
from tests.runs.finished_runs import rows_of
from tests.short_runs import TRAINING
from tffcl.algorithms.ditto import build_ditto
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.runs.cluster_history import NO_CLUSTER, ClusterHistory, read_history
from tffcl.runs.run_directory import HISTORY

EVERYONE = ("0", "1", "10", "2", "5", "7")  # numbers 0 to 5 in this order: what one is called is another's number
LEFT = ("10", "7")
PROTOCOL = {"rounds": 3, "clients_per_round": 3, "show_progress": False}


@pytest.fixture(scope="module")
def read(digits):
    """Makes the population of clients by name."""
    x, y = digits

    def rows_of(client, count):
        start = 30 * int(client)
        images = np.rot90(x, axes=(1, 2)) if int(client) % 2 else x
        return images[start : start + count], y[start : start + count]

    def made(names, known=None):
        train, test = ({each: rows_of(each, count) for each in names} for count in (20, 10))
        return tffcl.Population.from_arrays(train, test, known=known)

    return made


@pytest.fixture(scope="module")
def everyone(read):
    return read(EVERYONE)


@pytest.fixture(scope="module")
def result(model, everyone, tmp_path_factory):
    """A model for each client; numbers 2 and 5 leave before the last round."""
    stayed = everyone.restricted([each for each in EVERYONE if each not in LEFT])
    out = tmp_path_factory.mktemp("left") / "run"
    return tffcl.train(build_ditto(model, TRAINING), everyone, later={3: stayed}, out=out, **PROTOCOL)


@pytest.mark.slow
def test_the_table_of_an_export_names_each_ones_row_of_the_models(result, tmp_path, without_forms):
    tffcl.export_result(result, tmp_path / "to")
    rows = {row["client_id"]: int(row["model"]) for row in rows_of(tmp_path / "to" / "clustering" / "assignments.csv")}
    models = np.load(tmp_path / "to" / "state" / "models.npy")
    assert set(rows) == set(EVERYONE)
    for client in set(EVERYONE) - set(LEFT):
        np.testing.assert_array_equal(models[rows[client]], result.model_of(client))


@pytest.mark.parametrize("called", [list("abcde"), [1, 2, 30, 31, 400]], ids=["names", "numbers"])
def test_the_history_tells_who_moved_left_and_came_back_also_where_a_run_goes_on(tmp_path, called):
    a, b, c, d, e = called

    def at(number, clusters):
        return types.SimpleNamespace(
            directory=tmp_path, round_number=number, chooses_at_evaluations=False,
            population=types.SimpleNamespace(shown_ids=np.array([*clusters])),
            views=types.SimpleNamespace(clusters=[*clusters.values()]),
        )  # fmt: skip

    first, third = {a: 0, b: 0, c: 1, d: 1}, {a: 0, c: 2, d: 1}
    history, again = ClusterHistory(), ClusterHistory()
    history.begin(at(0, first))
    for number, clusters in enumerate((first, first, third, {a: 7, b: 7, c: 7, d: 7, e: 7}), 1):
        history.after_round(at(number, clusters))
    again.begin(at(3, third))  # the fourth was not saved
    again.after_round(at(4, {a: 0, b: 2, c: 2, d: 1, e: 1}))  # into the clusters of those beside them
    found = read_history(tmp_path / HISTORY, list(map(str, called)), 9)
    expected = {1: [0, 0, 1, 1, NO_CLUSTER], 3: [0, NO_CLUSTER, 2, 1, NO_CLUSTER], 4: [0, 2, 2, 1, 1]}
    assert {number: clusters.tolist() for number, clusters in found.items()} == expected
    moved = [np.load(path)[0].astype(str).tolist() for path in sorted((tmp_path / HISTORY).iterdir())]
    assert moved == [list(map(str, who)) for who in ((a, b, c, d), (c, b), (b, e))]  # and nobody else


def test_no_newcomer_gets_the_number_of_one_who_has_left(read, everyone, result):
    with pytest.raises(tffcl.UserError, match="cannot join: client 7 is called 8 in it; build it with known="):
        result.admit(read(["8", "9"], known=result.trained.population))
    joined = result.admit(read(["8"], known=everyone))
    with pytest.raises(tffcl.UserError, match="cannot join: client 8 is called 9 in it"):
        joined.admit(read(["9"], known=everyone))


def test_a_run_does_not_go_on_with_clients_of_other_numbers(read, model, everyone, tmp_path):
    some = [each for each in EVERYONE if each not in LEFT]
    method = build_pacfl(model, TRAINING, PACFLParameters(num_clusters=2))
    tffcl.train(method, read(some), out=tmp_path / "run", until=2, **PROTOCOL)
    with pytest.raises(tffcl.UserError, match="numbers of clients differ"):
        tffcl.train(method, everyone.restricted(some), out=tmp_path / "run", resume=True, **PROTOCOL)
