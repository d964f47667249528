"""What a cluster's members do with its model, by name: the local trainings that any grouping can be composed with."""

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import ClusteredTraining, build_clustered_training
from tffcl.algorithms.ditto import DittoParameters, build_personal_training
from tffcl.algorithms.fednova import FedNovaParameters, build_normalized_training
from tffcl.algorithms.fedprox import FedProxParameters, build_proximal_training
from tffcl.algorithms.lg_fedavg import LGFedAvgParameters, build_partly_shared_training
from tffcl.algorithms.per_fedavg import PerFedAvgParameters, build_meta_training
from tffcl.algorithms.scaffold import ScaffoldParameters, build_controlled_training
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError, unknown
from tffcl.models.flat import FlatModel
from tffcl.references import named
from tffcl.validation import Parameters, from_table


@dataclasses.dataclass(frozen=True)
class TrainingKind:
    """A local training that can be named.

    Attributes:
      build: `(model, training, [parameters,] *, aggregation) -> ClusteredTraining`.
      parameters: The class of its own parameters; None for none.
    """

    build: Callable[..., ClusteredTraining]
    parameters: type[Parameters] | None = None


TRAININGS: Mapping[str, TrainingKind] = {
    "sgd": TrainingKind(build_clustered_training),
    "proximal": TrainingKind(build_proximal_training, FedProxParameters),
    "fednova": TrainingKind(build_normalized_training, FedNovaParameters),
    "scaffold": TrainingKind(build_controlled_training, ScaffoldParameters),
    "ditto": TrainingKind(build_personal_training, DittoParameters),
    "lg_fedavg": TrainingKind(build_partly_shared_training, LGFedAvgParameters),
    "per_fedavg": TrainingKind(build_meta_training, PerFedAvgParameters),
}


def training_of(asked: str | Mapping) -> tuple[TrainingKind, tuple[Parameters, ...]]:
    """Returns the kind that is asked for, and its parameters if it has any.

    Args:
      asked: A name in `TRAININGS`, or a table of one with its parameters: {name = "proximal", proximal_weight = 0.1}.

    Raises:
      UserError: For an unknown name or parameter, or a wrong value.
    """
    name, own = named("training", asked)
    if name not in TRAININGS:
        raise unknown("training", name, TRAININGS, key="training")
    kind = TRAININGS[name]
    if kind.parameters is None:
        if own:
            raise UserError(f"training {name} has no parameters; found {', '.join(sorted(own))}", key="training")
        return kind, ()
    try:
        return kind, (from_table(kind.parameters, own, f"training {name}"),)
    except UserError as error:
        raise UserError(str(error), key="training") from None


def build_training(
    asked: str | Mapping,
    model: FlatModel,
    training: LocalTraining,
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> ClusteredTraining:
    """Builds the engine of a local training; `asked` as in `training_of`, the others as in `build_clustered_training`."""
    kind, parameters = training_of(asked)
    return kind.build(model, training, *parameters, aggregation=aggregation)
