"""What there is to choose from, by name. Imports nothing heavy: `tffcl list` answers at once."""

import dataclasses
import importlib


@dataclasses.dataclass(frozen=True)
class Entry:
    """Something that can be named in a task or on the command line.

    Attributes:
      description: One line.
      module: Where it is.
      build: Name of its builder in the module.
      parameters: Name of the dataclass of its own parameters in the module, if it has any.
    """

    description: str
    module: str
    build: str
    parameters: str | None = None

    def builder(self):
        return getattr(importlib.import_module(self.module), self.build)

    def parameter_class(self):
        return getattr(importlib.import_module(self.module), self.parameters) if self.parameters else None


ALGORITHMS = {
    "pacfl": Entry(
        "PACFL: clusters by principal angles between data subspaces, before training (AAAI 2023)",
        "tffcl.algorithms.pacfl",
        "build_pacfl",
        "PrincipalAngleClustering",
    ),
    "fedavg": Entry("FedAvg: one global model (McMahan et al. 2017)", "tffcl.algorithms.fedavg", "build_fedavg"),
    "solo": Entry("SOLO: every client trains alone, nothing is sent", "tffcl.algorithms.solo", "build_solo"),
}

MODELS = {
    "lenet5": Entry(
        "LeNet-5, 44,426 parameters on 28x28x1 with 10 classes (PACFL Table 10)", "tffcl.models.lenet5", "build_lenet5"
    ),
    "mlp": Entry(
        "one hidden layer of `hidden` ReLU units, default 200: 159,010 parameters on 28x28x1 with 10 classes; "
        "any image size",
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
