"""One run: initialise or resume, rounds with a progress bar, evaluation, checkpoints, the files of the run."""

import contextlib
import dataclasses
import importlib.metadata
import pathlib
import shutil
import time
import tomllib

import numpy as np
import tomli_w

from tffcl import runtime
from tffcl.algorithms.contracts import Algorithm, Cohort, State
from tffcl.clients import sampling
from tffcl.clustering import hierarchical
from tffcl.errors import UserError
from tffcl.experiments import prepare
from tffcl.experiments.config import RunConfig
from tffcl.experiments.stages import Stage, Stages
from tffcl.runner import changes, summary
from tffcl.runner.checkpoints import Checkpoints, Metrics
from tffcl.runner.clustering_error import clustering_error
from tffcl.runner.history import ClusterHistory
from tffcl.runner.interrupts import Interrupts, watch_for_interrupts
from tffcl.runner.progress import progress_bar
from tffcl.runtime import RemoteWorkers, remote_workers

CLUSTERING, TRAINING, EVALUATION = range(3)  # places in progress["seconds"]

_ONCE = {"signature", "server_data"}  # transfers that every client has once, before training
_WHEN_MET = {"representation"}  # transfers that every client has once, when the server first meets it

# What a run and the commands on it leave behind, beside directories.
_FILES = (
    "config.toml", "rounds.csv", "clients.csv", "summary.json", "clustering.npz", "report.html", "newcomers.csv",
    "newcomers.json", "representations.npz",
)  # fmt: skip


class Interrupted(UserError):
    """The user stopped the run; what there is has been saved."""


@dataclasses.dataclass
class _Run:
    """The parts of a run in progress, and what has been counted so far."""

    config: RunConfig
    stages: Stages
    stage: Stage
    algorithm: Algorithm
    progress: dict
    interrupts: Interrupts

    @contextlib.contextmanager
    def timed(self, which: int):
        start = time.monotonic()
        yield
        self.progress["seconds"][which] += time.monotonic() - start


def run(
    config: RunConfig,
    out: str | pathlib.Path,
    *,
    data_dir: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    workers: RemoteWorkers | None = None,
) -> dict:
    """Runs one method on one task and writes the files of a run (see the README) but for report and figures.

    Args:
      config: What to run, see `config.resolve`.
      out: Directory of the run's files.
      data_dir: Where data sets are, or are put; default as in `datasets`.
      resume: Go on from the newest checkpoint in `out`; from the start if there is none.
      overwrite: Delete the run that is in `out`.
      show_progress: A progress bar with an ETA on standard error.
      workers: Running TFF workers that share each round's clients; default one of this machine, started and ended here.

    Returns:
      The contents of summary.json.

    Raises:
      UserError: For anything that the user can mend. What was computed up to then is in the checkpoint.
      Interrupted: After Ctrl-C.
    """
    out = pathlib.Path(out)
    if workers:
        remote_workers.use_workers(workers)  # one that is not there is found before anything is written
    check_claim(out, config, resume=resume, overwrite=overwrite)
    federated = prepare.load_data(config, data_dir)
    model = prepare.build_model(config, federated)
    stages = Stages(config, federated, model)
    sampling.sample_cohort(stages.clients(0), config.train.clients_per_round, config.seed, 1)  # too large a cohort is said now
    algorithm = prepare.build_algorithm(config, model, federated, data_dir)
    if not workers:
        runtime.use_local_worker()
    _claim(out, config, overwrite=overwrite)  # all that a user may have got wrong is known by now
    progress = progress_bar(config.train.rounds, _title(config), "round", show=show_progress)
    with watch_for_interrupts() as interrupts, progress as bar:
        job = _Run(config, stages, stages.at(0), algorithm, _no_progress(len(stages.clients(0))), interrupts)
        checkpoints = Checkpoints(out / "checkpoints", config.checkpoint.keep)
        round_number, state = _start(job, checkpoints, resume, bar)
        bar.update(round_number)
        written = Metrics(out), ClusterHistory(out, round_number + 1)
        state, accuracy = _rounds(job, state, round_number, checkpoints, *written, bar)
    return _finish(job, out, state, accuracy)


def _title(config: RunConfig) -> str:
    return f"{config.algorithm} seed {config.seed}"


def check_claim(out: pathlib.Path, config: RunConfig, *, resume: bool, overwrite: bool):
    """Checks that `out` may become this run's.

    Raises:
      UserError: If it is a file, or holds a run that may not be touched or is another one.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out must be a directory")
    begun = (out / "summary.json").is_file() or any((out / "checkpoints").glob("program_state_*"))
    if overwrite or not begun:  # one that failed before its first checkpoint has left nothing
        return
    if resume:
        check_same(out, config)
    else:
        raise UserError(f"{out} holds a run already; --resume goes on with it, --overwrite starts anew, or give another --out")


def _claim(out: pathlib.Path, config: RunConfig, *, overwrite: bool):
    """Makes `out` this run's."""
    file = out / "config.toml"
    if overwrite and file.is_file():
        for name in ("checkpoints", "tensorboard", "figures", "history"):
            shutil.rmtree(out / name, ignore_errors=True)
        for name in _FILES:
            (out / name).unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    packages = ("tffcl", "tensorflow-federated", "tensorflow", "numpy", "scipy", "scikit-learn")
    versions = {name: importlib.metadata.version(name) for name in packages}
    file.write_text(tomli_w.dumps({**config.as_dict(), "versions": versions}), encoding="utf-8")


