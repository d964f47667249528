"""Populations of arrays and of TFF's ClientData: who the clients are, what they hold, and what is refused."""

import collections
import copy
import csv
import dataclasses
import pickle
import types

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tqdm
from scipy import sparse

from tests import own_data
from tests.own_data import client_data
from tffcl.clients import client_examples, large_rows, sources
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.example_types import check_examples, fitted
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.files import read_table
from tffcl.runs import fingerprint
from tffcl.runs.population_changes import why_not_after

NAMES = np.array(["no", "yes", "perhaps"])
X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 1, 0, 2, 1])
SPEC = {"x": tf.TensorSpec([2], tf.float32), "y": tf.TensorSpec([], tf.int32)}


def held(examples):
    """The arrays of a client's data set."""
    batch = next(iter(examples.batch(1000)))
    return batch["x"].numpy(), batch["y"].numpy()


def assert_holds(examples, x, y):
    mine, labels = held(examples)
    assert mine.dtype == np.float32 and labels.dtype == np.int32
    np.testing.assert_array_equal(mine, x)
    np.testing.assert_array_equal(labels, y)


@pytest.fixture
def named():
    """Three clients with text IDs; the middle one has test examples."""
    return Population.from_arrays({"mia": (X, Y), "bo": (X[:2], Y[:2]), "zoe": (X[3:], Y[3:])}, {"mia": (X[:4], Y[:4])})


def test_clients_with_text_ids_are_in_alphabetical_order(named):
    assert named.names.tolist() == ["bo", "mia", "zoe"] == named.shown_ids.tolist()
    assert named.client_ids.tolist() == [0, 1, 2] and named.sizes.tolist() == [2, 6, 3]
    assert repr(named) == "Population(3 clients, 11 training examples)"
    assert_holds(named.train(0).dataset, X[:2], Y[:2])
    assert_holds(named.train(2).dataset, X[3:], Y[3:])
    assert named.train("mia") is named.train(1) and named.test("mia") is named.test(1)
    with pytest.raises(UserError, match="client 'mio'|'mio'.*did you mean 'mia'"):
        named.test("mio")
    assert named.train(1).dataset is named.train(1).dataset, "data sets made anew in every round leak"
    assert named.label_counts.tolist() == [[1, 1, 0], [2, 3, 1], [1, 1, 1]]
    assert named.index(["zoe", "bo"]).tolist() == [2, 0] and named.name_of(1) == "mia"


def test_a_client_without_test_examples_has_an_empty_set_of_them(named):
    assert len(named.test(0)) == 0
    assert named.test(0).dataset.element_spec == named.test(1).dataset.element_spec
    assert_holds(named.test(1).dataset, X[:4], Y[:4])
    assert [len(places) for places in named.pooled_tests.indices] == [0, 4, 0]


def test_no_test_examples_are_of_the_kind_of_all(named):
    for client in named.client_ids:
        none, some = named.test(client).nothing.stacked, named.test(client).stacked
        assert {name: (each.dtype, each.shape[1:]) for name, each in none.items()} == {
            name: (each.dtype, each.shape[1:]) for name, each in some.items()
        }
        assert len(none["x"]) == len(none["y"]) == 0


class ReadWhenNeeded(collections.UserDict):
    """Examples that come from somewhere else whenever they are needed."""

    reads = 0

    def __getitem__(self, client):
        self.reads += 1
        return super().__getitem__(client)


def test_of_many_clients_that_must_be_read_first_a_run_reads_few_before_it_starts():
    examples = {client: ClientExamples(X + client, Y.astype(np.int32)) for client in range(1000)}
    ids, sizes = np.arange(1000, dtype=np.int32), np.full(1000, len(Y), np.int32)
    far, near = (Population(ids, form(examples), examples, sizes=sizes) for form in (ReadWhenNeeded, dict))
    assert far.read_before == list(range(0, 1000, 16)) and near.read_before == list(range(1000))
    check_examples(far, SPEC, 3)
    told = fingerprint.of_populations({0: far})
    assert far.train_examples.held.reads == 1 + 2 * 63  # once for the type; labels, and the fingerprint
    assert told["test examples"] == fingerprint.of_populations({0: near})["test examples"]


def test_clients_that_share_a_pool_are_tested_in_it():
    own = {client: ClientExamples(X, Y, np.arange(client, 6)) for client in range(3)}
    shared = Population(np.arange(3, dtype=np.int32), own, own)
    assert shared.pooled_tests.x is X and shared.pooled_tests.indices[1] is own[1].rows
    assert shared.test_sizes.tolist() == [6, 5, 4] == shared.sizes.tolist()
    np.testing.assert_array_equal(shared.test(2).stacked["x"], X[2:])
    of_one = ClientExamples(X, Y)
    same = Population(np.arange(2, dtype=np.int32), own, {0: of_one, 1: of_one}).pooled_tests
    assert len(same.y) == 6 and same.indices[0] is same.indices[1]


def test_inputs_may_be_a_structure():
    both = ClientExamples({"words": X, "age": Y}, Y, np.array([4, 1]))
    np.testing.assert_array_equal(both.x["words"], X[[4, 1]])
    assert both.dataset.element_spec["x"]["age"].shape == () and len(both) == 2 and not len(both.nothing.x["age"])


