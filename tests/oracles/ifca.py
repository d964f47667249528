"""Plain NumPy IFCA (arXiv:2006.04088, Alg. 1, model averaging) on softmax regression, full-batch local steps."""

import numpy as np


def probabilities(model, x):
    kernel, bias = model
    logits = x @ kernel + bias
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


def loss(model, x, y):
    return -np.log(probabilities(model, x)[np.arange(len(y)), y]).mean()


def local_steps(model, x, y, *, steps, learning_rate, momentum):
    kernel, bias = model
    velocity = [np.zeros_like(kernel), np.zeros_like(bias)]
    for _ in range(steps):
        error = probabilities((kernel, bias), x)
        error[np.arange(len(y)), y] -= 1
        error /= len(y)
        velocity = [momentum * v + slope for v, slope in zip(velocity, (x.T @ error, error.sum(axis=0)))]
        kernel, bias = kernel - learning_rate * velocity[0], bias - learning_rate * velocity[1]
    return kernel, bias


def round_of_ifca(models, clients, forced=None, **local):
    """One round.

    Args:
      models: List of `(kernel, bias)`.
      clients: List of `(x, y)`.
      forced: The model that each client must take; default it chooses that of least loss.
      **local: `steps`, `learning_rate`, `momentum`.

    Returns:
      The next models, and which one each client took.
    """
    choices = forced or [int(np.argmin([loss(model, x, y) for model in models])) for x, y in clients]
    trained = [local_steps(models[choice], x, y, **local) for choice, (x, y) in zip(choices, clients)]
    following = list(models)
    for k in set(choices):
        members = [i for i, choice in enumerate(choices) if choice == k]
        sizes = np.array([len(clients[i][1]) for i in members], float)
        following[k] = tuple(
            sum(size * trained[i][part] for size, i in zip(sizes, members)) / sizes.sum() for part in range(2)
        )
    return following, choices
