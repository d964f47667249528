"""Validation examples: a share of each client's training examples that no training sees, to choose hyper-parameters by."""

import dataclasses

import numpy as np

from tffcl.lab.datasets.core import FederatedDataset
from tffcl.validation import Fraction, Whole, validated


@validated
def hold_out_validation(federated: FederatedDataset, *, seed: Whole, validation: Fraction = 0.0) -> FederatedDataset:
    """Holds a share of every client's training examples out, after the partition: who holds what stays as it is without.

    Args:
      federated: Who holds what.
      seed: Decides which examples.
      validation: The share, rounded to examples; every client keeps at least one to train on. 0 holds none out.
    """
    if not validation:
        return federated
    parts = [_parted(index, validation, [seed, 0xA11D, client]) for client, index in enumerate(federated.train_indices)]
    train, held = zip(*parts, strict=True)
    return dataclasses.replace(federated, train_indices=train, validation_indices=held)


def _parted(index: np.ndarray, share: float, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation examples of one client, in their order."""
    count = min(round(share * len(index)), len(index) - 1)
    chosen = np.zeros(len(index), bool)
    chosen[np.random.default_rng(seed).choice(len(index), count, replace=False)] = True
    return index[~chosen], index[chosen]
