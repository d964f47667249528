"""The hyper-parameters of a client's local training. Imports nothing heavy: they are checked before TensorFlow is
loaded."""

import dataclasses
from typing import ClassVar

from tffcl.choices import LOCAL_OPTIMIZERS, OPTIMIZER_STATES, PRECISIONS
from tffcl.errors import UserError, unknown
from tffcl.validation import (
    Count,
    Fraction,
    NonNegative,
    Parameters,
    Positive,
    Share,
    Whole,
    check_value,
    one_of,
    wrong,
)

OF_CLIENTS = {"epochs": Count, "batch_size": Whole}  # the settings that single clients may have of their own


@dataclasses.dataclass(frozen=True)
class LearningRateDecay(Parameters):
    """A schedule of the learning rate: in each round the rate is multiplied by the product of the parts set here.

    Attributes:
      factor: Multiplies the rate once every `every` rounds; 1 leaves it as it is.
      every: Rounds between two multiplications by `factor`; above 1 the rate falls in steps.
      cosine: Rounds in which the rate falls along half a cosine to `least` (Loshchilov & Hutter 2017,
        arXiv:1608.03983), where it stays; 0 for no cosine.
      least: The share of the rate at the end of the cosine.
      warm_up: Rounds in which the rate rises to its full value in equal steps, from 1 / warm_up. The other parts begin
        after the warm-up.
    """

    factor: Share = 1.0
    every: Count = 1
    cosine: Whole = 0
    least: Fraction = 0.0
    warm_up: Whole = 0

    @property
    def is_constant(self) -> bool:
        """Whether the rate never changes."""
        return self.factor == 1 and not self.cosine and self.warm_up <= 1

    def check(self):
        if self.every > 1 and self.factor == 1:
            raise wrong("every", self.every, "it needs a factor below 1")
        if self.least and not self.cosine:
            raise wrong("least", self.least, "it needs cosine, the rounds in which the rate falls to it")


