"""What there is to choose from, by name. Imports nothing heavy: `tffcl list` answers at once."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping

from tffcl.references import find_function


@dataclasses.dataclass(frozen=True)
class Entry:
    """Something that can be named in a task or on the command line.

    Attributes:
      description: One line.
      module: Where it is.
      build: Name of its builder in the module.
      parameters: Name of the dataclass of its own parameters in the module, if it has any.
      needs: What its builder takes beside model, training and parameters, see `build.build_method`: "server_images",
        "seed", "noise_seed", "encoder", "find_encoder".
      clustering: Name of the builder of its grouping before training in the module, if it has one.
      compares_on_server: Whether it cannot do without images that the server has.
    """

    description: str
    module: str
    build: str
    parameters: str | None = None
    needs: tuple[str, ...] = ()
    clustering: str | None = None
    compares_on_server: bool = False

    def builder(self):
        return getattr(importlib.import_module(self.module), self.build)

    def clustering_builder(self):
        return getattr(importlib.import_module(self.module), self.clustering)

    def parameter_class(self):
        return getattr(importlib.import_module(self.module), self.parameters) if self.parameters else None


ALGORITHMS = {
    "pacfl": Entry(
        "PACFL: clusters by principal angles between data subspaces, before training (AAAI 2023)",
        "tffcl.algorithms.pacfl",
        "build_pacfl",
        "PACFLParameters",
        needs=("noise_seed",),
        clustering="build_clustering",
    ),
    "composed": Entry(
        "a signature, a metric, a linkage and a local training of your choice, also where no paper has it",
        "tffcl.algorithms.composed",
        "build_composed",
        "ComposedParameters",
        needs=("seed", "server_images", "find_encoder", "noise_seed"),
        clustering="build_clustering",
    ),
    "flis_dc": Entry(
        "FLIS (DC): joint clusters by inference similarity on server data, anew in every round (2022)",
        "tffcl.algorithms.flis_dc",
        "build_flis_dc",
        "FLISDCParameters",
        needs=("server_images",),
        compares_on_server=True,
    ),
    "flis_hc": Entry(
        "FLIS (HC): hierarchical clusters by inference similarity on server data, after a warm-up (2022)",
        "tffcl.algorithms.flis_hc",
        "build_flis_hc",
        "FLISHCParameters",
        needs=("server_images", "seed"),
        clustering="build_clustering",
        compares_on_server=True,
    ),
    "ifca": Entry(
        "IFCA: K models, every client takes the one of least loss (NeurIPS 2020)",
        "tffcl.algorithms.ifca",
        "build_ifca",
        "IFCAParameters",
        needs=("seed",),
    ),
    "flt": Entry(
        "FLT: clients related by what an encoder makes of their data, joint or disjoint clusters (TNNLS 2022)",
        "tffcl.algorithms.flt",
        "build_flt",
        "FLTParameters",
        needs=("encoder", "seed", "noise_seed"),
        clustering="build_clustering",
    ),
    "pca_km_hc": Entry(
        "PCA+kM+HC: clusters by k-means centres of PCA projections, before training (FLT's baseline)",
        "tffcl.algorithms.pca_km_hc",
        "build_pca_km_hc",
        "PCAKMHCParameters",
        needs=("seed", "noise_seed"),
        clustering="build_clustering",
    ),
    "cfl": Entry(
        "CFL: a cluster that stands still while members move is split by the cosines of their updates (TNNLS 2021)",
        "tffcl.algorithms.cfl",
        "build_cfl",
        "CFLParameters",
    ),
    "fedsem": Entry(
        "FedSEM: k-means on the clients' models in every round (2021)",
        "tffcl.algorithms.fedsem",
        "build_fedsem",
        "FedSEMParameters",
        needs=("seed",),
    ),
    "fedclust": Entry(
        "FedClust: clusters by the last layer's weights after a local warm-up (2024)",
        "tffcl.algorithms.fedclust",
        "build_fedclust",
        "FedClustParameters",
        needs=("seed",),
        clustering="build_clustering",
    ),
    "clove": Entry(
        "CLoVE: K models, clients clustered by their losses under all of them in every round (2025)",
        "tffcl.algorithms.clove",
        "build_clove",
        "CLoVEParameters",
        needs=("seed",),
    ),
    "flux": Entry(
        "FLUX: clusters by descriptors of the data under a warmed-up model; newcomers need no labels (NeurIPS 2025)",
        "tffcl.algorithms.flux",
        "build_flux",
        "FLUXParameters",
    ),
    "stocfl": Entry(
        "StoCFL: clusters merge by gradients at an anchor as clients become known, models held near a global one (2023)",
        "tffcl.algorithms.stocfl",
        "build_stocfl",
        "StoCFLParameters",
        needs=("seed", "noise_seed"),
        clustering="build_clustering",
    ),
    "fedprox": Entry(
        "FedProx: FedAvg whose local training is held near the global model (MLSys 2020)",
        "tffcl.algorithms.fedprox",
        "build_fedprox",
        "FedProxParameters",
    ),
    "fednova": Entry(
        "FedNova: FedAvg of updates per step's worth of training (NeurIPS 2020)",
        "tffcl.algorithms.fednova",
        "build_fednova",
        "FedNovaParameters",
    ),
    "scaffold": Entry(
        "SCAFFOLD: FedAvg whose local steps are corrected by control variates (ICML 2020)",
        "tffcl.algorithms.scaffold",
        "build_scaffold",
        "ScaffoldParameters",
    ),
    "lg_fedavg": Entry(
        "LG-FedAvg: clients keep their first layers and share the last ones (2020)",
        "tffcl.algorithms.lg_fedavg",
        "build_lg_fedavg",
        "LGFedAvgParameters",
    ),
    "per_fedavg": Entry(
        "Per-FedAvg: a model from which one local step makes a good one (NeurIPS 2020)",
        "tffcl.algorithms.per_fedavg",
        "build_per_fedavg",
        "PerFedAvgParameters",
    ),
    "ditto": Entry(
        "Ditto: a personal model for every client, held near the global one (ICML 2021)",
        "tffcl.algorithms.ditto",
        "build_ditto",
        "DittoParameters",
    ),
    "fedavg": Entry("FedAvg: one global model (McMahan et al. 2017)", "tffcl.algorithms.fedavg", "build_fedavg"),
    "solo": Entry("SOLO: every client trains alone, nothing is sent", "tffcl.algorithms.solo", "build_solo"),
}

# What clients can tell before any training, and the method that groups by it.
SIGNATURES = {
    "subspace": "pacfl",
    "inference": "flis_hc",
    "pca_centres": "pca_km_hc",
    "embedding": "flt",
    "anchor_gradient": "stocfl",
    "partial_weights": "fedclust",
}

# The signatures of `method = "composed"`: what clients tell before training, and what it is compared by.
COMPOSED_SIGNATURES = {
    "subspace": "the first singular vectors of the data (PACFL); by principal angles",
    "inference": "what a warmed-up model says of the server's images (FLIS); by agreement",
    "pca_centres": "k-means centres of PCA projections (FLT's baseline); by distances of centres",
    "embedding": "k-means centres of an encoder's embeddings (FLT); by distances of centres",
    "anchor_gradient": "the gradient at the initial model (StoCFL); by cosines",
    "descriptors": "moments of the model's outputs, over all data and by class (FLUX)",
    "partial_weights": "the last layer's weights after a local warm-up (FedClust)",
    "label_histogram": "the shares of the labels",
}

# The local trainings of `method = "composed"`.
TRAININGS = {
    "sgd": "plain SGD (FedAvg's)",
    "proximal": "held near the cluster's model (FedProx's)",
    "fednova": "updates are averaged per step's worth of training (FedNova's)",
    "scaffold": "steps are corrected by control variates (SCAFFOLD's)",
    "ditto": "a model of the client's own beside the cluster's, held near it (Ditto's)",
    "lg_fedavg": "some layers stay with the client, the others are shared (LG-FedAvg's)",
    "per_fedavg": "a start from which one step of adaptation makes a good model (Per-FedAvg's)",
}


def _aggregation(description: str, build: str, parameters: str) -> Entry:
    return Entry(description, "tffcl.aggregators.by_name", build, parameters)


# How the updates inside a cluster are aggregated; each builds a factory, or None for the plain mean.
AGGREGATIONS = {
    "mean": _aggregation("the mean, weighted by examples", "build_mean", "MeanParameters"),
    "uniform_mean": _aggregation(
        "the plain mean of the clients' models, each counts the same", "build_uniform_mean", "UniformMeanParameters"
    ),
    "secure_sum": _aggregation(
        "the mean, weighted by examples, by secure sums: the server sees no client's update",
        "build_secure_sum",
        "SecureSumParameters",
    ),
    "dp": _aggregation("differentially private: clipped updates, noised sums and counts", "build_dp", "DPParameters"),
    "compression": _aggregation(
        "updates in few bits, with a range for each layer", "build_compression", "CompressionParameters"
    ),
    "robust": _aggregation(
        "against malicious clients: clipping, median, trimmed mean or multi-Krum; not private",
        "build_robust",
        "RobustParameters",
    ),
}

# What a run gives to the builder of its model; a task sets the other parameters.
GIVEN_TO_MODELS = ("input_shape", "num_classes", "normalization", "seed")

MODELS = {
    "lenet5": Entry(
        "LeNet-5, 44,426 parameters on 28x28x1 with 10 classes (PACFL Table 10)", "tffcl.models.lenet5", "build_lenet5"
    ),
    "mlp": Entry(
        "one hidden layer of `hidden` ReLU units, default 200: 159,010 parameters on 28x28x1 with 10 classes; any image size",
        "tffcl.models.mlp",
        "build_mlp",
    ),
    "resnet9": Entry(
        "ResNet-9 with GroupNorm, 6,621,540 parameters on 32x32x3 with 100 classes (PACFL Table 11)",
        "tffcl.models.resnet9",
        "build_resnet9",
    ),
    "leaf_cnn": Entry(
        "LEAF's CNN, 6,603,710 parameters on 28x28x1 with 62 classes (FLT, scenarios 3 and 4)",
        "tffcl.models.leaf_cnn",
        "build_leaf_cnn",
    ),
    "stocfl_femnist_cnn": Entry(
        "StoCFL's CNN with dropout for FEMNIST, 1,206,590 parameters on 28x28x1 with 62 classes",
        "tffcl.models.stocfl_femnist_cnn",
        "build_stocfl_femnist_cnn",
    ),
    "stocfl_cifar_cnn": Entry(
        "StoCFL's CNN for CIFAR-10, 52,202 parameters on 32x32x3 with 10 classes (62,006 with `dense_layers` 3)",
        "tffcl.models.stocfl_cifar_cnn",
        "build_stocfl_cifar_cnn",
    ),
}


def find_aggregation(table: Mapping) -> tuple[str, Callable, dict]:
    """Finds the builder that a table [aggregation] means, see `references.find_function`."""
    return find_function("aggregation", table, {name: entry.builder for name, entry in AGGREGATIONS.items()})


def find_model(table: Mapping) -> tuple[str, Callable, dict]:
    """Finds the builder that a table [model] means, see `references.find_function`."""
    return find_function("model", table, {name: entry.builder for name, entry in MODELS.items()})
