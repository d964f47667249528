"""Tables as populations: which columns become which features, what is measured of whom, and what is refused."""

import gzip
import re

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from tffcl.clients.population import Population
from tffcl.clients.splits import split
from tffcl.clients.table_files import read_table_file
from tffcl.clients.tables import read_table
from tffcl.errors import UserError
from tffcl.runs.population_changes import why_not_after


def shared_out(data):
    """One of scikit-learn's tables, of whose rows each is some clinic's."""
    frame = data.frame.copy()
    names = np.array([f"clinic {number}" for number in range(5)])
    frame["clinic"] = names[np.random.default_rng(0).integers(0, 5, len(frame))]
    return frame


@pytest.fixture(scope="module")
def cancer():
    return shared_out(load_breast_cancer(as_frame=True))


@pytest.fixture
def small():
    """Two clients with three rows each, columns of every kind."""
    return pandas.DataFrame(
        dict(
            user=["a", "b", "a", "b", "a", "b"],
            age=[20, 30, 40, 50, 60, 70],
            pulse=[60.0, 70.0, 80.0, 60.0, 70.0, 80.0],
            sex=["m", "f", "m", "f", "m", "f"],
            smokes=[True, False, True, False, True, False],
            ill=["no", "yes", "no", "no", "yes", "no"],
        )
    )


def read(frame, **options):
    return Population.from_frame(frame, **{"client": "user", "label": "ill", "test": 0, **options})


def noised(noise_multiplier=1.0, **bounds):
    return {"bounds": bounds, "noise_multiplier": noise_multiplier}


def all_of(population, kind="train"):
    return [getattr(population, kind)(client) for client in population.client_ids]


def test_a_table_becomes_clients_with_standardised_features(cancer):
    population = Population.from_frame(cancer, client="clinic", label="target", validation=0.25)
    assert population.names.tolist() == sorted(set(cancer["clinic"])) and population.label_names is None
    assert population.feature_names == tuple(cancer.columns[:30]) and population.example_spec == {
        "x": tf.TensorSpec([30], tf.float32), "y": tf.TensorSpec([], tf.int32),
    }  # fmt: skip
    x = np.concatenate([each.x for each in all_of(population)])
    np.testing.assert_allclose([x.mean(0), x.std(0)], np.stack([np.zeros(30), np.ones(30)]), atol=1e-5)
    counts = cancer.groupby("clinic").size().to_numpy()
    held = np.stack([[len(each) for each in all_of(population, kind)] for kind in ("train", "validation", "test")])
    np.testing.assert_array_equal(held.sum(axis=0), counts)
    np.testing.assert_array_equal(held[2], np.round(0.3 * counts))
    assert "standardised by means and deviations of the training clients' training examples" in population.note
    everything = np.concatenate(
        [each.y for kind in ("train", "validation", "test") for each in all_of(population, kind)]
    )
    np.testing.assert_array_equal(np.bincount(everything), np.bincount(cancer["target"]))


@pytest.mark.slow
def test_means_with_noise_are_those_of_clients_and_the_noise_that_of_the_longest_client(small):
    numbers = small.drop(columns="sex").astype({"age": float})
    numbers.loc[0, "age"] = np.nan  # counts as the middle of its bounds
    numbers["user"] = ["a", "b", "a", "a", "a", "b"]  # who has more rows counts no more
    bounds = {"age": (0, 60), "pulse": (50, 150)}
    options = {"features": ["age", "pulse"], "missing": "mean", "bounds": bounds}
    rules = read(numbers, **options, noise_multiplier=1e-9).table
    for name, middle, half in (("age", 30, 30), ("pulse", 100, 50)):
        u = np.nan_to_num((np.clip(numbers[name], *bounds[name]) - middle) / half)
        own = [u[(numbers["user"] == user).to_numpy()] for user in "ab"]
        mean, square = (np.mean([np.mean(values**power) for values in own]) for power in (1, 2))
        column = rules.columns[name]
        np.testing.assert_allclose(
            [column.mean, column.std, column.fill],
            [middle + half * mean, half * (square - mean**2) ** 0.5, middle + half * mean],
        )
    drawn = [read(numbers, **options, noise_multiplier=0.01, seed=seed) for seed in range(200)]
    for name in bounds:
        spread = np.std([each.table.columns[name].mean for each in drawn]) / np.diff(bounds[name])[0]
        np.testing.assert_allclose(spread, 0.01 * (5 * 2) ** 0.5 / 2 / 2 / 2, rtol=0.15)  # of clients, of the distance
    # No client, whatever it holds, tells more than what the noise is for.
    told = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], (500, 7))
    lengths = np.sqrt(told.mean(0) ** 2 + ((told**2).mean(0) - 0.5) ** 2)
    assert lengths.max() <= 5**0.5 / 2
    everywhere = small.assign(age=60, pulse=150)[["user", "age", "pulse", "ill"]]
    for seed in range(5):
        columns = read(everywhere, **options, noise_multiplier=3.0, seed=seed).table.columns
        for name, half in (("age", 30), ("pulse", 50)):
            assert columns[name].std > half / 4 and bounds[name][0] <= columns[name].mean <= bounds[name][1]


@pytest.mark.parametrize(
    "options, noise",
    [
        ({}, 0.0),
        ({"standardize": False}, 0.0),  # the categories of sex are read
        ({"standardize": False, "features": ["age"]}, None),
        ({"standardize": {"age": (45, 17)}, "features": ["age"], "missing": "mean"}, None),
        ({"standardize": False, "features": ["age"], "missing": "mean"}, 0.0),
        ({"features": ["age", "smokes"], **noised(2.0, age=(0, 100))}, 2.0),
    ],
)
def test_what_was_measured_of_the_clients_is_told(small, options, noise):
    population = read(small, **options)
    assert population.measured_noise == noise and population.map(lambda x, y: (x, y)).measured_noise == noise
    assert population.restricted([0]).measured_noise == noise
    assert ("noise of a multiplier of 2" in population.note) == (noise == 2)
    assert read(small.assign(user="c"), known=population).measured_noise is None
    assert read(small, known=population).measured_noise == noise