@dataclasses.dataclass(frozen=True)
class LocalTraining(Parameters):
    """Hyper-parameters of a client's local training.

    An optimizer steps along the gradient of the loss, clipped if `clip_norm` is given, plus the method's correction,
    plus weight decay and the proximal term, in this order.

    Attributes:
      epochs: Passes over the local data (E in the papers).
      batch_size: Examples in a step; the last batch of an epoch may be smaller. 0 stands for all local data.
      learning_rate: Step size.
      learning_rate_decay: Multiplies the step size after every round (0.99 in IFCA's code); 1 leaves it as it is. Or a
        `LearningRateDecay`, to decay in steps, by a cosine, or after a warm-up.
      momentum: Momentum of SGD.
      weight_decay: L2 coefficient added to the gradient; with "adamw" the decoupled weight decay (Loshchilov & Hutter
        2019, arXiv:1711.05101).
      proximal_weight: Adds `proximal_weight / 2 * ||w - centre||^2` to the loss, for methods without a proximal weight
        of their own. μ of FedProx and FedNova and λ of Ditto, StoCFL and FedSoft are parameters of these methods.
      optimizer: A name in `LOCAL_OPTIMIZERS`, or a `tff.learning.optimizers` object, which brings its own learning
        rate.
      beta_1: For "adam" and "adamw", decay of the mean of gradients; default 0.9.
      beta_2: For "adam", "adamw" and "rmsprop", decay of the mean of squared gradients; default 0.999, for "rmsprop"
        0.9.
      epsilon: For the same optimizers, added to the root of that mean; default 1e-7.
      optimizer_state: "reset": momentum and moments start at zero in every round, as in the papers' code. "kept": a
        client goes on with those of its last round.
      clip_norm: The largest norm, over all weights, of the loss gradient; longer gradients are shortened to it. None
        clips nothing.
      precision: "float32" or "bfloat16". With "bfloat16" the products and convolutions of each step are computed in it,
        where the processor has instructions for that; weights, the optimizer, evaluation and what is sent stay float32.
        See `models.layers`.
      clients: Epochs and batch size of single clients, by client ID: {"site-3": {"epochs": 1, "batch_size": 32}}.
    """

    instead: ClassVar = {
        "class_weight": "FlatModel.from_keras(..., class_weight={0: 1.0, 1: 5.0}) weighs classes",
        "callbacks": "tffcl.train(rounds=R, resume=True) with more and more rounds lets you look at each, and stop",
        "schedule": "learning_rate_decay takes a number or a tffcl.LearningRateDecay(...)",
        "clipnorm": "it is called clip_norm",
        "rho": "it is called beta_2",
        "lr": "it is called learning_rate",
    }

    epochs: Count = 1
    batch_size: Whole = 10
    learning_rate: Positive = 0.01
    learning_rate_decay: Share | LearningRateDecay = 1.0
    momentum: Fraction = 0.0
    weight_decay: NonNegative = 0.0
    proximal_weight: NonNegative = 0.0
    optimizer: object = "sgd"
    beta_1: Fraction | None = None
    beta_2: Fraction | None = None
    epsilon: Positive | None = None
    optimizer_state: one_of(OPTIMIZER_STATES) = "reset"
    clip_norm: Positive | None = None
    precision: one_of(PRECISIONS) = "float32"
    clients: dict[str | int, dict[str, int]] | None = dataclasses.field(default=None, hash=False)

    @property
    def decay(self) -> LearningRateDecay:
        """The schedule that multiplies the learning rate in each round."""
        given = self.learning_rate_decay
        return given if isinstance(given, LearningRateDecay) else LearningRateDecay(given)

    def with_proximal_weight(self, weight: float) -> "LocalTraining":
        """Returns a copy with the proximal weight of a method's parameters; UserError if another one is set here."""
        if self.proximal_weight not in (0, weight):
            raise UserError(
                f"the training's proximal_weight is {self.proximal_weight:g}, and the method's own is {weight:g}; give "
                "it to the method's parameters alone",
                key="proximal_weight",
            )
        return dataclasses.replace(self, proximal_weight=weight)

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep the state of their optimizer between rounds."""
        return self.optimizer_state == "kept"

    @property
    def is_sgd(self) -> bool:
        """Whether clients train by SGD whose momentum starts at zero in every round."""
        return self.optimizer == "sgd" and not self.keeps_state

    def check(self):
        if isinstance(self.optimizer, str):
            check_value("optimizer", self.optimizer, one_of(LOCAL_OPTIMIZERS))
            name, taken = self.optimizer, ("learning_rate", *LOCAL_OPTIMIZERS[self.optimizer])
        elif all(hasattr(self.optimizer, each) for each in ("initialize", "next", "get_hparams", "set_hparams")):
            name, taken = "that was given, which has its own", ()
        else:
            raise wrong(
                "optimizer", self.optimizer, f"it must be {', '.join(LOCAL_OPTIMIZERS)} or a tff.learning.optimizers "
                "object"
            )  # fmt: skip
        for key in ("learning_rate", "momentum", "beta_1", "beta_2", "epsilon"):
            if key not in taken and getattr(self, key) != getattr(type(self), key):
                default = "0" if key == "momentum" else "left out"
                besides = f", whose keys are {', '.join(taken)}" if taken else ""
                raise wrong(key, getattr(self, key), f"it must be {default} with the optimizer {name}{besides}")
        if self.keeps_state and self.optimizer == "sgd" and not self.momentum:
            raise wrong("optimizer_state", self.optimizer_state, "SGD without momentum has no state to keep")
        for client, own in (self.clients or {}).items():
            for key, value in own.items():
                if key not in OF_CLIENTS:
                    raise unknown(f"key of clients {client!r}", key, OF_CLIENTS, key="clients")
                check_value(f"clients {client!r}, {key}", value, OF_CLIENTS[key])

    def require_sgd(self, method: str, why: str, *keys: str):
        """Checks that a method's derivation holds for this training.

        Args:
          method: The name of the method, for the message.
          why: What the method assumes, for the message.
          *keys: Further keys that must have their defaults.

        Raises:
          UserError: If the optimizer is not SGD from zero momentum in every round, or one of the keys is set.
        """
        if not self.is_sgd:
            key = "optimizer_state" if self.optimizer == "sgd" else "optimizer"
            raise UserError(f"{method} {why}: {key} must be {'reset' if self.optimizer == 'sgd' else 'sgd'}", key=key)
        for field in dataclasses.fields(self):
            key = field.name
            if key in keys and getattr(self, key) != field.default:
                raise UserError(f"{method} {why}: it takes no {key}", key=key)
