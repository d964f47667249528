"""A picture of clients as points by what they sent of their data, in the colours of their clusters round by round."""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.optimize
from matplotlib.axes import Axes

from tffcl.lab.reporting import ordering, style
from tffcl.lab.reporting.style import ReportFigure
from tffcl.runs.run_files import NO_CLUSTER, Representations, RunFiles

_ROUNDS = (5, 10, 40)  # those of StoCFL's Fig. 6
_ACROSS, _MOST_PANELS = 4, 12


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
    panels = [(f"after round {each}", found, clusters_at(history, each)) for each in shown_rounds(last)]
    return _panels(panels, crowded(panels[-1][2]) if truth is None else truth, truth)


def settings_figure(runs: Mapping[str, RunFiles], truth: Sequence | None = None) -> ReportFigure:
    """Draws the clusters after the last round of several runs, a panel each (StoCFL Fig. 7).

    Args:
      runs: By title, with representations and history; the first twelve are drawn.
      truth: str [N], the true groups; None where they are not known.
    """
    shown = list(runs.items())[:_MOST_PANELS]
    panels = [(title, run.representations, run.history[max(run.history)]) for title, run in shown]
    return _panels(panels, crowded(panels[0][2]) if truth is None else truth, truth)


def _panels(panels: Sequence[tuple], reference: Sequence, truth: Sequence | None) -> ReportFigure:
    """Draws panels of title, map and clusters [N], in the colours of the reference [N]; first the true groups."""
    found, groups = panels[0][1], ordering.ranks(reference)
    count = len(panels) + (truth is not None)
    rows, across = -(-count // _ACROSS), min(count, _ACROSS)
    figure = style.new_figure(2.9 * across, 0.4 + 3.0 * rows)
    all_axes = np.atleast_1d(figure.subplots(rows, across, squeeze=False).ravel())
    for axes in all_axes[count:]:
        axes.set_visible(False)
    if truth is not None:
        _draw(all_axes[0], found.points, ordering.ranks(truth)[found.places])
        all_axes[0].set_title(f"{len(np.unique(truth))} true groups", fontsize=10)
    for axes, (title, own, labels) in zip(all_axes[count - len(panels) : count], panels, strict=True):
        together = crowded(labels)
        _draw(axes, own.points, matched(together, groups)[own.places])
        alone, number = int(np.sum(together < 0)), len(np.unique(together[together >= 0]))
        clusters = f"{number} cluster{'s' * (number != 1)}"
        axes.set_title(f"{title}: {clusters}{f', {alone} alone' if alone else ''}", fontsize=10)
    figure.suptitle(f"{len(found.points):,} clients by what they sent of their data, laid out by t-SNE", fontsize=12)
    return figure


def crowded(labels: np.ndarray) -> np.ndarray:
    """Returns clusters [N] with more than one client; -1 for the others."""
    _, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.where((counts[which] > 1) & (labels != NO_CLUSTER), labels, -1)


def matched(crowded: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Returns colours [N] of clusters: those of the groups 0, 1, ... that they have most clients in common with, each given once.

    A cluster's number changes when an older one takes it up, and is another in another run; its clients are its identity.
    """
    clusters = np.unique(crowded[crowded >= 0])
    common = np.zeros([len(clusters), reference.max() + 1], np.int64)
    grouped = crowded >= 0
    np.add.at(common, (np.searchsorted(clusters, crowded[grouped]), reference[grouped]), 1)
    rows, columns = scipy.optimize.linear_sum_assignment(common, maximize=True)
    meeting = common[rows, columns] > 0
    colours = np.full(len(clusters), -1)
    colours[rows[meeting]] = columns[meeting]
    others = colours < 0
    colours[others] = common.shape[1] + np.arange(others.sum())
    colour_of = dict(zip(clusters.tolist(), colours.tolist(), strict=True))
    return np.array([colour_of.get(cluster, -1) for cluster in crowded.tolist()])


def _draw(axes: Axes, points: np.ndarray, places: np.ndarray) -> None:
    size = float(np.clip(6_000 / max(1, len(points)), 4, 30))
    for place in np.unique(places):
        own = places == place
        axes.scatter(*points[own].T, s=size, color=style.color(place), linewidths=0, alpha=0.4 if place < 0 else 0.85)
    axes.set(xticks=[], yticks=[])
    axes.margins(0.06)
