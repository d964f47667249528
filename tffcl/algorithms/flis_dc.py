"""FLIS (DC): joint clusters by inference similarity, anew in every round (Morafah et al., arXiv:2106.07678, Alg. 1 and 2).

Every client of a cohort takes the best of the last round's models, trains it, and answers the server's images. Each client
founds the cluster of those whose models answer like its own; the mean of a cluster's models is one of the next round's.
"""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import by_client, collect
from tffcl.aggregators.relatedness_mean import RelatednessMeanFactory
from tffcl.algorithms.choosing import (
    CHOOSE_BY_LOSS,
    build_choose_and_train,
    build_choosing,
    cohort_of,
    criterion_of,
    start_of,
    whose_clients_choose,
)
from tffcl.algorithms.clustered_training import cohort_inputs, round_metrics
from tffcl.algorithms.contracts import Algorithm, Cohort, Population, State, Transfer
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.update import client_type
from tffcl.clustering import inference_similarity as inference
from tffcl.errors import unknown
from tffcl.models.flat import FlatModel
from tffcl.signatures.answers import answers_type, build_answer, check_images, related
from tffcl.signatures.signature import NO_CONTEXT, NO_CONTEXT_TYPE

ANSWERED_BY = ("clients", "server")


@dataclasses.dataclass(frozen=True)
class JointClustering:
    """How FLIS (DC) groups the clients of a round.

    Attributes:
      beta: β, clients whose models' similarity is at least this are in a cluster (paper: 0.3 CIFAR-10 and SVHN, 0.5 FMNIST).
      similarity: A name in `inference.FORMS`: "agreement" (the authors' code) or "frobenius" (the paper's formula).
      soft: Whether models answer with probabilities instead of their most likely class.
      answered_by: "clients": they answer the server's images themselves and upload the answers; "server": the aggregator
        answers with the uploaded models. The same clusters; the first costs upload, the second work at the server.
      protocol: "paper": clients choose a model by loss on their training data; "authors": by accuracy on test data.
    """

    beta: float = 0.5
    similarity: str = "agreement"
    soft: bool = False
    answered_by: str = "clients"
    protocol: str = "paper"

    def __post_init__(self):
        if self.similarity not in inference.FORMS:
            raise unknown("similarity", self.similarity, inference.FORMS)
        if self.answered_by not in ANSWERED_BY:
            raise unknown("answered_by", self.answered_by, ANSWERED_BY)
        criterion_of(self.protocol)
        inference.check_threshold(self.beta, "agreement", 1, None)


def build_aggregation(model: FlatModel, how: JointClustering, images: np.ndarray) -> RelatednessMeanFactory:
    """Builds the aggregation of FLIS (DC): inference similarity clustering and one mean per cluster (Alg. 1 lines 11, 12).

    Returns:
      A factory over `<key=int32,descriptor=answers,value=float32[P]>`, or without descriptor if the server answers.
    """
    form, classes = how.similarity, model.num_classes
    if how.answered_by == "clients":
        return RelatednessMeanFactory(
            lambda _, uploads: related(uploads["descriptor"], how.beta, form, classes),
            context_type=NO_CONTEXT_TYPE,
            context=NO_CONTEXT,
        )
    answer, kind = build_answer(model, soft=how.soft), answers_type(model, len(images), soft=how.soft)

    def relate(context, uploads):
        answers = tf.map_fn(
            lambda vector: tf.ensure_shape(answer(vector, context), kind.shape),
            uploads["value"],
            fn_output_signature=tf.TensorSpec(kind.shape, kind.dtype),
            parallel_iterations=1,
        )
        return related(answers, how.beta, form, classes)

    return RelatednessMeanFactory(relate, context_type=tff.TensorType(np.uint8, images.shape), context=images)


def build_joint_update(
    model: FlatModel, training: LocalTraining, how: JointClustering, images_type: tff.TensorType, *, local_test: bool
) -> tff.Computation:
    """Builds the client's part: choose, train, answer.

    Returns:
      `(<models=float32[?,P], images=uint8[n,...], client=<...,forced=int32,key=int32>> ->
        <upload=<key=int32[,descriptor=answers],value=float32[P]>, weight=float32, client_id=int32, report=R>)`.
    """
    choose_and_train = build_choose_and_train(model, training, protocol=how.protocol, local_test=local_test)
    answer, kind = build_answer(model, soft=how.soft), answers_type(model, images_type.shape[0], soft=how.soft)
    models_type = tff.TensorType(np.float32, [None, model.size])
    own_type = client_type(model, local_test=local_test or how.protocol == "authors", forced=np.int32, key=np.int32)

    @tff.tensorflow.computation(models_type, images_type, own_type)
    def client_update(models, images, client):
        _, trained, report = choose_and_train(models, client)
        upload = collections.OrderedDict(key=client["key"])
        if how.answered_by == "clients":
            upload["descriptor"] = tf.ensure_shape(answer(trained, images), kind.shape)
        upload["value"] = trained
        weight = tf.where(report["finite"], tf.cast(report["examples"], tf.float32), 0.0)
        return collections.OrderedDict(upload=upload, weight=weight, client_id=client["client_id"], report=report)

    return client_update