def test_inputs_of_all_clients_are_in_one_order():
    """TFF's messages have them by their places, so that one client's would be taken for another."""
    given = {"words": X, "age": Y}, {"age": Y, "words": X}
    known = Population.from_arrays({client: (x, Y) for client, x in enumerate(given)}, {0: (given[1], Y)})
    new = Population.from_arrays({2: (given[0], Y)}, known=known)
    held = [known.train(0), known.train(1), known.test(0), new.train(2), known.map(lambda x, y: (given[0], y)).train(1)]
    assert {tuple(each.x) for each in held} == {("age", "words")}
    np.testing.assert_array_equal(known.train(0).x["words"], X)
    by_hand = {client: ClientExamples(x, Y) for client, x in enumerate(given)}
    population = Population(np.arange(2, dtype=np.int32), by_hand, by_hand)
    assert [list(population.train(client).x) for client in range(2)] == [["age", "words"]] * 2


def test_groups_are_held_by_name_and_newcomers_go_on_with_their_numbers():
    known = Population.from_arrays({client: (X, Y) for client in ("a", "b", "c")})
    grouped = known.with_groups({"b": "ward 2", "a": "ward 10", "c": "ward 2"})
    assert known.groups is None and grouped.groups.tolist() == [0, 1, 1]
    assert grouped.shown_groups.tolist() == ["ward 10", "ward 2", "ward 2"]
    new = Population.from_arrays({"d": (X, Y), "b": (X, Y)}, known=grouped)
    joined = new.with_groups({"d": "ward 1", "b": "ward 2"}, known=grouped)
    assert joined.groups.tolist() == [1, 2] and not why_not_after(grouped, joined)
    assert "other names of true groups" in why_not_after(grouped, new.with_groups({"d": "ward 1", "b": "ward 2"}))
    numbered = Population.from_arrays({7: (X, Y), 8: (X, Y)}).with_groups({8: 2, 7: np.int64(10)})
    assert numbered.shown_groups.tolist() == ["10", "2"] and numbered.groups.tolist() == [1, 0]
    simulated = dataclasses.replace(numbered, groups=np.array([2, 0], np.int32), group_names=None)
    assert numbered.with_groups({7: 3, 8: 2}, known=simulated).groups.tolist() == [3, 2]
    for groups, message in (
        ({"a": "x"}, "client b has no group in groups, and 1 more have none; each must have one"),
        ({"a": "x", "z": "y"}, "unknown client 'z'"),
        ({"a": "x", "b": 1, "c": "x"}, "it must be a mapping of clients to texts, or to whole numbers"),
        (["x", "y", "z"], "it must be a mapping of clients to texts, or to whole numbers"),
    ):
        with pytest.raises(UserError, match=message):
            known.with_groups(groups)


def test_columns_of_frames_are_in_one_order_or_refused(tmp_path):
    """An array of a frame does not know its columns, so that a dose would be taken for an age."""
    given = pd.DataFrame({"age": X[:, 0], "dose": X[:, 1]})
    other = given[["dose", "age"]]
    message = r"columns of client b are dose, age, those of client a age, dose; .* frame\[\['age', 'dose'\]\]"
    for examples, test in (
        ({"a": (given, Y), "b": (other, Y)}, None),
        ({"a": (given, Y), "b": (given, Y)}, {"b": (other, Y)}),
        ({"a": ({"one": given}, Y), "b": ({"one": other}, Y)}, None),
    ):
        with pytest.raises(UserError, match=message):
            Population.from_arrays(examples, test)
    labels = pd.get_dummies(pd.Series(list("xyzxyz")), dtype="int")
    with pytest.raises(UserError, match="the columns of client b are z, y, x, those of client a x, y, z"):
        Population.from_arrays({"a": (X, labels), "b": (X, labels[["z", "y", "x"]])})
    known = Population.from_arrays({"a": (given, Y), "b": (X, Y)}).with_validation(0.2)  # arrays have no names
    with pytest.raises(UserError, match="clients' columns are dose, age, those of the known clients age, dose"):
        Population.from_arrays({"c": (other, Y)}, known=known)
    assert not why_not_after(known, Population.from_arrays({"c": (given, Y)}, known=known))
    assert "its frames have other columns" in why_not_after(known, Population.from_arrays({"a": (other, Y)}))
    numbered = pd.DataFrame(X)
    Population.from_arrays({"a": (given, Y), "b": (numbered, Y), "c": (given, pd.DataFrame({"y": Y}))})
    with pytest.raises(UserError, match="the columns of client b are dose, age, those of client a age, dose"):
        orders = iter((given, other))
        Population.from_arrays({"b": (X, Y), "a": (X, Y)}).map(lambda x, y: (next(orders), y))


def test_names_of_labels_are_a_list_of_different_ones():
    for names in ({"no", "yes"}, ["no", "yes", "no"], "no"):
        with pytest.raises(UserError, match="it must be a list of different names, by class"):
            Population.from_arrays({"a": (X, NAMES[Y])}, label_names=names)


def test_texts_for_numbers_cannot_follow():
    numbers, texts, bools = ({"a": (X, y)} for y in (Y, Y.astype(str), Y > 0))
    numbers, texts, bools = map(Population.from_arrays, (numbers, texts, bools))
    assert "other names of labels" in why_not_after(numbers, texts) and not why_not_after(numbers, bools)


def test_names_that_no_file_holds_are_refused_and_others_come_back_as_they_are(tmp_path):
    with pytest.raises(UserError, match="a client ID holds a NUL character"):
        Population.from_arrays({"a": (X, Y), "a\0": (X, Y)})
    names = [" lead", "trail ", "line\r", "a,b"]
    with open(tmp_path / "clients.csv", "w", newline="") as file:
        csv.writer(file).writerows([["client_id", "examples"], *([name, " 3 "] for name in names)])
    table = read_table(tmp_path / "clients.csv", ["client_id"])
    assert table.texts("client_id").tolist() == names and table.integers("examples", 0).tolist() == [3] * 4