def test_who_else_is_in_a_table_does_not_change_a_clients_split(cancer):
    options = dict(client="clinic", label="target", standardize=False)
    whole = Population.from_frame(cancer, **options)
    part = Population.from_frame(cancer[cancer["clinic"] > "clinic 2"], **options)
    for name in part.names:
        np.testing.assert_array_equal(whole.test(whole.id_of(name)).x, part.test(part.id_of(name)).x)
    other = Population.from_frame(cancer, seed=1, **options)
    assert not np.array_equal(other.test(0).x, whole.test(0).x)
    drawn = split(np.repeat(["a", "b"], 50), 0.3, 0.0, 0)["test"]
    assert drawn["a"].tolist() != (drawn["b"] - 50).tolist()  # each client's own


def test_columns_of_every_kind(small):
    population = read(small, standardize=False)
    assert population.feature_names == ("age", "pulse", "sex=f", "sex=m", "smokes")
    np.testing.assert_array_equal(population.train(0).x[0], [20, 60, 0, 1, 1])
    assert population.label_names == ("no", "yes") and population.train(1).y.tolist() == [1, 0, 0]
    categories = small.astype(
        {"sex": pandas.CategoricalDtype(["x", "f", "m"]), "ill": pandas.CategoricalDtype(["yes", "no"])}
    )
    named = read(categories, standardize="age")
    assert read(categories, standardize=False).measured_noise is None  # pandas' categories are not looked for
    assert named.label_names == ("yes", "no") and named.feature_names[2:5] == ("sex=x", "sex=f", "sex=m")
    np.testing.assert_allclose(named.train(0).x[:, 0], [-25 / 17.07825, -5 / 17.07825, 15 / 17.07825], rtol=1e-5)
    for std, pulse in ((10, [-1, 1, 0]), (0, [-10, 10, 0])):
        given = read(small, features=["age", "pulse"], standardize={"pulse": (70, std)})
        np.testing.assert_array_equal(given.train(0).x, np.transpose([[20, 40, 60], pulse]))
    assert read(small, features="age").feature_names == ("age",)
    nullable = small.astype({"age": "Int64", "pulse": "Float64", "smokes": "boolean", "sex": "string", "ill": "string"})
    np.testing.assert_array_equal(read(nullable, standardize=False).train(0).x, population.train(0).x)


def test_several_inputs_labels_groups_and_a_column_of_tests(small):
    inputs = {"body": ["pulse", "smokes"], "age": "age"}
    more = small.assign(town=["x", "y"] * 3, held=[0, 0, 0, 0, 1, 1])
    assert read(more, group="town", test="held").feature_names == read(small).feature_names
    population = read(more, features=inputs, standardize=["pulse"], group="town", test="held")
    assert population.example_spec["x"] == {"body": tf.TensorSpec([2], tf.float32), "age": tf.TensorSpec([1], tf.int64)}
    assert population.feature_names == {"body": ("pulse", "smokes"), "age": ("age",)}
    assert population.groups.tolist() == [0, 1] and population.sizes.tolist() == [2, 2]
    assert population.shown_groups.tolist() == ["x", "y"] and read(small).shown_groups is None
    assert population.restricted([1]).shown_groups.tolist() == ["y"]
    assert population.test(1).x["age"].tolist() == [[70]]
    numbered = read(small.assign(user=[*"abcdef"], town=[2, 10, 1] * 2), group="town")
    assert numbered.groups.tolist() == [1, 2, 0, 1, 2, 0]  # 10 is after 2
    later = small.assign(user="g", town=10.0)  # as pandas has whole numbers beside missing ones
    assert read(later, group="town", known=numbered).groups.tolist() == [2]
    assert read(later, group="town", known=numbered).shown_groups.tolist() == ["10"]
    anew = read(small.assign(user=[*"abcdef"], town=[2, 10, 0] * 2), group="town", standardize=False)
    assert "it has other names of true groups" in why_not_after(numbered, anew)
    assert not why_not_after(numbered, read(later.assign(town=3), group="town", known=numbered))
    several = read(small, features=["smokes"], label=["age", "pulse"])
    np.testing.assert_array_equal(several.train(0).y, [[20, 60], [40, 80], [60, 70]])
    again = read(small, features=["age", "pulse"], label=None)
    np.testing.assert_array_equal(again.train(0).y, again.train(0).x)
    assert again.example_spec["y"] == tf.TensorSpec([2], tf.float32)
    whole = read(small.assign(age=-small["age"], low=-1), features=["age", "low"], label=None, standardize=False)
    assert whole.train(0).y.dtype == np.float32 and (whole.train(0).y < 0).any()  # and no classes


