"""Clustered federated averaging as a `tff.learning` process: clients choose among K models and train their choice, and
the server averages each model.

The algorithm is IFCA (Ghosh et al., NeurIPS 2020, arXiv:2006.04088, Alg. 1, model averaging). The round is composed by
`rounds.composer.compose`, like all rounds of this library.
"""

import collections
import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import ClusteredMeanFactory
from tffcl.algorithms.each_round_parameters import IFCAParameters
from tffcl.algorithms.ifca import draw_models
from tffcl.algorithms.method import check_declared
from tffcl.client_work import evaluation
from tffcl.client_work.client_work import ClientResult, ClientWork, keyed, stack
from tffcl.client_work.local_sgd import LocalTraining, check_optimizer
from tffcl.client_work.training import CHOOSE, build_choose_and_train
from tffcl.display import counted
from tffcl.errors import UserError, one_line
from tffcl.models.flat import FlatModel, one_array
from tffcl.models.layer_parts import require_shared
from tffcl.rounds.composer import Round, by_examples, compose, uniform
from tffcl.rounds.server import all_values, initial_optimizer_state, keyed_server
from tffcl.validation import Count, Whole, check_value

LearningAlgorithmState = tff.learning.templates.LearningAlgorithmState
Optimizer = tff.learning.optimizers.Optimizer
_WEIGHTINGS = {tff.learning.ClientWeighting.NUM_EXAMPLES: by_examples, tff.learning.ClientWeighting.UNIFORM: uniform}


def build_clustered_fed_avg(
    model: FlatModel,
    num_clusters: int,
    training: LocalTraining = LocalTraining(),
    server_optimizer_fn: Optimizer | None = None,
    *,
    client_weighting: tff.learning.ClientWeighting = tff.learning.ClientWeighting.NUM_EXAMPLES,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
    element_spec=None,
    seed: int = 0,
) -> tff.learning.templates.LearningProcess:
    """Builds clustered federated averaging (IFCA), for use like `tff.learning.algorithms.build_weighted_fed_avg`.

    ```
    process = tffcl.learning.build_clustered_fed_avg(model, 3, tffcl.LocalTraining(epochs=5, learning_rate=0.1))
    state = process.initialize()
    for _ in range(rounds):
        state, metrics = process.next(state, client_data)  # a list of tf.data.Dataset
    weights = process.get_model_weights(state)  # of K models; `build_choose` says which is whose
    ```

    In every round all K models go to each client of the cohort. The client takes the one with the least loss on its
    data, trains it and uploads the difference under the model's number. Each model moves by the mean of the differences
    of the clients that chose it; a model that no client chose stays as it is. With K = 1 this is federated averaging.

    **Client data.** A client's data set holds its examples once: `training` sets the number of epochs and the batch
    size, and the order is drawn anew in every epoch. Examples may come one by one or in batches of any size, which are
    unbatched; by default in the batches that `tff.learning` takes for the same model.

    **Randomness.** A client's random numbers follow from the seed and the round's number, both in the state, and from
    its examples, so that clients draw differently. The same state, clients and data give the same next state.

    **Privacy.** Losses, numbers of examples and choices are summed by `metrics_aggregator`, openly by default, and the
    default `model_aggregator` shows the server which client chose which model. If you use secure sums inside the
    clusters, use a secure sum for the metrics too.

    Args:
      model: The model to train; `tffcl.FlatModel.from_functional` or `from_keras` makes one from a model of your own.
      num_clusters: K, the number of models.
      training: Local hyper-parameters.
      server_optimizer_fn: Optional optimizer of the server for each model, as in `tff.learning`, except that it sees a
        model as one vector; default adds the mean.
      client_weighting: Whether clients count in the means by their examples or all alike.
      model_aggregator: Optional factory over `<key=int32,value=float32[P]>`: `ClusteredMeanFactory(num_clusters,
        inner)` takes any factory of TFF inside a cluster, e.g. `tff.learning.robust_aggregator()`. Its docstring gives
        the conditions, above all for differential privacy.
      metrics_aggregator: Optional factory that sums structures of float32 over clients, e.g. a
        `tff.aggregators.SecureSumFactory`; default `tff.aggregators.SumFactory()`.
      element_spec: The element spec of the clients' data sets: `dataset.element_spec`, `(x, y)` or `{"x": ..., "y":
        ...}`, batched or not; default `model.functional.input_spec`, with labels of any integer type.
      seed: Decides the initial models, as in `tffcl.algorithms.build_ifca`, and the clients' random numbers.

    Returns:
      A `tff.learning.templates.LearningProcess` of
        `initialize`: `( -> S@SERVER)`,
        `next`: `(<S@SERVER, {D*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`,
        `get_model_weights`: `(S -> W)`, `set_model_weights`: `(<S, W> -> S)`,
        `get_hparams`: `(S -> <client_work=<>, finalizer=F>)`, `set_hparams`: `(<S, <client_work=<>, finalizer=F>> ->
        S)`.
      S is a `LearningAlgorithmState` with `global_model_weights=float32[K,P]`, a row for each model;
      `client_work=<seed=int32,round_num=int32>`; `aggregator`, the states of both aggregators; and `finalizer`, the
      state of the server's optimizer for each model. W is a tuple of K `tff.learning.models.ModelWeights`; weights that
      are not trained are the model's own, whatever is set. F are the hyper-parameters of the server's optimizer, the
      same for all models; those of `training` are part of the computation. M is `<distributor=<>,
      client_work=<train=T>, aggregator=A, finalizer=<>>`, where A are the measurements of `model_aggregator` and T is
        `<loss=float32,num_examples=int64,clients_per_cluster=int32[K],clients_not_finite=int32>`:
      the mean loss in the last local epoch and the number of examples, over the clients whose trained models are
      finite; how many clients chose each model; and how many of these were left out of the means because their trained
      models are not finite.

    Raises:
      UserError: If an argument is not what it must be.
    """
    for name, value, kind in (("model", model, FlatModel), ("training", training, LocalTraining)):
        check_declared(name, value, kind)
    require_shared(model, "this process tells clients no more than a seed and their examples")
    check_optimizer("server_optimizer_fn", server_optimizer_fn)
    how = IFCAParameters(num_clusters=num_clusters)
    seed = check_value("seed", seed, Whole)
    spec = check_element_spec(model, element_spec)
    composed = _build_round(
        model, training, how.num_clusters, server_optimizer_fn, _weighting(client_weighting),
        _checked(model_aggregator, model, how.num_clusters),
        _summing(metrics_aggregator or tff.aggregators.SumFactory()), spec,
    )  # fmt: skip
    initialize = _build_initialize(composed, _initial_values(model, how, seed, server_optimizer_fn), seed)
    state_type = initialize.type_signature.result.member
    return tff.learning.templates.LearningProcess(
        initialize,
        _build_next(composed, state_type, how.num_clusters),
        *_build_weights(model, state_type, how.num_clusters),
        **_build_hparams(state_type, server_optimizer_fn, how.num_clusters),
    )