def test_a_part_of_the_clients_keeps_names_and_data(named):
    part = named.restricted(["zoe", "mia"])
    assert part.names.tolist() == ["mia", "zoe"] and part.client_ids.tolist() == [1, 2]
    assert part.sizes.tolist() == [6, 3] and part.index(["zoe"]).tolist() == [1]
    assert_holds(part.train(2).dataset, X[3:], Y[3:])


def test_whole_numbers_stay_as_they_are():
    population = Population.from_arrays({np.int64(40): (X, Y), 7: (X[:1], Y[:1])})
    assert population.client_ids.tolist() == [7, 40] and population.client_ids.dtype == np.int32
    assert population.names is None and population.sizes.tolist() == [1, 6] and population.name_of(40) == "40"
    with pytest.raises(UserError, match="client anna is not known; there are 2 clients, 7 to 40"):
        population.index(["anna"])


def test_whole_numbers_that_are_one_in_float32_are_refused_in_examples_of_float64():
    times, labels = np.array([[1.0, 1_700_000_001.0], [2.0, 1_700_000_002.0]]), [0, 1]
    for x, where in ((times, " in column 1"), (pd.DataFrame(times, columns=["a", "when"]), " in column when")):
        with pytest.raises(UserError, match=f"1700000001 and 1700000002{where}, which are one number in float32"):
            Population.from_arrays({"a": (x, labels)})
    with pytest.raises(UserError, match="1700000001 and 1700000002, which are one number in float32.* - 1700000001"):
        Population.from_arrays({"a": (times[:, 1], labels)})
    rounded = Population.from_arrays({"a": (times + [0, 1_000_000.25], labels)})  # measured ones need no more digits
    assert rounded.train(0).x.dtype == np.float32
    assert Population.from_arrays({"a": (times.T, labels)}).train(0).x[1, 1] == np.float32(1_700_000_002)


def test_a_user_names_clients_as_files_do(named):
    """A number where there are names would silently be a row."""
    assert named.id_of("mia") == 1 and named.id_of(named.names[2]) == 2
    whole = Population.from_arrays({40: (X, Y), 7: (X[:1], Y[:1])})
    assert whole.id_of(40) == 40 and whole.id_of(np.int64(7)) == 7
    for population, client, message in (
        (named, 0, "client 0 is not known; client IDs are text, e.g. 'bo'"),
        (named, np.int32(0), "is not known; client IDs are text, e.g. 'bo'"),
        (named, "mio", "unknown client 'mio'; did you mean 'mia'"),
        (whole, "40", "client '40' is not known; client IDs are whole numbers, e.g. 7"),
        (whole, 8, "client 8 is not known; there are 2 clients, 7 to 40"),
        (whole, [7, 40], r"client \[7, 40\] is not known; client IDs are whole numbers, given one by one, e.g. 7"),
        (whole, None, "client None is not known; client IDs are whole numbers, given one by one, e.g. 7"),
        (named, ["bo"], r"client \['bo'\] is not known; client IDs are text, given one by one, e.g. 'bo'"),
    ):
        with pytest.raises(UserError, match=message):
            population.id_of(client)
        if not np.isscalar(client):
            with pytest.raises(UserError, match=message):
                population.train(client)


def test_newcomers_get_numbers_after_those_of_the_clients_that_are_known(named):
    """In alphabetical order they would take the numbers of others."""
    new = Population.from_arrays({"ann": (X, Y), "carl": (X, Y)}, known=named)
    assert new.client_ids.tolist() == [3, 4] and new.names.tolist() == ["ann", "carl"]
    everyone = Population.from_arrays({name: (X, Y) for name in ("ann", "bo", "mia", "zoe", "carl")}, known=named)
    assert dict(zip(everyone.names, everyone.client_ids)) == {"bo": 0, "mia": 1, "zoe": 2, "ann": 3, "carl": 4}
    assert Population.from_client_data(client_data({"ann": (X, Y)}), known=named).client_ids.tolist() == [3]
    for wrong, message in (
        ({7: (X, Y)}, "client IDs are whole numbers, those of the known clients are text"),
        ({"ann": (X[:, :1], Y)}, r"the clients' examples are float32 \[1\], those of the known clients float32 \[2\]"),
    ):
        with pytest.raises(UserError, match=message):
            Population.from_arrays(wrong, known=named)


def test_numbers_of_any_type_and_sequences_of_labels():
    doubles, longest = (Population.from_arrays({"a": (X.astype(kind), Y)}) for kind in (np.float64, np.longdouble))
    assert longest.example_spec == doubles.example_spec
    assert_holds(doubles.train(0).dataset, X, Y)
    texts, follow = own_data.writers(2)[0]["writer 0"]
    population = Population.from_arrays({"a": (texts, follow)}, {"a": (texts[:2], follow[:2])})
    x, y = held(population.train(0).dataset)
    assert x.dtype == np.int32 and y.shape == (20, own_data.LENGTH)
    assert population.label_counts.sum() == y.size and population.pooled_tests.y.shape == (2, own_data.LENGTH)
    images = Population.from_arrays({"a": (np.zeros([3, 4, 4, 1], np.uint8), np.zeros(3, np.uint8))})
    assert images.train(0).dataset.element_spec["x"].dtype == tf.uint8


