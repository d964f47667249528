"""NIID-Bench's "#label" partition (Li et al. 2022), which PACFL and FLIS use for label skew 20 % and 30 %."""

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.partitions.local_tests import Rule, with_tests
from tffcl.lab.datasets.partitions.splitting import by_class, share_classes
from tffcl.validation import Count, Whole, validated


@validated
def label_skew(
    dataset: Dataset, *, seed: Whole, clients: Count, classes_per_client: Count, test: Rule = "classes"
) -> Partition:
    """Gives each client a few classes: client i always class i mod K, then other distinct classes at random.

    Each class is shuffled and cut in near-equal parts for the clients that hold it, in their order, so sizes
    of clients differ. There are no true groups. 20 % of 10 classes is 2 of them, 30 % is 3.

    Args:
      dataset: The data set, K classes.
      seed: Decides who gets what.
      clients: How many clients.
      classes_per_client: How many classes each of them holds.
      test: As in `local_tests`.

    Raises:
      UserError: If there are fewer classes than that, or a client gets none of the examples of its classes.
    """
    classes = dataset.num_classes
    if classes_per_client > classes:
        raise UserError(f"classes_per_client is {classes_per_client}; {dataset.name} has {classes} classes")
    rng = np.random.default_rng(seed)
    owners = [[] for _ in range(classes)]
    for client in range(clients):
        first = client % classes
        others = rng.permutation(np.delete(np.arange(classes), first))[: classes_per_client - 1]
        for label in (first, *others):
            owners[label].append(client)
    examples = by_class(dataset.train.y, classes)
    train = share_classes(examples, owners, clients, rng)
    for client, index in enumerate(train):
        if not len(index):
            held = [label for label in range(classes) if client in owners[label]]
            counts = ", ".join(f"class {label}: {len(examples[label])} for {len(owners[label])}" for label in held)
            raise UserError(f"label_skew leaves client {client} without examples ({counts} clients); use fewer clients")
    return with_tests(dataset, train, test=test, seed=seed)