def _weighting(client_weighting):
    if client_weighting not in _WEIGHTINGS:
        raise UserError(f"client_weighting is {client_weighting}; it must be a tff.learning.ClientWeighting")
    return _WEIGHTINGS[client_weighting]


def _checked(factory, model: FlatModel, num_clusters: int):
    if factory is None:
        return ClusteredMeanFactory(num_clusters)
    if isinstance(factory, ClusteredMeanFactory) and factory.num_clusters not in (None, num_clusters):
        raise UserError(
            f"num_clusters is {num_clusters}, and that of model_aggregator {factory.num_clusters}; they must be equal"
        )
    update = tff.to_type(keyed(np.int32, tff.TensorType(np.float32, [model.size])))
    weight = (np.float32,) if isinstance(factory, tff.aggregators.WeightedAggregationFactory) else ()
    try:
        factory.create(update, *map(tff.TensorType, weight))
    except (AttributeError, TypeError) as error:
        raise UserError(
            f"model_aggregator cannot aggregate {update} ({one_line(error)[:100]}); a factory for means is "
            "put inside the clusters by ClusteredMeanFactory(num_clusters, factory)"
        ) from None
    return factory


def _summing(factory):
    means, kind = tff.aggregators.UnweightedMeanFactory, tff.aggregators.UnweightedAggregationFactory
    if isinstance(factory, means) or not isinstance(factory, kind):
        raise UserError(f"metrics_aggregator is of {type(factory).__name__}; it must sum, as SumFactory() does")
    try:
        factory.create(tff.TensorType(np.float32))
    except TypeError as error:
        raise UserError(f"metrics_aggregator cannot sum float32 ({one_line(error)[:100]})") from None
    return factory


def _initial_values(model: FlatModel, how: IFCAParameters, seed: int, optimizer: Optimizer | None) -> dict:
    values = {"models": draw_models(model, how, seed)}
    if optimizer is not None:
        values["optimizer"] = initial_optimizer_state(optimizer, model.size, how.num_clusters)
    return values


