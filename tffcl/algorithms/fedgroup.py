"""FedGroup: clients grouped by the directions of their updates, which singular vectors decompose (Duan et al. 2021,
arXiv:2010.06870; as FlexCFL in TPDS 2022, arXiv:2108.09749)."""

import dataclasses

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.composed import group_composed
from tffcl.algorithms.grouping_in_time import in_time
from tffcl.algorithms.method import Exports, Method, method_builder
from tffcl.algorithms.one_shot import OneShot, OneShotClustering, OneShotState
from tffcl.algorithms.parameters import ComposedParameters, FedGroupParameters
from tffcl.choices import DECOMPOSED
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel


class FedGroup(OneShot):
    """FedGroup, see `build_fedgroup`."""

    def initialize(self, population: Population) -> OneShotState:
        """Every cluster starts from the mean of its members' pre-trained models."""
        state = super().initialize(population)
        (displacements,) = state.signatures.values()  # from the pre-trained models to the initial one
        members = [displacements[state.assignment == cluster] for cluster in range(len(state.models))]
        return dataclasses.replace(state, models=state.models - np.stack([each.mean(axis=0) for each in members]))

    def exports(self) -> Exports:
        start = (
            "a run begins with the mean of each group's pre-trained models, which the coordinator takes from its "
            "signatures"
        )
        return dataclasses.replace(super().exports(), when={"training": start})


def group_fedgroup(
    model: FlatModel, training: LocalTraining, how: FedGroupParameters, *, seed: int = 0
) -> OneShotClustering:
    """Builds the grouping: updates of a pre-training, their decomposed cosines, k-means."""
    parts = ComposedParameters(
        signature={"name": "anchor_gradient", "form": "displacement", "projection": 0},
        metric=DECOMPOSED,
        grouping="kmeans",
        num_clusters=how.num_clusters,
    )
    return group_composed(model, dataclasses.replace(training, epochs=how.pre_training_epochs), parts, seed=seed)


@method_builder
def build_fedgroup(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedGroupParameters = FedGroupParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FedGroup: clusters by decomposed cosines of updates after a pre-training, with FedAvg inside them.

    Before training every client trains the initial model for some epochs and sends the update; the server takes the
    first singular vectors of all updates, as many as there are groups, and groups clients by k-means on the cosines of
    their updates with them. From the paper are the pre-training, the decomposition, and its measure EDC, the Euclidean
    distance of these cosines. From the authors' code: vectors are not centred, and a group starts from the plain mean
    of its members' pre-trained models. The differences:

    - All clients are pre-trained. In the paper a sample of twenty for each group is, and others join when they first
      take part, as newcomers do here.
    - A newcomer joins the group whose members' mean of these cosines is nearest to its own cosines. In the paper it
      joins the group whose update has the largest cosine with its own.
    - FlexCFL lets single clients migrate when their data have changed. Here all are grouped again by `regroup_every` or
      `regroup_on`; groups then go on with their models.
    - FedGroup's term that holds groups near each other (η_g) is left out, which equals its default of 0.

    Other arguments are as in `build_fedavg`.

    Args:
      training: Local hyper-parameters, also for the pre-training.
      parameters: How clients are grouped.
      seed: Seed of the pre-training and of k-means.

    Raises:
      UserError: If clients share statistics, such as those of batch normalization.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are `value float32 [N, P]`, the clients' updates
      with the opposite sign.
    """
    if model.has_statistics:
        raise UserError(
            f"groups of FedGroup start from pre-trained models, of which clients tell trained weights; {model.name} "
            "has statistics beside them, which would be those of before: take FlatModel.from_keras(..., "
            'statistics="reset"), "local" or "fedbn"'
        )
    engine = build_clustered_training(model, training, aggregation=aggregation)
    return in_time(FedGroup("fedgroup", engine, group_fedgroup(model, training, parameters, seed=seed)), parameters)
