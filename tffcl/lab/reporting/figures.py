"""All figure functions in one place, for notebooks and the command line.

Each returns a matplotlib figure that shows itself in a notebook; none touches pyplot.
"""

from tffcl.lab.reporting.answer_figures import answers_figure, titled_pictures
from tffcl.lab.reporting.client_figures import client_accuracy_figure, client_sizes_figure
from tffcl.lab.reporting.clustering_figures import dendrogram_figure, proximity_figure
from tffcl.lab.reporting.data_figures import label_histograms, labels_figure, sample_pictures
from tffcl.lab.reporting.pairs_figure import pairs_figure
from tffcl.lab.reporting.privacy_figure import privacy_figure
from tffcl.lab.reporting.projection_figure import projection_figure
from tffcl.lab.reporting.relatedness_figures import centres_figure, relatedness_figure
from tffcl.lab.reporting.representation_figure import representations_figure, settings_figure
from tffcl.lab.reporting.rounds_figures import accuracy_figure, merging_figure, progress_figure
from tffcl.lab.reporting.splits_figure import splits_figure
from tffcl.lab.reporting.style import save
from tffcl.lab.reporting.sweep_figure import sweep_figure

__all__ = [
    "accuracy_figure",
    "answers_figure",
    "centres_figure",
    "client_accuracy_figure",
    "client_sizes_figure",
    "dendrogram_figure",
    "label_histograms",
    "labels_figure",
    "merging_figure",
    "pairs_figure",
    "privacy_figure",
    "progress_figure",
    "projection_figure",
    "proximity_figure",
    "relatedness_figure",
    "representations_figure",
    "sample_pictures",
    "save",
    "settings_figure",
    "splits_figure",
    "sweep_figure",
    "titled_pictures",
]
