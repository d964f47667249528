"""FLT's scenario 4, "structured non-IID FEMNIST": groups of classes, different sizes within each group."""

from typing import Annotated

import msgspec
import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.partitions.local_tests import Domains, Rule, with_tests
from tffcl.lab.datasets.partitions.splitting import block_groups, joined
from tffcl.validation import Count, Whole, check_value, validated


def growing_sizes(total: int, clients: int) -> np.ndarray:
    """Returns int [clients], ascending, of sum `total`: half of it in equal parts, half in growing ones.

    Client i (from 1) gets floor(F + exp(a i^2)), where F = floor(total / 2 / clients) and `a` is such that
    the real sizes sum to `total`. The paper speaks of a power law; this is the rule of its code, but for what
    rounding leaves: one each goes to the largest, where the code gives all of it to the first client, which
    so becomes a large one.
    """
    flat = total // 2 // clients
    target = total - flat * clients
    squares = np.arange(1, clients + 1) ** 2.0

    def grown(rate):
        return np.exp(np.minimum(rate * squares, 700.0))  # exp overflows beyond

    low, high = -50.0, np.log(target + 1.0)
    for _ in range(200):
        rate = (low + high) / 2
        low, high = (rate, high) if grown(rate).sum() < target else (low, rate)
    sizes = np.floor(flat + grown(low)).astype(int)
    left = total - sizes.sum()  # less than one per client
    sizes[clients - left :] += 1
    return sizes


@validated
def structured(dataset: Dataset, *, seed: Whole, clients: Count, classes_per_group: Count = 5, test: Rule = "all") -> Partition:
    """Gives each block of clients a group of consecutive classes, in parts of growing size (`growing_sizes`).

    The last group has what classes are left: EMNIST balanced's 47 make nine groups of 5 and one of 2. The
    examples of a group are shuffled, so that small clients miss some of its classes. All examples are used;
    the groups are the true groups. FLT has 2,400 clients, or 600.

    Args:
      dataset: The data set.
      seed: Decides who gets what.
      clients: How many clients; a multiple of the number of groups.
      classes_per_group: How many classes are in a group.
      test: As in `local_tests`; "all" is all test images of the group's classes, as in FLT.

    Raises:
      UserError: If the clients do not divide into the groups or a group has fewer than two examples per
        client.
    """
    check_value("classes_per_group", classes_per_group, Annotated[int, msgspec.Meta(ge=1, le=dataset.num_classes)])
    group_of_class = np.arange(dataset.num_classes) // classes_per_group
    number = int(group_of_class[-1]) + 1
    groups = block_groups(clients, number, f"groups of {classes_per_group} classes")
    rng = np.random.default_rng(seed)
    tests = [np.flatnonzero(group_of_class[dataset.test.y] == group) for group in range(number)]
    train = []
    for group in range(number):
        held = np.flatnonzero(group_of_class[dataset.train.y] == group)
        block = clients // number
        if len(held) < 2 * block:
            raise UserError(f"group {group} has {len(held)} examples for {block} clients; structured needs 2 for each")
        sizes = growing_sizes(len(held), block)
        parts = np.split(rng.permutation(held), np.cumsum(sizes)[:-1])
        train += [joined([part]) for part in parts]
    return with_tests(dataset, train, test=test, seed=seed, groups=groups, domains=Domains(groups, tests))
