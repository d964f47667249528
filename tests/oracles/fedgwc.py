"""FedGWC's interactions in plain loops (arXiv:2502.03340)."""

import numpy as np

from tests.oracles.ifca import local_steps, loss


def trained(model, x, y, epochs, **local):
    """Full-batch epochs from one model: the trained model, and the loss before each."""
    kernel, bias = model
    losses = [
        loss(local_steps((kernel, bias), x, y, steps=done, **local) if done else model, x, y) for done in range(epochs)
    ]
    return local_steps(model, x, y, steps=epochs, **local), losses


def weighed(interactions, members, ids, losses, examples):
    """The interactions `[N][N]` after the clients `ids` of a cluster of so many `members` told their losses."""
    total, steps = sum(examples), range(len(losses[0]))
    means = [sum(n * each[s] for n, each in zip(examples, losses)) / total for s in steps]
    spread = [sum(n * (each[s] - means[s]) ** 2 for n, each in zip(examples, losses)) / total for s in steps]
    rewards = [sum(np.exp(-((each[s] - means[s]) ** 2) / 2 / spread[s]) for s in steps) / len(steps) for each in losses]
    share, found = len(ids) / members, [list(row) for row in interactions]
    for reward, i in zip(rewards, ids):
        for j in ids:
            found[i][j] = (1 - share) * found[i][j] + share * reward / sum(rewards)
    return found


def affinity(interactions, gamma):
    """How alike the clients see all others, who see neither of the two."""
    low, high = np.min(interactions), np.max(interactions)
    size = range(len(interactions))
    found = np.zeros([len(interactions)] * 2)
    for i in size:
        for j in size:
            others = [k for k in size if k not in (i, j)]
            apart = sum(((interactions[k][i] - interactions[k][j]) / (high - low)) ** 2 for k in others)
            found[i, j] = 0 if i == j else np.exp(-gamma * apart)
    return found
