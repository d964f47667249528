"""What a cluster's members do with its model, by name: the local trainings that any grouping can be composed with."""

from collections.abc import Mapping

import tensorflow_federated as tff

from tffcl import registry
from tffcl.algorithms.clustered_training import ClusteredTraining
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.references import named
from tffcl.validation import Parameters


def training_of(asked: str | Mapping) -> tuple[registry.Row, tuple[Parameters, ...]]:
    """Returns what is asked for, and its parameters if it has any.

    Args:
      asked: A name in `registry.TRAININGS`, or a table of one with its parameters: {name = "proximal", proximal_weight = 0.1}.

    Raises:
      UserError: For an unknown name or parameter, or a wrong value.
    """
    name, own = named("training", asked)
    row = registry.find("trainings", name, key="training")
    try:
        parameters = registry.parameters_of(row, own, f"training {name}")
    except UserError as error:
        raise UserError(str(error), key="training") from None
    return row, () if parameters is None else (parameters,)


def build_training(
    asked: str | Mapping,
    model: FlatModel,
    training: LocalTraining,
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> ClusteredTraining:
    """Builds the engine of a local training; `asked` as in `training_of`, the others as in `build_clustered_training`."""
    row, parameters = training_of(asked)
    return row.builder()(model, training, *parameters, aggregation=aggregation)
