"""Angles between data sets (PACFL Table 1) and beside other distances (Table 5)."""

import os
import pathlib

import numpy as np
import pytest

from tests.oracles.angles import smallest_entry
from tffcl.errors import UserError
from tffcl.lab.batches import dataset_angles as module
from tffcl.lab.batches.dataset_angles import PACFL_SETS, PACFL_TABLE_1, dataset_angles
from tffcl.lab.batches.gaussian_table import (
    PACFL_TABLE_5,
    bhattacharyya,
    gaussian_table,
    kl_divergence,
    maximum_mean_discrepancy,
)
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.images import Images


def _has(name: str) -> bool:
    directory = pathlib.Path(os.environ.get("TFFCL_DATA_DIR") or "nowhere")
    return any((directory / entry).exists() for entry in (name, f"{name}.npz"))


needs_the_four = pytest.mark.skipif(
    not all(map(_has, PACFL_SETS)), reason=f"TFFCL_DATA_DIR lacks one of {', '.join(PACFL_SETS)}"
)


@pytest.fixture(scope="module")
def of_paper():
    return dataset_angles(samples=1500)


@needs_the_four
def test_first_vectors_are_the_papers_table_1(of_paper):
    check_table_1(of_paper)


@needs_the_four
@pytest.mark.slow
def test_table_1_with_all_images():
    check_table_1(dataset_angles())


def check_table_1(found):
    first = found.matrices["first_vectors"]
    place = {name: index for index, name in enumerate(found.names)}
    for (a, b), (smallest, total) in PACFL_TABLE_1.items():
        assert first[place[a], place[b]] == pytest.approx(smallest, abs=2), (a, b)
        assert total == pytest.approx(2 * smallest, abs=0.1)
    # CIFAR-10 and Fashion-MNIST are the copies that everyone has.
    assert first[0, 2] == pytest.approx(45.79, abs=0.5)


@needs_the_four
def test_true_principal_angles_are_not_the_papers(of_paper):
    smallest, sums = of_paper.matrices["smallest_angle"], of_paper.matrices["angle_sum"]
    assert np.nanmax(np.abs(smallest - of_paper.paper())) > 20
    assert (smallest <= of_paper.matrices["first_vectors"] + 1e-4).all()
    assert (sums >= 2 * smallest - 1e-4).all() and sums[0, 1] > 60


@needs_the_four
def test_the_table_stands_beside_the_papers(of_paper):
    text = of_paper.to_text()
    assert "45.79 (91.6)" in text and "66.26 (132.5)" in text
    assert "cifar10 1,500" in text
    assert all(note in text for note in of_paper.notes)
    assert max(map(len, text.splitlines())) <= 110


def _digit_sets(digits, monkeypatch, colours=False):
    """Two sets of digits: as they are; and cut to 6x6 or coloured."""
    x, y = digits
    other = np.repeat(x, 3, axis=3) // np.array([1, 2, 3], np.uint8) if colours else x[:, 1:7, 1:7]
    sets = {}
    for name, images, rows in (("one", x, slice(0, 700)), ("two", other, slice(700, 1400))):
        part = Images(np.ascontiguousarray(images[rows]), y[rows])
        sets[name] = Dataset(name, part, part.take(np.arange(5)), 10, 0.3, 0.4, note="")
    monkeypatch.setattr(module, "load_dataset", lambda asked, **_: sets[asked["name"]])
    return [each.train.x.astype(float) for each in sets.values()]


def _first_two(rows):
    return np.linalg.svd(rows.reshape(len(rows), -1).T, full_matrices=False)[0][:, :2]


@pytest.mark.parametrize("preprocessing", ["raw", "centred", "normalized", "grey"])
@pytest.mark.parametrize("colours", [False, True])
def test_moments_give_what_the_pixels_give(digits, monkeypatch, preprocessing, colours):
    one, two = _digit_sets(digits, monkeypatch, colours)
    found = dataset_angles(["one", "two"], preprocessing=preprocessing)
    if not colours:
        two = np.pad(two, ((0, 0), (1, 1), (1, 1), (0, 0)))
    elif preprocessing == "grey":
        two = two @ np.array([[0.299], [0.587], [0.114]])
    else:
        one = np.repeat(one, 3, axis=3)
    if preprocessing == "centred":
        one, two = (x - x.mean(axis=0) for x in (one, two))
    if preprocessing == "normalized":
        one, two = ((x / 255 - 0.3) / 0.4 for x in (one, two))
    bases = np.stack([_first_two(one), _first_two(two)])
    cosines = np.linalg.svd(bases[0].T @ bases[1])[1]
    expected = np.degrees(np.arccos(np.clip(cosines, 0, 1)))
    assert found.matrices["smallest_angle"][0, 1] == pytest.approx(expected[0], abs=0.02)
    assert found.matrices["angle_sum"][0, 1] == pytest.approx(expected.sum(), abs=0.04)
    first = np.degrees(np.arccos(abs(bases[0][:, 0] @ bases[1][:, 0])))
    assert found.matrices["first_vectors"][0, 1] == pytest.approx(first, abs=0.02)
    entries = smallest_entry(bases, np.ones((2, 2), bool))[0, 1]
    assert found.matrices["smallest_entry"][0, 1] == pytest.approx(entries, abs=0.02)


