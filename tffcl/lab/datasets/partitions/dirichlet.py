"""NIID-Bench's Dirichlet partition (Li et al. 2022), which PACFL and FLIS use as Dir(0.1)."""

from typing import Annotated

import msgspec
import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.partitions.local_tests import Rule, with_tests
from tffcl.lab.datasets.partitions.splitting import by_class, enough, joined
from tffcl.validation import Count, Whole, validated

_ATTEMPTS = 5000
_Alpha = Annotated[float, msgspec.Meta(ge=0.001)]  # NumPy's sampler does not come back from tinier ones


@validated
def dirichlet(
    dataset: Dataset, *, seed: Whole, clients: Count, alpha: _Alpha, min_size: Count = 10, test: Rule = "classes"
) -> Partition:
    """Shares each class out in proportions drawn from a symmetric Dirichlet distribution.

    Class by class, a client that already holds its equal share of the whole set or more gets nothing of the
    class, and the proportions of the others are scaled up to 1. This is drawn again until every client has
    `min_size` examples. All examples are used; there are no true groups.

    Args:
      dataset: The data set.
      seed: Decides who gets what.
      clients: How many clients.
      alpha: The distribution's parameter; smaller is more unequal.
      min_size: The least examples of a client.
      test: As in `local_tests`.

    Raises:
      UserError: If there are too few examples, or no draw gives everybody `min_size`.
    """
    enough(clients, len(dataset.train), each=min_size)
    rng = np.random.default_rng(seed)
    examples = by_class(dataset.train.y, dataset.num_classes)
    cuts = _cuts([len(index) for index in examples], clients, alpha, min_size, rng)
    pieces = [[] for _ in range(clients)]
    for index, bounds in zip(examples, cuts, strict=True):
        for client, part in enumerate(np.split(rng.permutation(index), bounds)):
            pieces[client].append(part)
    return with_tests(dataset, [joined(each) for each in pieces], test=test, seed=seed)


def _cuts(counts: list[int], clients: Count, alpha: _Alpha, min_size: int, rng) -> list[np.ndarray]:
    """Returns, per class, where to cut it: int [clients - 1]. Only sizes are drawn, so attempts are quick."""
    best = 0
    for _ in range(_ATTEMPTS):
        drawn = _draw(counts, clients, alpha, rng)
        if drawn is None:
            continue
        cuts, sizes = drawn
        if sizes.min() >= min_size:
            return cuts
        best = max(best, int(sizes.min()))
    raise UserError(
        f"dirichlet with alpha = {alpha:g} and {clients} clients did not reach min_size = {min_size} in "
        f"{_ATTEMPTS} draws (at best the smallest client had {best} examples); "
        "use fewer clients, a larger alpha or a smaller min_size"
    )


def _draw(counts, clients, alpha, rng):
    """Draws once; None if only full clients were drawn for some class, which happens with a tiny alpha."""
    sizes = np.zeros(clients, int)
    fair = sum(counts) / clients
    cuts = []
    for count in counts:
        proportions = rng.dirichlet(np.full(clients, alpha)) * (sizes < fair)
        cumulated = np.cumsum(proportions)
        if not cumulated[-1] > 0:
            return None
        # Divided by its own end it ends in 1 exactly: full clients at the end get nothing by rounding.
        bounds = (cumulated / cumulated[-1] * count).astype(int)[:-1]
        sizes += np.diff(bounds, prepend=0, append=count)
        cuts.append(bounds)
    return cuts, sizes
