"""Who is related to whom, and the centres in UMAP's map, read back from the figures."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from tffcl.clustering import taskonomy
from tffcl.lab.reporting import style
from tffcl.lab.reporting.figures import centres_figure, relatedness_figure


@pytest.fixture
def noisy():
    """12 clients of 3 groups as they come; one relation too many and one too few."""
    groups = np.arange(12) % 3
    related = (groups[:, None] == groups).astype(np.float32)
    related[0, 1] = related[1, 0] = 1
    related[0, 3] = related[3, 0] = 0
    return related, *taskonomy.flatten(related, 3)


def image(axes):
    return np.asarray(axes.images[0].get_array())


def is_color(pixels, color):
    own = np.isclose(pixels[..., :3] / 255, to_rgb(color), atol=1 / 255).all(axis=-1)
    return own & (pixels[..., 3] > 0) | (color == "white") & (pixels[..., 3] == 0)


def test_raw_ordered_and_flattened(noisy):
    related, labels, merges = noisy
    figure = relatedness_figure(related, labels, merges, client_ids=[f"c{each}" for each in range(12)])
    raw, ordered, flat = figure.axes[:3]
    np.testing.assert_array_equal(~is_color(image(raw), "white"), related)
    order = [int(tick.get_text()[1:]) for tick in ordered.get_yticklabels()]
    assert sorted(order) == list(range(12))
    np.testing.assert_array_equal(~is_color(image(ordered), "white"), related[np.ix_(order, order)])
    pixels, own = image(flat), labels[order]
    for label in range(3):
        shade = is_color(pixels, style.color(label))
        np.testing.assert_array_equal(
            shade, (own[:, None] == own) & (own == label) & (related[np.ix_(order, order)] == 1)
        )
    lost = [order.index(0), order.index(1)]
    assert not is_color(pixels[lost[0], lost[1]], "white")
    assert [(frame.get_x(), frame.get_width()) for frame in flat.patches] == [(-0.5, 4), (3.5, 4), (7.5, 4)]
    assert sorted(tick.get_text() for tick in flat.get_yticklabels()) == ["0 (4)", "1 (4)", "2 (4)"]
    # 2 of the 36 ordered pairs within, 2 of the 36 relations.
    assert "3 clusters: 5.56% of the pairs\nwithin are new, 5.56% of the relations are lost" in flat.get_xlabel()
    assert len(figure._repr_png_()) > 3_000


def test_the_tree_stands_above_its_columns(noisy):
    related, labels, merges = noisy
    (tree,) = relatedness_figure(related, labels, merges).axes[1].child_axes
    (lines,) = tree.collections
    branches = lines.get_segments()
    assert len(branches) == 11
    feet = sorted(x for (x, y), *_, (x2, y2) in branches for x, y in ((x, y), (x2, y2)) if y == 0 and x == round(x))
    assert set(range(12)) <= set(feet)
    assert max(branch[1][1] for branch in branches) == pytest.approx(merges[-1, 2])
    assert tree.get_xlim() == (-0.5, 11.5)


@pytest.mark.slow
def test_a_deep_tree_and_one_client():
    # SciPy's dendrogram would recurse 1,500 deep.
    related = np.ones((1500, 1500), bool)
    figure = relatedness_figure(related, *taskonomy.flatten(related))
    assert "flattened to 1 cluster:" in figure.axes[2].get_xlabel()
    assert relatedness_figure(np.eye(1), *taskonomy.flatten(np.eye(1)))._repr_png_()


def colors_of(axes):
    return {tuple(np.round(shade[:3], 3)) for each in axes.collections for shade in each.get_facecolors()}


def test_centres_by_cluster_and_by_true_group():
    points = np.random.default_rng(0).normal(size=(20, 3, 2))
    mask = np.ones((20, 3), bool)
    mask[0, 1:] = False
    figure = centres_figure(points, mask, np.arange(20) % 2, np.arange(20) % 10)
    left, right = figure.axes
    assert sum(len(each.get_offsets()) for each in left.collections) == 58
    assert colors_of(left) == {tuple(np.round(to_rgb(style.color(each)), 3)) for each in range(2)}
    shapes = {dots.get_paths()[0].vertices.tobytes() for dots in right.collections}
    assert len(right.collections) == 10 and len(shapes) == 2  # ten groups need a second marker
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["cluster 0 (10)", "cluster 1 (10)"]
    assert len(right.get_legend().get_texts()) == 10
    assert left.get_xlim() == right.get_xlim()
    assert np.ptp(left.get_xlim()) == pytest.approx(np.ptp(left.get_ylim()))
    assert len(figure._repr_png_()) > 3_000


@pytest.mark.parametrize("dimensions", [1, 3])
def test_other_dimensions_and_many_clusters(dimensions):
    points = np.random.default_rng(0).normal(size=(40, 2, dimensions))
    figure = centres_figure(points, np.ones((40, 2), bool), np.arange(40))
    (axes,) = figure.axes
    assert axes.get_legend() is None
    assert axes.get_title() == "40 clusters"