@pytest.mark.parametrize("form", ["a mapping", "a pair"])
def test_client_data_give_the_population_of_their_arrays(named, form):
    train = client_data({"mia": (X, Y), "bo": (X[:2], Y[:2]), "zoe": (X[3:], Y[3:])})
    test = client_data({"mia": (X[:4], Y[:4]), "who has no training examples": (X, Y)})
    if form == "a pair":
        train, test = (
            each.preprocess(lambda data: data.map(lambda one: (one["x"], one["y"]))) for each in (train, test)
        )
    population = Population.from_client_data(train, test)
    assert population.names.tolist() == named.names.tolist() and population.sizes.tolist() == named.sizes.tolist()
    for client in range(3):
        assert_holds(population.train(client).dataset, *held(named.train(client).dataset))
    assert_holds(population.test(1).dataset, X[:4], Y[:4])
    np.testing.assert_array_equal(population.pooled_tests.x, named.pooled_tests.x)


def test_reading_many_clients_shows_how_far_it_is(monkeypatch, capsys):
    train = client_data({"mia": (X, Y), "bo": (X[:2], Y[:2])})
    found = Population.from_client_data(train, train.preprocess(lambda data: data.filter(lambda one: one["y"] < 0)))
    assert not capsys.readouterr().err and not len(found.pooled_tests.y) and found.pooled_tests.x.shape == (0, 2)
    monkeypatch.setattr(sources, "_LONG", 0)
    Population.from_client_data(train)
    assert "training examples of clients" in capsys.readouterr().err


NAN = np.where(np.arange(12).reshape(6, 2) == 5, np.nan, X)


class Frame:
    """What a pandas DataFrame has that is looked at."""

    groupby = None

    def __init__(self, values, columns):
        self.values, self.columns = values, columns

    def __array__(self, dtype=None):
        return np.asarray(self.values, dtype)


