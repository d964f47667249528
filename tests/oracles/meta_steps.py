"""Plain NumPy Per-FedAvg steps (Fallah et al. 2020, Alg. 1) on a perceptron with one hidden ReLU layer."""

import numpy as np

from tests.oracles.softmax_regression import gradient


def plus(tensors, scale, others):
    """`tensors + scale * others`, tensor by tensor."""
    return [t + scale * o for t, o in zip(tensors, others)]


def train(tensors, x, y, groups, *, alpha, beta, momentum=0.0, delta=None, shared=False, weight_decay=0.0):
    """Meta-steps over groups of index batches, `(B1, B2)` by first order or `(B1, B2, B3)` Hessian-free with a `delta`.

    The loss that is descended has `weight_decay / 2` times the squared length of the weights; those that come back not.

    Returns:
      The trained tensors and the loss of every step at the adapted point.
    """

    def slope(at, batch):
        found, loss = gradient(at, x[batch], y[batch])
        return plus(found, weight_decay, at), loss

    w = [np.asarray(tensor, float) for tensor in tensors]
    velocity, losses = [np.zeros_like(tensor) for tensor in w], []
    for group in groups:
        first, _ = slope(w, group[0])
        if shared:
            velocity = first = plus(first, momentum, velocity)
        step, loss = slope(plus(w, -alpha, first), group[1])
        losses.append(loss)
        if delta:
            above, _ = slope(plus(w, delta, step), group[2])
            below, _ = slope(plus(w, -delta, step), group[2])
            step = plus(step, -alpha / (2 * delta), plus(above, -1, below))
        velocity = plus(step, momentum, velocity)
        w = plus(w, -beta, velocity)
    return w, losses
