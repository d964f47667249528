"""The end of a run: its tables, its summary, and what it gives to Python."""

import csv
import dataclasses
import io
import pathlib

import numpy as np

from tffcl.clients import sampling
from tffcl.regular_files import read_text
from tffcl.runner import changes, directory, needs, samples, summary
from tffcl.runner.privacy import privacy_notes
from tffcl.runner.result import Result, Trained


def finish(job, out: pathlib.Path, about: dict, state, accuracy: dict) -> Result:
    """Writes the files that say what a run gave.

    Args:
      job: The run, see `job.Job`.
      out: Its directory.
      about: `task`, `algorithm`, `seed` and `rounds`, what was run.
      state: Of the method after the last round.
      accuracy: Of the last evaluation, see `accuracies.measure`.
    """
    population, views = job.stage.population, job.method.views(state)
    if views.metric is not None:
        summary.write_clustering(out, views, population)
    if views.representations is not None:
        summary.write_representations(out, views, population, sampling.stream(about["seed"], "map"))
    if views.splits is not None:
        summary.write_splits(out, views)
    samples.write_samples(out, population, np.asarray(views.clusters))
    columns = summary.client_table(population, views, accuracy, job.progress)
    summary.write_clients(out, columns)
    told = changes.notes(job.stages, about["rounds"], views)
    cost = job.ledger.summary(job.stopped)
    told += [*_notes_of_waiting(job, about["rounds"]), *privacy_notes(cost), *job.ledger.notes]
    contents = summary.summarize(about, population, views, accuracy, job.progress, told)
    if cost is not None:
        contents["privacy"] = cost
    directory.write_summary(out, contents)
    trained = Trained(job.method, state, population, about["rounds"])
    return Result(contents, trained, out, _read_rounds(out / "rounds.csv"), columns)


def _notes_of_waiting(job, rounds: int) -> list[str]:
    """Says how many clients were drawn, and never asked to train, as where `FactoryTraits.members_needed` are never there."""
    population, trained = job.stage.population, job.progress["rounds_trained"] > 0
    if trained.all():
        return []
    drawn = needs.who_takes_part(job.stages, dataclasses.replace(job.protocol, rounds=rounds))
    never = int(np.sum(~trained[population.index(drawn)]))
    if not never:
        return []
    whose = "" if trained.any() else "; no client has trained"
    why = "with secure sums a cluster of fewer than min_cluster_size clients in a round waits"
    return [f"{never} of the {len(drawn)} clients that were drawn were in no round asked to train ({why}){whose}"]


def _read_rounds(path: pathlib.Path) -> dict[str, np.ndarray]:
    rows = list(csv.DictReader(io.StringIO(read_text(path, newline=""), newline="")))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in (rows[0] if rows else {})}
