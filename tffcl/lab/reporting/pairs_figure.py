"""A picture of how far apart pairs of clients are, within and across the true groups."""

from collections.abc import Sequence

import numpy as np

from tffcl.lab.reporting import style
from tffcl.lab.reporting.style import ReportFigure

_BINS = 80


def pairs_figure(
    proximity: np.ndarray, truth: Sequence | None = None, *, threshold: float | None = None, unit: str = "", measure: str = ""
) -> ReportFigure:
    """Draws the histogram of the proximities of all pairs of clients.

    Where the two colours do not overlap, a threshold between them finds the true groups.

    Args:
      proximity: [N, N].
      truth: [N], the true groups; None where they are not known.
      threshold: Drawn as a line.
      unit: Of the proximity; "1 - cosine" has a second axis with the cosines.
      measure: Name of the proximity measure.
    """
    above = np.triu_indices(len(proximity), 1)
    pairs = np.asarray(proximity)[above]
    parts = [("all pairs", np.ones(len(pairs), bool), style.GREY)]
    if truth is not None:
        same = np.equal.outer(np.asarray(truth), np.asarray(truth))[above]
        parts = [("within true groups", same, style.color(0)), ("across true groups", ~same, style.color(1))]
    figure = style.new_figure(7.0, 4.0)
    axes = figure.subplots()
    edges = np.histogram_bin_edges(pairs, _BINS) if len(pairs) else np.linspace(0, 1, _BINS)
    for name, chosen, shade in parts:
        # Shares, since across groups there are more pairs than within.
        shares = np.full(np.count_nonzero(chosen), 100 / max(1, np.count_nonzero(chosen)))
        axes.hist(pairs[chosen], edges, weights=shares, color=shade, alpha=0.6, label=f"{name} ({len(shares):,})")
    if threshold is not None:
        axes.axvline(threshold, color="black", linestyle="--", linewidth=1.2, label=f"threshold {threshold:.4g}")
    axes.set(xlabel=f"{measure} ({unit})" if unit else measure, ylabel="% of the pairs of a kind")
    if unit == "1 - cosine":
        axes.secondary_xaxis("top", functions=(_complement, _complement)).set_xlabel("cosine")
    style.legend_below(figure, 3)
    style.tidy(axes)
    return figure


def _complement(values):
    return 1 - np.asarray(values)
