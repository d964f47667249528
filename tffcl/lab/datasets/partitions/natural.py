"""Partitions by properties of the data: by the owner of an image, and by what the image shows."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from tffcl.display import listed
from tffcl.errors import UserError, unknown
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.partitions.splitting import (
    RULES,
    Domains,
    Rule,
    block_groups,
    by_class,
    enough,
    equal_parts,
    joined,
    with_tests,
)
from tffcl.validation import Count, Whole, one_of, validated

_MOST_NAMED = 5  # owners that are named when some are left out
_Attributes = Annotated[Sequence[str], msgspec.Meta(min_length=2, description="two or more names")]


@validated
def by_owner(
    dataset: Dataset,
    *,
    seed: Whole,
    clients: Count | None = None,
    min_train: Count = 1,
    min_test: Whole = 1,
    test: one_of((*RULES, "own")) = "own",
) -> Partition:
    """Makes one client from each natural owner, e.g. a writer of FEMNIST; the true groups are the data set's, if it has
    some (FLT, scenario 3; StoCFL).

    Args:
      dataset: A data set with owners.
      seed: Decides which owners are taken if not all are, and the shares of test images.
      clients: The number of owners to take at random; default all. They keep their order.
      min_train: Owners with fewer training images are left out.
      min_test: Owners with fewer test images are left out, because an accuracy without test images means nothing.
      test: "own": the owner's test images; or all of its "classes", "all" of the data set, or a "share" of all.

    Raises:
      UserError: If the data set has no owners, or fewer than `clients` that are large enough.
    """
    if dataset.train.owner is None or dataset.test.owner is None:
        raise UserError(
            "by_owner needs a data set with owners (femnist, table, folders, or npz with client_train); "
            f"not {dataset.name}"
        )
    owners = 1 + max(int(dataset.train.owner.max()), int(dataset.test.owner.max(initial=0)))
    train, own = by_class(dataset.train.owner, owners), by_class(dataset.test.owner, owners)
    chosen = np.array([o for o in range(owners) if len(train[o]) >= min_train and len(own[o]) >= min_test], int)
    limits = f"owners with {min_train} or more training and {min_test} or more test images"
    if not len(chosen):
        raise UserError(f"{dataset.name} has no {limits}")
    small = [o for o in np.setdiff1d(np.arange(owners), chosen).tolist() if len(train[o]) or len(own[o])]
    called = listed([dataset.owner_names[o] if dataset.owner_names else o for o in small], _MOST_NAMED)
    note = f"only {limits} are clients; left out: {called}" if small else ""
    if clients is not None:
        if clients > len(chosen):
            raise UserError(f"clients is {clients}; {dataset.name} has {len(chosen)} {limits}")
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, clients, replace=False))
    held = [joined([train[owner]]) for owner in chosen]
    groups = None if dataset.owner_groups is None else dataset.owner_groups[chosen]
    names = tuple(dataset.owner_names[owner] for owner in chosen) if dataset.owner_names else None
    if test == "own":
        partition = Partition(tuple(held), tuple(joined([own[owner]]) for owner in chosen), groups)
    else:
        partition = with_tests(dataset, held, test=test, seed=seed, groups=groups)
    return dataclasses.replace(partition, names=names, group_names=dataset.group_names, note=note)


@validated
def by_attribute(
    dataset: Dataset,
    *,
    seed: Whole,
    clients: Count,
    attributes: _Attributes = ("Smiling", "Wavy_Hair", "Wearing_Hat"),
    test: Rule = "share",
) -> Partition:
    """Makes a block of clients per attribute, which hold the images with only this one of the attributes.

    This is PACFL's study of clusters on CelebA (appendix, "Clustering Analysis"). Images with none or several of the
    attributes are not used. The images of an attribute are shuffled and split into near-equal parts. The true groups
    are the blocks.

    Args:
      dataset: A data set with attributes.
      seed: Decides which images each client gets.
      clients: How many clients; a multiple of the number of attributes.
      attributes: Names of two or more attributes.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these. The domain
        has the test images with the client's attribute.

    Raises:
      UserError: If the data set has no attributes or not these, the clients do not divide equally, or there are too few
        images.
    """
    if dataset.train.attributes is None or dataset.test.attributes is None:
        raise UserError(f"by_attribute needs a data set with attributes (celeba); not {dataset.name}")
    if len(set(attributes)) < 2:
        raise UserError(f"attributes is {attributes!r}; it must be two or more names")
    for name in attributes:
        if name not in dataset.attribute_names:
            raise unknown(f"attribute of {dataset.name}", name, dataset.attribute_names)
    groups = block_groups(clients, len(attributes), "attributes")
    columns = [dataset.attribute_names.index(name) for name in attributes]
    rng = np.random.default_rng(seed)
    train, tests = [], []
    for column, name in enumerate(attributes):
        held = _only(dataset.train.attributes[:, columns], column)
        enough(clients // len(attributes), len(held), f"images with only {name}")
        train += equal_parts(held, clients // len(attributes), rng)
        tests.append(_only(dataset.test.attributes[:, columns], column))
    partition = with_tests(dataset, train, test=test, seed=seed, groups=groups, domains=Domains(groups, tests))
    return dataclasses.replace(partition, group_names=tuple(attributes))


def _only(chosen: np.ndarray, column: int) -> np.ndarray:
    """Returns the rows of bool [n, attributes] that are true in this column and in no other."""
    return np.flatnonzero(chosen[:, column] & (chosen.sum(axis=1) == 1))
