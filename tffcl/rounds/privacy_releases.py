"""What a round lets the server learn about its clients. The ledger counts it before the round runs."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from tffcl.aggregators.contract import traits
from tffcl.clients.simulation_context import current
from tffcl.errors import UserError

if TYPE_CHECKING:  # at run time it would import TensorFlow
    from tffcl.clients.cohort import Cohort
    from tffcl.clients.population import Population

MEASURED = "what features are standardised by"  # a release of all clients together, of none under its name


@dataclasses.dataclass(frozen=True)
class Release:
    """One release of values that clients computed.

    Attributes:
      what: What is released, for messages, e.g. "the upload update".
      noise_multiplier: z of its Gaussian mechanism, where a client is added or removed; 0 where nothing is hidden.
      clients: How many clients take part.
      population: How many clients there are in all.
      rate: The probability with which each of these takes part, independently; None where the cohort has a fixed size.
      once: Whether each client releases this once in a run, such as a signature. Releases of it are then of different
        clients each, and cost together as much as a single release of all clients.
      hidden: Whether secure sums hide each single client's part of it from the server, with noise or without.
      repeats: Whether its noise follows from a seed, in simulations; the same state then gives the same release again.
      cure: What would give it noise, for messages; default: the cure for a signature, or for a round.
    """

    what: str
    noise_multiplier: float
    clients: int
    population: int
    rate: float | None = None
    once: bool = False
    hidden: bool = False
    repeats: bool = False
    cure: str = ""


def all_noised(uploads: Mapping) -> bool:
    """Whether every upload has an aggregation factory with a `noise_multiplier`; False if nothing is uploaded."""
    return bool(uploads) and all(traits(factory).noise_multiplier for factory in uploads.values())


def check_hidden(uploads: Mapping, summed: Collection[str] = ()):
    """Checks that no upload is sent in the open beside uploads that secure sums or noise hide.

    Args:
      uploads: The aggregation factory of each upload, by name.
      summed: Uploads that go into secure sums although their factory, such as one of TFF's own, does not say so.

    Raises:
      UserError: If an upload is sent in the open beside hidden ones.
    """
    hidden = [name for name, factory in uploads.items() if traits(factory).hides_uploads or name in summed]
    others = [name for name in uploads if name not in hidden]
    if hidden and others:
        raise UserError(
            f"clients of this method upload {others[0]!r} beside {hidden[0]!r}, and this [aggregation] hides the "
            "latter only; another local training, or the plain mean, would not promise more than they keep",
            table="aggregation",
        )


def of_all(what: str, population: "Population", noise_multiplier: float = 0.0, **fields) -> Release:
    """Returns the release of something that every client of a population sends; fields as in `Release`."""
    clients = len(population.client_ids)
    return Release(what, noise_multiplier, clients, clients, **fields)


def release_measured(population: "Population"):
    """Counts the measurements on all training examples from which features were made (`Population.measured_noise`)."""
    if population.measured_noise is not None:
        cure = "bounds and a noise_multiplier of the table would add some"
        current().release(of_all(MEASURED, population, population.measured_noise, once=True, repeats=True, cure=cure))


def release_round(uploads, cohort: "Cohort", *, summed: bool = False):
    """Counts the releases of a round; reports, which only simulations collect, are none.

    All uploads come from the same clients: together they are a Gaussian mechanism whose 1 / z² is the sum of theirs.
    Drawing the cohort at random makes a round cheaper only if the server does not see who is in it. For each client,
    the one round in which the server does (`Cohort.seen`) is counted once more, as a round of all clients.

    Args:
      uploads: The aggregation factory of each upload, by name; one that is private has a `noise_multiplier`.
      cohort: Who takes part.
      summed: Whether all uploads go into secure sums; TFF's own factories do not say so themselves.
    """
    if not uploads:
        return
    noises = {name: traits(factory).noise_multiplier or 0.0 for name, factory in uploads.items()}
    open_ones = [name for name, noise in noises.items() if not noise]
    noise = 0.0 if open_ones else 1 / math.sqrt(sum(noise**-2 for noise in noises.values()))
    what = f"the upload {open_ones[0]!r}" if open_ones else "a round"
    hidden = summed or not noise and all(traits(factory).hides_uploads for factory in uploads.values())
    repeats = all(traits(factory).noise_seed is not None for factory in uploads.values())
    clients, population = len(cohort.client_ids), len(cohort.population.client_ids)
    how = {"hidden": hidden, "repeats": repeats}
    releases = [Release(what, noise, clients, population, cohort.rate, **how)]
    if cohort.seen and noise:
        seen = "a round in which the server sees who takes part"
        releases.append(Release(seen, noise, clients, population, once=True, **how))
    current().release(*releases)