def _build_round(
    model: FlatModel,
    training: LocalTraining,
    num_clusters: int,
    optimizer,
    weighting,
    aggregator,
    metrics,
    element_spec,
) -> Round:
    """Builds the round: that of IFCA on data sets of any form, with summed metrics instead of the clients' reports."""
    for key, is_set in {
        "learning_rate_decay": not training.decay.is_constant,
        "optimizer_state 'kept'": training.keeps_state,
        "clients": training.clients,
    }.items():
        if is_set:
            raise UserError(f"{key} needs more than this process tells its clients: a seed and their examples")
    choose_and_train = build_choose_and_train(model, training, "loss", "examples")

    def compute(received, client):
        examples = as_examples(model, client["examples"])
        own = {"examples": examples, "seed": own_seed(client["seed"], examples), "forced": tf.constant(CHOOSE)}
        start, trained, report = choose_and_train(received["models"], own)
        return ClientResult({"update": keyed(report["choice"], trained - start), "metrics": summands(report)}, report)

    def summands(report):
        # All are float32, because secure sums take structures of one type; they are exact up to 2^24.
        finite = tf.cast(report["finite"], tf.float32)
        examples = finite * tf.cast(report["examples"], tf.float32)
        return collections.OrderedDict(
            loss=tf.math.multiply_no_nan(report["loss"], examples),
            examples=examples,
            clients=tf.one_hot(report["choice"], num_clusters),
            not_finite=1 - finite,
        )

    server = keyed_server(model.size, num_clusters, optimizer=optimizer, on_trained=model.on_trained)
    server = dataclasses.replace(server, receive=all_values, handed_out=("metrics",))
    uploads = {"update": aggregator, "metrics": metrics}
    return compose(ClientWork(element_spec, compute), uploads, server, weighting=weighting, reports=False)


def _build_initialize(composed: Round, values: dict, seed: int) -> tff.Computation:
    first = composed.build_initialize(values)

    @tff.tensorflow.computation
    def start():
        return collections.OrderedDict(seed=tf.constant(seed, tf.int32), round_num=tf.constant(0, tf.int32))

    @tff.federated_computation
    def initialize():
        return _learning_state(composed, first(), tff.federated_eval(start, tff.SERVER))

    return initialize


def _build_next(composed: Round, state_type: tff.StructType, num_clusters: int) -> tff.Computation:
    client_type = composed.deployed.type_signature.parameter[1].member

    @tff.tensorflow.computation(state_type.client_work)
    def begin(work):
        number = work["round_num"] + 1
        # A round needs an ID for every client, but uses it only for reports, and there are none here.
        inputs = collections.OrderedDict(client_id=tf.constant(0), seed=tf.stack([work["seed"], number]))
        return collections.OrderedDict(work=collections.OrderedDict(seed=work["seed"], round_num=number), inputs=inputs)

    @tff.tensorflow.computation(composed.aggregators["metrics"].next.type_signature.result.result.member)
    def finish(sums):
        return collections.OrderedDict(
            loss=tf.math.divide_no_nan(sums["loss"], sums["examples"]),
            num_examples=_whole(sums["examples"], tf.int64),
            clients_per_cluster=tf.ensure_shape(_whole(sums["clients"], tf.int32), [num_clusters]),
            clients_not_finite=_whole(sums["not_finite"], tf.int32),
        )

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER), tff.FederatedType(client_type["examples"], tff.CLIENTS)
    )
    def next_fn(state, client_data):
        begun = tff.federated_map(begin, state.client_work)
        inputs = tff.federated_broadcast(begun["inputs"])
        clients = tff.federated_zip(
            collections.OrderedDict(examples=client_data, client_id=inputs["client_id"], seed=inputs["seed"])
        )
        moved, outcome = composed.deployed(_round_state(composed, state), clients)
        metrics = collections.OrderedDict(
            distributor=_nothing(),
            client_work=tff.federated_zip(
                collections.OrderedDict(train=tff.federated_map(finish, outcome["results"]["metrics"]))
            ),
            aggregator=outcome["measurements"]["update"],
            finalizer=_nothing(),
        )
        return tff.learning.templates.LearningProcessOutput(
            _learning_state(composed, moved, begun["work"]), tff.federated_zip(metrics)
        )

    return next_fn