def check_same(out: pathlib.Path, config: RunConfig):
    """Raises UserError if the run in `out` has other settings than `config`, naming the first that differs."""
    old = tomllib.loads((out / "config.toml").read_text(encoding="utf-8"))
    old.pop("versions", None)
    difference = _first_difference(old, config.as_dict())
    if difference:
        key, before, now = difference
        raise UserError(
            f"{out} holds another run: its {key} is {before!r}, not {now!r}; resume with its own settings, or give another --out"
        )


def _first_difference(old: dict, new: dict, prefix=""):
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            inner = _first_difference(before, now, f"{prefix}{key}.")
            if inner:
                return inner
        elif before != now:
            return f"{prefix}{key}", before, now
    return None


def _no_progress(clients: int) -> dict:
    counts = {key: np.zeros(clients, np.int64) for key in ("rounds_trained", "local_correct", "local_total")}
    totals = {key: np.int64(0) for key in ("down_bytes", "up_bytes", "signature_bytes")}
    return {**counts, **totals, "seconds": np.zeros(3)}


def _start(job: _Run, checkpoints: Checkpoints, resume: bool, bar) -> tuple[int, State]:
    """Returns the round that is done and the state after it: from a checkpoint, or 0 and the initial state."""
    saved = checkpoints.latest() if resume else None
    if saved is not None:
        state, job.progress = checkpoints.load(saved, job.algorithm)
        job.stage = job.stages.at(saved)
        return saved, state
    bar.set_description(f"{_title(job.config)} initialises")
    with job.timed(CLUSTERING):
        state = job.algorithm.initialize(job.stage.population)
    bar.set_description(_title(job.config))
    _count_once(job, _ONCE, len(job.stage.population.client_ids))
    checkpoints.save(0, state, job.progress)
    return 0, state


def _count_once(job: _Run, names: set[str], clients: int):
    for name in names & set(job.algorithm.transfers):
        transfer = job.algorithm.transfers[name]
        job.progress["down_bytes"] += transfer.down_bytes * clients
        job.progress["up_bytes"] += transfer.up_bytes * clients
        job.progress["signature_bytes"] += (transfer.up_bytes + transfer.down_bytes) * clients  # part of the two


def _enter_stage(job: _Run, state: State, number: int) -> State:
    """Lets newcomers join and data change before a round; returns the method's state with the newcomers."""
    before, job.stage, progress = job.stage, job.stages.at(number), dict(job.progress)
    known, job.progress = job.stage.population.index(before.population.client_ids), progress
    for key in ("rounds_trained", "local_correct", "local_total"):
        everyone = np.zeros(len(job.stage.population.client_ids), np.int64)
        everyone[known] = progress[key]
        progress[key] = everyone
    changed = np.isin(job.stage.population.client_ids, job.stage.changed)
    # The last local test of these was on data that they hold no more.
    progress["local_correct"][changed] = progress["local_total"][changed] = 0
    if job.stage.arrivals is None:
        return state
    with job.timed(CLUSTERING):
        joined = job.algorithm.admit(state, job.stage.arrivals)
    _count_once(job, _ONCE, len(job.stage.arrivals.client_ids))
    if "known" in state.extra:
        _count_once(job, _WHEN_MET, int(joined.extra["known"].sum() - state.extra["known"].sum()))
    return joined


def _rounds(job: _Run, state: State, done: int, checkpoints: Checkpoints, metrics: Metrics, history: ClusterHistory, bar):
    """Runs the rounds that are left; returns the last state and the last evaluation."""
    config, accuracy, shown = job.config, None, {}
    saved = done
    try:
        while done < config.train.rounds:
            job.interrupts.check()
            start = time.monotonic()
            state, row = _next_round(job, state, done + 1)
            done += 1
            if sampling.is_evaluation(done, config.train.rounds, config.evaluation.every):
                state, accuracy = _evaluate(job, state)
                row.update(_accuracy_row(job, accuracy))
                row.update(_cluster_row(job, state))
            metrics.release(done, {**row, "seconds": time.monotonic() - start})
            history.save(done, state.client_ids, state.assignment)
            _show(bar, row, shown)
            if done == config.train.rounds or done % config.checkpoint.every == 0:
                checkpoints.save(done, state, job.progress)
                saved = done
    except KeyboardInterrupt:
        checkpoints.save(done, state, job.progress)
        raise Interrupted(f"stopped after round {done}; the same command with --resume goes on") from None
    except UserError as error:
        if done > saved:
            checkpoints.save(done, state, job.progress)
        raise UserError(f"{error} (rounds 1 to {done} are saved)" if done else str(error)) from None
    return (state, accuracy) if accuracy else _evaluate(job, state)


