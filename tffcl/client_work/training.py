"""Client work that trains: how a client trains the model that it receives, and what it uploads."""

import collections
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.client_work import OPTIMIZER, ClientResult, ClientWork, keyed, stack
from tffcl.client_work.evaluation import build_choose, build_local_test
from tffcl.client_work.local_sgd import (
    build_full_gradient,
    build_local_sgd,
    build_step_weight,
    client_fields,
    fields_of,
    kept_state,
    local_steps,
    own_options,
    own_steps,
)
from tffcl.client_work.local_training import LocalTraining
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import converted
from tffcl.trace_cache import built_once

FLAG = {"changed": np.int32}  # the client's field that says whether its data have changed
_TWO = ("model", "global_model")  # the models that a client trains in bi-level training
CHOOSE = np.int32(-1)  # as a client's `forced` row: none is forced, the client chooses


def build_train_and_report(model: FlatModel, training: LocalTraining, *, local_sgd=None, adapt=None):
    """Builds the tf.function that trains one model and reports on it.

    Args:
      local_sgd: Replaces `build_local_sgd(model, training)`; takes its first five arguments and returns the same
        results.
      adapt: `(vector float32[P], x, y, seed) -> vector float32[P]`, adapts the client's whole trained model to its
        training examples before the client tests it; None for no adaptation.

    Returns:
      A tf.function `(vector float32[P], client, centre=None, correction=None) -> (vector float32[P], report)`; `client`
      as in `ClientWork`, `centre` and `correction` as in `build_local_sgd`, the report
      `<examples=int32,loss=float32,finite=bool[,LOCAL_TEST][,changed=int32]>`: the number of training examples, the
      mean training loss over the last epoch, whether the trained model is finite, the local test if the client has test
      examples, its flag of change if it has one, and the state of its training, as in `kept_state`, if it keeps one.
    """
    local_sgd = converted(local_sgd or build_local_sgd(model, training))
    adapt = converted(adapt) if adapt is not None else None
    local_test = build_local_test(model.whole)

    def tested(vector, local, test, seed):
        """The model for the local test; if nothing is tested it is not adapted, because this takes time."""
        if adapt is None:
            return vector
        return tf.cond(tf.size(test["y"]) > 0, lambda: adapt(vector, local["x"], local["y"], seed), lambda: vector)

    @tf.function(autograph=False)
    def train_and_report(vector, client, centre=None, correction=None):
        local = stack(client["examples"])
        more = own_options(training, client) | ({} if correction is None else {"correction": correction})
        trained, loss, *kept = local_sgd(vector, local["x"], local["y"], client["seed"], centre, **more)
        whole = model.with_own(trained, kept)
        finite = tf.reduce_all(tf.math.is_finite(whole))
        report = collections.OrderedDict(examples=tf.shape(local["y"])[0], loss=loss, finite=finite)
        if "test_examples" in client:
            test = stack(client["test_examples"])
            own = tested(whole, local, test, client["seed"])
            report.update(local_test(own, test["x"], test["y"]))
        if "changed" in client:
            report["changed"] = client["changed"]
        report.update((OPTIMIZER, state) for state in kept)
        return trained, report

    return train_and_report


def training_work(
    model: FlatModel, training: LocalTraining, compute, *, kept=None, models=None, **fields
) -> ClientWork:
    """Makes the client work of a computation that trains.

    Args:
      model: The model to train.
      training: Local hyper-parameters; they decide further fields and the optimizer state that a client keeps.
      compute: See `ClientWork`, also for `kept` and `fields`.
      models: Names of the models that a client trains in a round, each with its own optimizer state; None for one
        model.
      **fields: The fields of the method.
    """
    state = kept_state(model, training)
    if state is not None and models is not None:
        state = collections.OrderedDict.fromkeys(models, state)
    fields = {**fields, **client_fields(training)}
    return ClientWork(model.example_spec, compute, fields, kept, state, functools.partial(fields_of, training))


