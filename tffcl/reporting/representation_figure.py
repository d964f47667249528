"""A picture of clients as points by what they sent of their data, in the colours of their clusters round by round."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from tffcl.reporting import ordering, style
from tffcl.reporting.files import NO_CLUSTER, Representations
from tffcl.reporting.style import ReportFigure

_ROUNDS = (5, 10, 40)  # those of StoCFL's Fig. 6


def shown_rounds(last: int) -> list[int]:
    """Returns the rounds whose clusters are drawn, at most three, ascending: StoCFL's, or evenly spread ones."""
    if last >= _ROUNDS[-1]:
        return list(_ROUNDS)
    return sorted({1, (1 + last) // 2, last} - {0})


def clusters_at(history: Mapping[int, np.ndarray], round_number: int) -> np.ndarray:
    """Returns the clusters [N] after a round; the history has the rounds that changed them."""
    return history[max((each for each in history if each <= round_number), default=min(history))]


def representations_figure(
    found: Representations, history: Mapping[int, np.ndarray], last: int, truth: Sequence | None = None
) -> ReportFigure:
    """Draws the same map several times: in the colours of the true groups, and of the clusters after some rounds.

    A cluster of one client is grey: so are those that have not taken part by then.

    Args:
      found: The map.
      history: Clusters int [N] by round.
      last: Number of the last round.
      truth: str [N], the true groups; None where they are not known.
    """
    rounds = shown_rounds(last)
    panels = [(f"after round {each}", clusters_at(history, each)) for each in rounds]
    # A cluster keeps its number, and so its colour, for as long as it lasts.
    everything = np.concatenate([np.unique(_crowded(labels)) for _, labels in panels])
    names, firsts = np.unique(everything[::-1], return_index=True)
    palette = {int(name): place for place, name in enumerate(names[np.argsort(firsts)])}
    count = len(panels) + (truth is not None)
    figure = style.new_figure(2.9 * count, 3.4)
    all_axes = np.atleast_1d(figure.subplots(1, count))
    if truth is not None:
        _draw(all_axes[0], found.points, ordering.ranks(truth)[found.places])
        all_axes[0].set_title(f"{len(np.unique(truth))} true groups", fontsize=11)
    for axes, (title, labels) in zip(all_axes[count - len(panels) :], panels, strict=True):
        crowded = _crowded(labels)
        _draw(axes, found.points, np.array([palette[each] if each >= 0 else -1 for each in crowded[found.places].tolist()]))
        alone = int(np.sum(crowded < 0))
        number = len(np.unique(crowded[crowded >= 0]))
        clusters = f"{number} cluster{'s' * (number != 1)}"
        axes.set_title(f"{title}: {clusters}{f', {alone} alone' if alone else ''}", fontsize=10)
    figure.suptitle(f"{len(found.points):,} clients by what they sent of their data, laid out by t-SNE", fontsize=12)
    return figure


def _crowded(labels: np.ndarray) -> np.ndarray:
    """Clusters [N] with more than one client; -1 for the others."""
    _, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.where((counts[which] > 1) & (labels != NO_CLUSTER), labels, -1)


def _draw(axes: Axes, points: np.ndarray, places: np.ndarray) -> None:
    size = float(np.clip(6_000 / max(1, len(points)), 4, 30))
    for place in np.unique(places):
        own = places == place
        axes.scatter(*points[own].T, s=size, color=style.color(place), linewidths=0, alpha=0.4 if place < 0 else 0.85)
    axes.set(xticks=[], yticks=[])
    axes.margins(0.06)
