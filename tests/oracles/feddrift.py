"""Plain FedDrift on softmax regression (arXiv:2206.00799): losses, new models, merges, and a round of training."""

import itertools

import numpy as np

from tests.oracles.ifca import local_steps, loss


class FedDrift:
    """Clients by number, each with the place of its model; a merge takes the model of the lower place.

    Attributes:
      models: List of `(kernel, bias)`.
      owned: The model of each client.
      untrained: Models that nobody has trained.
    """

    def __init__(self, models, owned, untrained, threshold, eager=False):
        self.models, self.owned, self.untrained = list(models), list(owned), set(untrained)
        self.losses, self._threshold, self._eager = [np.inf] * len(owned), threshold, eager

    def check(self, data):
        """Lets clients, `{client: (x, y)}`, try all models."""
        count, tried, opened, held = len(self.models), {}, None, {}
        before = list(self.owned)
        for client, (x, y) in data.items():
            tried[client] = [loss(model, x, y) for model in self.models[:count]]
            own = self.owned[client]
            allowed = [k for k in range(count) if k not in self.untrained or k == own]
            best = min(allowed, key=tried[client].__getitem__)
            least, last = tried[client][best], self.losses[client]
            self.losses[client] = least
            if least > last + self._threshold and own not in self.untrained:
                if opened is None or not self._eager:
                    opened = len(self.models)
                    self.models.append(self.models[best])
                best = opened
            else:
                held[client] = own
            self.owned[client] = best
        self.untrained |= set(range(count, len(self.models)))
        if not self._eager:
            self._merge(data, tried, held, before)

    def _merge(self, data, tried, held, before):
        members = {
            k: [c for c in data if self.owned[c] == k] + [c for c in held if held[c] == k]
            for k in range(len(self.models))
        }
        compared = [k for k, own in members.items() if own and k not in self.untrained]

        def on(i, j):
            sizes = [len(data[c][1]) for c in members[j]]
            return sum(n * tried[c][i] for n, c in zip(sizes, members[j])) / sum(sizes)

        def apart(first, second):
            return max(max(on(i, j) - on(i, i), on(j, i) - on(j, j), 0) for i in first for j in second)

        groups = [[k] for k in compared]
        while len(groups) > 1:
            first, second = min(itertools.combinations(groups, 2), key=lambda pair: apart(*pair))
            if apart(first, second) > self._threshold:
                break
            groups = [each for each in groups if each not in (first, second)] + [first + second]
        gone = set()
        for group in groups:
            weights = np.array([self.owned.count(k) + before.count(k) for k in group], float)
            lowest = min(group)
            self.models[lowest] = tuple(
                sum(w * self.models[k][part] for w, k in zip(weights, group)) / weights.sum() for part in range(2)
            )
            self.owned = [lowest if k in group else k for k in self.owned]
            gone |= set(group) - {lowest}
        left = [k for k in range(len(self.models)) if k not in gone]
        self.models = [self.models[k] for k in left]
        self.owned = [left.index(k) for k in self.owned]
        self.untrained = {left.index(k) for k in self.untrained}

    def train(self, data, **local):
        """A round of FedAvg in each cluster; `local` as in `oracles.ifca.local_steps`."""
        for k in {self.owned[c] for c in data}:
            members = [c for c in data if self.owned[c] == k]
            trained = [local_steps(self.models[k], *data[c], **local) for c in members]
            sizes = np.array([len(data[c][1]) for c in members], float)
            self.models[k] = tuple(
                sum(n * each[part] for n, each in zip(sizes, trained)) / sizes.sum() for part in range(2)
            )
            self.untrained.discard(k)
