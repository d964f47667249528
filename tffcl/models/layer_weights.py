"""The named tensors of a model, how their initial values are drawn, and what identifies models of one architecture."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Sequence

import numpy as np

from tffcl.runtime import memory
from tffcl.validation import check_value, one_of

TRAINED, STATISTIC = "trained", "statistic"  # the kinds of weights


@dataclasses.dataclass(frozen=True)
class Weight:
    """One named tensor of a model.

    Attributes:
      name: "layer/kernel", "layer/bias", "layer/scale" or "layer/offset".
      shape: The tensor's shape.
      fan_in: How many inputs one output of the layer sums.
      fan_out: How many outputs one input of the layer feeds.
      constant: Initial value of all entries whatever the initialization, None to draw them.
      kind: `TRAINED` by gradients, or a `STATISTIC` that the forward pass of training renews, as batch normalization's
        moving means are.
    """

    name: str
    shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    constant: float | None = None
    kind: str = TRAINED

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def _kernel_and_bias(name: str, kernel: tuple[int, ...], outputs: int, fans: tuple[int, int]) -> list[Weight]:
    return [Weight(f"{name}/kernel", kernel, *fans), Weight(f"{name}/bias", (outputs,), *fans)]


def dense(name: str, inputs: int, outputs: int) -> list[Weight]:
    """The kernel `[inputs, outputs]` and bias `[outputs]` of a fully connected layer."""
    return _kernel_and_bias(name, (inputs, outputs), outputs, (inputs, outputs))


def outputs_of(num_classes: int | None) -> int:
    """Returns the number of outputs for a number of classes; for None, a number to predict, there is one output."""
    return 1 if num_classes is None else num_classes


def conv(name: str, size: int, inputs: int, outputs: int) -> list[Weight]:
    """The kernel `[size, size, inputs, outputs]` and bias `[outputs]` of a 2-D convolution."""
    fans = size * size * inputs, size * size * outputs
    return _kernel_and_bias(name, (size, size, inputs, outputs), outputs, fans)


def transposed_conv(name: str, size: int, inputs: int, outputs: int) -> list[Weight]:
    """The kernel `[size, size, outputs, inputs]` and bias `[outputs]` of a transposed 2-D convolution."""
    # PyTorch reads the fans off the kernel as if it were the forward convolution from `outputs` to `inputs`.
    fans = size * size * outputs, size * size * inputs
    return _kernel_and_bias(name, (size, size, outputs, inputs), outputs, fans)


def group_norm(name: str, channels: int) -> list[Weight]:
    """The scale `[channels]`, initially 1, and the offset `[channels]`, initially 0, of a normalization layer."""
    return [Weight(f"{name}/scale", (channels,), 1, 1, 1.0), Weight(f"{name}/offset", (channels,), 1, 1, 0.0)]


def _torch_default(weight: Weight, rng: np.random.Generator) -> np.ndarray:
    bound = 1.0 / math.sqrt(weight.fan_in)  # Kaiming uniform with a = sqrt(5), and PyTorch's bias rule
    return rng.uniform(-bound, bound, weight.shape)


def _glorot(weight: Weight, rng: np.random.Generator) -> np.ndarray:
    if len(weight.shape) == 1:
        return np.zeros(weight.shape)
    bound = math.sqrt(6.0 / (weight.fan_in + weight.fan_out))
    return rng.uniform(-bound, bound, weight.shape)


def _ifca_reference(weight: Weight, rng: np.random.Generator) -> np.ndarray:
    # How PACFL's code draws the models of its IFCA baseline: Xavier normal kernels, standard normal biases.
    if len(weight.shape) == 1:
        return rng.standard_normal(weight.shape)
    return rng.normal(0.0, math.sqrt(2.0 / (weight.fan_in + weight.fan_out)), weight.shape)


INITIALIZATIONS: dict[str, Callable[[Weight, np.random.Generator], np.ndarray]] = {
    "torch_default": _torch_default,
    "glorot": _glorot,
    "ifca_reference": _ifca_reference,
}
Initialization = one_of(INITIALIZATIONS)


def initialize(weights: Sequence[Weight], initialization: str, seed: int) -> list[np.ndarray]:
    """Draws float32 initial values of every weight.

    Args:
      weights: The model's weights in order.
      initialization: A name in `INITIALIZATIONS`.
      seed: Decides the values.

    Raises:
      UserError: If they do not fit into memory.
    """
    check_value("initialization", initialization, Initialization)
    size = sum(weight.size for weight in weights)
    memory.check_room(4 * size, f"the model's {size:,} parameters")
    rng = np.random.default_rng(seed)

    def draw(weight):
        if weight.constant is not None:
            return np.full(weight.shape, weight.constant)
        return INITIALIZATIONS[initialization](weight, rng)

    return [draw(weight).astype(np.float32) for weight in weights]


_NOT_TRACED = ("seed", "initialization")


def architecture(build: Callable) -> Callable:
    """Makes a builder give its models a `key`: the builder and its arguments, except those that only decide the initial
    weights."""
    signature = inspect.signature(build)

    @functools.wraps(build)
    def keyed(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = {name: value for name, value in bound.arguments.items() if name not in _NOT_TRACED}
        traced = tuple((name, np.asarray(value).tolist().__repr__()) for name, value in given.items())
        return dataclasses.replace(build(*args, **kwargs), key=(build.__module__, build.__qualname__, *traced))

    return keyed
