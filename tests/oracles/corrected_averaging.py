"""FedNova and SCAFFOLD in plain NumPy, float64, by the formulas of the papers and client by client."""

import numpy as np

from tests.oracles.softmax_regression import gradient


def flat(tensors):
    return np.concatenate([np.ravel(tensor) for tensor in tensors]).astype(float)


def like(vector, tensors):
    shapes = [np.shape(tensor) for tensor in tensors]
    parts = np.split(vector, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes)]


def descend(start, like_these, x, y, batches, rate, momentum, pull=0.0, correction=0.0):
    """SGD with momentum on g + μ (w - w0) + correction; returns the vector."""
    vector, velocity = start.copy(), np.zeros_like(start)
    for batch in batches:
        slope = flat(gradient(like(vector, like_these), x[batch], y[batch])[0])
        velocity = momentum * velocity + slope + pull * (vector - start) + correction
        vector = vector - rate * velocity
    return vector


def weights_of_steps(steps, rate, momentum, pull=0.0):
    """The vector a: what each of the gradients counts in (w0 - w) / η, found with gradients that are one at one
    step only.
    """
    found = []
    for one in range(steps):
        moved = velocity = 0.0
        for step in range(steps):
            velocity = momentum * velocity + float(step == one) - pull * rate * moved
            moved += velocity
        found.append(moved)
    return np.array(found)


def fednova(initial, cohorts, data, batches, rate, momentum, pull=0.0):
    """Rounds of FedNova; `data[client] = (x, y)`, `batches(round, client)` index arrays."""
    w = flat(initial)
    for number, clients in enumerate(cohorts, 1):
        sizes = np.array([len(data[client][1]) for client in clients], float)
        p = sizes / sizes.sum()
        directions, norms = [], []
        for client in clients:
            visited = batches(number, client)
            moved = descend(w, initial, *data[client], visited, rate, momentum, pull)
            norms.append(np.abs(weights_of_steps(len(visited), rate, momentum, pull)).sum())
            directions.append((w - moved) / norms[-1])
        w = w - (p @ np.array(norms)) * (p @ np.array(directions))
    return w


def scaffold(
    initial, cohorts, data, batches, rate, momentum, option="difference", clients=None, server_rate=1.0, by_size=False
):
    """Rounds of SCAFFOLD; `clients` is N. Returns the model, c, and c_i of each client."""
    w = flat(initial)
    control, own = np.zeros_like(w), {client: np.zeros_like(w) for client in data}
    for number, cohort in enumerate(cohorts, 1):
        moves, changes = [], []
        for client in cohort:
            visited = batches(number, client)
            moved = descend(w, initial, *data[client], visited, rate, momentum, correction=control - own[client])
            if option == "difference":
                steps = weights_of_steps(len(visited), rate, momentum).sum()
                renewed = own[client] - control + (w - moved) / (steps * rate)
            else:
                renewed = flat(gradient(like(w, initial), *data[client])[0])
            moves.append(moved - w)
            changes.append(renewed - own[client])
            own[client] = renewed
        sizes = np.array([len(data[client][1]) for client in cohort], float)
        w = w + server_rate * np.average(moves, axis=0, weights=sizes if by_size else None)
        control = control + np.sum(changes, axis=0) / clients
    return w, control, own
