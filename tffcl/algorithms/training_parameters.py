"""The parameters of each local training that a task file can name, and of the methods of one model that use them.
Imports nothing heavy."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from tffcl.choices import CONTROL_VARIATES, GRADIENTS, VELOCITIES, WEIGHTINGS
from tffcl.errors import UserError
from tffcl.references import named
from tffcl.registry import Row, find, parameters_of
from tffcl.validation import NonNegative, Parameters, Positive, Whole, one_of


@dataclasses.dataclass(frozen=True)
class FedProxParameters(Parameters):
    """What FedProx adds to FedAvg.

    Attributes:
      proximal_weight: μ; each client minimises its loss plus μ/2 times the squared distance to the model it received.
    """

    proximal_weight: NonNegative = 0.05


EFFECTIVE_STEPS = ("norm", "local_steps")


@dataclasses.dataclass(frozen=True)
class FedNovaParameters(Parameters):
    """What FedNova's clients minimise, and how far the model moves.

    Attributes:
      proximal_weight: μ; each client minimises its loss plus μ/2 times the squared distance to the model it received.
      effective_steps: τ_eff, which multiplies the mean direction: the clients' mean "norm" ‖a‖₁ (paper, section 4), or
        their mean number of "local_steps" τ, as in the authors' code for μ above 0, where ‖a‖₁ can be several times
        smaller than τ.
    """

    proximal_weight: NonNegative = 0.0
    effective_steps: one_of(EFFECTIVE_STEPS) = "norm"


@dataclasses.dataclass(frozen=True)
class ScaffoldParameters(Parameters):
    """How control variates are made, and how the server steps.

    Attributes:
      counts_members: As in the engine, `clustered_training.ClusteredTraining`.
      option: How a client updates its control variate c_i: "difference" (Option II, which the paper's experiments use)
        or "gradient" (Option I, with one more pass over the local data).
      weighting: The weights of the clients' updates: "uniform" (the paper) or by "examples". Control variates are
        always averaged uniformly.
      server_learning_rate: η_g (the paper's experiments: 1).
    """

    counts_members: ClassVar = True

    option: one_of(CONTROL_VARIATES) = "difference"
    weighting: one_of(WEIGHTINGS) = "uniform"
    server_learning_rate: Positive = 1.0


@dataclasses.dataclass(frozen=True)
class DittoParameters(Parameters):
    """How personal models are trained.

    Attributes:
      proximal_weight: λ; a personal model minimises the client's loss plus λ/2 times the squared distance to the shared
        model as it was broadcast in the round (Eq. Obj).
    """

    proximal_weight: NonNegative = 0.05


ALL_BUT_FOUR = "all_but_four_tensors"
_ALLOWED = f"a whole number from 0, a list of names of layers or {ALL_BUT_FOUR}"
LocalLayers = Annotated[Whole | list[str] | one_of([ALL_BUT_FOUR]) | None, msgspec.Meta(description=_ALLOWED)]


@dataclasses.dataclass(frozen=True)
class LGFedAvgParameters(Parameters):
    """What clients keep, and how the rest is averaged.

    Attributes:
      local_layers: The layers that a client keeps, by name (a single weight is "block6b/kernel"); or the number of
        first layers that it keeps; or all_but_four_tensors, as in the code of PACFL and FLIS. Default: all but the last
        two, or the first of two: 3 of LeNet-5's 5 layers and 7 of ResNet-9's 9, as in PACFL's Table 13.
      weighting: The weights of clients in the mean: by examples as in the paper, or uniform as in its authors' code.
      fedavg_rounds: The number of first rounds in which all layers are shared, by FedAvg weighted by examples. The
        authors' code starts from a model that was trained so, the paper and PACFL from the initial one.
    """

    local_layers: LocalLayers = None
    weighting: one_of(WEIGHTINGS) = "examples"
    fedavg_rounds: Whole = 0


@dataclasses.dataclass(frozen=True)
class PerFedAvgParameters(Parameters):
    """The meta-steps of Per-FedAvg, and how clients' results are averaged.

    Attributes:
      alpha: α, step size of the step that adapts, in training and before the local test.
      beta: β, step size of the step that is kept; default the learning rate of training.
      gradient: How the gradient through the adaptation is computed: first_order drops its Hessian, hessian_free
        replaces it by a difference of gradients, with a third batch in each step.
      delta: δ of that difference.
      velocity: Which steps the task's momentum is for: outer, the steps that are kept; shared, both steps through one
        velocity, as in the code of PACFL and FLIS. The paper has no momentum.
      adaptation_steps: Steps with α, over all training examples of a client, before its own model is tested: 1 in the
        paper; 0 in the code of PACFL and FLIS.
      weighting: The weights of clients in the mean: uniform as in the paper, or by examples as in the code of PACFL and
        FLIS.
    """

    only_with: ClassVar = {"delta": ("gradient", "hessian_free")}

    alpha: NonNegative = 0.01
    beta: Positive | None = None
    gradient: one_of(GRADIENTS) = "first_order"
    delta: Positive = 0.001
    velocity: one_of(VELOCITIES) = "outer"
    adaptation_steps: Whole = 1
    weighting: one_of(WEIGHTINGS) = "uniform"


def training_of(given: str | Mapping) -> tuple[Row, tuple[Parameters, ...]]:
    """Returns the registry's row for a local training, and its parameters if it has any.

    Args:
      given: A name in `registry.TRAININGS`, or a table of one with its parameters: {name = "proximal", proximal_weight
        = 0.1}.

    Raises:
      UserError: For an unknown name or parameter, or a wrong value.
    """
    name, own = named("training", given)
    row = find("trainings", name, key="training")
    try:
        parameters = parameters_of(row.parameter_class(), own, f"training {name}")
    except UserError as error:
        raise UserError(str(error), key="training") from None
    return row, () if parameters is None else (parameters,)
