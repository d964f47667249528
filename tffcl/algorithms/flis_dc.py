"""FLIS (DC): joint clusters by inference similarity, anew in every round (Morafah et al., arXiv:2208.09754, Alg. 1 and
2).

Every client of a cohort takes the best of the last round's models, trains it, and answers the server's images. Each
client founds a cluster of the clients whose models answer like its own; the mean of a cluster's models is one of the
next round's models.
"""

import collections
import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.relatedness_mean import RelatednessMeanFactory
from tffcl.algorithms.choosing_method import Choosing, build_chooser
from tffcl.algorithms.clustered_training import round_computations
from tffcl.algorithms.each_round_parameters import FLISDCParameters
from tffcl.algorithms.method import ClusteredState, Exports, Method, Views, method_builder
from tffcl.client_work.client_work import OPTIMIZER, ClientResult, arrays_type
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import CHOOSE, training_work
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import joined_order
from tffcl.clients.population import Population
from tffcl.clustering import vector_distances as inference
from tffcl.models.flat import FlatModel
from tffcl.models.layer_parts import require_shared
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server import Replacing, all_values, models_type
from tffcl.rounds.simulation import run_round
from tffcl.rounds.traffic import Traffic
from tffcl.signatures.predictions import answers_type, build_answer, check_images, num_answers, num_images, related
from tffcl.trace_cache import built_once


def aggregation_context(parameters: FLISDCParameters, images):
    """Returns what the aggregator needs to relate clients: β, and the images if it answers them itself."""
    threshold = np.float64(parameters.threshold)
    if parameters.answered_by == "clients":
        return threshold
    return collections.OrderedDict(threshold=threshold, images=images)


def build_aggregation(model: FlatModel, parameters: FLISDCParameters, images) -> RelatednessMeanFactory:
    """Builds the aggregation of FLIS (DC): inference similarity clustering and one mean per cluster (Alg. 1 lines 11,
    12).

    Returns:
      A factory over `<key=int32,descriptor=answers,value=float32[P]>`, or without descriptor if the server answers. Its
      state is `aggregation_context`, so that β is not a part of the computation.
    """
    form, classes = parameters.metric, model.objective.classes_for("FLIS (DC)")
    context, context_type = aggregation_context(parameters, images), tff.TensorType(np.float64)
    if parameters.answered_by == "clients":
        return RelatednessMeanFactory(
            lambda threshold, uploads: related(uploads["descriptor"], threshold, form, classes),
            context_type=context_type,
            context=context,
        )
    require_shared(model, "answered_by 'server' is by the models that clients send")
    answer = build_answer(model, soft=parameters.soft)
    kind = answers_type(model, num_images(images), soft=parameters.soft)

    def relate(context, uploads):
        answers = tf.map_fn(
            lambda vector: tf.ensure_shape(answer(vector, context["images"]), kind.shape),
            uploads["value"],
            fn_output_signature=tf.TensorSpec(kind.shape, kind.dtype),
            parallel_iterations=1,
        )
        return related(answers, context["threshold"], form, classes)

    held = collections.OrderedDict(threshold=context_type, images=arrays_type(images))
    return RelatednessMeanFactory(relate, context_type=tff.to_type(held), context=context)


