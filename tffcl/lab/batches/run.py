"""One run of a task: `runs.train` on what a task file builds, and the published numbers of its task and method."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence

from tffcl.aggregators.upload_attacks import OF_DATA
from tffcl.lab.batches.study_file import Cell, Study, load_study, study_directory
from tffcl.lab.reporting.published_table import PUBLISHED
from tffcl.lab.reporting.settings import flatten
from tffcl.lab.tasks import build
from tffcl.lab.tasks import resolve as configs
from tffcl.lab.tasks.attack_settings import note_of, outcome_of, with_imitators, with_wrong_labels
from tffcl.lab.tasks.populations import build_populations
from tffcl.lab.tasks.resolve import RunConfig, check_config
from tffcl.runs.callbacks import Callback
from tffcl.runs.progress import waiting
from tffcl.runs.result import Result
from tffcl.runs.run import Protocol
from tffcl.runs.run_directory import RunDirectory
from tffcl.runs.train import train_by
from tffcl.runtime import RemoteWorkers, remote_workers


def run(
    config: RunConfig,
    out: str | pathlib.Path,
    *,
    data_dir: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    workers: RemoteWorkers | None = None,
    until: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result | None:
    """Runs one method on one task and writes the files of a run (see `tffcl/docs/experiments.md`) but for report and
    figures.

    Args:
      config: What to run, see `resolve.resolve`.
      out: Directory of the run's files.
      data_dir: Where data sets are, or are put; default as in `datasets`.
      resume: Go on from the newest checkpoint in `out`; from the start if there is none. A run of fewer rounds goes on
        to those of `config`.
      overwrite: Delete the run that is in `out`.
      show_progress: A progress bar with an ETA on standard error.
      workers: Running TFF workers that share each round's clients; default one of this machine, started and ended here.
      until: Stop after this round with a checkpoint, to go on later with `resume`; then there is no result yet.
      callbacks: Are called after each round and may end the run, see `tffcl.Callback`.

    Raises:
      UserError: For anything that the user can mend. What was computed up to then is in the checkpoint.
      Interrupted: After Ctrl-C, SIGTERM or SIGHUP.
    """
    check_config("config", config)
    settings = config.as_dict()
    if workers:
        remote_workers.use_workers(workers)  # one that is not there is found before the data are read
    directory = RunDirectory(out)
    directory.check_claim(settings, resume=resume, overwrite=overwrite, longer=True)
    with waiting(f"{config.task}: reads and parts the data", show=show_progress):
        federated = build.load_data(config, data_dir)
        population, later = build_populations(config, federated)
    attack = config.attack
    malicious = attack.malicious(federated.num_clients, config.seed)
    if attack.kind in OF_DATA and len(malicious):
        classes = federated.classes_for(f"attack {attack.kind}")
        population = with_wrong_labels(population, malicious, classes)
        later = {start: with_wrong_labels(each, malicious, classes) for start, each in later.items()}
    if attack.imitated_group is not None and len(malicious):
        population = with_imitators(population, malicious, attack.imitated_group)
        later = {start: with_imitators(each, malicious, attack.imitated_group) for start, each in later.items()}
    method = build.build_method(config, build.build_model(config, federated), federated, data_dir, simulated=True)
    stopping = config.train.early_stopping
    result = train_by(
        _protocol(config, len(population)), method, population, later=later,
        callbacks=[*([stopping] if stopping else []), *callbacks], out=out, resume=resume, overwrite=overwrite,
        until=until, workers=workers, show_progress=show_progress, settings=settings,
        data=build.data_fingerprint(federated),
    )  # fmt: skip
    if result is not None:
        write_published(config, directory)
    if result is not None and len(malicious):
        clients = result.trained.population
        outcome = outcome_of(attack, malicious, result.client_columns, clients.client_ids, clients.groups)
        result.summary.update(attack=outcome, notes=[*result.summary["notes"], note_of(outcome)])
        directory.write_summary(result.summary)
    return result


def _protocol(config: RunConfig, clients: int) -> Protocol:
    return Protocol(
        rounds=config.train.rounds, clients_per_round=config.train.cohort_size(clients), seed=config.seed,
        sampling=config.train.sampling, evaluate_every=config.evaluation.every,
        place_unseen=config.evaluation.place_unseen, checkpoint_every=config.checkpoint.every,
        keep_checkpoints=config.checkpoint.keep, privacy=config.privacy,
    )  # fmt: skip


_NO_SETTINGS = {"task", "algorithm", "seed", "description", "source", "versions"}


def write_published(config: RunConfig, directory: RunDirectory) -> None:
    """Writes `published.json` into the directory of a run: the numbers to expect, with what was set otherwise; no file
    without any."""
    cells = list(_cells(config))
    if cells:
        directory.write_result(PUBLISHED, {"cells": cells})


def _cells(config: RunConfig) -> Iterator[dict]:
    for path in sorted(study_directory().glob("*.toml")):
        if f'"{config.task}"' in path.read_text(encoding="utf-8"):
            study = load_study(path.stem)
            for cell in study.cells if study.paper else ():
                if (
                    (cell.task, cell.method) == (config.task, config.algorithm)
                    and not cell.missing
                    and cell.published[0] is not None
                ):
                    yield _noted(study, cell, config)


def _noted(study: Study, cell: Cell, config: RunConfig) -> dict:
    """A published number as `lab.reporting.published_table` reads it."""
    wanted = configs.resolve(cell.task, cell.method, seed=config.seed, overrides=cell.overrides)
    return {
        "study": study.name,
        "where": ", ".join(filter(None, [study.paper, study.table])),
        "column": cell.column,
        "row": cell.row,
        "measure": cell.measure,
        "accuracy": cell.accuracy,
        "target": cell.target,
        "megabits_a_round": cell.megabits_a_round,
        "published": cell.published,
        "published_is": study.published_is,
        "rounds": wanted.train.rounds,
        "differs": _differences(wanted.as_dict(), config.as_dict()),
    }


def _differences(wanted: Mapping, found: Mapping) -> list[str]:
    """The names of the settings that are not the same, such as "train.rounds"."""
    first, second = (
        flatten({name: value for name, value in each.items() if name not in _NO_SETTINGS}) for each in (wanted, found)
    )
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
