"""Rows of models that are read when they are asked for."""

import numpy as np
import pytest

from tffcl.models.model_rows import rows_with_own


@pytest.fixture
def whole():
    return np.arange(20, dtype=np.float32).reshape(5, 4)


@pytest.mark.parametrize(
    "asked",
    [
        0,
        3,
        -1,
        slice(None),
        slice(1, 4),
        [4, 0, 4],
        np.array([True, False, True, False, True]),
        (2, 1),
        (slice(1, 5), slice(2, 4)),
    ],
)
def test_rows_read_as_those_of_the_matrix(whole, asked):
    rows = rows_with_own(whole[:2], whole[2:])
    np.testing.assert_array_equal(rows[asked], whole[asked])
    np.testing.assert_array_equal(np.asarray(rows), whole)
    assert (rows.shape, len(rows), np.ndim(rows)) == (whole.shape, 5, 2)


def test_only_the_rows_that_are_asked_for_are_read(whole):
    read = []

    class Own(list):
        def __getitem__(self, place):
            read.append(place)
            return super().__getitem__(place)

    rows = rows_with_own(whole[:1], Own(whole[1:]))
    rows[0], rows[[0, 3]]
    assert read == [2]
    with pytest.raises(IndexError, match="row 5 of 5"):
        rows[5]
