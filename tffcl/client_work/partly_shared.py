"""Training of a model of which a client keeps some layers to itself and shares the others (LG-FedAvg)."""

import dataclasses
import functools
import itertools
from collections.abc import Collection

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.client_work import ClientResult, ClientWork, keyed
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_train_and_report, training_work
from tffcl.errors import unknown
from tffcl.models.flat import FlatModel
from tffcl.trace_cache import built_once


@dataclasses.dataclass(frozen=True)
class LayerParts:
    """Which entries of a model's vector `[P]` a client keeps, the *local* part `[L]`; the others are the *global* part
    `[G]`.

    Attributes:
      runs: Stretches of the vector in order, each `(is local, entries)`.
    """

    runs: tuple[tuple[bool, int], ...]

    @functools.cached_property
    def is_local(self) -> np.ndarray:
        """`bool [P]`."""
        return np.repeat([local for local, _ in self.runs], [size for _, size in self.runs])

    @property
    def local_size(self) -> int:
        """L."""
        return sum(size for local, size in self.runs if local)

    @property
    def global_size(self) -> int:
        """G."""
        return sum(size for local, size in self.runs if not local)

    def split(self, vector) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the local and the global part, `float32 [L]` and `[G]`, of a vector `float32 [P]`, in TensorFlow."""
        pieces = tf.split(vector, [size for _, size in self.runs])
        nothing = tf.zeros([0])  # a part may have no piece
        parts = [[piece for (local, _), piece in zip(self.runs, pieces) if local is wanted] for wanted in (True, False)]
        return tuple(tf.concat([nothing, *part], 0) for part in parts)

    def join(self, local, shared):
        """The inverse of `split`."""
        left = {True: local, False: shared}
        pieces = []
        for is_local, size in self.runs:
            pieces.append(left[is_local][:size])
            left[is_local] = left[is_local][size:]
        return tf.concat(pieces, 0)

    def joined(self, local: np.ndarray, shared: np.ndarray) -> np.ndarray:
        """Joins rows of parts, `float32 [n, L]` and `[n, G]` or one of each, to models `float32 [n, P]`."""
        local, shared = np.atleast_2d(local), np.atleast_2d(shared)
        models = np.empty([len(shared), len(self.is_local)], np.float32)
        models[:, self.is_local], models[:, ~self.is_local] = local, shared
        return models


def layer_parts(model: FlatModel, local: Collection[str]) -> LayerParts:
    """Returns the parts of a model.

    Args:
      local: Names of layers, or of single weights ("conv1/kernel"), that a client keeps.

    Raises:
      UserError: For a name that is none of the model's.
    """
    weights = [weight.name for weight in model.weights]
    names = {*model.layer_slices(), *weights}
    for name in local:
        if name not in names:
            raise unknown(f"layer of {model.name} in local_layers", name, names, key="local_layers")
    kept = [bool({weight, weight.split("/")[0]} & set(local)) for weight in weights]
    runs = itertools.groupby(zip(kept, model.weights), key=lambda pair: pair[0])
    return LayerParts(tuple((is_local, sum(weight.size for _, weight in run)) for is_local, run in runs))


@built_once
def build_partly_shared_work(model: FlatModel, training: LocalTraining, parts: LayerParts) -> ClientWork:
    """Builds clustered training of which only the global part travels (Liang et al. 2020, Alg. 1).

    The client puts its own local layers to the global part that it receives, trains both together, keeps the one and
    uploads the difference of the other under its key. Of a training that is not finite it keeps nothing.

    Args:
      parts: What is kept and what is shared.

    Returns:
      Work that receives `<model=float32[G]>` and keeps `float32[L]`, with the field `key` and the upload
      `update=<key=int32,value=float32[G]>`; none if nothing is global.
    """
    train_and_report = build_train_and_report(model, training)

    def compute(received, client):
        trained, report = train_and_report(parts.join(client["kept"], received["model"]), client)
        local, shared = parts.split(trained)
        uploads = {"update": keyed(client["key"], shared - received["model"])} if parts.global_size else {}
        return ClientResult(uploads, report, tf.where(report["finite"], local, client["kept"]))

    kept = tff.TensorType(np.float32, [parts.local_size])
    return training_work(model, training, compute, kept=kept, key=np.int32)
