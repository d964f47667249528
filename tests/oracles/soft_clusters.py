"""FedEM, FedSoft and FedRC in plain NumPy, on softmax regression with SGD and momentum."""

import numpy as np


def probabilities(vector, x):
    """Of the classes, `[n, C]`; the vector is the kernel `[d, C]` and the bias `[C]`."""
    kernel, bias = vector[: -(len(vector) // (x.shape[1] + 1))], vector[-(len(vector) // (x.shape[1] + 1)) :]
    logits = x @ kernel.reshape(x.shape[1], -1) + bias
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


def losses(models, x, y):
    """`[K, n]`, minus the logarithm of the probability of each label."""
    return np.array([-np.log(probabilities(vector, x)[np.arange(len(y)), y]) for vector in models])


def train(vector, x, y, batches, rate, momentum, weights=None, pull=0.0, centre=None, told=None):
    """SGD over index batches on the mean of the examples' losses times their weights, held near a centre; `told` gets
    what these losses sum to in each step."""
    weights = np.ones(len(y)) if weights is None else weights
    vector, velocity = np.asarray(vector, float), 0.0
    centre = vector if centre is None else centre
    for batch in batches:
        share = probabilities(vector, x[batch])
        if told is not None:
            told.append(weights[batch] @ -np.log(share[np.arange(len(batch)), y[batch]]))
        share[np.arange(len(batch)), y[batch]] -= 1
        upstream = share * weights[batch, np.newaxis] / len(batch)
        slope = np.concatenate([(x[batch].T @ upstream).ravel(), upstream.sum(axis=0)])
        velocity = momentum * velocity + slope + pull * (vector - centre)
        vector = vector - rate * velocity
    return vector


def e_step(models, mixture, x, y, prior=None):
    """Responsibilities `[K, n]`: each model's share of each example."""
    joint = np.asarray(mixture)[:, np.newaxis] * np.exp(-losses(models, x, y))
    joint = joint if prior is None else joint / prior[:, y]
    return joint / joint.sum(axis=0)


def fedem(models, cohorts, data, batches, rate, momentum):
    """The models, the mixture of each client after a round of each cohort, and the loss that each told last: the sum of
    all models' in the second of two epochs."""
    models, mixtures, told = np.asarray(models, float), {}, {}
    for number, cohort in enumerate(cohorts, 1):
        moved, total = np.zeros_like(models), 0
        for client in cohort:
            x, y = data[client]
            shares = e_step(models, mixtures.get(client, np.full(len(models), 1 / len(models))), x, y)
            mixtures[client] = shares.mean(axis=1)
            steps, losses = batches(number, client), [[] for _ in models]
            trained = [train(m, x, y, steps, rate, momentum, w, told=own) for m, w, own in zip(models, shares, losses)]
            told[client] = sum(sum(own[len(own) // 2 :]) for own in losses) / len(y)
            moved += len(y) * np.array(trained)
            total += len(y)
        models = moved / total
    return models, mixtures, told


def fedrc(models, cohorts, data, batches, rate, momentum, classes):
    """As `fedem`, with each likelihood divided by the share of the label among what the model is responsible for."""
    models, mixtures, counts = np.asarray(models, float), {}, {}
    for number, cohort in enumerate(cohorts, 1):
        moved, total = np.zeros_like(models), 0
        summed = np.maximum(sum(counts.values(), np.zeros([len(models), classes])), 1e-8)
        prior = summed / summed.sum(axis=1, keepdims=True) if counts else np.full_like(summed, 1 / classes)
        told = {}
        for client in cohort:
            x, y = data[client]
            shares = e_step(models, mixtures.get(client, np.full(len(models), 1 / len(models))), x, y, prior)
            mixtures[client] = shares.mean(axis=1)
            told[client] = np.array([np.bincount(y, own, classes) for own in shares])
            steps = batches(number, client)
            moved += len(y) * np.array([train(m, x, y, steps, rate, momentum, w) for m, w in zip(models, shares)])
            total += len(y)
        models, counts = moved / total, counts | told
    return models, mixtures, sum(counts.values())


def fedsoft(models, cohorts, data, batches, rate, momentum, pull, every, smoother, start):
    """The models and the importance weights of each client after a round of each cohort."""
    models, importance, when, kept = np.asarray(models, float), {}, {}, {}
    for number, cohort in enumerate(cohorts, 1):
        moved, total = np.zeros_like(models), np.zeros(len(models))
        for client in cohort:
            x, y = data[client]
            if client not in when or (number - 1) // every > (when[client] - 1) // every:
                counts = np.bincount(losses(models, x, y).argmin(axis=0), minlength=len(models))
                shares = np.maximum(counts / len(y), smoother)
                importance[client], when[client] = shares / shares.sum(), number
            own = importance[client]
            first = kept.get(client, own @ models) if start == "own" else own @ models
            trained = train(first, x, y, batches(number, client), rate, momentum, None, pull, own @ models)
            kept[client] = trained
            moved += len(y) * own[:, np.newaxis] * trained
            total += len(y) * own
        models = moved / total[:, np.newaxis]
    return models, importance
