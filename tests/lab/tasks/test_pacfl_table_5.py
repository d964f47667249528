"""The script of PACFL's Table 5: angles beside other distances, on Gaussians."""

import importlib.util
import math

import numpy as np
import pytest

from tffcl.lab.tasks.task_file import task_directory


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("pacfl_table_5", task_directory() / "pacfl_table_5.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_closed_forms_in_one_dimension(script):
    one, four, zero, three = np.array([[1.0]]), np.array([[4.0]]), np.zeros(1), np.array([3.0])
    # Bhattacharyya: (m1 - m2)^2 / (4 (v1 + v2)) + ln((v1 + v2)^2 / (4 v1 v2)) / 4
    assert script.bhattacharyya(zero, one, three, four) == pytest.approx(9 / 20 + np.log(25 / 16) / 4)
    # KL: ln(s2 / s1) + (v1 + (m1 - m2)^2) / (2 v2) - 1/2
    assert script.kl_divergence(zero, one, three, four) == pytest.approx(math.log(2) + 10 / 8 - 0.5)
    assert script.kl_divergence(three, four, zero, one) == pytest.approx(-math.log(2) + 13 / 2 - 0.5)
    assert script.bhattacharyya(three, four, three, four) == pytest.approx(0, abs=1e-12)
    assert script.kl_divergence(three, four, three, four) == pytest.approx(0, abs=1e-12)


def test_mmd_by_a_double_loop(script):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(6, 3)), rng.normal(1, 2, size=(5, 3))
    union = [*a, *b]
    pairs = [(x - y) @ (x - y) for i, x in enumerate(union) for y in union[:i]]

    def mean(left, right):
        return np.mean([np.exp(-(x - y) @ (x - y) / np.median(pairs)) for x in left for y in right])

    expected = np.sqrt(mean(a, a) + mean(b, b) - 2 * mean(a, b))
    assert script.maximum_mean_discrepancy(a, b) == pytest.approx(expected)
    assert script.maximum_mean_discrepancy(a, a) == pytest.approx(0, abs=1e-7)


@pytest.mark.slow
def test_it_has_the_papers_order(script):
    found = script.measured()
    for name, published in script.PUBLISHED.items():
        mean, deviation = found[name].mean(axis=0), found[name].std(axis=0)
        assert mean[0] < mean[1] and mean[2] < mean[3], name
        # What the paper defines well enough, up to the spread between draws.
        close = {"MMD": 0, "first vectors": 4}.get(name, 3)
        assert (np.abs(mean - published)[:close] < 3 * deviation[:close]).all(), name
    text = script.table(found)
    assert "47.12" in text and "18.41" in text and max(map(len, text.splitlines())) <= 120