def test_numbers_and_bools_are_what_they_are_in_every_type_of_column(small):
    """pandas' and Arrow's types, objects in which values are missing, and whole numbers beyond the signed ones."""
    bools, large = np.array([True, False, True, False, True, False]), np.array([2**63, 2**62] * 3, np.uint64)
    for column in (
        pandas.array(bools, "boolean"), pandas.array(bools, pandas.ArrowDtype(pyarrow.bool_())), bools.astype(object)
    ):  # fmt: skip
        np.testing.assert_array_equal(read(small.assign(smokes=column)).train(1).x, read(small).train(1).x)
    holed = [pandas.NA, 20, 40, 30, 70, 30]
    x = read(small.assign(age=np.array(holed, object)), missing="mean", features=["age"], standardize=False).train(0).x
    assert x[:, 0].tolist() == [38, 40, 70]
    for column in (large, pandas.array(large, pandas.ArrowDtype(pyarrow.uint64()))):
        x = read(small.assign(age=column), features=["age"], standardize=False).train(0).x
        np.testing.assert_array_equal(x[:, 0], np.float32(2**63))
    empty = pandas.Categorical(["", "f", None, "f", "f", "f"])
    found = read(small.assign(sex=empty), features=["sex"], missing="mean")
    assert found.feature_names == ("sex=f",) and found.train(0).x[:, 0].tolist() == [0, 0, 1]


def test_columns_of_several_names_are_refused(small):
    """Or client and label, whose names have a part more, would be features."""
    several = small.set_axis(pandas.MultiIndex.from_product([small.columns, [""]]), axis=1)
    with pytest.raises(UserError, match=r"columns have names of 2 parts, \('user', ''\); frame.columns = "):
        read(several)
    known = read(small)
    for frame, message in (
        (several, "names of 2 parts"),
        (small.iloc[0], "the table is of Series; it must be a pandas.DataFrame"),
        (pandas.concat([small, small[["age"]]], axis=1), "the table has two columns age"),
    ):
        with pytest.raises(UserError, match=message):
            known.features_of(frame)


def test_numbers_to_predict_and_classes_from_a_table():
    diabetes = Population.from_frame(shared_out(load_diabetes(as_frame=True)), client="clinic", label="target")
    assert diabetes.example_spec["y"] == tf.TensorSpec([], tf.float32) and diabetes.label_counts is None
    assert "labels" not in diabetes.note
    wine = Population.from_frame(shared_out(load_wine(as_frame=True)), client="clinic", label="target")
    assert wine.label_counts.shape == (5, 3) and "labels" not in wine.note
    floats = shared_out(load_wine(as_frame=True)).astype({"target": float})
    told = "the labels of column target are floats, 0 to 2, which are to be predicted unless the model takes classes"
    assert told in Population.from_frame(floats, client="clinic", label="target").note


def test_newcomers_are_read_by_the_rules_of_the_known(small):
    known = read(small)
    later = small.assign(user="c", pulse=900.0, sex="x", ill="yes")
    new = read(later, known=known)
    assert new.client_ids.tolist() == [2] and new.feature_names == known.feature_names and new.note == ""
    np.testing.assert_allclose(new.train(2).x[:, 1], (900 - 70) / small["pulse"].std(ddof=0), rtol=1e-6)
    assert not new.train(2).x[:, 2:4].any(), "a category that no known client has"
    everyone = read(pandas.concat([small, later]), known=known)
    np.testing.assert_array_equal(everyone.train(0).x, known.train(0).x)
    for frame, options, message in (
        (
            later.assign(ill="perhaps"),
            {},
            "the label 'perhaps', which is none of those known .* by pandas' categories of a table",
        ),
        (
            later,
            {"missing": "drop"},
            "features, missing, standardize and bounds are those of the known clients; leave them out",
        ),
        (later.assign(sex=1), {}, "column sex holds numbers; that of the known clients holds text"),
        (later.drop(columns="sex"), {}, "the table lacks column 'sex', which the known clients' features are made of"),
        (later.drop(columns="ill"), {}, "unknown column 'ill'"),
    ):
        with pytest.raises(UserError, match=message):
            read(frame, known=known, **options)
    with pytest.raises(UserError, match="the labels are bools, and those of the known clients are called no, yes"):
        read(later.assign(ill=True), known=known)
    with pytest.raises(UserError, match="the known clients are of no table"):
        read(later, known=known.map(lambda x, y: (x * 2, y)))


def test_a_category_is_the_same_beside_missing_values():
    """Of whole numbers with one missing pandas makes floats, and 1.0 is ward 1."""
    frame = pandas.DataFrame({"clinic": list("aabb"), "ill": [0, 1, 0, 1], "ward": [1, 2, None, 2]})
    options = {"client": "clinic", "label": "ill", "test": 0.0}
    known = Population.from_frame(frame.astype({"ward": "category"}), missing="drop", **options)
    whole = frame[:2].assign(clinic="c").astype({"ward": int}).astype({"ward": "category"})
    new = Population.from_frame(whole, known=known, **options)
    np.testing.assert_array_equal(new.train(2).x, known.train(0).x)
    assert new.train(2).x.any(axis=1).all()
    named = frame.dropna().assign(ward=lambda rows: pandas.Categorical(rows["ward"]), ill=[0, 1, 1])
    assert Population.from_frame(named, client="clinic", label="ward", test=0.0).label_names == ("1", "2")


def test_the_order_of_pandas_categories_counts_where_it_is_of_all_clients(small):
    texts, wholes = (pandas.Categorical(of, categories=order) for of, order in (
        (["lo", "hi", "lo"], ["lo", "hi", "none"]), ([2, 0, 2], [2, 1, 0])
    ))  # fmt: skip
    frame, x = small[:3].assign(user="a", text=texts, whole=wholes), np.zeros((3, 2))
    table, client = read(frame, label="text", features=["age"]), Population.from_arrays({"a": (x, frame["text"])})
    assert table.label_names == ("lo", "hi", "none") and table.train(0).y.tolist() == [0, 1, 0]
    assert client.label_names == ("hi", "lo") and client.train(0).y.tolist() == [1, 0, 1]
    table, client = read(frame, label="whole", features=["age"]), Population.from_arrays({"a": (x, frame["whole"])})
    assert table.label_names == ("2", "1", "0") and table.train(0).y.tolist() == [0, 2, 0]
    assert client.label_names is None and client.train(0).y.tolist() == [2, 0, 2]


