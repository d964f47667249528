"""Plain NumPy mini-batch SGD with momentum on a perceptron with one hidden ReLU layer."""

import numpy as np


def gradient(tensors, x, y):
    """Gradient of the mean cross-entropy, and the loss; `tensors` are kernel, bias, kernel, bias."""
    w1, b1, w2, b2 = tensors
    hidden = x @ w1 + b1
    active = np.maximum(hidden, 0)
    logits = active @ w2 + b2
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    share = exp / exp.sum(axis=1, keepdims=True)
    loss = -np.log(share[np.arange(len(y)), y]).mean()
    share[np.arange(len(y)), y] -= 1
    upstream = share / len(y)
    back = (upstream @ w2.T) * (hidden > 0)
    return [x.T @ back, back.sum(axis=0), active.T @ upstream, upstream.sum(axis=0)], loss


def train(tensors, x, y, batches, learning_rate, momentum, weight_decay=0.0, proximal_weight=0.0, centre=None):
    """SGD over the given index batches; returns the trained tensors and the losses of the steps."""
    tensors = [np.asarray(tensor, float) for tensor in tensors]
    centre = tensors if centre is None else [np.asarray(tensor, float) for tensor in centre]
    velocity = [np.zeros_like(tensor) for tensor in tensors]
    losses = []
    for batch in batches:
        slopes, loss = gradient(tensors, x[batch], y[batch])
        losses.append(loss)
        pulls = [weight_decay * t + proximal_weight * (t - c) for t, c in zip(tensors, centre)]
        velocity = [momentum * v + s + pull for v, s, pull in zip(velocity, slopes, pulls)]
        tensors = [t - learning_rate * v for t, v in zip(tensors, velocity)]
    return tensors, losses
