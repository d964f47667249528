"""How far local training goes: the total weight with which its gradients enter the trained model."""

import tensorflow as tf

from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError


def local_steps(training: LocalTraining, examples) -> tf.Tensor:
    """Returns τ `int32`, how many steps a client with so many examples takes."""
    size = training.batch_size or tf.maximum(examples, 1)
    return training.epochs * -(-examples // size)


def build_step_weight(training: LocalTraining):
    """Builds `(examples int32) -> float32`, ‖a‖₁ of FedNova (Wang et al. 2020, arXiv:2007.07481, section 4).

    A client that starts at w and ends at w - η Σ aₖ gₖ has taken ‖a‖₁ = Σ aₖ steps' worth of gradients: with plain SGD the
    number of steps τ; with momentum ρ, [τ - ρ (1 - ρ^τ) / (1 - ρ)] / (1 - ρ); with a proximal term μ, [1 - (1 - ημ)^τ] / (ημ).
    Both of them together, of which the paper gives no formula: local training is linear in its gradients, so it is run on
    gradients of one, `c <- ρ c + 1 - η μ a`, `a <- a + c`, which gives the two formulas as well.

    Args:
      training: Epochs, batch size, momentum and proximal weight.
    """

    if training.proximal_weight and training.learning_rate_decay < 1:
        raise UserError("learning_rate_decay and proximal_weight together: no formula says what a step is worth then")

    @tf.function(autograph=False)
    def step_weight(examples):
        steps = local_steps(training, examples)
        pull = training.learning_rate * training.proximal_weight

        def step(number, moved, velocity):
            velocity = training.momentum * velocity + 1.0 - pull * moved
            return number + 1, moved + velocity, velocity

        return tf.while_loop(lambda number, *_: number < steps, step, (0, 0.0, 0.0), parallel_iterations=1)[1]

    return step_weight