def test_missing_values_are_refused_filled_or_left_out(small):
    holed = small.astype({"age": float})
    holed.loc[1, "age"], holed.loc[2, "sex"] = np.nan, None
    with pytest.raises(UserError, match="column age has no value in 1 of 6 rows, first of client b in row 1; missing="):
        read(holed)
    filled = read(holed, missing="mean", standardize=["pulse"])
    assert filled.train(1).x[0, 0] == 48 and filled.train(0).x[1, 2:4].tolist() == [0, 0]
    for standardize in (True, {"age": (40, 9)}):
        assert read(holed, missing="mean", standardize=standardize).train(1).x[0, 0] == 0
    known = read(small, missing="mean")
    for column, fill in (("age", [0]), ("sex", [0, 0]), ("smokes", [0.5])):
        for none in (None, np.nan):  # of neither of which pandas knows whether text or numbers are missing
            rows = small[:1].assign(user="z", **{column: none})
            place = [name.split("=")[0] == column for name in known.feature_names]
            assert known.features_of(rows)[0, place].tolist() == fill
            np.testing.assert_array_equal(read(rows, known=known).train(2).x, known.features_of(rows))
    with pytest.raises(UserError, match="column age has no value in 6 of 6 rows, first in row 0"):
        read(small).features_of(small.assign(age=""))
    one = read(small.assign(age=[np.nan, *small["age"][1:]]), missing="drop")
    assert "1 row with missing values is left out" in one.note
    assert repr(one.restricted([0])) == "Population(1 client, 2 training examples)"
    dropped = read(holed, missing="drop")
    assert dropped.sizes.tolist() == [2, 2] and "2 rows with missing values are left out" in dropped.note
    for missing in (None, "mean"):
        with pytest.raises(
            UserError, match='column ill has no value in 1 of 6 rows, first of client a in row 0; missing="drop"'
        ):
            read(small.assign(ill=[None, *small["ill"][1:]]), missing=missing)


def test_clients_may_be_numbers_that_pandas_holds_as_floats(small):
    floats = small.assign(user=[1, 2, 1, 2, 1, np.nan])
    message = r"column user names no client in 1 of 6 rows, first in row 5; frame(.*dropna\(.*\)) leaves them out"
    for frame in (floats, small.assign(user=[*"12121 "])):
        with pytest.raises(UserError, match=message) as raised:
            read(frame)
        cured = eval("frame" + re.search(message, str(raised.value))[1])
        assert read(cured).shown_ids.astype(int).tolist() == [1, 2]
    alone = read(small.assign(user=["a"] * 5 + ["b"]), test=0.6, validation=0.6)
    assert alone.sizes.tolist() == [1, 1] and len(alone.test(1)) == len(alone.validation_examples[1]) == 0
    assert not any(map(len, read(small.assign(user=list("abcdef")), test=0.3).test_examples.values()))  # the default


