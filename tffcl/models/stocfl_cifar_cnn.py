"""StoCFL's convolutional network for CIFAR-10 (section 3.1): two convolutions and two dense layers."""

from typing import Annotated, Literal

import msgspec

from tffcl.models import flat, layer_weights
from tffcl.models.lenet5 import build_lenet
from tffcl.validation import validated

_HIDDEN = (120, 84)  # of LeNet-5
_Layers = Annotated[Literal[2, 3], msgspec.Meta(description="2 (StoCFL's paper) or 3 (the authors' code)")]


@flat.architecture
@validated
def build_stocfl_cifar_cnn(
    input_shape,
    num_classes,
    *,
    dense_layers: _Layers = 2,
    normalization=(0.0, 1.0),
    initialization: layer_weights.Initialization = "torch_default",
    seed=0,
) -> flat.FlatModel:
    """Builds conv 5x5 to 6, pool 2, conv 5x5 to 16, pool 2, dense 120, `num_classes`; ReLU between.

    The paper has "two convolutional layers followed by two fully connected layers" and gives no widths; the authors'
    code has three dense layers, which is LeNet-5. Two layers are therefore LeNet-5 without its layer of 84 units:
    52,202 parameters on 32x32x3 with 10 classes, 62,006 with three. Arguments as in `flat.build_flat_model` and:

    Args:
      dense_layers: 2 as in the paper, 3 as in the authors' code.

    Raises:
      UserError: If the image is smaller than 16x16 or `dense_layers` is neither 2 nor 3.
    """
    return build_lenet(
        "stocfl_cifar_cnn", input_shape, num_classes, hidden=_HIDDEN[: dense_layers - 1],
        normalization=normalization, initialization=initialization, seed=seed,
    )  # fmt: skip
