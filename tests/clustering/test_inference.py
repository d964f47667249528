import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score
from sklearn.metrics.pairwise import cosine_similarity

from tffcl.clustering.vector_distances import check_threshold, inference_similarity, largest_similarity
from tffcl.errors import UserError


def one_hot(answers, classes):
    return np.eye(classes)[answers]


def as_printed(first, second):
    """FLIS Alg. 2 line 3, letter by letter."""
    return np.linalg.norm(first * second) / (np.linalg.norm(first) * np.linalg.norm(second))


@pytest.fixture
def answers():
    return np.random.default_rng(0).integers(0, 4, (5, 30)).astype(np.int32)


def test_agreement_of_one_hot_answers_is_the_share_of_equal_ones(answers):
    expected = [[accuracy_score(a, b) for b in answers] for a in answers]
    np.testing.assert_allclose(inference_similarity(answers), expected, rtol=1e-6)
    whole = one_hot(answers, 4).reshape(5, -1)
    np.testing.assert_allclose(inference_similarity(answers), cosine_similarity(whole), rtol=1e-6)


def test_frobenius_is_the_papers_formula(answers):
    expected = [[as_printed(one_hot(a, 4), one_hot(b, 4)) for b in answers] for a in answers]
    np.testing.assert_allclose(inference_similarity(answers, form="frobenius"), expected, rtol=1e-6)


@pytest.mark.parametrize("form, formula", [("agreement", None), ("frobenius", as_printed)])
def test_soft_answers(form, formula):
    soft = np.random.default_rng(1).dirichlet(np.ones(4), (3, 20)).astype(np.float32)
    formula = formula or (lambda a, b: (a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))
    expected = [[formula(a, b) for b in soft] for a in soft]
    np.testing.assert_allclose(inference_similarity(soft, form=form), expected, rtol=1e-5)


@pytest.mark.parametrize("form", ["agreement", "frobenius"])
def test_each_label_of_a_sequence_is_an_answer(answers, form):
    sequences = answers.reshape(5, 10, 3)
    np.testing.assert_array_equal(inference_similarity(sequences, form=form), inference_similarity(answers, form=form))
    soft = np.random.default_rng(1).dirichlet(np.ones(4), (5, 10, 3)).astype(np.float32)
    flat = inference_similarity(soft.reshape(5, 30, 4), form=form)
    np.testing.assert_allclose(inference_similarity(soft, form=form), flat, rtol=1e-6)


@pytest.mark.parametrize("form", ["agreement", "frobenius"])
def test_what_is_no_answer_is_like_no_other(answers, form):
    """Of outputs that are not finite: two models that diverged are not alike by that, nor like one of class 0."""
    answers[0], answers[1], answers[2], answers[3, :10] = -1, -1, 0, -1
    hard = inference_similarity(answers, form=form)
    soft = np.where(answers[..., np.newaxis] < 0, np.nan, one_hot(answers, 4))
    for found in (hard, inference_similarity(soft.astype(np.float32), form=form)):
        np.testing.assert_array_equal(found[:2], 0)
        np.testing.assert_array_equal(found[:, :2], 0)
        assert found[2, 3] > 0
    assert inference_similarity(answers)[3, 3] == pytest.approx(2 / 3)


def test_others_are_a_block_of_the_whole(answers):
    whole = inference_similarity(answers)
    np.testing.assert_array_equal(inference_similarity(answers[:2], answers[2:]), whole[:2, 2:])


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 40), st.integers(2, 6), st.booleans(), st.integers(0, 2**31))
def test_no_similarity_is_above_the_bound(samples, classes, soft, seed):
    rng = np.random.default_rng(seed)
    if soft:
        made = rng.dirichlet(np.full(classes, rng.choice([0.05, 1.0, 50.0])), (4, samples)).astype(np.float32)
    else:
        made = rng.integers(0, classes, (4, samples)).astype(np.int32)
    made[1] = made[0]
    bound = largest_similarity("frobenius", samples, classes if soft else None)
    assert inference_similarity(made, form="frobenius").max() <= bound + 1e-6
    assert inference_similarity(made).max() <= 1 + 1e-6


def test_one_hot_answers_reach_the_bound(answers):
    alike = inference_similarity(answers[[0, 0]], form="frobenius")
    np.testing.assert_allclose(alike, largest_similarity("frobenius", 30, None))
    assert largest_similarity("frobenius", 2500, None) == 0.02


@pytest.mark.parametrize(
    "beta, form, message",
    [
        (
            0.5,
            "frobenius",
            r"threshold is 0.5, which no pair can reach: with the frobenius similarity of 2500 one-hot "
            r"answers it must be at most 0.02",
        ),
        (1.5, "agreement", "threshold is 1.5; it must be a similarity, from 0 to 1"),
        (-0.1, "agreement", "from 0 to 1"),
        (math.nan, "agreement", "from 0 to 1"),
        (0.5, "agreemen", "did you mean 'agreement'"),
    ],
)
def test_thresholds_that_cannot_be(beta, form, message):
    with pytest.raises(UserError, match=message):
        check_threshold(beta, form, 2500, None)


def test_soft_answers_have_a_bound_of_their_own():
    """Of n images and C classes √(C / n), as the docstring has it; here 0.0632."""
    assert check_threshold(0.063, "frobenius", 2500, 10) == 0.063
    with pytest.raises(UserError, match="2500 soft answers it must be at most 0.06325"):
        check_threshold(0.064, "frobenius", 2500, 10)


def test_answers_of_different_images(answers):
    with pytest.raises(UserError, match="on the same n images"):
        inference_similarity(answers, answers[:, :7])
    with pytest.raises(UserError, match="unknown similarity 'cosine'"):
        inference_similarity(answers, form="cosine")
