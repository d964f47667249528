"""Which entries of a model's vector stay with a client, and which are shared."""

import dataclasses
import functools
import itertools
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tffcl.errors import UserError, unknown

if TYPE_CHECKING:  # it imports this module
    from tffcl.models.flat import FlatModel, FlatWeights


@dataclasses.dataclass(frozen=True)
class LayerParts:
    """Which entries of a model's vector `[P]` a client keeps, the *local* part `[L]`; the others are the *global* part
    `[G]`.

    Attributes:
      runs: Stretches of the vector in order, each `(is local, number of entries)`.
    """

    runs: tuple[tuple[bool, int], ...]

    @functools.cached_property
    def is_local(self) -> np.ndarray:
        """`bool [P]`, which entries are local."""
        return np.repeat([local for local, _ in self.runs], [size for _, size in self.runs])

    @property
    def local_size(self) -> int:
        """L, the size of the local part."""
        return sum(size for local, size in self.runs if local)

    @property
    def global_size(self) -> int:
        """G, the size of the global part."""
        return sum(size for local, size in self.runs if not local)

    def split(self, vector) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the local and the global part, `float32 [L]` and `[G]`, of a vector `float32 [P]`, in TensorFlow."""
        pieces = tf.split(vector, [size for _, size in self.runs])
        nothing = tf.zeros([0])  # a part may have no piece
        parts = [[piece for (local, _), piece in zip(self.runs, pieces) if local is wanted] for wanted in (True, False)]
        return tuple(tf.concat([nothing, *part], 0) for part in parts)

    def join(self, local, shared):
        """The inverse of `split`; several vectors `[..., G]` with one local part become `[..., P]`."""
        if len(shared.shape) > 1:
            local = tf.broadcast_to(local, tf.concat([tf.shape(shared)[:-1], tf.shape(local)], 0))
        left = {True: local, False: shared}
        pieces = []
        for is_local, size in self.runs:
            pieces.append(left[is_local][..., :size])
            left[is_local] = left[is_local][..., size:]
        return tf.concat(pieces, -1)

    def joined(self, local: np.ndarray, shared: np.ndarray) -> np.ndarray:
        """Joins rows of parts, `float32 [n, L]` and `[n, G]` or one of each, to models `float32 [n, P]`."""
        local, shared = np.atleast_2d(local), np.atleast_2d(shared)
        models = np.empty([len(shared), len(self.is_local)], np.float32)
        models[:, self.is_local], models[:, ~self.is_local] = local, shared
        return models


def layer_parts(model: "FlatWeights", local: Collection[str]) -> LayerParts:
    """Returns the parts of a model.

    Args:
      local: Names of layers, or of single weights ("conv1/kernel"), that a client keeps.

    Raises:
      UserError: If a name is not one of the model's.
    """
    weights = [weight.name for weight in model.weights]
    names = {*model.layer_slices(), *weights}
    for name in local:
        if name not in names:
            raise unknown(f"layer of {model.name} in local_layers", name, names, key="local_layers")
    kept = [bool({weight, weight.split("/")[0]} & set(local)) for weight in weights]
    runs = itertools.groupby(zip(kept, model.weights), key=lambda pair: pair[0])
    return LayerParts(tuple((is_local, sum(weight.size for _, weight in run)) for is_local, run in runs))


@dataclasses.dataclass(frozen=True, eq=False)
class OwnPart:
    """The part of a model that clients keep: the local part of a larger model, whose global part is the model.

    Attributes:
      whole: The larger `FlatModel`, which clients train and use.
      parts: The parts of its vector.
    """

    whole: Any
    parts: LayerParts

    @property
    def initial(self) -> np.ndarray:
        """`float32 [L]`, the local part of a client before its first round."""
        return self.whole.initial[self.parts.is_local]


def require_shared(model: "FlatModel", why: str):
    """Raises UserError if clients keep a part of a model to themselves; `why` says what is then impossible."""
    if model.own is not None:
        raise UserError(
            f'{why}, and of {model.name} each client keeps a part to itself; take statistics="global" or "reset"'
        )
