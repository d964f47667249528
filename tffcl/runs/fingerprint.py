"""What tells whether data are those of a run: shapes and hashes, not the data."""

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from tffcl.clients.population import Population
from tffcl.errors import UserError

_MOST_BYTES = 2**28  # of an array that are hashed, some 0.3 s; of larger ones rows that are evenly spread
_MOST_READ = 64  # clients whose examples are read where they are not at hand as arrays


def of_array(*parts: np.ndarray) -> str:
    """Returns the size of arrays, taken together, and a hash of their shapes, types and bytes."""
    found = hashlib.blake2b(digest_size=12)
    for array in map(np.asarray, parts):
        found.update(f"{array.shape} {array.dtype}".encode())
        step = max(1, -(-array.nbytes // _MOST_BYTES))
        array = array[::step] if array.ndim else array
        found.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes())
    return f"{sum(np.shape(part)[0] for part in parts if np.ndim(part))} {found.hexdigest()}"


def of_parts(indices: Iterable[np.ndarray]) -> str:
    """The same for a list of arrays, one a client."""
    held = [np.asarray(each) for each in indices]
    lengths = np.array([len(each) for each in held])
    return f"{lengths.sum()} {of_array(np.concatenate(held), lengths).split()[1]}"


def of_populations(populations: Mapping[int, Population]) -> dict[str, str]:
    """The fingerprint of the clients of a run, by what is compared.

    Args:
      populations: Round to the population from then on.
    """
    found = {}
    for start, population in populations.items():
        when = f" from round {start} on" if start else ""
        found[f"clients{when}"] = of_array(np.asarray(population.shown_ids).astype(str))
        found[f"sizes of clients{when}"] = of_array(population.sizes)
        held = population.client_ids
        if population.arrays is None:  # to read them all could take long, and would keep them in memory
            held = held[:: -(-len(held) // _MOST_READ)]
        parts = [part for client in held for part in population.stacked(int(client)).values()]
        found[f"training images{when}"], found[f"training labels{when}"] = of_array(*parts[::2]), of_array(*parts[1::2])
        tests = population.tests
        if tests is not None:
            found[f"test examples{when}"] = of_array(tests.x, tests.y, np.concatenate(tests.indices))
    return found


def check_same_data(out, before: Mapping[str, str] | None, now: Mapping[str, str]):
    """Checks that data are those of the run in a directory.

    Args:
      out: The directory.
      before: The fingerprint that the run has noted; None for none.
      now: That of the data there are.

    Raises:
      UserError: If they differ; the message says in what.
    """
    if before is None or before == now:
        return
    differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    said = [_difference(name, before.get(name), now.get(name)) for name in differing]
    raise UserError(f"the data have changed since the run in {out}: {', '.join(said)}; a new run needs another directory")


def _difference(name: str, before: str | None, now: str | None) -> str:
    if before is None or now is None:
        return f"{name} are {'new' if before is None else 'gone'}"
    was, are = (str(each).split()[0] for each in (before, now))
    return f"{name} differ ({are}, not {was})" if was != are else f"{name} differ"
