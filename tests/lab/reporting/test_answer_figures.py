"""Pictures with words above them, and clients as points."""

import numpy as np

from tffcl.lab.reporting import figures


def titles(figure):
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def test_wrong_answers_say_what_is_right_in_another_colour():
    images = np.zeros((3, 28, 28, 1), np.uint8)
    figure = figures.answers_figure(images, [0, 1, 2], [0, 2, 2], ["a", "b", "c"], columns=2)
    assert titles(figure) == ["a", "b (is c)", "c"]
    colors = [axes.title.get_color() for axes in figure.axes[:3]]
    assert colors[0] == colors[2] != colors[1]
    assert titles(figures.answers_figure(images, [0, 1, 2], [0, 2, 2])) == ["0", "1 (is 2)", "2"]


def test_colour_pictures_and_none():
    figure = figures.titled_pictures(np.full((1, 8, 8, 3), 200, np.uint8), ["red"])
    assert figure.axes[0].images[0].get_array().shape == (8, 8, 3)
    assert not titles(figures.titled_pictures(np.zeros((0, 8, 8, 1), np.uint8), []))


def test_clients_as_points():
    points = np.arange(10.0).reshape(5, 2)
    figure = figures.projection_figure(points, [0, 0, 1, 1, 1], client_ids=range(5), title="five")
    (axes,) = figure.axes
    assert [len(each.get_offsets()) for each in axes.collections] == [2, 3]
    assert [text.get_text() for text in axes.texts] == ["0", "1", "2", "3", "4"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["cluster 0 (2)", "cluster 1 (3)"]
    assert not figures.projection_figure(points).legends
