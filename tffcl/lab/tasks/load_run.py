"""A run of a task, loaded again from its directory: its data, its models, and what they answer."""

import dataclasses
import pathlib

import numpy as np

from tffcl import runtime
from tffcl.clients.client_state import KeptStore
from tffcl.clients.simulation_context import simulating
from tffcl.errors import RESUME, UserError
from tffcl.lab.datasets.core import FederatedDataset
from tffcl.lab.tasks import build
from tffcl.lab.tasks.populations import drifted_in, population_in
from tffcl.lab.tasks.resolve import RunConfig, load_run_config
from tffcl.runs import fingerprint
from tffcl.runs.checkpoints import ANEW, Checkpoints
from tffcl.runs.privacy import Ledger
from tffcl.runs.result import Trained
from tffcl.runs.run_directory import CHECKPOINTS, KEPT, LEDGER, RunDirectory


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedRun(Trained):
    """A run of a task at its newest checkpoint.

    Attributes:
      config: What was run.
      federated: Who holds what in that round.
      ledger: What was released of the clients up to then, without a file.
    """

    config: RunConfig
    federated: FederatedDataset
    ledger: Ledger


def load_run(
    out: str | pathlib.Path, *, data_dir: str | None = None, trust_builders: bool | RunConfig = False
) -> TrainedRun:
    """Loads a run with its data and the state of its newest checkpoint.

    Args:
      out: The directory of one run.
      data_dir: Where data sets are; default as in `datasets`.
      trust_builders: As of `resolve.load_run_config`: without, a run that names functions of somebody's own is refused.

    Raises:
      UserError: If `out` holds no run, or one without a checkpoint or whose newest is damaged or gone, or the data or
        the settings have changed since. An older checkpoint is not taken: its models are not those that the run's
        results are of.
    """
    directory = RunDirectory(out)
    out = directory.path
    config = load_run_config(out, trust_builders=trust_builders)
    marker = directory.marker() or {}
    checkpoints = Checkpoints(directory / CHECKPOINTS, run=marker.get("tffcl run", ""))
    newest = checkpoints.latest()
    if newest is None:
        raise UserError(f"{out} has no checkpoint; a run with {RESUME} makes one")
    if newest > config.train.rounds:
        raise UserError(
            f"{out} has a checkpoint of round {newest}, but the run has {config.train.rounds}; it is of another run"
        )
    summary = directory.summary()
    if summary is not None and newest < summary["rounds"]:
        last = summary["rounds"]
        raise UserError(f"the checkpoint of round {last} in {out} is missing; {_again(newest)}")
    federated = build.load_data(config, data_dir)
    fingerprint.check_same_data(out, marker.get("data"), build.data_fingerprint(federated))
    method = build.build_method(config, build.build_model(config, federated), federated, data_dir)
    runtime.use_local_worker()
    with simulating(client_states=KeptStore(directory / KEPT)):
        state, totals = _newest(checkpoints, method.state_class)
    ledger = _ledger(config, federated, out, totals.releases)
    population = population_in(config, federated, newest)
    state = method.choose(state, population)  # a checkpoint between evaluations holds older choices
    federated, _ = drifted_in(config, federated, newest)
    return TrainedRun(method, state, population, newest, config, federated, ledger)


def _newest(checkpoints: Checkpoints, state_class: type):
    *before, newest = checkpoints.rounds()
    try:
        return checkpoints.load(newest, state_class)
    except UserError as error:
        if not before:
            raise
        raise UserError(f"{str(error).removesuffix(str(ANEW))}; {_again(before[-1])}") from None


def _ledger(config: RunConfig, federated: FederatedDataset, out: pathlib.Path, then: np.ndarray) -> Ledger:
    """The ledger of the run at its newest checkpoint; what no seed repeats has happened, whatever became of
    the rounds."""
    everyone = population_in(config, federated, config.train.rounds)
    ledger = Ledger(config.privacy, len(everyone), then)
    ledger.file = out / LEDGER
    ledger.read_file()
    ledger.check_holds(then, "the newest checkpoint")
    ledger.file = None
    return ledger


def _again(done: int) -> str:
    return f"a run with {RESUME} goes on from round {done} and makes it again"
