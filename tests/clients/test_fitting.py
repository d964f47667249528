"""Examples of another type than the model takes: what becomes it, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf

from tffcl.clients.example_types import as_type, fitted
from tffcl.clients.population import Population
from tffcl.errors import UserError

WHOLE = np.array([[0, 1], [200, 255]])


@pytest.mark.parametrize(
    "given, wanted",
    [
        (np.int64, np.int32),
        (np.int64, np.float32),
        (np.uint8, np.float32),
        (np.uint8, np.int32),
        (np.int32, np.uint8),
        (np.float64, np.float32),
        (np.float32, np.float64),
        (np.uint16, np.float32),
    ],
)
def test_numbers_that_do_not_change_become_the_models(given, wanted):
    x = as_type(WHOLE.astype(given), wanted, "they")
    assert x.dtype == wanted
    np.testing.assert_array_equal(x, WHOLE)


@pytest.mark.parametrize(
    "x, wanted, message",
    [
        (np.array([[0.5, 1]]), np.uint8, r"they are float64\[2\]; the model takes uint8\[2\]: round them, "
                                         r"np.round\(255 \* x\).astype\(np.uint8\), or build .* of float32"),
        (np.array([[0.5, 3]]), np.uint8, r"round them, np.round\(x\).astype\(np.uint8\), or build"),
        (np.array([[0.0, 1]], np.float32), np.int32, r"they are float32\[2\]; the model takes int32\[2\]: round them"),
        (np.array([3, 2**31]), np.int32, r"they are int64\[\]; the model takes int32\[\], which does not hold "
                                         r"2147483648: scale them"),
        (np.array([-1, 3]), np.uint8, "which does not hold -1: scale them, or build the model with an input of int64"),
        (np.array([2**24 + 1]), np.float32, "which does not hold 16777217"),
        (np.array([1e300]), np.float32, r"which does not hold 1e\+300"),
        (np.array(["one"]), np.float32, r"they are <U3\[\]; the model takes float32"),
    ],
)  # fmt: skip
def test_numbers_that_would_change_are_refused_in_one_line(x, wanted, message):
    with pytest.raises(UserError, match=message) as said:
        as_type(x, wanted, "they")
    assert "\n" not in str(said.value)


def spec(x, y=tf.int32):
    return {"x": tf.TensorSpec([2], x), "y": tf.TensorSpec([], y)}


def test_labels_have_the_type_of_the_model_where_none_changes():
    x = WHOLE.astype(np.float32)
    numbers, classes = (Population.from_arrays({"a": (x, np.array([0, 2], dtype))}) for dtype in (float, int))
    assert numbers.example_spec["y"].dtype == tf.float32 and numbers.label_counts is None
    found = fitted(numbers, spec(tf.float32))
    assert found.train(0).y.tolist() == [0, 2] and found.label_counts.tolist() == classes.label_counts.tolist()
    assert fitted(Population.from_arrays({"a": (x, [-1.0, 2])}), spec(tf.float32)).label_counts is None
    predicted = fitted(classes, spec(tf.float32, tf.float32))
    assert predicted.train(0).y.dtype == np.float32 and predicted.label_counts is None
    with pytest.raises(UserError, match=r"the labels of client a are float32; the model takes classes.*np.digitize"):
        fitted(Population.from_arrays({"a": (x, [0.5, 2])}), spec(tf.float32))


def test_a_population_has_the_types_of_the_model():
    y = np.array([0, 1])
    population = Population.from_arrays({"mia": (WHOLE, y), "bo": (WHOLE + 1, y)}, {"mia": (WHOLE, y)})
    found = fitted(population, spec(tf.float32))
    assert found.train(0).dataset.element_spec["x"].dtype == found.test(0).dataset.element_spec["x"].dtype == tf.float32
    assert found.train(0).x.dtype == found.test(1).x.dtype == found.pooled_tests.x.dtype == np.float32
    np.testing.assert_array_equal(found.train(0).x, WHOLE + 1)
    assert found.train(0).dataset is found.train(0).dataset, "data sets made anew in every round leak"
    assert fitted(population, spec(tf.int64)) is population
    with pytest.raises(
        UserError,
        match=r"the examples of client bo are int64\[2\]; the model takes uint8\[2\], which does not hold 256",
    ):
        fitted(population, spec(tf.uint8))