@built_once
def build_update_work(model: FlatModel, training: LocalTraining, *, flags: bool = False, **own) -> ClientWork:
    """Builds clustered training: the client trains the model it receives and uploads the difference under its key.

    Args:
      flags: Whether the client reports that its data have changed.
      **own: Steps of your own, in TensorFlow. `local_sgd`, instead of `training`'s epochs: `(vector float32[P], x, y,
        seed int32[2], centre) -> (trained float32[P], loss float32)` on all of a client's examples. `adapt`: `(vector
        float32[P], x, y, seed) -> vector float32[P]`, adapts the trained model before the client tests it.

    Returns:
      Work that receives `<model=float32[P]>`, with the field `key` and the upload
      `update=<key=int32,value=float32[P]>`.
    """
    train_and_report = build_train_and_report(model, training, **own)

    def compute(received, client):
        trained, report = train_and_report(received["model"], client)
        return ClientResult({"update": keyed(client["key"], trained - received["model"])}, report)

    return training_work(model, training, compute, key=np.int32, **(FLAG if flags else {}))


def build_model_work(model: FlatModel, training: LocalTraining, *, flags: bool = False) -> ClientWork:
    """Builds training whose clients upload their trained models under their place in the cohort (FLT Alg. 3 lines 13
    and 14).

    Returns:
      Work that receives `<model=float32[P]>`, with the fields `row` (of its model) and `key` (its place), and the
      upload `trained=<key=int32,value=float32[P]>`.
    """
    train_and_report = build_train_and_report(model, training)

    def compute(received, client):
        trained, report = train_and_report(received["model"], client)
        return ClientResult({"trained": keyed(client["key"], trained)}, report)

    return training_work(model, training, compute, row=np.int32, key=np.int32, **(FLAG if flags else {}))


def build_difference_work(model: FlatModel, training: LocalTraining) -> ClientWork:
    """Builds training whose clients upload the difference to the model that they received, for servers that use each
    difference.

    Returns:
      Work that receives `<model=float32[P]>`, with the field `key` and the upload `difference=float32[P]`.
    """
    train_and_report = build_train_and_report(model, training)

    def compute(received, client):
        trained, report = train_and_report(received["model"], client)
        return ClientResult({"difference": trained - received["model"]}, report)

    return training_work(model, training, compute, key=np.int32)


@built_once
def build_trajectory_work(model: FlatModel, training: LocalTraining) -> ClientWork:
    """Builds clustered training whose clients also upload their losses by epoch.

    Returns:
      Work as in `build_update_work`, with the further upload `losses=float32[E]`, the mean training loss of each epoch.
    """
    train_and_report = build_train_and_report(
        model, training, local_sgd=build_local_sgd(model, training, by_epoch=True)
    )

    def compute(received, client):
        trained, report = train_and_report(received["model"], client)
        losses = report["loss"]
        report["loss"] = losses[-1]
        update = keyed(client["key"], trained - received["model"])
        return ClientResult({"update": update, "losses": losses}, report)

    return training_work(model, training, compute, key=np.int32)


@built_once
def build_normalized_work(model: FlatModel, training: LocalTraining, *, steps_counted: bool = False) -> ClientWork:
    """Builds training whose clients upload their difference per unit of training (FedNova, Wang et al. 2020, section
    4).

    The unit is the ‖a‖₁ of a client with one example (see `build_step_weight`) instead of one step. So the smallest
    clients upload their difference itself, and the uploads of the others do not become so small that secure sums, which
    round, would lose them.

    Args:
      steps_counted: Whether clients report their number of steps τ instead of ‖a‖₁.

    Returns:
      Work that receives `<model=float32[P]>`, with the field `key` and the uploads
      `update=<key=int32,value=float32[P]>`, the difference divided by ‖a‖₁, and `steps=<key=int32,value=float32[1]>`,
      ‖a‖₁ or τ; both in that unit.
    """
    train_and_report, step_weight = build_train_and_report(model, training), build_step_weight(training)
    unit = float(step_weight(1))

    def compute(received, client):
        trained, report = train_and_report(received["model"], client)
        own = own_steps(training, client)
        worth = step_weight(report["examples"], **own) / unit
        moved = trained - received["model"]
        direction = model.on_trained(tf.math.divide_no_nan(moved, worth), moved)
        steps = worth
        if steps_counted:
            steps = tf.cast(local_steps(training, report["examples"], **own), tf.float32) / unit
        uploads = {"update": keyed(client["key"], direction), "steps": keyed(client["key"], steps[tf.newaxis])}
        return ClientResult(uploads, report)

    return training_work(model, training, compute, key=np.int32)