@pytest.mark.parametrize(
    "change, options, message",
    [
        ({}, {"client": "usr"}, "unknown column 'usr'; did you mean 'user'"),
        ({}, {"label": "sick"}, "unknown column 'sick'"),
        ({}, {"features": ["age", "pluse"]}, "unknown column 'pluse'; did you mean 'pulse'"),
        ({}, {"features": ["age", "ill"]}, "column ill cannot be a feature: it says the client, the label"),
        ({}, {"features": ["age", "pulse", "age"]}, "column age is named twice among the features; once is enough"),
        ({}, {"label": "user"}, "column user is named twice among the client, the labels and the test; once"),
        ({}, {"label": ["ill", "ill"]}, "column ill is named twice among the client, the labels and the test; once"),
        ({}, {"features": []}, "there are no features; name one column or more"),
        ({}, {"label": []}, "label is an empty list; it must be the name of a column"),
        ({}, {"label": None, "features": {"a": ["age"]}}, "label is None, and features are of several inputs; only"),
        ({}, {"seed": -1}, "seed is -1; it must be a whole number from 0"),
        ({}, {"test": 1.5}, "test is 1.5; it must be"),
        ({}, {"test": 0.05}, "test is 0.05, which is no row of any client; give a larger share, or 0"),
        ({}, {"validation": 0.05}, "validation is 0.05, which is no row of any client; give a larger share, or 0"),
        ({}, {"test": "age"}, "column age must hold bools: True where a row is for tests"),
        ({}, {"validation": 1.5}, "validation is 1.5; it must be"),
        ({"age": np.nan}, {"missing": "drop"}, "every row of the table has a missing value; features= can leave"),
        ({"town": [*"xyx", None, *"xy"]}, {"group": "town"}, "column town has no value of client b; every client is"),
        ({}, {"missing": "zero"}, "unknown missing 'zero'"),
        ({}, {"bounds": {"age": (0, 100)}}, "bounds and noise_multiplier go together"),
        ({}, {"noise_multiplier": 1.0}, "bounds and noise_multiplier go together"),
        ({}, {"bounds": {}, "noise_multiplier": 0.0}, "noise_multiplier is 0.0"),
        ({}, {"bounds": {}, "noise_multiplier": 1.0, "standardize": False}, "bounds is {}; it must be a mapping"),
        ({}, {"bounds": [(0, 1)], "noise_multiplier": 1.0}, r"bounds is \[\(0, 1\)\]; it must be a mapping"),
        ({}, noised(age=(-1e308, 1e308)), r"the bounds of column age are \(-1e\+308, 1e\+308\); they must be"),
        ({}, noised(age=(0, [1, 2])), r"the bounds of column age are \(0, \[1, 2\]\); they must be"),
        ({}, noised(age=(0, 100)), "bounds has no column pulse, whose mean is measured; standardize="),
        ({}, noised(age=(0, 100), pulse=(9, 9)), r"the bounds of column pulse are \(9, 9\); they must be"),
        ({}, noised(age=(0, 100), pulse=(0, 200)), "column sex holds texts, and which there are would be read without"),
        ({}, {**noised(age=(0, 9), pulse=(0, 9)), "standardize": ["age"]}, "unknown column of bounds .* 'pulse'"),
        ({}, {"standardize": ["sex"]}, "unknown column of numbers to standardise 'sex'"),
        ({}, {"standardize": {"age": (45, -17)}}, r"standardize of column age is \(45, -17\); it must be a mean and a"),
        ({}, {"standardize": {"age": 45}}, "standardize of column age is 45; it must be a mean and a deviation"),
        ({}, {"standardize": 1}, "standardize is 1; it must be True, False, columns"),
        ({}, {"features": {"": ["age"], "b": ["pulse"]}}, r"the inputs of features are \['', 'b'\]; they must be"),
        ({}, {"label": ["ill", "smokes"]}, "the columns ill, smokes are labels of which some are text"),
        ({"user": np.array([2**63 + 5, 1] * 3, np.uint64)}, {}, "column user has the client ID 9223372036854775813"),
        (
            {"ill": pandas.Categorical([1, "1"] * 3, categories=[1, "1"])}, {},
            "column ill has two categories that are written '1'",
        ),
        (
            {"user": [*"abcdef"], "town": [1, "1"] * 3}, {"group": "town"},
            "column town has two groups that are written '1'",
        ),
        (
            {"user": [*"abcdef"], "town": pandas.Categorical([1, "1"] * 3, categories=[1, "1"])}, {"group": "town"},
            "column town has two groups that are written '1'",
        ),
        ({}, {"group": "sex", "features": ["age"], "client": "smokes"}, "column smokes holds bool; client IDs must be"),
        ({"user": [1.5, 2.0] * 3}, {}, "column user holds float; client IDs must be all text or all whole numbers"),
        ({"user": [1, "a"] * 3}, {}, "column user holds int, str; client IDs must be all text or all whole numbers"),
        ({"town": ["x"] * 4 + ["y"] * 2}, {"group": "town"}, "column town has 2 values of client a, e.g. x and y"),
        ({"sex": None}, {"missing": "mean"}, "column sex holds 0 different texts in training examples; from 1 to"),
        ({"age": [[1]] * 6}, {}, r"column age holds object \(list\); features are numbers, bools, texts or categories"),
        ({"age": [1, "x"] * 3}, {}, r"column age holds object \(int, str\); .* pandas.to_numeric"),
        ({"age": [1.0, np.inf] * 3}, {}, "column age has an infinite value of client b in row 1"),
        ({"age": [np.nan, np.inf] * 3}, {"missing": "drop"}, "column age has an infinite value of client b in row 1"),
        ({"age": [1j] * 6}, {}, "column age holds complex128; features are numbers"),
        (
            {"age": pandas.date_range("2020", periods=6)}, {},
            r"column age holds datetime64\[ns\]; .* - pandas.Timestamp\('2000'\)\).dt.days makes",
        ),
        ({"age": np.nan}, {"missing": "mean"}, "column age has no value in any training example; leave it out"),
        ({"ill": [-1, 1] * 3}, {}, r"client a has the label -1; labels count from 0: y.astype\(str\) makes names"),
        ({"ill": ["x", 1] * 3}, {}, "the labels of column ill are of int, str, 1 in row 1"),
    ],
)  # fmt: skip
def test_what_is_no_table_of_clients_is_refused_in_one_line(small, change, options, message):
    with pytest.raises(UserError, match=message) as raised:
        read(small.assign(**change).set_axis([*"uvwxyz"]), **options)  # of whose rows messages tell the number
    assert "\n" not in str(raised.value)


def test_columns_of_too_many_texts_are_refused():
    frame = pandas.DataFrame(dict(user=["a"] * 1001, ill=1, name=[f"n{number}" for number in range(1001)]))
    with pytest.raises(UserError, match="column name holds 1,001 different texts in training examples; from 1 to 1000"):
        read(frame)
    many = read(frame[:1000])
    assert len(many.feature_names) == 1000 and "name has 1000 categories in 1000 rows, and new ones" in many.note
    # A day or a number that was read as text, as times of day with seconds are, is said to be one.
    for text, cure in (("2021-01-01 00:{:02d}:{:02d}", r"are dates; \(pandas"), ("{},{:02d}", "are numbers; pandas")):
        texts = [text.format(*divmod(number, 60)) for number in range(1001)]
        with pytest.raises(UserError, match=f"leave it out, features=.*; 1001 of the 1001 different ones {cure}"):
            read(frame.assign(name=texts))


