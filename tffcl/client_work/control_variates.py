"""SCAFFOLD's local training: steps corrected by control variates, one of which the client keeps."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.client_work import ClientResult, ClientWork, keyed, stack
from tffcl.client_work.local_sgd import LocalTraining, build_full_gradient, build_step_weight
from tffcl.client_work.training import build_train_and_report
from tffcl.models.flat import FlatModel


def build_controlled_work(
    model: FlatModel, training: LocalTraining, option: str, *, clipped: Callable = lambda value: value, anew: bool = False
) -> ClientWork:
    """Builds local training with control variates (SCAFFOLD, Alg. 1 lines 7 to 14).

    Every step goes against g - c_i + c; the correction is part of the gradient, so that momentum gathers it too. Option II is
    c_i+ = c_i - c + (x - y) / (K η); with momentum K, the number of steps, is ‖a‖₁ (see `step_weights`), without which c_i
    would be larger by about 1 / (1 - ρ). A client whose training is not finite keeps what it had.

    What a client keeps is what the server counts: it clips what it uploads by the bound that it knows before it adds that to
    c_i (as in DP-SCAFFOLD, Noble et al., AISTATS 2022, arXiv:2111.09278). Otherwise c and the mean of all c_i would part for ever.

    Args:
      model: What is trained.
      training: Hyper-parameters; without a proximal weight.
      option: A name in `CONTROL_VARIATES`.
      clipped: `(float32[P]) -> float32[P]`, what the server counts of an upload of a control variate.
      anew: Whether clients upload c_i+ itself, from which the server averages c anew, and not what has changed of it.

    Returns:
      Work that receives `<model=float32[P],control_sum=float32[P],members=float32>`, c being the quotient of the last two, and
      keeps `float32[P]`, c_i, with the field `key` and the uploads `update` and `control`, both `<key=int32,value=float32[P]>`:
      y - x and c_i+ - c_i, or c_i+.
    """
    train_and_report, step_weight = build_train_and_report(model, training), build_step_weight(training)
    full_gradient = build_full_gradient(model, training)

    def compute(received, client):
        start, own = received["model"], client["kept"]
        control = tf.math.divide_no_nan(received["control_sum"], received["members"])
        trained, report = train_and_report(start, client, correction=control - own)
        if option == "gradient":
            local = stack(client["examples"])
            renewed = full_gradient(start, local["x"], local["y"])
        else:
            scale = training.rate_scale(client)
            gone = training.learning_rate * (1.0 if scale is None else scale) * step_weight(report["examples"])
            renewed = own - control + tf.math.divide_no_nan(start - trained, gone)
        report["finite"] = tf.logical_and(report["finite"], tf.reduce_all(tf.math.is_finite(renewed)))
        told = clipped(renewed if anew else renewed - own)
        uploads = {"update": keyed(client["key"], trained - start), "control": keyed(client["key"], told)}
        return ClientResult(uploads, report, tf.where(report["finite"], told if anew else own + told, own))

    return ClientWork(model.example_spec, compute, training.fields(key=np.int32), tff.TensorType(np.float32, [model.size]))
