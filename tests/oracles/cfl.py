"""CFL's server in plain NumPy, with dictionaries and a bipartition by trying all (Sattler et al.,
arXiv:1910.01991, Alg. 1).
"""

import itertools

import numpy as np


def cosine(first, second):
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


def best_bipartition(updates):
    """The two parts (as sets of places) whose most alike members are least alike, of all bipartitions."""
    places = range(len(updates))
    best, found = np.inf, None
    for size in range(1, len(updates) // 2 + 1):
        for chosen in itertools.combinations(places, size):
            rest = [place for place in places if place not in chosen]
            largest = max(cosine(updates[i], updates[j]) for i in chosen for j in rest)
            if largest < best - 1e-12:
                best, found = largest, (set(rest), set(chosen))
    return found, best


class Server:
    """Clusters are sets of client IDs; each has a model."""

    def __init__(self, clients, model, stationary, progress, first_rounds):
        self.members, self.models = [set(clients)], [np.array(model, float)]
        self.stationary, self.progress, self.first_rounds = stationary, progress, first_rounds
        self.last, self.splits = {}, []

    def round(self, number, updates, sizes):
        """`updates` and `sizes` by client ID, of those that take part."""
        self.last |= updates
        for cluster in range(len(self.members)):
            present = sorted(self.members[cluster] & set(updates))
            if not present:
                continue
            total = sum(sizes[client] for client in present)
            mean = sum(sizes[client] / total * updates[client] for client in present)
            self.models[cluster] = self.models[cluster] + mean
            longest = max(np.linalg.norm(updates[client]) for client in present)
            still = np.linalg.norm(mean) < self.stationary and longest > self.progress
            if number > self.first_rounds and len(present) > 2 and still:
                self.split(number, cluster, present, [updates[client] for client in present])

    def split(self, number, cluster, present, updates):
        parts, _ = best_bipartition(updates)
        halves = [[updates[place] for place in part] for part in parts]
        sides = {present[place]: side for side, part in enumerate(parts) for place in part}
        staying = sides[present[0]]
        for absent in self.members[cluster] - set(present):
            near = (
                [max(cosine(self.last[absent], each) for each in half) for half in halves]
                if absent in self.last
                else None
            )
            sides[absent] = staying if near is None else int(near[1] > near[0])
        moved = {client for client, side in sides.items() if side != staying}
        self.splits.append((number, frozenset(self.members[cluster] - moved), frozenset(moved)))
        self.members[cluster] = self.members[cluster] - moved
        self.members.append(moved)
        self.models.append(self.models[cluster])