@built_once
def build_bilevel_work(model: FlatModel, training: LocalTraining, global_training: LocalTraining | None) -> ClientWork:
    """Builds bi-level training (StoCFL Eq. 3, Alg. 1 lines 27 to 30).

    Both models start from the models that this round broadcasts. The cluster's model is pulled towards the broadcast
    global model by `training.proximal_weight`; the global model is trained without such a term, on the same batches.
    The report is on the cluster model; it is finite if both models are.

    Args:
      training: Local training of the cluster model; its `proximal_weight` is λ.
      global_training: Local training of the global model; None: it is trained elsewhere, and not uploaded.

    Returns:
      Work that receives `<model=float32[P],global_model=float32[P]>`, with the field `key` and the uploads
      `update=<key=int32,value=float32[P]>` and `global_update=float32[P]`: the two differences.
    """
    train_and_report = build_train_and_report(model, training)
    global_sgd = None if global_training is None else build_local_sgd(model, global_training)

    def compute(received, client):
        start, global_model = received["model"], received["global_model"]
        if global_sgd is None:
            trained, report = train_and_report(start, client, global_model)
            return ClientResult({"update": keyed(client["key"], trained - start)}, report)
        of_cluster, of_all = (
            {**client, OPTIMIZER: client[OPTIMIZER][name]} if OPTIMIZER in client else client for name in _TWO
        )
        trained, report = train_and_report(start, of_cluster, global_model)
        local = stack(client["examples"])
        more = own_options(global_training, of_all)
        moved, _, *kept = global_sgd(global_model, local["x"], local["y"], client["seed"], **more)
        for state in kept:
            report[OPTIMIZER] = collections.OrderedDict(zip(_TWO, (report[OPTIMIZER], state)))
        whole = model.with_own(moved, kept)
        report["finite"] = tf.logical_and(report["finite"], tf.reduce_all(tf.math.is_finite(whole)))
        uploads = {"update": keyed(client["key"], trained - start), "global_update": moved - global_model}
        return ClientResult(uploads, report)

    return training_work(model, training, compute, models=_TWO if global_sgd else None, key=np.int32)


def build_choose_and_train(model: FlatModel, training: LocalTraining, criterion: str, tried: str):
    """Builds the TensorFlow of a client that chooses a model and trains it (IFCA Alg. 1 lines 5 to 9; FLIS Alg. 1 lines
    9, 10).

    Args:
      criterion: The criterion of the choice, see `evaluation.build_choose`.
      tried: The client's field with the examples on which models are tried.

    Returns:
      `(models float32[K, P], client) -> (start float32[P], trained float32[P], report)`. The client has the field
      `forced=int32`, the row to take, or `CHOOSE`, and may have `moves=int32[K]`, the row to train instead of each
      chosen row. The report is that of `build_train_and_report` with `choice=int32`, the row that was trained.
    """
    train_and_report = build_train_and_report(model, training)
    choose = build_choose(model.whole, criterion)

    @tf.function(autograph=False)
    def choose_and_train(models, client):
        examples = stack(client[tried])

        def best():
            return choose(model.with_own(models, client.get(OPTIMIZER)), examples["x"], examples["y"])[0]

        choice = tf.cond(client["forced"] < 0, best, lambda: tf.identity(client["forced"]))
        if "moves" in client:
            choice = client["moves"][choice]
        start = models[choice]
        trained, report = train_and_report(start, client)
        report["choice"] = choice
        return start, trained, report

    return choose_and_train