@pytest.mark.parametrize(
    "examples, message",
    [
        ({}, "there are no clients; give a mapping of client IDs"),
        ([(X, Y)], r"examples is of list; it must be a mapping of client IDs to \(x, y\)"),
        ("clinics.csv", r"examples is of str; it must be a mapping of client IDs to \(x, y\)"),
        (
            Frame(X, "ab"),
            r"examples is of Frame; it must be .*: Population.from_frame\(frame, client=..., label=...\) takes tables",
        ),
        ({"a": (X, Y), 3: (X, Y)}, "client IDs are of int, str; they must be all text or all whole numbers"),
        ({None: (X, Y), 3: (X, Y)}, "client IDs are of NoneType, int; they must be all text or all whole numbers"),
        ({True: (X, Y)}, "client IDs are of bool; they must be all text or all whole numbers"),
        ({2.0: (X, Y)}, "client IDs are of float; they must be all text or all whole numbers"),
        ({"a": (X, Y), "a ": (X, Y)}, "client IDs 'a' and 'a ' differ by blanks around them only; .strip.. makes one"),
        ({"a": (X, np.array(["no", " no", " "] * 2))}, "the labels ' no' and 'no' differ by blanks around them only"),
        (
            {"\u00e9": (X, Y), "e\u0301": (X, Y)},
            r"client IDs 'e\\u0301' and '\\xe9' are both written .; unicodedata.norm",
        ),
        ({"a": (X, Y * 1e39)}, "the labels of client a have entries beyond what float32 holds, 3.4e38"),
        (
            {"a": (X, Y + 2**31)},
            "client a has the label 2147483.*; so large a number is no class: y.astype.float. makes",
        ),
        ({-1: (X, Y)}, "client ID -1 is not from 0 to 2147483647; use text"),
        ({2**31: (X, Y)}, "client ID 2147483648 is not from 0 to 2147483647; use text"),
        ({"a": (X, Y), "b": (X[:0], Y[:0])}, "client b has no training examples; every client needs at least 1"),
        (
            {"a": (X, Y), "b": (NAN, Y)},
            "training examples of client b have NaN or infinite entries in 1 of 6 rows, first in row 2, column 1",
        ),
        ({"a": (X, Y), "b": (Frame(NAN, ["age", "pulse"]), Y)}, "in 1 of 6 rows, first in row 2, column pulse"),
        ({"a": (X, Y), "b": (X + np.inf, Y)}, "the training examples of client b have NaN or infinite entries"),
        (
            {"a": (X, Y), "b": (X[:, :1], Y)},
            r"the examples of client b are float32 \[1\], those of client a "
            r"float32 \[2\]",
        ),
        (
            {"a": (X, Y), "b": (X.astype(int), Y)},
            r"the examples of client b are int64 \[2\], those of client a "
            r"float32",
        ),
        (
            {"a": (X, Y), "b": (X, X.astype(int))},
            r"the labels of client b are int64 \[2\], those of client a int64 \[\]; all must be alike",
        ),
        ({"a": (X, Y), "b": (X, Y / 1)}, r"the labels of client b are float64 \[\], those of client a int64 \[\]"),
        ({"a": (X, Y), "b": (X, NAMES[Y])}, r"the labels of client b are text \[\], those of client a int64 \[\]"),
        ({"a": (X, np.array(["no", None] * 3))}, "labels of client a are of NoneType, str, None in row 1"),
        ({"a": (X, Y + np.nan)}, "labels of client a have NaN or infinite entries in 6 of 6 rows, first in row 0"),
        ({"a": (X, Y.astype(complex))}, r"labels of client a are complex128 \[6\]; they must be integers, numbers or"),
        ({1.0: (X, Y)}, r"client IDs are of float; .*: .dropna\(\).astype\(int\)"),
        ({"a": (X, Y.astype(object))}, r'labels of client a are object \[6\]; .*: y.astype\("int64"\)'),
        ({"a": (X, None)}, "labels of client a are of NoneType, which is no array"),
        (
            {"a": (sparse.csr_array(X), Y)},
            r"examples of client a are of csr_array, which is no array; x.toarray\(\) makes",
        ),
        ({"a": ([sparse.csr_array(X)] * 6, Y)}, r"examples of client a are of csr_array, .*; x.toarray\(\) makes one"),
        (
            {"a": (X, tf.sparse.from_dense(Y))},
            r"labels of client a are of SparseTensor, .*; tf.sparse.to_dense\(x\) makes",
        ),
        ({"a": (tf.RaggedTensor.from_tensor(X), Y)}, r"client a are of RaggedTensor, .*; x.to_tensor\(\) makes one"),
        (
            {"a": (X, np.ma.masked_equal(Y, 2))},
            "labels of client a are a masked array with 1 entries masked; fill them",
        ),
        (
            {"a": (np.ma.masked_less(X, 0.2), Y)},
            r"examples of client a are a masked array with \d entries masked; "
            r"fill them",
        ),
        (
            {"a": (X.astype(object), Y)},
            r'training examples of client a are object \[6, 2\]; .*: .astype\("float32"\) '
            r"makes them so",
        ),
        (
            {"a": (Frame(np.stack([X[:, 0].astype(object), ["m"] * 6], 1), ["age", "sex"]), Y)},
            "column sex holds text, of which pandas.get_dummies",
        ),
        ({"a": (X, Y), "b": (X, Y - 1)}, "client b has the label -1; labels count from 0: y.astype\(str\) makes names"),
        (
            {"a": (X, Y[:, None] * np.array([1, -1]))},
            r"client a has the label -2; labels count from 0: .* padding is a class that .* \(ignore_class=\)",
        ),
        ({"a": (X, Y[:3])}, r"client a has training examples float32 \[6, 2\] and 3 labels; they do not fit"),
        ({"a": X}, r"the training examples of client a are ndarray; they must be a pair \(x, y\)"),
        ({"a": {"x": X, "label": X}}, r"client a are a mapping of x, label; they must be a pair \(x, y\)"),
        ({"a": (np.array(["one"] * 6), Y)}, r"training examples of client a are <U3 \[6\]; .*TextVectorization"),
        ({"a": (np.array(["one"] * 6, object), Y)}, r"client a are object \[6\]; they must be numbers .* of texts, "),
        ({"a": ([[1.0], [1.0, 2.0]], [0, 1])}, "the training examples of client a have unequal shapes"),
    ],
)
def test_arrays_that_are_no_clients_data_are_refused_in_one_line(examples, message):
    with pytest.raises(UserError, match=message) as raised:
        Population.from_arrays(examples)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "test, message",
    [
        ({"b": (X, Y), 3: (X, Y)}, "client 3 has test examples, but no training examples"),
        ({"a": (NAN, Y)}, "the test examples of client a have NaN or infinite entries"),
        ({"a": (X[:, :1], Y)}, r"the test examples of client a are float32 \[1\], those of client a float32 \[2\]"),
        ((X, Y), r"test is of tuple; it must be a mapping of client IDs"),
    ],
)
def test_test_examples_that_do_not_fit_are_refused_in_one_line(test, message):
    with pytest.raises(UserError, match=message) as raised:
        Population.from_arrays({"a": (X, Y)}, test)
    assert "\n" not in str(raised.value)


def nobody():
    """What TFF's own classes refuse to be."""
    return types.SimpleNamespace(client_ids=[], create_tf_dataset_for_client=None)


def with_keys(**keys):
    return tff.simulation.datasets.TestClientData({"ann": collections.OrderedDict(keys)})


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: with_keys(pixels=X, label=Y),
            r"examples are \['pixels', 'label'\]; they must be \(x, "
            r"y\).*client_data.preprocess",
        ),
        (lambda: with_keys(x=X), r"examples are \['x'\]; they must be \(x, y\)"),
        (lambda: client_data({"ann": (X, Y), "bo": (X[:0], Y[:0])}), "client bo has no training examples"),
        (lambda: client_data({"ann": (NAN, Y)}), "the training examples of client ann have NaN"),
        (
            lambda: client_data({"ann": (X, Y)}).preprocess(lambda data: data.batch(4).batch(4)),
            r"examples of client ann are .* of fixed shape, or batches of these",
        ),
        (
            lambda: client_data({"ann": (X, Y)}).preprocess(lambda data: data.repeat()),
            r"examples of client ann never "
            r"end; leave out repeat\(\)",
        ),
        (lambda: {"ann": (X, Y)}, "train is of dict; it must be a tff.simulation.datasets.ClientData"),
        (nobody, "there are no clients"),
    ],
)
def test_client_data_of_another_form_are_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as raised:
        Population.from_client_data(make())
    assert "\n" not in str(raised.value)


def test_of_many_clients_a_message_lists_none():
    many = Population.from_arrays({f"c{number:03}": (X, Y) for number in range(50)})
    with pytest.raises(UserError, match="client c050 is not known; there are 50 clients, c000 to c049"):
        many.index(["c050"])
    with pytest.raises(UserError, match="unknown client 'c003'; did you mean 'c002'"):
        many.restricted(["c001", "c002"]).index(["c003"])