def test_a_table_may_be_a_file(small, tmp_path):
    small.to_csv(tmp_path / "small.csv", index=False)
    np.testing.assert_array_equal(read(tmp_path / "small.csv").train(0).x, read(small).train(0).x)
    with pytest.raises(UserError, match="the table is of str; it must be a pandas.DataFrame$"):
        read(small).features_of(str(tmp_path / "small.csv"))
    for name in ("small.parquet", "small.pq", "small.PARQUET"):
        small.to_parquet(tmp_path / name)
        np.testing.assert_array_equal(read(tmp_path / name).train(0).x, read(small).train(0).x)
    small.assign(**{"": 1}).to_csv(tmp_path / "indexed.csv")
    indexed = read(tmp_path / "indexed.csv")
    assert indexed.feature_names == read(small).feature_names
    for name in ("Unnamed: 0", "Unnamed: 7"):
        assert f"column {name} has no name in its file, and is no feature" in indexed.note
    (tmp_path / "named_rows.csv").write_text(small.to_csv().removeprefix(","))
    np.testing.assert_array_equal(read(tmp_path / "named_rows.csv").train(0).x, read(small).train(0).x)
    (tmp_path / "holed.csv").write_text("user,age,ill,remark\na,20,1,\na,,0,\na,30,,\nb,40,0,\n")
    columns = {"user": [*"aab"], "age": [20, 30, 40], "ill": pyarrow.array([1, None, 0])}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "holed.parquet")
    for name in ("holed.csv", "holed.parquet"):
        holed = read(tmp_path / name, features=["age"], missing="drop")
        assert holed.train(0).y.tolist() == [1] and holed.example_spec["y"] == tf.TensorSpec([], tf.int32)
    (tmp_path / "blank.csv").write_text("user, age,ill\na,20,0\na, ,1\nb,  40,0\n")
    assert read(tmp_path / "blank.csv", missing="mean").train(0).x.tolist() == [[-1], [0]]
    (tmp_path / "long.csv").write_text("user,a,b,c\n" + "1,,,\n" * 2**17 + "x,,,\n")  # pandas reads it in parts
    assert set(map(type, read_table_file(tmp_path / "long.csv", "user")["user"])) == {str}
    (tmp_path / "empty.csv").write_text("")
    for path, message in (
        (tmp_path / "none.csv", "there is no table .*none.csv"),
        (tmp_path / "empty.csv", "empty.csv cannot be read as a table: No columns"),
        (tmp_path, "cannot be read as a table: .*directory"),
        (3, "the table is of int; it must be a pandas.DataFrame, or a path"),
        (small[:0], "the table has no rows"),
        (pandas.concat([small, small[["age"]]], axis=1), "the table has two columns age"),
    ):
        with pytest.raises(UserError, match=message):
            read_table(path, client="user", label="ill")


def test_a_column_that_is_constant_up_to_rounding_is_not_blown_up(small):
    small["device"] = [0.1 + 0.2, 0.3, 0.3, 0.3, 0.1 + 0.2, 0.3]
    population = Population.from_frame(small, client="user", label="ill", features=["age", "device"], test=0.0)
    assert np.abs(population.train(0).x[:, 1]).max() < 1e-6


def test_numbers_that_are_texts_are_told(small, cancer):
    """As where a file has "?" for what is missing, or decimal commas."""
    area, texture = (cancer[name].astype(str) for name in ("mean area", "mean texture"))
    marked, commas = area.where(area.index > 3, "?"), texture.str.replace(".", ",")
    texts = cancer.assign(**{"mean area": marked, "mean texture": commas})
    options = dict(client="clinic", features=["mean area", "mean texture"], label="target")
    note = Population.from_frame(texts, **options).note
    assert "column mean area holds texts, " in note and "pandas.to_numeric(frame['mean area']" in note
    assert "column mean texture holds texts, " in note
    labelled = Population.from_frame(texts, client="clinic", features=["mean radius"], label="mean texture").note
    assert "the labels of column mean texture are texts, each of which is a class, and " in labelled
    assert Population.from_frame(texts.astype(dict.fromkeys(options["features"], "category")), **options).note == ""
    codes = [*"123456", *"abcdefg"]  # most of which are no numbers
    bands, versions = [f"{each}0-{each}9" for each in range(1, 9)], [f"1.{each}.3" for each in range(9)]
    for sex in (["1", "2", "?"] * 2, [*"12345", "inf"], codes, bands, versions, ["2024-05-01", "2024-06-01"]):
        assert "texts" not in read(small.iloc[np.arange(len(sex)) % 6].assign(sex=sex)).note


@pytest.mark.parametrize(
    "texts, kind, numbers",
    [
        ([f"2000-01-0{day}" for day in range(1, 8)], "dates", [0, 1, 2, 3, 4, 5, 6]),
        ([f"2000/1/{day} 12:30" for day in range(1, 8)], "dates", [0, 1, 2, 3, 4, 5, 6]),
        ([f"{day}-Jan-00" for day in range(1, 8)], "dates", None),
        ([f"0{day}.02.2000" for day in range(1, 8)], "dates", None),
        ([f"{each}0 %" for each in range(1, 7)] + ["?"], "numbers", [10, 20, 30, 40, 50, 60, np.nan]),
        ([f"{each},5%" for each in range(1, 7)] + ["1.000,5%"], "numbers", [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 1000.5]),
        ([f"{each},000" for each in range(1, 7)] + ["1,234,567.5"], "numbers", [*range(1000, 7000, 1000), 1234567.5]),
        ([f"{each},125" for each in range(7)], "numbers", [each + 0.125 for each in range(7)]),
    ],
)
def test_dates_and_numbers_that_are_texts_are_told_with_what_makes_numbers(small, texts, kind, numbers):
    frame = small.iloc[np.arange(7) % 6].assign(sex=texts)
    note = read(frame).note
    told = re.search(rf"column sex holds texts, .* and . of the 7 different ones are {kind}; (.*) makes numbers", note)
    if numbers is None:  # days could be taken for months
        assert "pandas.to_datetime(frame['sex'], format=...) - " in told[1]
    else:
        np.testing.assert_array_equal(eval(told[1]), numbers)