def build_joint_process(
    model: FlatModel, training: LocalTraining, how: JointClustering, images: np.ndarray, *, local_test: bool = False
) -> tff.templates.IterativeProcess:
    """Builds one round of FLIS (DC) as one TFF computation.

    The state is `<models=float32[?,P],images=uint8[n,...],aggregator=A>@SERVER`; the images never change: a device keeps
    them after it got them once. A client is `<examples=E*,client_id=int32,seed=int32[2],forced=int32,key=int32>`, its key is
    its row in the next models and must differ within the cohort. The output is `<reports=<client_id,value=R>,
    measurements=M>@SERVER`, R with the client's `choice` among the models it received.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      how: Clusters and choice.
      images: The server's, `uint8 [n, ...]`.
      local_test: Whether clients bring test examples and test their own model; so they do with protocol "authors".
    """
    images_type = tff.TensorType(np.uint8, images.shape)
    client_update = build_joint_update(model, training, how, images_type, local_test=local_test)
    models_type, _, own_type = client_update.type_signature.parameter
    result_type = client_update.type_signature.result
    aggregator = build_aggregation(model, how, images).create(result_type["upload"], result_type["weight"])

    @tff.tensorflow.computation
    def initial():
        models = tf.compat.v1.placeholder_with_default(model.initial[np.newaxis], models_type.shape)
        return collections.OrderedDict(models=models, images=tf.constant(images))

    @tff.federated_computation
    def initialize():
        start = tff.federated_eval(initial, tff.SERVER)
        return tff.federated_zip(
            collections.OrderedDict(models=start["models"], images=start["images"], aggregator=aggregator.initialize())
        )

    @tff.federated_computation(initialize.type_signature.result, tff.FederatedType(own_type, tff.CLIENTS))
    def next_fn(state, clients):
        models, images = tff.federated_broadcast(state["models"]), tff.federated_broadcast(state["images"])
        updated = tff.federated_map(client_update, (models, images, clients))
        output = aggregator.next(state["aggregator"], updated["upload"], updated["weight"])
        reports = collect(updated["client_id"], updated["report"])
        state = collections.OrderedDict(models=output.result, images=state["images"], aggregator=output.state)
        told = collections.OrderedDict(reports=reports, measurements=output.measurements)
        return tff.federated_zip(state), tff.federated_zip(told)

    return tff.templates.IterativeProcess(initialize, next_fn, next_is_multi_arg=True)


def build_flis_dc(
    model: FlatModel,
    training: LocalTraining,
    clustering: JointClustering = JointClustering(),
    *,
    server_images: np.ndarray | None,
) -> Algorithm:
    """Builds FLIS (DC).

    The models of a round replace all before them. Clients with the same cluster have the same mean: it is kept, and sent
    to the next round's clients, once. A client's assignment is what it chose when last asked; `choose` asks everyone.
    Newcomers choose as all others do.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      clustering: Clusters and choice.
      server_images: What models are compared on, `uint8 [n, ...]` (paper: 2,500).

    Returns:
      The method; a round's metrics have the cohort's `relatedness`.

    Raises:
      UserError: If there are no images, they do not fit the model, or no similarity can reach β.
    """
    images = check_images(model, server_images)
    classes = model.num_classes if clustering.soft else None
    inference.check_threshold(clustering.beta, clustering.similarity, len(images), classes)
    process = build_joint_process(model, training, clustering, images, local_test=True)
    choose_row = build_choosing(model, clustering.protocol)
    images_type = tff.TensorType(np.uint8, images.shape)
    sent_type = build_joint_update(model, training, clustering, images_type, local_test=False).type_signature.result

    def initialize(population: Population) -> State:
        start = process.initialize()
        return start_of(population, clustering.protocol, start["models"], start["aggregator"])

    def next_round(state: State, cohort: Cohort):
        cohort = cohort_of(cohort, clustering.protocol)
        places = np.arange(len(cohort.client_ids), dtype=np.int32)
        inputs = cohort_inputs(cohort, forced=np.full(len(places), CHOOSE_BY_LOSS), key=places)
        server = collections.OrderedDict(models=state.models, images=images, aggregator=state.aggregator)
        server, told = process.next(server, inputs)
        chosen = by_client(told["reports"], cohort.client_ids)["choice"]
        transfer = training_transfer(len(state.models))
        metrics = round_metrics(told["reports"], cohort, chosen, transfer)
        relatedness = told["measurements"]["relatedness"]
        # Equal rows are equal clusters.
        _, first = np.unique(relatedness, axis=0, return_index=True)
        models = server["models"][np.sort(first)]
        nobody_chose_yet = np.zeros_like(state.assignment)
        metrics = dataclasses.replace(metrics, relatedness=relatedness)
        return dataclasses.replace(state, models=models, assignment=nobody_chose_yet), metrics

    def training_transfer(rows: int) -> Transfer:
        return Transfer(down=tff.TensorType(np.float32, [rows, model.size]), up=sent_type)

    def computations():
        process = build_joint_process(model, training, clustering, images)
        return {"initialize": process.initialize, "training": process.next}

    return Algorithm(
        name="flis_dc",
        initialize=initialize,
        next=next_round,
        computations=computations,
        transfers={"server_data": Transfer(down=images_type, up=None), "training": training_transfer(1)},
        **whose_clients_choose(choose_row),
    )