def test_examples_are_held_against_the_model(named):
    check_examples(named, SPEC, 3)
    with pytest.raises(UserError, match="client mia has the label 2; the model knows the classes 0 to 1$"):
        check_examples(named, SPEC, 2)
    with pytest.raises(
        UserError, match="has the label 2; .* 0 to 1; labels count from 0, and no client has that: y - 1"
    ):
        check_examples(Population.from_arrays({"a": (X, 1 + Y % 2)}), SPEC, 2)
    with pytest.raises(
        UserError, match=r"labels are int32\[3\]; the model takes int32\[\]; of one-hot rows y.argmax\(axis=1\) makes"
    ):
        check_examples(Population.from_arrays({"a": (X, np.eye(3, dtype=int)[Y])}), SPEC, 3)
    with pytest.raises(UserError, match=r"the clients' examples are float32\[2\]; the model takes uint8\[2\]"):
        check_examples(named, {**SPEC, "x": tf.TensorSpec([2], tf.uint8)}, 3)
    with pytest.raises(UserError, match=r"the clients' labels are int32\[\]; the model takes int32\[4\]"):
        check_examples(named, {**SPEC, "y": tf.TensorSpec([4], tf.int32)}, 3)


@pytest.mark.parametrize("kind", ["training", "test", "validation"])
@pytest.mark.parametrize(
    "x, y, message",
    [
        (X, Y - 1, "client 1 has the label -1; labels count from 0: y.astype"),
        (X, Y + 2, "client 1 has the label 4; the model knows the classes 0 to 2$"),
        (X * np.nan, Y, "the {kind} examples of client 1 have NaN or infinite entries in 6 of 6 rows, first in row 0"),
    ],
)
def test_examples_that_come_as_they_are_are_looked_through(kind, x, y, message):
    good, bad = (ClientExamples(each, labels.astype(np.int32)) for each, labels in ((X, Y), (x, y)))
    kinds = {each: {0: good, 1: bad if each == kind else good} for each in ("training", "test", "validation")}
    with pytest.raises(UserError, match=message.format(kind=kind)):
        check_examples(Population(np.arange(2, dtype=np.int32), *kinds.values()), SPEC, 3)
    del kinds[kind][1]
    if kind != "training":  # without any of which there is no client
        with pytest.raises(UserError, match=f"client 1 has no {kind} examples, which others have; "):
            check_examples(Population(np.arange(2, dtype=np.int32), *kinds.values()), SPEC, 3)


def test_a_label_that_is_far_too_large_is_found_though_labels_are_not_counted():
    far = Population.from_arrays({"a": (X, Y), "b": (X, Y * 5000)})
    assert far.label_counts is None
    with pytest.raises(UserError, match="client b has the label 10000; the model knows the classes 0 to 2"):
        check_examples(far, SPEC, 3)
    tested = Population.from_arrays({"a": (X, Y)}, {"a": (X, Y + 2)})
    with pytest.raises(UserError, match="client a has the label 4; the model knows the classes 0 to 2"):
        check_examples(tested, SPEC, 3)


def test_labels_become_numbers_by_one_rule():
    """Columns are taken as vectors, bools are 0 and 1, texts their places among the sorted texts of all clients."""
    texts = NAMES[Y]
    for given, wanted, names in (
        (Y[:, None], Y, None),
        (Y > 0, Y > 0, ("False", "True")),
        ((Y > 0).astype(object), Y > 0, ("False", "True")),
        (texts, Y, ("no", "perhaps", "yes")),
        (texts.astype(object)[:, None], Y, ("no", "perhaps", "yes")),
        (np.char.encode(texts), Y, ("no", "perhaps", "yes")),
        (np.char.encode(texts).astype(object), Y, ("no", "perhaps", "yes")),
        (Y + 1, Y + 1, None),
        (2 * Y, 2 * Y, None),
    ):
        population = Population.from_arrays({"a": (X, given), "b": (X[:1], given[:1])}, {"a": (X, given)})
        wanted = np.array([0, 2, 1])[Y] if names and len(names) == 3 else wanted
        assert population.label_names == names and population.train(0).y.dtype == np.int32
        np.testing.assert_array_equal(population.train(0).y, wanted)
        np.testing.assert_array_equal(population.test(0).y, wanted)
        np.testing.assert_array_equal(population.label_counts[0], np.bincount(wanted))
        assert population.label_counts.shape == (2, len(names or np.bincount(wanted)))
    numbers = Population.from_arrays({"a": (X, X / 2)})
    assert numbers.train(0).y.dtype == np.float32 and numbers.label_counts is None is numbers.label_names


def test_names_of_labels_are_those_of_the_known_clients(named):
    known = Population.from_arrays({"a": (X, NAMES[Y])}, {"a": (X, NAMES[Y])})
    new = Population.from_arrays({"b": (X[:2], np.array(["yes", "perhaps"]))}, known=known)
    assert new.label_names == known.label_names and new.train(1).y.tolist() == [2, 1]
    with pytest.raises(
        UserError, match=r"client b has the label 'never', .* \(no, perhaps, yes\); the first .* by label_names="
    ):
        Population.from_arrays({"b": (X[:1], np.array(["never"]))}, known=known)
    wider = Population.from_arrays({"a": (X, NAMES[Y])}, label_names=("yes", "no", "never", "perhaps"))
    assert Population.from_arrays({"b": (X[:1], np.array(["never"]))}, known=wider).train(1).y.tolist() == [2]
    assert wider.label_counts.tolist() == [[3, 2, 0, 1]]
    with pytest.raises(UserError, match=r"client x has the label 'no', which is none of those known \(numbers\)"):
        Population.from_arrays({"x": (X, NAMES[Y])}, known=named)
    with pytest.raises(UserError, match="client a has the label 2; there are 2 label_names"):
        Population.from_arrays({"a": (X, Y)}, label_names=("no", "yes"))
    with pytest.raises(UserError, match="client a has the label 2, 'yes'; the model knows the classes 0 to 1"):
        check_examples(known, SPEC, 2)