def build_own_work(model: FlatModel, training: LocalTraining, *, towards: str | None = None) -> ClientWork:
    """Builds training of a client's own model, which the client keeps if it is finite; nothing is uploaded.

    Args:
      towards: Name of the received model that is the centre of the proximal term; default the own model at its start.

    Returns:
      Work that keeps `float32[P]`; with `towards` it has the field `key`.
    """
    train_and_report = build_train_and_report(model, training)

    def compute(received, client):
        centre = (received[towards],) if towards else ()
        trained, report = train_and_report(client["kept"], client, *centre)
        # A device goes on from what it kept, so a model that is not finite would stay so for ever.
        return ClientResult({}, report, tf.where(report["finite"], trained, client["kept"]))

    kept = tff.TensorType(np.float32, [model.size])
    return training_work(model, training, compute, kept=kept, **({"key": np.int32} if towards else {}))


@built_once
def build_controlled_work(
    model: FlatModel,
    training: LocalTraining,
    option: str,
    *,
    clipped: Callable = lambda value: value,
    anew: bool = False,
) -> ClientWork:
    """Builds local training with control variates (SCAFFOLD, Alg. 1 lines 7 to 14).

    Every step goes against g - c_i + c; the correction is part of the gradient, so that momentum accumulates it too.
    Option II is c_i+ = c_i - c + (x - y) / (K η). With momentum, K, the number of steps, is replaced by ‖a‖₁ (see
    `build_step_weight`); otherwise c_i would be larger by a factor of about 1 / (1 - ρ). A client whose training is not
    finite keeps what it had.

    A client keeps what the server counts: it clips its upload to the bound that it knows before it adds it to c_i (as
    in DP-SCAFFOLD, Noble et al., AISTATS 2022, arXiv:2111.09278). Otherwise c and the mean of all c_i would drift
    apart.

    Args:
      training: Hyper-parameters; without a proximal weight.
      option: A name in `CONTROL_VARIATES`.
      clipped: `(float32[P]) -> float32[P]`, the part of a control variate's upload that the server counts.
      anew: Whether clients upload c_i+ itself, from which the server averages c anew, instead of its change.

    Returns:
      Work that receives `<model=float32[P],control_sum=float32[P],members=float32>`, where c is the quotient of the
      last two, and keeps `float32[P]`, c_i, with the field `key` and the uploads `update` and `control`, both
      `<key=int32,value=float32[P]>`: y - x and c_i+ - c_i, or c_i+.
    """
    train_and_report, step_weight = build_train_and_report(model, training), build_step_weight(training)
    full_gradient = build_full_gradient(model, training)

    def compute(received, client):
        start, own = received["model"], client["kept"]
        control = tf.math.divide_no_nan(received["control_sum"], received["members"])
        trained, report = train_and_report(start, client, correction=control - own)
        if option == "gradient":
            local = stack(client["examples"])
            renewed = full_gradient(start, local["x"], local["y"], client.get(OPTIMIZER))
        else:
            scale = own_options(training, client).get("rate_scale", 1.0)
            gone = training.learning_rate * scale * step_weight(report["examples"], **own_steps(training, client))
            renewed = own - control + model.on_trained(tf.math.divide_no_nan(start - trained, gone), 0.0)
        report["finite"] = tf.logical_and(report["finite"], tf.reduce_all(tf.math.is_finite(renewed)))
        change = clipped(renewed if anew else renewed - own)
        uploads = {"update": keyed(client["key"], trained - start), "control": keyed(client["key"], change)}
        return ClientResult(uploads, report, tf.where(report["finite"], change if anew else own + change, own))

    kept = tff.TensorType(np.float32, [model.size])
    return training_work(model, training, compute, kept=kept, key=np.int32)