@built_once
def build_joint_round(model: FlatModel, training: LocalTraining, parameters: FLISDCParameters, images) -> Round:
    """Builds one round of FLIS (DC).

    The server's values are `models float32[?,P]` and `images uint8[n,...]`; the images never change, and a device keeps
    them once it has received them. A client's field `forced` is the row that it must take, or `CHOOSE`; its `key` is
    its row in the next models and must differ within the cohort. Its report has the `choice` among the received models.

    Args:
      parameters: How clients are grouped, and how they choose.
      images: The server's images, as `check_images` gives them.
    """
    soft = parameters.soft
    choose_and_train, fields = build_chooser(model, training, parameters.choose_by)
    answer, kind = build_answer(model.whole, soft=soft), answers_type(model, num_images(images), soft=soft)

    def compute(received, client):
        _, trained, report = choose_and_train(received["models"], client)
        upload = collections.OrderedDict(key=client["key"])
        whole = model.with_own(trained, report.get(OPTIMIZER))
        if parameters.answered_by == "clients":
            upload["descriptor"] = tf.ensure_shape(answer(whole, received["images"]), kind.shape)
        upload["value"] = trained
        return ClientResult({"trained": upload}, report)

    values = {"models": models_type(model.size), "images": arrays_type(images)}
    work = training_work(model, training, compute, **fields, key=np.int32)
    return compose(
        work,
        {"trained": build_aggregation(model, parameters, images)},
        Server(values, all_values, Replacing("trained"), once=("images",)),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class FLISDCState(ClusteredState):
    """Adds to `ClusteredState` the clients whose model among the newest ones is known.

    Attributes:
      placed: `bool [N]`, the clients that have founded a cluster in the last round, or have chosen since then.
    """

    placed: np.ndarray | None = None


class FLISDC(Choosing):
    """FLIS (DC), see `build_flis_dc`; in its views a client that has not chosen among the newest models is in cluster
    -1."""

    name = "flis_dc"
    state_class = FLISDCState

    def __init__(self, model: FlatModel, training: LocalTraining, parameters: FLISDCParameters, images):
        super().__init__(model, parameters.choose_by)
        self._initial, self._images = model.initial[np.newaxis], images
        # Methods that differ only in β share a round, which is traced once for all points of a sweep.
        self._round = build_joint_round(model, training, dataclasses.replace(parameters, threshold=0.0), images)
        self._aggregators = collections.OrderedDict(trained=aggregation_context(parameters, images))
        self.joining = Traffic.of(self._round.once)

    def initialize(self, population: Population) -> FLISDCState:
        fields = vars(self.start(population, self._initial, self._aggregators))
        return FLISDCState(**fields, placed=np.ones(len(population), bool))  # there is only one model

    def choose(self, state: FLISDCState, population: Population) -> FLISDCState:
        placed = state.placed.copy()
        placed[state.index(population.client_ids)] = True
        return dataclasses.replace(super().choose(state, population), placed=placed)

    def admit(self, state: FLISDCState, newcomers: Population) -> FLISDCState:
        placed = np.concatenate([state.placed, np.ones(len(newcomers), bool)])[joined_order(state, newcomers)]
        return dataclasses.replace(super().admit(state, newcomers), placed=placed)

    def views(self, state: FLISDCState) -> Views:
        return dataclasses.replace(
            super().views(state), clusters=np.where(state.placed, state.assignment, np.int32(-1))
        )

    def next(self, state: FLISDCState, cohort: Cohort):
        places = np.arange(len(cohort.client_ids), dtype=np.int32)
        fields = {"forced": np.full(len(places), CHOOSE), "key": places, **self.tried(cohort)}
        values = {"models": state.models, "images": self._images}
        result = run_round(self._round, cohort, values, state.aggregators, optimizers=state.optimizers, **fields)
        relatedness = result.measurements["trained"]["relatedness"]
        # Equal rows mean equal clusters.
        _, first, founded = np.unique(relatedness, axis=0, return_index=True, return_inverse=True)
        kept, where = np.sort(first), state.index(cohort.client_ids)
        models = result.values["models"][kept]
        # The other clients have chosen among models that no longer exist.
        assignment, placed = np.zeros_like(state.assignment), np.zeros_like(state.placed)
        assignment[where], placed[where] = np.searchsorted(kept, first[founded]), True
        metrics = result.metrics(cohort, result.reports["choice"], relatedness=relatedness)
        changes = {"models": models, "aggregators": result.aggregators, "assignment": assignment, "placed": placed}
        return dataclasses.replace(state, optimizers=result.optimizers, **changes), metrics

    def exports(self) -> Exports:
        first = {"models": self._initial, "images": self._images}
        return Exports(
            lambda: round_computations(self._round, first, self._aggregators),
            server_values=lambda state: {"models": state.models, "images": self._images},
            when={
                "training": "a round gives a row for each of its clients; equal rows are one cluster's, and are "
                "kept once; one of zeros, of clients whose training was not finite and nobody else's, is not kept"
            },
        )


@method_builder
def build_flis_dc(
    model: FlatModel,
    training: LocalTraining,
    parameters: FLISDCParameters = FLISDCParameters(),
    *,
    server_images: np.ndarray | Mapping[str, np.ndarray] | None,
) -> Method:
    """Builds FLIS (DC): joint clusters by inference similarity on the server's data, anew in every round.

    The models of a round replace all earlier ones. Clients with the same cluster have the same mean, which is kept, and
    sent to the next round's clients, once. A client's assignment is the cluster that it founded in the last round, or
    its choice since then; `choose` asks all clients. Newcomers choose as all others do.

    Args:
      parameters: How clients are grouped, and how they choose.
      server_images: The images on which models are compared, `uint8 [n, ...]` (paper: 2,500); by input for a model of
        several inputs.

    Returns:
      The method; a round's metrics have the cohort's `relatedness`.

    Raises:
      UserError: If there are no images, they do not fit the model, or no similarity can reach β.
    """
    images = check_images(model, server_images)
    classes = model.objective.classes_for("FLIS (DC)") if parameters.soft else None
    inference.check_threshold(parameters.threshold, parameters.metric, num_answers(model, images), classes)
    return FLISDC(model, training, parameters, images)