def test_blanks_around_texts_do_not_count(small, tmp_path):
    """Or they would make two clients, groups, classes and categories of one."""
    tidy = small.assign(town=["x", "y"] * 3)
    blank = tidy.assign(
        user=["a", "b", "a ", "b", "a", "b"], sex=["m", " f", "m ", "f", "m", "f"], town=[" x", "y", "x ", *"yxy"],
        ill=[" no", "yes", "no", "no ", "yes", "no"],
    )  # fmt: skip
    blank.to_csv(tmp_path / "blank.csv", index=False)
    known, before = read(tidy, group="town"), blank.copy()
    texts = blank[["user", "sex", "town", "ill"]]
    for frame in (
        blank, tmp_path / "blank.csv", blank.astype(dict.fromkeys(texts, "string")),
        blank.astype(dict.fromkeys(texts, pandas.ArrowDtype(pyarrow.string()))),
    ):  # fmt: skip
        found = read(frame, group="town")
        assert found.names.tolist() == ["a", "b"] and found.label_names == ("no", "yes")
        assert found.feature_names == known.feature_names and found.table.groups == ("x", "y")
        np.testing.assert_array_equal(found.train(0).x, known.train(0).x)
        assert "'a' and 'a ' of column user are one: blanks around texts do not count" in found.note
        assert "are one" in read(frame, group="town", known=known).note and "are one" not in known.note
    pandas.testing.assert_frame_equal(blank, before)
    np.testing.assert_array_equal(known.features_of(blank), known.features_of(tidy))
    # As one system writes it and another one.
    found = read(tidy.assign(user=["\u00e9", "b", "e\u0301", "b", "\u00e9", "b"]), group="town")
    assert found.names.tolist() == ["b", "\u00e9"] and "are one: blanks around texts do not count, nor" in found.note
    named = read(tidy.assign(sex=pandas.Categorical(["m ", " f"] * 3, categories=["m ", " f"])))
    assert named.feature_names[2:4] == ("sex=m", "sex=f")
    doubled = pandas.Categorical(["m ", "m"] * 3)
    for column in ("user", "town", "sex", "ill"):
        with pytest.raises(UserError, match=f"column {column} has two categories of which only blanks around them"):
            read(tidy.assign(**{column: doubled}), group="town")


@pytest.mark.parametrize("column", ["sex", "ill", "town"])
def test_blank_texts_are_missing_as_in_a_file(small, column):
    texts = pandas.Series([*"mf", "", "f", " ", "f"])
    for values in (texts, texts.astype("string"), texts.astype("category")):
        frame = small.assign(**{"town": "x", column: values})
        with pytest.raises(UserError, match=f"column {column} has no value (in 2 of 6 rows, first )?of client a"):
            read(frame, group="town")
        if column != "town":
            assert "2 rows with missing values are left out" in read(frame, missing="drop").note
    filled = read(small.assign(sex=texts), missing="mean")
    assert filled.feature_names[2:4] == ("sex=f", "sex=m")
    assert filled.features_of(small.assign(sex=" "))[:, 2:4].tolist() == [[0, 0]] * 6


def test_not_a_number_is_missing_in_every_type_of_column(small):
    for kind in ("Float64", pandas.ArrowDtype(pyarrow.float64())):
        zero = small.astype({"age": kind})["age"] - small["age"]
        frame = small.assign(age=zero / zero.where(zero.index == 1, 1))
        assert not frame["age"].isna().any()  # as pandas has it
        with pytest.raises(UserError, match="column age has no value in 1 of 6 rows, first of client b in row 1"):
            read(frame)
        assert read(frame, missing="drop", features=["age", "pulse"]).sizes.tolist() == [3, 2]


def test_clients_that_lose_all_rows_are_named(small):
    small.loc[small.user == "b", "pulse"] = np.nan
    found = Population.from_frame(small, client="user", label="ill", missing="drop")
    assert "3 rows with missing values are left out, and with them all of client b" in found.note


def test_clients_and_groups_of_a_file_are_what_is_written(small, tmp_path):
    second = (small.user == "b").tolist()
    for names in (["007", "7"], ["0", "12"], [" 0", "12"], ["1000", "1e3"], ["1.1", "1.10"], ["0.0", "12.0"]):
        small.user = [names[each] for each in second]
        small.to_csv(tmp_path / "table.csv", index=False)
        found = Population.from_frame(tmp_path / "table.csv", client="user", label="ill")
        assert found.shown_ids.tolist() == ([0, 12] if names[1].startswith("12") else names)
        grouped = Population.from_frame(tmp_path / "table.csv", client="sex", label="ill", group="user")
        assert sorted(grouped.table.groups) == (["0", "12"] if names[1].startswith("12") else sorted(names))
    # One number may be written in two ways.
    (tmp_path / "table.csv").write_text("user,age,ill\na,1,1.50\na,2,1.5\nb,3,0.5\n")
    assert len(set(read(tmp_path / "table.csv").train(0).y.tolist())) == 1


def test_codes_of_a_file_are_no_numbers(tmp_path):
    """Else 01 and 1 would be one, and 01067 nearer to 10115 than to 99999."""
    file = tmp_path / "table.csv"
    for place, code in enumerate(("01067", '"01"', " 00", "0", "0.5", "2024-01-02", "")):
        text = f"user,place,age,ill\na,{code},20,0\na,1,30,1\na,12,30,1\n"
        file.write_text(text)
        given = {"missing": "mean"}
        if place < 3:
            with pytest.raises(UserError, match=f"column place of .*table.csv holds {re.sub('[^0-9]', '', code)}, as"):
                read(file, **given)
            assert read(file, features=["age"], **given).feature_names == ("age",)
            assert read(pandas.read_csv(file), **given).feature_names == ("place", "age")
            assert len(read(pandas.read_csv(file, dtype={"place": str}), **given).feature_names) == 4
        else:
            assert read(file, **given).feature_names[-1] == "age"
    with gzip.open(tmp_path / "table.csv.gz", "wt") as zipped:
        zipped.write("user,place,ill\na,01067,0\na,1,1\na,12,1\n")
    with pytest.raises(UserError, match="holds 01067"):
        read(tmp_path / "table.csv.gz")


