"""LG-FedAvg (Liang et al. 2020, arXiv:2001.01523, Alg. 1): every client keeps its own first layers; the last ones are averaged."""

import dataclasses
import functools
from typing import Annotated

import msgspec
import numpy as np
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import keyed_factory
from tffcl.aggregators.traits import traits
from tffcl.algorithms.built_from import remembering
from tffcl.algorithms.clustered_training import ClusteredTraining, build_clustered_training, build_engine
from tffcl.algorithms.fedavg import OneModel
from tffcl.algorithms.method import Method
from tffcl.algorithms.partly_shared_training import PartlySharedTraining
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.partly_shared import LayerParts, build_partly_shared_work, layer_parts
from tffcl.errors import UserError
from tffcl.kept_builds import built_once
from tffcl.models.flat import FlatModel
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server_steps import keyed_server, models_type, own_row
from tffcl.rounds.weightings import WEIGHTINGS
from tffcl.validation import Parameters, Whole, one_of

ALL_BUT_FOUR = "all_but_four_tensors"
_ALLOWED = f"a whole number from 0, a list of names of layers, or {ALL_BUT_FOUR}"
LocalLayers = Annotated[Whole | list[str] | one_of([ALL_BUT_FOUR]) | None, msgspec.Meta(description=_ALLOWED)]


@dataclasses.dataclass(frozen=True)
class LGFedAvgParameters(Parameters):
    """What clients keep, and how the rest is averaged.

    Attributes:
      local_layers: The layers that a client keeps, by name (a single weight is "block6b/kernel"), or so many from the first on,
        or all_but_four_tensors, as the code of PACFL and FLIS has it. Default: all but the last two, and the first of two; that
        is 3 of LeNet-5's 5 layers and 7 of ResNet-9's 9, as in PACFL's Table 13.
      weighting: Of clients in the mean: by examples as in the paper, or uniform as in its authors' code.
      fedavg_rounds: In so many first rounds all layers are shared, by FedAvg weighted by examples; its authors' code starts
        from a model that was trained so, the paper and PACFL from the initial one.
    """

    local_layers: LocalLayers = None
    weighting: one_of(WEIGHTINGS) = "examples"
    fedavg_rounds: Whole = 0


def local_names(model: FlatModel, asked: int | list[str] | str | None) -> list[str]:
    """Returns the names of layers and weights that clients keep; `asked` as in `LGFedAvgParameters`.

    Raises:
      UserError: If there are fewer layers than are asked for.
    """
    layers = list(model.layer_slices())
    if asked is None:
        return layers[: max(len(layers) - 2, min(1, len(layers) - 1))]
    if asked == ALL_BUT_FOUR:
        return [weight.name for weight in model.weights[:-4]]
    if isinstance(asked, list):
        return asked
    if asked > len(layers):
        allowed = f"it must be from 0 to the number of layers of {model.name}, {len(layers)} ({', '.join(layers)})"
        raise UserError(f"local_layers is {asked}; {allowed}", key="local_layers")
    return layers[:asked]


@built_once
def build_partly_shared_round(
    model: FlatModel, training: LocalTraining, parts: LayerParts, weighting: str, aggregation
) -> Round:
    """Builds a round of clustered training of the global part alone; the server's `models float32[?,G]` are of it.

    With nothing global nothing is sent, as in SOLO.
    """
    work, size = build_partly_shared_work(model, training, parts), parts.global_size
    if not size:
        return compose(work, {}, Server({"models": models_type(0)}, own_row))
    shared = [int(np.sum(~parts.is_local[layer])) for layer in model.layer_slices().values()]
    factory = traits(keyed_factory(aggregation)).with_layers([layer for layer in shared if layer])
    return compose(work, {"update": factory}, keyed_server(size), weighting=WEIGHTINGS[weighting])


def build_partly_shared_training(
    model: FlatModel,
    training: LocalTraining,
    parameters: LGFedAvgParameters = LGFedAvgParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> ClusteredTraining:
    """Builds the engine whose clients keep layers of their own; arguments as in `build_lg_fedavg`."""
    parts = layer_parts(model, local_names(model, parameters.local_layers))
    return build_engine(
        model, functools.partial(build_partly_shared_round, model, training, parts, parameters.weighting), aggregation,
        kind=PartlySharedTraining, parts=parts, kept=np.zeros(parts.local_size, np.float32), whole_rounds=parameters.fedavg_rounds,
        whole=build_clustered_training(model, training, aggregation=aggregation) if parameters.fedavg_rounds else None,
    )  # fmt: skip


@remembering
def build_lg_fedavg(
    model: FlatModel,
    training: LocalTraining,
    parameters: LGFedAvgParameters = LGFedAvgParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds LG-FedAvg.

    A client's model is its own local layers with the global part as the server has it now; who has not trained yet has the
    local layers that all start from. Local layers stay with the client and are no traffic; after `fedavg_rounds` a client
    receives those to start from once. With every layer global it is FedAvg, with every layer local SOLO.

    Args:
      model: What is trained.
      training: Local hyper-parameters, of both parts.
      parameters: What is local.
      aggregation: Of the updates inside each cluster, or over keyed updates; see `aggregators.clustered_mean.keyed_factory`.

    Raises:
      UserError: If the model has no such layers.
    """
    return OneModel("lg_fedavg", build_partly_shared_training(model, training, parameters, aggregation=aggregation))
