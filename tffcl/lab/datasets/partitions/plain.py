"""Partitions with the same mix of labels everywhere: equal sizes, or sizes by a power law."""

import numpy as np

from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.partitions.local_tests import Rule, with_tests
from tffcl.lab.datasets.partitions.splitting import enough, equal_parts, joined
from tffcl.validation import Count, Positive, Whole, validated


@validated
def iid(dataset: Dataset, *, seed: Whole, clients: Count, test: Rule = "share") -> Partition:
    """Shuffles all training examples and cuts them in near-equal parts; one true group.

    Args:
      dataset: The data set.
      seed: Decides who gets what.
      clients: How many clients.
      test: As in `local_tests`.

    Raises:
      UserError: If there are more clients than examples.
    """
    enough(clients, len(dataset.train))
    parts = equal_parts(np.arange(len(dataset.train)), clients, np.random.default_rng(seed))
    train = [joined([part]) for part in parts]
    return with_tests(dataset, train, test=test, seed=seed, groups=np.zeros(clients, np.int32))


@validated
def quantity_skew(
    dataset: Dataset, *, seed: Whole, clients: Count, power: Positive = 1.0, min_size: Count = 10, test: Rule = "share"
) -> Partition:
    """Gives every client random examples, and the client of rank r (from 1) a number that falls as r to the
    -`power`.

    Everybody gets `min_size` examples first; the rest follows the power law. Ranks are dealt at random. All
    examples are used; one true group.

    Args:
      dataset: The data set.
      seed: Decides who gets what.
      clients: How many clients.
      power: The exponent; larger is more unequal.
      min_size: The least examples of a client.
      test: As in `local_tests`.

    Raises:
      UserError: If there are too few examples.
    """
    enough(clients, len(dataset.train), each=min_size)
    weights = np.arange(1, clients + 1) ** -power
    rng = np.random.default_rng(seed)
    rest = len(dataset.train) - clients * min_size
    bounds = np.round(np.cumsum(rng.permutation(weights)) / weights.sum() * rest).astype(int)
    sizes = min_size + np.diff(bounds, prepend=0)
    parts = np.split(rng.permutation(len(dataset.train)), np.cumsum(sizes)[:-1])
    train = [joined([part]) for part in parts]
    return with_tests(dataset, train, test=test, seed=seed, groups=np.zeros(clients, np.int32))