def _next_round(job: _Run, state: State, number: int) -> tuple[State, dict]:
    """A round, in its stage; one that fails leaves the run in the stage before."""
    stage, progress = job.stage, job.progress
    try:
        if job.stages.starts(number):
            state = _enter_stage(job, state, number)
        return _round(job, state, number)
    except BaseException:
        job.stage, job.progress = stage, progress
        raise


def _round(job: _Run, state: State, number: int) -> tuple[State, dict]:
    train, population = job.config.train, job.stage.population
    size, seed, ids = train.clients_per_round, job.config.seed, population.client_ids
    tested = sampling.needs_local_test(job.stages.clients, size, seed, number, train.rounds, job.config.evaluation.every)
    cohort = Cohort(
        population,
        sampling.sample_cohort(ids, size, seed, number),
        (sampling.stream(seed, "clients"), number),
        tested,
    )
    with job.timed(TRAINING):
        state, metrics = job.algorithm.next(state, cohort)
    where = population.index(metrics.client_ids)
    progress = job.progress
    progress["rounds_trained"][where] += 1
    progress["local_correct"][where] = metrics.test_correct
    progress["local_total"][where] = metrics.test_examples
    progress["down_bytes"] += metrics.down_bytes
    progress["up_bytes"] += metrics.up_bytes
    progress["signature_bytes"] += metrics.signature_bytes
    weights = metrics.examples / metrics.examples.sum()
    # Where clients choose, all of them are asked at an evaluation only.
    clusters = dict.fromkeys(("clusters", "ari")) if job.algorithm.choose else _cluster_row(job, state)
    return state, {
        "seconds": 0.0,
        "train_loss": float(weights @ metrics.losses),
        **clusters,
        **({} if metrics.relatedness is None else {"clustering_error": clustering_error(job.stage.federated, metrics)}),
        **metrics.scalars,
        **dict.fromkeys(("cluster_accuracy", "local_accuracy", "local_share", "global_accuracy")),
        "down_bytes": int(metrics.down_bytes),
        "up_bytes": int(metrics.up_bytes),
    }


def _evaluate(job: _Run, state: State) -> tuple[State, dict]:
    """Returns the state, in which clients that choose have chosen, and their accuracies."""
    with job.timed(EVALUATION):
        if job.algorithm.choose:
            state = job.algorithm.choose(state, job.stage.population)
        models, keys = job.algorithm.assign(state, job.stage.population.client_ids)
        everyones = models[keys[0]] if len(np.unique(keys)) == 1 else None
        if job.algorithm.global_model:
            everyones = job.algorithm.global_model(state)
        return state, {
            "cluster": job.stage.evaluator.cluster_accuracy(models, keys),
            "global": None if everyones is None else job.stage.evaluator.global_accuracy(everyones),
        }


def _cluster_row(job: _Run, state: State) -> dict:
    row = {"clusters": len(np.unique(state.assignment)), "ari": summary.agreement(job.stage.federated, state)}
    if "known" in state.extra:
        row["known_ari"] = summary.agreement(job.stage.federated, state, state.extra["known"])
    return row


def _accuracy_row(job: _Run, accuracy: dict) -> dict:
    local = summary.local_accuracies(job.progress)
    known = np.isfinite(local)
    return {
        "cluster_accuracy": float(np.nanmean(accuracy["cluster"])),
        "local_accuracy": float(local[known].mean()) if known.any() else None,
        "local_share": float(known.mean()),
        "global_accuracy": accuracy["global"],
    }


def _show(bar, row: dict, shown: dict):
    """Moves the bar on; `shown` keeps the last accuracies until the next evaluation."""
    shown["loss"] = f"{row['train_loss']:.3f}"
    for key in ("cluster", "local", "global"):
        if row[f"{key}_accuracy"] is not None:
            shown[key] = f"{100 * row[f'{key}_accuracy']:.2f}%"
    bar.set_postfix(shown, refresh=False)
    bar.update(1)


def _finish(job: _Run, out: pathlib.Path, state: State, accuracy: dict) -> dict:
    if "proximity" in state.extra:
        dendrogram = hierarchical.Dendrogram(state.extra["merges"], job.algorithm.clustering["linkage"])
        unit = job.algorithm.clustering.get("tree_unit", job.algorithm.clustering["unit"])
        suggestion = hierarchical.suggest_threshold(dendrogram, unit=unit)
        summary.write_clustering(out, state, job.algorithm.clustering, suggestion.reason)
    if "signatures" in state.extra:
        summary.write_representations(out, state, sampling.stream(job.config.seed, "map"))
    summary.write_clients(out, state, job.stage.federated, accuracy, job.progress)
    told = changes.notes(job.config, job.stages.drifting, state)
    result = summary.summarize(job.config, state, job.stage.federated, accuracy, job.progress, told)
    summary.write_summary(out, result)
    return result