def _build_weights(model: FlatModel, state_type: tff.StructType, num_clusters: int) -> tuple:
    """Builds `get_model_weights` and `set_model_weights`."""

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state):
        return tuple(to_weights(model, row) for row in tf.unstack(state.global_model_weights, num_clusters))

    @tff.tensorflow.computation(state_type, weights_type(model, num_clusters))
    def set_model_weights(state, weights):
        return state._replace(global_model_weights=tf.stack([to_vector(each) for each in weights]))

    setter = _WeightsSetter(
        computation_proto=tff.framework.ConcreteComputation.get_proto(set_model_weights),
        context_stack=tff.framework.get_context_stack(),
        annotated_type=set_model_weights.type_signature,
    )
    return get_model_weights, setter


class _WeightsSetter(tff.framework.ConcreteComputation):
    """A computation `(<S, W> -> S)` that reports a wrong number of models, for which TFF would raise IndexError."""

    def __call__(self, state, weights):
        clusters = len(self.type_signature.parameter[1])
        given = len(weights) if isinstance(weights, (list, tuple)) else None
        if given not in (None, clusters):
            raise UserError(f"weights has {counted(given, 'model')}; it must have {clusters}, num_clusters, in a tuple")
        return super().__call__(state, weights)


def _build_hparams(state_type: tff.StructType, optimizer: Optimizer | None, num_clusters: int) -> dict:
    """Builds `get_hparams` and `set_hparams`, as processes that `tff.learning` composes have them."""

    def row_of(state, row: int):
        return tf.nest.map_structure(lambda leaf: leaf[row], state.finalizer)

    @tff.tensorflow.computation(state_type)
    def get_hparams(state):
        nothing = collections.OrderedDict()
        held = optimizer.get_hparams(row_of(state, 0)) if optimizer is not None else nothing
        return collections.OrderedDict(client_work=nothing, finalizer=held)

    @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
    def set_hparams(state, hparams):
        if optimizer is None:
            return state
        moved = [optimizer.set_hparams(row_of(state, row), hparams["finalizer"]) for row in range(num_clusters)]
        return state._replace(finalizer=tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *moved))

    return {"get_hparams_fn": get_hparams, "set_hparams_fn": set_hparams}


def _learning_state(composed: Round, held, work):
    """Turns a state of the composed round into TFF's, at the server."""
    optimizer = held["optimizer"] if composed.server.private else _nothing()
    return tff.federated_zip(LearningAlgorithmState(held["models"], _nothing(), work, held["aggregators"], optimizer))


def _round_state(composed: Round, state):
    """The inverse of `_learning_state`, without the state of the client work."""
    held = collections.OrderedDict(models=state.global_model_weights)
    held.update((name, state.finalizer) for name in composed.server.private)
    return tff.federated_zip(collections.OrderedDict(held, aggregators=state.aggregator))


def _nothing():
    return tff.federated_value((), tff.SERVER)


def _whole(number, dtype):
    return tf.cast(tf.round(number), dtype)


ModelWeights = tff.learning.models.ModelWeights


def to_weights(model: FlatModel, vector) -> ModelWeights:
    """Returns a model `float32[P]` as TFF's weights; those that are not trained are the initial model's."""
    fixed = model.functional.initial_weights[1]
    return ModelWeights(tuple(model.unravel(vector)), tuple(tf.convert_to_tensor(each) for each in fixed))


def to_vector(weights: ModelWeights) -> tf.Tensor:
    """Returns the trained weights among TFF's weights as a vector `float32[P]`."""
    return FlatModel.concat(weights.trainable)


def weights_type(model: FlatModel, num_clusters: int) -> tff.Type:
    """Returns W, the type of so many models: a tuple of `ModelWeights`."""

    @tff.tensorflow.computation
    def initial():
        return (to_weights(model, tf.constant(model.initial)),) * num_clusters

    return initial.type_signature.result