@pytest.mark.parametrize("column", ["user", "sex", "ill", "town"])
def test_what_pandas_takes_for_missing_in_a_file_is_text_in_a_frame(small, tmp_path, column):
    file = tmp_path / "table.csv"
    given = small.assign(**{"town": "x", column: ["nan", "f"] * 3})
    given.to_csv(file, index=False)
    for frame in (file, pandas.read_csv(file)):
        with pytest.raises(UserError, match=rf"column {column} .* of a CSV file (.*\)) reads NA, .* texts") as refused:
            read(frame, group="town")
    cured = eval(re.search(r"of a CSV file (.*) reads", str(refused.value))[1], {"pandas": pandas, "path": file})
    np.testing.assert_array_equal(read(cured, group="town").train(0).x, read(given, group="town").train(0).x)
    file.write_text(file.read_text().replace("nan", ""))
    with pytest.raises(UserError, match=f"column {column} "):  # what is left blank is missing
        read(pandas.read_csv(file, keep_default_na=False, na_values=[""]), group="town")


def test_labels_of_later_clients_mean_what_those_of_the_known_do(small):
    x = np.zeros((3, 2), np.float32)
    known = Population.from_arrays({"a": (x, ["1", "2", "3"])})
    with pytest.raises(UserError, match="the label 1 could be the class of this number or that which is called '1'"):
        Population.from_arrays({"b": (x, [1, 2, 2])}, known=known)
    with pytest.raises(UserError, match="label_names are those of the known clients"):
        Population.from_arrays({"b": (x, ["1", "2", "2"])}, known=known, label_names=["3", "2", "1"])
    first, other = (Population.from_arrays({0: (x, names)}) for names in (["cat", "dog", "dog"], ["dog", "hen", "hen"]))
    assert "it has other names of labels" in why_not_after(first, other)
    tables = [Population.from_frame(small[:rows], client="user", label="age") for rows in (4, 6)]
    assert "it has other rules of columns" in why_not_after(*tables) and not why_not_after(tables[0], tables[0])


def test_whole_numbers_that_float32_does_not_hold_are_refused_also_beside_other_columns(small):
    times = small.assign(when=1_700_000_001 + np.arange(6))
    holed = small.assign(when=times["when"].astype("Int64").where(times.index != 2))
    for frame, options in (
        (times, {"standardize": ["age", "pulse"]}),
        (times, {"features": ["when", "sex"], "standardize": False}),
        (times, {"features": ["when"], "standardize": False, "missing": "mean"}),
        (holed, {"features": ["when"], "standardize": False, "missing": "mean"}),
    ):
        with pytest.raises(
            UserError, match="when holds 17000000.1 and 17000000.*, which are one number in float32, .* it, or"
        ):
            read(frame, **options)
    rich = small.assign(income=78_821_797 + 1000 * np.arange(6))  # rounded, and all different
    assert read(rich, features=["income", "sex"], standardize=False).train(0).x[0, 0] == np.float32(78_821_797)
    for options in ({}, {"features": ["when"], "standardize": False}):
        found = read(times, **options)
        assert len({*found.train(0).x[:, -1].tolist(), *found.train(1).x[:, -1].tolist()}) == 6


def test_where_missing_values_are_filled_features_are_float32_also_where_none_is(small):
    holed = small.assign(age=[np.nan, *small["age"][1:]])
    bools = small.assign(smokes=[None, *small["smokes"][1:]])
    for column, other in (("age", holed), ("smokes", bools)):
        for first, then in ((small, other), (other, small)):
            known = read(first, features=[column], missing="mean", standardize=False)
            new = Population.from_frame(then.assign(user="z"), client="user", label="ill", test=0, known=known)
            assert new.example_spec["x"] == known.example_spec["x"] == tf.TensorSpec([1], tf.float32)
    assert read(small, features=["age"], standardize=False).example_spec["x"] == tf.TensorSpec([1], tf.int64)


@pytest.mark.parametrize(
    "text, cure",
    [
        (b"clinic;age\na;25,0\n", r'separated by ";": pandas.read_csv\(path, sep=";"\) makes a DataFrame'),
        (b"clinic\tage\na\t25\n", r'separated by "\\t": pandas.read_csv\(path, sep="\\t"\) makes a DataFrame'),
        (b"mg, per l|clinic|age\n1|a|25\n", r'separated by "\|": pandas.read_csv\(path, sep="\|"\) makes a DataFrame'),
        (b"clinic,age\na,01\nb,1\n", r"column age holds the labels 01 and 1, which are one number: .*'age': str}\)"),
        (b"clinic,age\na,25,\nb,30,\n", r"its lines end in a comma: pandas.read_csv\(path, index_col=False\) makes"),
        (b"clinic,age,age\na,25,1\nb,30,0\n", "it has two columns age; their names must be different"),
        ("clinic,age\nCharité,25\n".encode("cp1252"), r'not in UTF-8 .*: pandas.read_csv\(path, encoding="cp1252"\)'),
    ],
)
def test_files_that_pandas_reads_with_an_option_are_told(tmp_path, text, cure):
    (tmp_path / "table.csv").write_bytes(text)
    with pytest.raises(UserError, match=cure):
        Population.from_frame(tmp_path / "table.csv", client="clinic", label="age")