def test_data_sets_are_taken_in_batches_or_not():
    """Two batches, which would unpack as a pair, too."""
    one = tf.data.Dataset.from_tensor_slices((X, Y))
    named_pair = one.batch(4).map(lambda x, y: {"x": {"a": x, "b": x[:, 0]}, "y": y})
    for given in (one, one.batch(3), one.batch(4), one.shuffle(6, seed=1).batch(6)):
        population = Population.from_arrays({"a": given}, {"a": one.batch(2)})
        np.testing.assert_array_equal(np.sort(population.train(0).x, axis=0), X)
        assert_holds(population.test(0).dataset, X, Y)
    several = Population.from_arrays({"a": named_pair})
    assert several.example_spec["x"]["b"] == tf.TensorSpec([], tf.float32) and several.sizes.tolist() == [6]
    batches = client_data({"ann": (X, Y)}).preprocess(lambda data: data.batch(4))
    assert_holds(Population.from_client_data(batches).train(0).dataset, X, Y)
    with pytest.raises(UserError, match=r"model takes float32\[2\]"):
        check_examples(Population.from_arrays({"a": one.batch(3, drop_remainder=True)}), SPEC, 3)


def test_examples_of_several_inputs():
    both = {"words": X.astype(int), "age": X[:, 0].astype(np.float64)}
    population = Population.from_arrays({"a": (both, Y), "b": (both, Y)}, {"a": (both, Y)})
    assert population.example_spec["x"]["words"] == tf.TensorSpec([2], tf.int64)
    assert population.pooled_tests.x["age"].shape == (6,) and not len(population.test(1).x["age"])
    spec = {"x": {"age": tf.TensorSpec([], tf.float32), "words": tf.TensorSpec([2], tf.int32)}, "y": SPEC["y"]}
    converted = fitted(population, spec)
    assert list(converted.train(0).x) == ["age", "words"] and converted.example_spec == spec
    check_examples(converted, spec, 3)
    told = fingerprint.of_populations({0: population})
    assert told != fingerprint.of_populations({0: population.map(lambda x, y: ({**x, "age": x["age"] + 1}, y))})
    with pytest.raises(UserError, match="examples are of the inputs age, words; the model takes one array"):
        check_examples(population, SPEC, 3)
    for wrong, message in (
        ({"words": X}, "the inputs of client b are words, those of client a age, words; all must be alike"),
        (
            {**both, "age": X},
            r"the examples of input age of client b are float32 \[2\], those of client a float32 \[\]",
        ),
        ({**both, "age": NAN[:, 1]}, "training examples of client b, input age, have NaN or infinite"),
        ({**both, "age": X[:3, 0]}, r"client b has training examples float32 \[3\] and 6 labels"),
    ):
        with pytest.raises(UserError, match=message):
            Population.from_arrays({"a": (both, Y), "b": (wrong, Y)})


def test_some_clients_of_client_data_are_read_and_the_others_not():
    train = client_data({"mia": (X, Y), "bo": (NAN, Y), "zoe": (X, Y)})
    population = Population.from_client_data(train, train, clients=["zoe", "mia"])
    assert population.names.tolist() == ["mia", "zoe"] and population.client_ids.tolist() == [0, 1]
    with pytest.raises(UserError, match="unknown client 'mio'; did you mean 'mia'"):
        Population.from_client_data(train, clients=["mio"])
    for clients in ("mia", ["mia", "mia"]):
        with pytest.raises(UserError, match="clients is .*; it must be a list of different clients"):
            Population.from_client_data(train, clients=clients)


def test_lazy_client_data_are_read_when_they_are_needed(monkeypatch):
    """The last examples stay in memory, and what is computed is what arrays in memory give."""
    monkeypatch.setattr(client_examples, "_MEMORY_BYTES", 2 * X.nbytes)
    monkeypatch.setattr(large_rows, "MEMORY_BYTES", 0)
    data = {f"c{number}": (X + number, NAMES[Y]) for number in range(9)}
    tests = client_data({name: data[name] for name in ("c1", "c5")})
    found, near = (Population.from_client_data(client_data(data), tests, lazy=lazy) for lazy in (True, False))
    assert found.names.tolist() == near.names.tolist() and found.sizes.tolist() == near.sizes.tolist()
    np.testing.assert_array_equal(found.label_counts, near.label_counts)
    for each in (
        found,
        found.map(lambda x, y: (x * 2, y)),
        fitted(found, {**SPEC, "x": tf.TensorSpec([2], tf.float64)}),
    ):
        assert not isinstance(each.train_examples.held, dict) and each.label_names == ("no", "perhaps", "yes")
        times = 1 + (each.train(3).x[0, 1] == 8)
        np.testing.assert_array_equal(each.train(3).x, times * near.train(3).x)
        np.testing.assert_array_equal(each.pooled_tests.x, times * near.pooled_tests.x)
        np.testing.assert_array_equal(np.concatenate(each.pooled_tests.indices), np.arange(12))
        assert len(each.train_examples.held._held) < 5 and each.test_sizes.tolist() == near.test_sizes.tolist()
    with pytest.raises(UserError, match="the training examples of client c8 have NaN"):
        Population.from_client_data(client_data({**data, "c8": (NAN, NAMES[Y])}), lazy=True)


