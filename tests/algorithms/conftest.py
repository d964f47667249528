"""The model and the clients of the tests of limits; a module may have its own."""

import pytest

from tffcl.models.mlp import build_mlp


@pytest.fixture(scope="module")
def model():
    return build_mlp((8, 8, 1), 10, hidden=16, normalization=(0.3, 0.4), seed=3)


@pytest.fixture
def population(digit_clients):
    return digit_clients([31, 40, 25, 50, 12])
