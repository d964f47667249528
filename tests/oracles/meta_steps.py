"""Plain NumPy Per-FedAvg steps (Fallah et al. 2020, Alg. 1) on a perceptron with one hidden ReLU layer."""

import numpy as np

from tests.oracles.softmax_regression import gradient


def plus(tensors, scale, others):
    """`tensors + scale * others`, tensor by tensor."""
    return [t + scale * o for t, o in zip(tensors, others)]


def train(tensors, x, y, groups, *, alpha, beta, momentum=0.0, delta=None, shared=False):
    """Meta-steps over groups of index batches, `(B1, B2)` by first order or `(B1, B2, B3)` Hessian-free with a `delta`.

    Returns:
      The trained tensors and the loss of every step at the adapted point.
    """
    w = [np.asarray(tensor, float) for tensor in tensors]
    velocity, losses = [np.zeros_like(tensor) for tensor in w], []
    for group in groups:
        first, _ = gradient(w, x[group[0]], y[group[0]])
        if shared:
            velocity = first = plus(first, momentum, velocity)
        step, loss = gradient(plus(w, -alpha, first), x[group[1]], y[group[1]])
        losses.append(loss)
        if delta:
            above, _ = gradient(plus(w, delta, step), x[group[2]], y[group[2]])
            below, _ = gradient(plus(w, -delta, step), x[group[2]], y[group[2]])
            step = plus(step, -alpha / (2 * delta), plus(above, -1, below))
        velocity = plus(step, momentum, velocity)
        w = plus(w, -beta, velocity)
    return w, losses
