"""The figures: each function returns a matplotlib figure that shows itself in a notebook; none uses pyplot.

Figures are saved as PNG, SVG or PDF, and `page.panels` turns them into panels of the report's page. `report_figures`
lists the figures of a report: a new figure needs a function here and a row there.
"""

from tffcl.lab.reporting.figures.clients import client_accuracy_figure, client_sizes_figure
from tffcl.lab.reporting.figures.data import (
    answers_figure,
    label_histograms,
    labels_figure,
    sample_pictures,
    titled_pictures,
)
from tffcl.lab.reporting.figures.maps import centres_figure, projection_figure, representations_figure, settings_figure
from tffcl.lab.reporting.figures.matrices import pairs_figure, proximity_figure, relatedness_figure
from tffcl.lab.reporting.figures.rounds import accuracy_figure, merging_figure, progress_figure
from tffcl.lab.reporting.figures.trees import dendrogram_figure, splits_figure
from tffcl.lab.reporting.figures.values import privacy_figure, sweep_figure
from tffcl.lab.reporting.style import save

__all__ = [
    "accuracy_figure", "answers_figure", "centres_figure", "client_accuracy_figure", "client_sizes_figure",
    "dendrogram_figure", "label_histograms", "labels_figure", "merging_figure", "pairs_figure", "privacy_figure",
    "progress_figure", "projection_figure", "proximity_figure", "relatedness_figure", "representations_figure",
    "sample_pictures", "save", "settings_figure", "splits_figure", "sweep_figure", "titled_pictures",
]  # fmt: skip