def build_choose(model: FlatModel, num_clusters: int, *, element_spec=None) -> tff.Computation:
    """Builds the choice of a client among the models of `build_clustered_fed_avg`: the one of least loss on its data.

    Let clients choose on training or validation data. A model that is chosen on the examples on which it is then tested
    looks better than it is.

    ```
    choose = tffcl.learning.build_choose(model, num_clusters=3)
    weights = process.get_model_weights(state)
    chosen = choose(weights, dataset)  # of one client
    chosen["model_weights"].assign_weights_to(keras_model)
    ```

    In a `tff.federated_computation`, `tff.federated_map(choose, (tff.federated_broadcast(weights), client_data))` gives
    every client its model.

    Args:
      model: The model that was trained.
      num_clusters: K.
      element_spec: The element spec of the clients' data sets, see `build_clustered_fed_avg`.

    Returns:
      `(<W, D*> -> <cluster=int32,losses=float32[K],model_weights=<trainable,non_trainable>>)`: W as `get_model_weights`
      of the process returns it, the number of the chosen model from 0, the mean loss of each model on the data (0 with
      K = 1, where no model is tried), and the weights of the chosen model.

    Raises:
      UserError: If `element_spec` does not describe examples for the model, or K is below 1.
    """
    num_clusters = check_value("num_clusters", num_clusters, Count)
    examples_type = tff.SequenceType(tff.types.tensorflow_to_type(check_element_spec(model, element_spec)))
    choose_row = evaluation.build_choose(model)

    @tff.tensorflow.computation(weights_type(model, num_clusters), examples_type)
    def choose(weights, data):
        models = tf.stack([to_vector(each) for each in weights])
        tried = stack(as_examples(model, data))
        row, losses = choose_row(models, tried["x"], tried["y"])
        losses = tf.ensure_shape(losses, [num_clusters])
        return collections.OrderedDict(cluster=row, losses=losses, model_weights=to_weights(model, models[row]))

    return choose


def check_element_spec(model: FlatModel, element_spec):
    """Returns the `element_spec` of the clients' data sets, after a check that the model can take them.

    Args:
      model: The model that is trained on them.
      element_spec: `(x, y)` or `{"x": ..., "y": ...}` of `tf.TensorSpec`, of single examples or of batches; None: the
        batches that the processes of `tff.learning` take for the same model (`model.functional.input_spec`).

    Raises:
      UserError: If these are not examples for the model.
    """
    one_array(model.example_spec, "tffcl.learning")
    if element_spec is None:
        return model.functional.input_spec
    x, y = _pair(element_spec)
    for key, given in (("x", x), ("y", y)):
        wanted = model.example_spec[key]
        same = given.dtype == wanted.dtype or key == "y" and given.dtype.is_integer
        shapes = [tuple(wanted.shape), (None, *wanted.shape)]
        if not same or not any(given.shape.rank == len(s) and given.shape.is_compatible_with(s) for s in shapes):
            raise UserError(
                f"{key} of element_spec is {given.dtype.name}{given.shape}; the model takes "
                f"{wanted.dtype.name}{wanted.shape}, or batches of them"
            )
    if _is_batch(model, x) != (y.shape.rank > len(model.label_shape)):
        raise UserError(f"of element_spec, x {x.shape} and y {y.shape}, one is a batch and the other is not")
    return element_spec


def as_examples(model: FlatModel, data: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a client's data set as single examples `<x, y>`, with labels as the model takes them, in their order.

    Args:
      data: A data set whose element spec `check_element_spec` accepts.
    """

    batched, label = _is_batch(model, _pair(data.element_spec)[0]), model.objective.label

    def named(*element):
        x, y = _pair(element[0] if len(element) == 1 else element)
        shape = [-1, *label.shape] if batched else label.shape
        return collections.OrderedDict(x=x, y=tf.reshape(tf.cast(y, label.dtype), shape))

    # Not by `unbatch`, an operation that device runtimes lack.
    return data.map(named).flat_map(tf.data.Dataset.from_tensor_slices) if batched else data.map(named)


def own_seed(seed, examples: tf.data.Dataset):
    """Draws a client's seed from the round's seed and its examples, because clients of `tff.learning` have no ID.

    Args:
      seed: `int32[2]`.
      examples: Single examples `<x, y>`; the seed depends on their number, labels, order and the bits of x.

    Returns:
      `int32[2]`.
    """

    def add(total, example):
        y = example["y"]
        labels = tf.reduce_sum(y) if y.dtype.is_integer else _digest(y)
        return 31 * (31 * total + labels) + _digest(example["x"])

    return tf.random.experimental.stateless_fold_in(seed, examples.reduce(tf.constant(7), add))


def _digest(x):
    """An int32 that examples with other numbers, or with the same ones at other places, have another of."""
    bits = tf.reshape(tf.bitcast(tf.cast(x, tf.float32), tf.int32), [-1])
    return tf.reduce_sum(bits * (2 * tf.range(tf.size(bits)) + 1))


def _is_batch(model: FlatModel, x: tf.TensorSpec) -> bool:
    return x.shape.rank > len(model.input_shape)


def _pair(element) -> tuple:
    if isinstance(element, Mapping) and set(element) == {"x", "y"}:
        return element["x"], element["y"]
    if isinstance(element, (tuple, list)) and len(element) == 2:
        return tuple(element)
    raise UserError(f'elements of the data sets are {element}; they must be (x, y) or {{"x": ..., "y": ...}}')