def test_samples_and_seed(digits, monkeypatch):
    _digit_sets(digits, monkeypatch)
    few, again, other = (dataset_angles(["one", "two"], samples=40, seed=seed) for seed in (0, 0, 1))
    assert few.examples == (40, 40)
    assert (few.matrices["trace"] == again.matrices["trace"]).all()
    assert (few.matrices["trace"] != other.matrices["trace"]).any()
    assert few.to_text().count("one - two") == 1 and "PACFL" in few.to_text()
    assert np.isnan(few.paper()).all()
    assert few.figure()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"names": ["digits"]}, "two or more data sets, all different, not digits"),
        ({"names": ["digits", "digits"]}, "all different"),
        ({"names": ["digits", "digts"]}, "unknown dataset 'digts'; did you mean 'digits'"),
        ({"preprocessing": "centered"}, "unknown preprocessing 'centered'; did you mean 'centred'"),
        ({"num_vectors": 0}, "num_vectors is 0; it must be a whole number from 1"),
        ({"samples": 0}, "samples is 0; it must be a whole number from 1"),
        ({"seed": -1}, "seed is -1; it must be a whole number from 0"),
    ],
)
def test_what_a_user_can_mend(arguments, message):
    with pytest.raises(UserError, match=message):
        dataset_angles(**arguments)


def test_too_many_vectors(digits, monkeypatch):
    _digit_sets(digits, monkeypatch)
    with pytest.raises(UserError, match="num_vectors is 65; images of 8x8x1 have fewer values"):
        dataset_angles(["one", "two"], num_vectors=65)


def test_closed_forms_in_one_dimension():
    one, four = np.array([[1.0]]), np.array([[4.0]])
    zero, three = np.zeros(1), np.array([3.0])
    # Bhattacharyya: (m1 - m2)^2 / (4 (v1 + v2)) + ln((v1 + v2)^2 / (4 v1 v2)) / 4
    assert bhattacharyya(zero, one, three, four) == pytest.approx(9 / 20 + np.log(25 / 16) / 4)
    # KL: ln(s2 / s1) + (v1 + (m1 - m2)^2) / (2 v2) - 1/2
    assert kl_divergence(zero, one, three, four) == pytest.approx(np.log(2) + 10 / 8 - 0.5)
    assert kl_divergence(three, four, zero, one) == pytest.approx(-np.log(2) + 13 / 2 - 0.5)
    assert bhattacharyya(three, four, three, four) == pytest.approx(0, abs=1e-12)
    assert kl_divergence(three, four, three, four) == pytest.approx(0, abs=1e-12)


def test_mmd_by_a_double_loop():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(6, 3)), rng.normal(1, 2, size=(5, 3))
    union = [*a, *b]
    pairs = [(x - y) @ (x - y) for i, x in enumerate(union) for y in union[:i]]

    def mean(left, right):
        return np.mean([np.exp(-(x - y) @ (x - y) / np.median(pairs)) for x in left for y in right])

    expected = np.sqrt(mean(a, a) + mean(b, b) - 2 * mean(a, b))
    assert maximum_mean_discrepancy(a, b) == pytest.approx(expected)
    assert maximum_mean_discrepancy(a, a) == pytest.approx(0, abs=1e-7)


def test_table_5_has_the_papers_order():
    table = gaussian_table(draws=40)
    for measure in ("Bhattacharyya", "KL", "MMD", "first vectors"):
        assert table.agrees(measure), measure
    # What the paper defines well enough, up to the spread between draws.
    for measure, columns in (("Bhattacharyya", 3), ("KL", 3), ("first vectors", 4)):
        for column in range(columns):
            apart = abs(table.measured[measure][column] - PACFL_TABLE_5[measure][column])
            assert apart < 3 * table.deviation[measure][column], (measure, column)
    text = table.to_text()
    assert "47.12" in text and "18.41" in text and max(map(len, text.splitlines())) <= 110
    assert gaussian_table(draws=2).to_text() == gaussian_table(draws=2).to_text()
    with pytest.raises(UserError, match="draws is 0"):
        gaussian_table(draws=0)
