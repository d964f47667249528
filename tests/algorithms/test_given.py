"""Groups that are known by a mapping, a file, a column or the truth: FedAvg on each alone; newcomers by theirs."""

import dataclasses

import numpy as np
import pytest

import tffcl
from tests.short_runs import TRAINING, cohort_of, split
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.given import build_given
from tffcl.algorithms.parameters import GivenParameters
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.lab.tasks.resolve import resolve
from tffcl.registry import GIVEN, ORACLE

GROUPS = np.array([1, 0, 1, 2, 0], np.int32)


@pytest.fixture(scope="module")
def grouped(population):
    """The clients, of three groups."""
    return dataclasses.replace(population, groups=GROUPS)


def test_each_group_is_fedavg_on_it_alone_to_the_bit(tff_worker, model, grouped):
    cohorts = ([0, 1, 2, 3, 4], [0, 2, 4], [1, 3])
    given, fedavg = build_given(model, TRAINING), build_fedavg(model, TRAINING)
    state = given.initialize(grouped)
    for number, clients in enumerate(cohorts, 1):
        state, _ = given.next(state, cohort_of(grouped, clients, number))
    assert state.assignment.tolist() == GROUPS.tolist() and given.views(state).notes == (ORACLE,)
    for group in range(3):
        own = grouped.restricted(np.flatnonzero(group == GROUPS))
        alone = fedavg.initialize(own)
        for number, clients in enumerate(cohorts, 1):
            members = np.intersect1d(clients, own.client_ids)
            alone = fedavg.next(alone, cohort_of(own, members, number))[0] if len(members) else alone
        np.testing.assert_array_equal(state.models[group], alone.models[0])


def test_a_mapping_and_a_file_mean_what_true_groups_do(tff_worker, model, grouped, tmp_path):
    names = {1: "north", 0: "coast", 2: "south"}
    mapping = {client: names[group] + " " * (client % 2) for client, group in enumerate(GROUPS.tolist())}
    file = tmp_path / "groups.csv"
    file.write_text("client,beds,group\n" + "".join(f"{client},9,{name}\n" for client, name in mapping.items()))
    for groups in (mapping, {str(client): name for client, name in mapping.items()}, str(file)):
        given = build_given(model, TRAINING, GivenParameters(groups))
        state = given.initialize(grouped)
        assert state.assignment.tolist() == GROUPS.tolist() and state.groups.tolist() == ["coast", "north", "south"]
        assert given.views(state).notes == (GIVEN,)


def test_newcomers_join_their_group_or_found_it(tff_worker, model, grouped):
    known, newcomers = split(grouped, [1, 3])  # the only client of group 2 is a newcomer
    given = build_given(model, TRAINING)
    state, _ = given.next(given.initialize(known), cohort_of(known, known.client_ids, 1))
    joined = given.admit(state, newcomers)
    assert joined.assignment.tolist() == GROUPS.tolist() and joined.groups.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(joined.models, [*state.models, model.initial])


def test_who_changes_its_true_group_trains_in_the_new_one(tff_worker, model, grouped):
    given = build_given(model, TRAINING)
    state, _ = given.next(given.initialize(grouped), cohort_of(grouped, grouped.client_ids, 1))
    swapped = dataclasses.replace(grouped, groups=np.array([1, 1, 1, 2, 3], np.int32))
    after, metrics = given.next(state, cohort_of(swapped, [1, 4], 2))
    assert metrics.clusters.tolist() == [1, 3] and after.assignment.tolist() == [1, 1, 1, 2, 3]
    np.testing.assert_array_equal(after.models[[0, 2]], state.models[[0, 2]])


def test_a_column_of_a_table_is_the_groups_of_those_that_join_later_too(tff_worker):
    pandas = pytest.importorskip("pandas")

    def read(towns, **known):
        rows = {
            "name": np.repeat([*towns], 4),
            "x": np.arange(4 * len(towns)) % 5,
            "sick": [True, False] * 2 * len(towns),
        }
        frame = pandas.DataFrame({**rows, "town": np.repeat([*towns.values()], 4)})
        return Population.from_frame(frame, client="name", label="sick", group="town", features=None, test=0.0, **known)

    first = read({"a": "oslo", "b": "bergen"})
    assert first.groups.tolist() == [1, 0] and first.table.groups == ("bergen", "oslo")
    assert read({"c": "oslo", "d": "arendal"}, known=first).groups.tolist() == [1, 2]


def test_what_is_wrong_with_groups_is_one_line(tff_worker, model, population, grouped, tmp_path):
    file = tmp_path / "groups.csv"
    file.write_text("client,group\n0,a\n0,b\n")
    wrong = [
        (lambda: GivenParameters("hospital"), 'groups is .hospital.; it must be "true", a mapping'),
        (lambda: GivenParameters({}), "clients of groups are of no type; they must be all text"),
        (lambda: GivenParameters({"a": 1, "b": "1"}), "groups of groups are of int, str; they must be all text"),
        (lambda: GivenParameters({"a": [1]}), "groups is .*; it must be text or a table"),
        (lambda: build_given(model, TRAINING, GivenParameters(str(file))), "client 0 has two groups, a and b in"),
        (lambda: build_given(model, TRAINING, GivenParameters("none.csv")), "there is no file none.csv"),
        (lambda: _start(model, population, "true"), "these clients have no true groups; give a mapping"),
        (lambda: _start(model, population, {0: "a", 2: "b"}), "client 1 has no group in groups, and 2 more have none"),
    ]
    for build, message in wrong:
        with pytest.raises(UserError, match=message) as said:
            build()
        assert "\n" not in str(said.value)


def _start(model, population, groups):
    return build_given(model, TRAINING, GivenParameters(groups)).initialize(population)


def test_clients_of_a_mapping_that_are_not_there_are_told(tff_worker, model, population, capsys):
    _start(model, population, {**dict.fromkeys(range(5), "a"), 7: "b", 9: "b"})
    assert "groups names clients that are not here, 2 of them, as 7" in capsys.readouterr().err


def test_a_task_file_takes_a_table_of_groups():
    table = {"method": "given", "groups": {"0": "a", "1": "b"}}
    found = resolve("demo_digits", "mine", overrides={"algorithms": {"mine": table}})
    assert found.method == GivenParameters({"0": "a", "1": "b"})
    assert tffcl.algorithms.GivenParameters is GivenParameters and tffcl.algorithms.build_given is build_given
