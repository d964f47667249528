"""Federated averaging in plain NumPy: clients' batches, a perceptron's training on them, and the mean that follows."""

import numpy as np

from tests.oracles import softmax_regression
from tffcl.client_work.client_work import visiting_order


def client_data(model, population, client):
    """A client's features `float [n, d]` and labels."""
    data = next(iter(population.train(client).dataset.batch(1000)))
    features = model.preprocess(data["x"]).numpy()
    return features.reshape(len(features), -1).astype(float), data["y"].numpy()


def epochs_of(cohort, client, n, size, epochs):
    """The batches of each epoch, in the order that the client work visits them."""
    found = []
    for epoch in range(epochs):
        order = visiting_order(n, cohort.client_seed(client) + np.array([0, epoch], np.int32)).numpy()
        found.append([order[start : start + size] for start in range(0, n, size)])
    return found


def tensors_of(model, vector):
    return [tensor.numpy() for tensor in model.unravel(np.asarray(vector, np.float32))]


def trained(model, population, cohort, client, vector, training, choose=lambda batches: batches):
    """A client's model `float [P]` after SGD on the batches that `choose` takes of each epoch."""
    x, y = client_data(model, population, client)
    epochs = epochs_of(cohort, client, len(y), training.batch_size, training.epochs)
    batches = [batch for each in epochs for batch in choose(each)]
    tensors, _ = softmax_regression.train(
        tensors_of(model, vector), x, y, batches, training.learning_rate, training.momentum
    )
    return np.concatenate([np.ravel(tensor) for tensor in tensors])
