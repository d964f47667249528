"""Checks before a run starts that it fits into memory and on the disk, and that the processor has its precision."""

import pathlib
import shutil

import numpy as np

from tffcl.client_work.local_sgd import kept_state
from tffcl.client_work.local_training import LocalTraining
from tffcl.clients import cohort
from tffcl.errors import UserError, short_path
from tffcl.models.flat import FlatModel
from tffcl.runs.population_changes import Stages
from tffcl.runs.run_directory import KEPT
from tffcl.runtime import memory

_MOST_DRAWN = 1000  # rounds whose cohorts are drawn to see who takes part; with more of them at least these do
_INSTRUCTIONS = {"float32": "", "bfloat16": "avx512_bf16"}  # by precision, a flag in /proc/cpuinfo
_COPIES = 3  # of a model while a client trains it: in the message, in the worker, and where TFF packs it


def who_takes_part(stages: Stages, protocol) -> np.ndarray:
    """Returns the IDs of clients that train in a run, ascending: all of them, or of very long runs most.

    Args:
      stages: Of the run.
      protocol: Its `run.Protocol`.
    """
    everyone = stages.client_ids
    found = np.zeros(len(everyone), bool)
    for number in range(1, min(protocol.rounds, _MOST_DRAWN) + 1):
        if found.all():
            break
        ids = stages.population(number).client_ids
        drawn = cohort.sample_cohort(ids, protocol.clients_per_round, protocol.seed, number, protocol.sampling)
        found[np.searchsorted(everyone, drawn)] = True
    return everyone[found]


def check_processor(training):
    """Raises UserError if this machine computes slower in the precision of a local training than in float32.

    Args:
      training: A `LocalTraining`, or None where it is not known.
    """
    precision = training.precision if isinstance(training, LocalTraining) else "float32"
    needed, flags = _INSTRUCTIONS[precision], pathlib.Path("/proc/cpuinfo")
    if needed and not (flags.is_file() and needed in flags.read_text()):
        raise UserError(
            f"this processor has no {precision} instructions ({needed}): a step would take longer than in float32; "
            'leave precision at "float32", or compute on workers that have them',
            key="precision",
        )


def check_before(method, clients: int, taking_part: int, out: pathlib.Path, budget: int):
    """Checks what is known of a run before anything is computed.

    Args:
      method: See `Method.kept_bytes`, `Method.trained_models` and `Method.pair_bytes`.
      clients: How many there are.
      taking_part: How many train in some round.
      out: Directory of the run; it need not exist.
      budget: Bytes that the clients of a round may take.

    Raises:
      UserError: If it cannot fit.
    """
    model: FlatModel = method.model
    if _COPIES * 4 * model.size > budget:
        needed, given = memory.shown(_COPIES * 4 * model.size), memory.shown(budget)
        raise UserError(
            f"memory is {given}; one client that trains {_parameters(model.size)} parameters takes {needed}"
        )
    paired = min(clients, method.pairs_of or clients)
    memory.check_room(paired**2 * method.pair_bytes, f"the distances of {paired:,} × {paired:,} clients")
    own = method.kept_bytes + _optimizer_bytes(method)
    kept = taking_part * own
    there = sum(path.lstat().st_size for path in (out / KEPT).glob("*.npz"))
    if kept > (free := _disk_room(out) + there):
        each = _parameters(own / 4)
        raise UserError(
            f"{taking_part:,} clients × {each} parameters that each of them keeps need {memory.shown(kept)} on the "
            f"disk of {short_path(out)}; {memory.shown(free)} are free"
        )


def _optimizer_bytes(method) -> int:
    """What a client keeps of its training for the models that it trains; 0 of a method whose training is not known."""
    training = getattr(method, "training", None)
    if not isinstance(training, LocalTraining):
        return 0
    return method.trained_models * sum(leaf.nbytes for leaf in kept_state(method.model, training) or ())


def check_state(method, state, client_ids: np.ndarray):
    """Checks what is known when clients have been grouped, before the first round.

    Args:
      method: See `Method.models_held`.
      state: Its first one.
      client_ids: Who trains in some round.

    Raises:
      UserError: If it cannot fit.
    """
    held = method.models_held(state, client_ids)
    memory.check_room(
        4 * held * method.model.size,
        f"{held:,} models × {_parameters(method.model.size)} parameters that the server holds",
    )


def _parameters(count: float) -> str:
    return f"{count / 1e6:.3g} M" if count >= 1e5 else f"{count:,.0f}"


def _disk_room(out: pathlib.Path) -> int:
    place = out.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