def test_a_function_of_ones_own_changes_all_examples(named):
    held = dataclasses.replace(named, validation_examples=named.train_examples, versions=np.array([1, 2, 3], np.int32))
    flipped = held.map(lambda x, y: (x[:, ::-1], y > 0))
    for kind in ("train", "test", "validation"):
        np.testing.assert_array_equal(getattr(flipped, kind)(1).x, getattr(held, kind)(1).x[:, ::-1])
    assert flipped.label_names == ("False", "True") and flipped.versions.tolist() == [1, 2, 3]
    assert flipped.label_counts.tolist() == [[1, 1], [2, 4], [1, 2]] and len(flipped.test(0)) == 0
    fewer = named.map(lambda x, y: (np.c_[x, x][:2], y[:2]))
    assert fewer.sizes.tolist() == [2, 2, 2] and fewer.example_spec["x"].shape == fewer.test(0).x.shape[1:] == (4,)
    with pytest.raises(UserError, match="the training examples of client bo are NoneType; they must be a pair"):
        named.map(lambda x, y: None)
    with pytest.raises(UserError, match="client bo has training examples .* and 1 label;"):
        named.map(lambda x, y: (x, y[:1]))


def test_classes_that_a_function_numbers_anew_lose_their_names():
    texts = Population.from_arrays({"mia": (X, NAMES[Y]), "bo": (X[:2], NAMES[Y[:2]])})
    assert texts.label_names == texts.map(lambda x, y: (2 * x, y)).label_names == ("no", "perhaps", "yes")
    for anew in (lambda y: (y == 2).astype(int), lambda y: 2 - y, lambda y: y.astype(float)):
        assert texts.map(lambda x, y, of=anew: (x, of(y))).label_names is None
    merged = texts.map(lambda x, y: (x, np.array(["never", "yes", "yes"])[y]))
    assert merged.label_names == ("never", "yes")
    np.testing.assert_array_equal(merged.train("mia").y, texts.train("mia").y > 0)


def test_examples_by_name_are_those_of_a_pair():
    named, pair = (Population.from_arrays({"a": given}) for given in ({"x": X, "y": Y}, (X, Y)))
    np.testing.assert_array_equal(named.train("a").x, pair.train("a").x)
    np.testing.assert_array_equal(named.train("a").y, pair.train("a").y)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda clients: pickle.loads(pickle.dumps(clients))])
def test_a_population_is_copied_and_pickled_after_a_run_too(again):
    clients = Population.from_arrays({"a": (X, Y)})
    assert len(list(clients.train("a").dataset)) == len(Y)  # which rounds take
    np.testing.assert_array_equal(again(clients).train("a").x, clients.train("a").x)


def test_a_mapping_that_fails_names_its_client():
    class Failing(dict):
        def __getitem__(self, name):
            if name == "bob":
                raise ValueError("no such shard")
            return super().__getitem__(name)

    for lazy in (False, True):
        with pytest.raises(
            UserError, match="training examples of client bob cannot be read: ValueError: no such shar"
        ) as told:
            Population.from_arrays(Failing(ann=(X, Y), bob=(X, Y)), lazy=lazy)
        assert not [bar for bar in tqdm.tqdm._instances if "examples of clients" in bar.desc], (
            f"{told} holds an open bar"
        )


def test_a_population_stays_as_it_is_when_the_users_arrays_change():
    x, y = X.astype(np.float32), Y.copy()
    seen = x.view()
    seen.flags.writeable = False  # as what pandas gives of a frame
    clients = Population.from_arrays({"mia": (x, y)}, {"mia": (seen, y)})
    x *= -1
    y[:] = 0
    np.testing.assert_array_equal(clients.train("mia").x, X)
    np.testing.assert_array_equal(clients.test("mia").x, X)
    np.testing.assert_array_equal(clients.train("mia").y, Y)
    for given in (clients.train("mia").x, clients.train("mia").y):
        with pytest.raises(ValueError, match="read-only"):
            given *= 2


def test_a_function_that_works_in_place_changes_no_other_population():
    def doubled(x, y):
        x *= 2
        y += 1
        return x, y

    clients = Population.from_arrays({"mia": (X.astype(np.float32), Y)})
    for _ in range(2):
        np.testing.assert_array_equal(clients.map(doubled).train("mia").x, 2 * X)
    np.testing.assert_array_equal(clients.train("mia").y, Y)


def test_examples_that_are_read_when_needed_must_be_the_same_each_time():
    x = np.arange(40, dtype=np.float32)[:, np.newaxis]

    class Shuffled(ReadWhenNeeded):
        def __getitem__(self, name):
            return tf.data.Dataset.from_tensor_slices(super().__getitem__(name)).shuffle(40)

    given = Shuffled({"mia": (x, np.arange(40) % 3)})
    with pytest.raises(UserError, match="the training examples of client mia are others, or in another order, .*lazy"):
        Population.from_arrays(given, lazy=True)
    assert len(Population.from_arrays(given).train("mia")) == 40
