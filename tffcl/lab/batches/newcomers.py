"""Lets clients that a run held out join it after its last round (PACFL Alg. 3 and Table 3)."""

import dataclasses
import pathlib
import sys
from collections.abc import Mapping

import numpy as np

from tffcl.algorithms.method import Views
from tffcl.algorithms.solo import build_own_round
from tffcl.clients import cohort
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import simulating
from tffcl.display import counted
from tffcl.errors import Option, UserError
from tffcl.files import check_replaceable, csv_text, finite, text_cell, write_text
from tffcl.lab.reporting.batch_index import find_runs
from tffcl.lab.reporting.newcomers_table import NEWCOMERS, NEWCOMERS_CSV, table_of
from tffcl.lab.reporting.number_format import MISSING
from tffcl.lab.tasks.build import TrainedRun, load_run
from tffcl.lab.tasks.populations import build_population
from tffcl.lab.tasks.resolve import RunConfig, load_run_config
from tffcl.models.metrics import better_of
from tffcl.models.model_rows import assigned
from tffcl.rounds.simulation import run_round
from tffcl.runs import checks, summary
from tffcl.runs.callbacks import progress_bar
from tffcl.runs.evaluator import Evaluator, own_metrics
from tffcl.runs.population_changes import taken_by
from tffcl.runs.privacy import privacy_notes
from tffcl.runs.run_directory import SUMMARY, RunDirectory, State

_AT_A_TIME = 20  # clients; bounds the number of models in memory
_MOST_ROWS = 30


@dataclasses.dataclass(frozen=True, eq=False)
class _Joined:
    """Newcomers after they joined; row i of every array is `client_ids[i]`.

    Attributes:
      client_ids: `int [B]`.
      clusters: `int [B]`.
      founded: `bool [B]`, whether the cluster has no participant of the run.
      cluster_accuracy: `float [B]`, the accuracy of the model that a newcomer receives.
      local_accuracy: `float [B]`, the accuracy after its own training; NaN without training.
      metrics: For each further metric of the model, its `cluster` and `local` values, `float [B]`, like the accuracies.
      everyone: All clients, including newcomers.
      views: The views of the method's state with the newcomers.
    """

    client_ids: np.ndarray
    clusters: np.ndarray
    founded: np.ndarray
    cluster_accuracy: np.ndarray
    local_accuracy: np.ndarray
    metrics: Mapping[str, Mapping[str, np.ndarray]]
    everyone: Population
    views: Views


def join_newcomers(
    out: str | pathlib.Path,
    *,
    data_dir: str | None = None,
    show_progress: bool = True,
    trust_builders: bool | RunConfig = False,
) -> dict:
    """Lets the clients that a run held out (`newcomers.clients`) join the state of its newest checkpoint.

    The method gives each newcomer a model. It is tested on the newcomer's test images (`cluster` accuracy), and again
    after the newcomer has trained it for `newcomers.epochs` epochs with the run's hyper-parameters (`local` accuracy).
    The run's own files do not change. `privacy` of newcomers.json counts the newcomers' releases together with those of
    the run.

    Args:
      out: The directory of the run; `newcomers.csv` and `newcomers.json` are written into it.
      data_dir: The directory with the data sets; default as in `datasets`.
      show_progress: Whether to show a progress bar on standard error while newcomers train.
      trust_builders: As in `load_run`.

    Returns:
      The contents of newcomers.json.

    Raises:
      UserError: If `out` holds no run, or one without held-out clients or without a checkpoint, or if its budget does
        not allow the newcomers' releases.
    """
    out = RunDirectory(out).path
    settings = load_run_config(out, trust_builders=trust_builders).newcomers
    if not settings.any:
        held_out = Option("--set newcomers.clients=N", 'overrides={"newcomers": {"clients": N}}')
        raise UserError(f"the run in {out} held no clients out; run it anew with {held_out}")
    if settings.round:
        raise UserError(f"the newcomers of the run in {out} joined it in round {settings.round}; none are left")
    for name in (NEWCOMERS_CSV, NEWCOMERS):  # before anything is computed
        check_replaceable(out / name)
    # The noise of newcomers' signatures follows from the seed, so joining again reveals nothing more.
    trained = load_run(out, data_dir=data_dir, trust_builders=trust_builders, simulated=True)
    ended = RunDirectory(out).state is State.FINISHED  # maybe before its planned last round
    contents = _contents(trained, _join(trained, show_progress), ended)
    _write(out, contents)
    return contents


def join_all(
    out: str | pathlib.Path, *, data_dir: str | None = None, show_progress: bool = True, trust_builders: bool = False
):
    """Lets the newcomers of every finished run of a comparison join their run, unless they have already joined it.

    Args:
      out: The directory of the comparison.
      data_dir: Where data sets are; default as in `datasets`.
      show_progress: Whether to show a line for each run, and a progress bar while newcomers train, on standard error.
      trust_builders: As in `load_run`.

    Raises:
      UserError: As in `join_newcomers` for a run, or if the directory holds no finished run.
    """
    runs = find_runs(out)
    for number, run in enumerate(runs, 1):
        if show_progress:
            print(f"[{number}/{len(runs)}] {run.method} seed {run.seed}", file=sys.stderr)
        noted = run.path / NEWCOMERS
        if not noted.is_file() or noted.stat().st_mtime_ns < (run.path / SUMMARY).stat().st_mtime_ns:
            join_newcomers(run.path, data_dir=data_dir, show_progress=show_progress, trust_builders=trust_builders)


def _join(trained: TrainedRun, show_progress: bool) -> _Joined:
    config, federated, method = trained.config, trained.federated, trained.method
    _, ids = config.held_out(federated.num_clients)
    arrivals, everyone = (taken_by(method.model, build_population(federated, clients)) for clients in (ids, None))
    with simulating(ledger=trained.ledger):
        admitted = checks.admitted(method, trained.state, arrivals)
    models, rows = method.used_models(admitted, ids)
    views = method.views(admitted)
    clusters = views.clusters[everyone.index(ids)]
    model = method.model.whole
    local, own = np.full(len(ids), np.nan), np.full([len(ids), len(model.metrics_of_outputs)], np.nan)
    if config.newcomers.epochs:
        local, own = _personalised(trained, arrivals, models, assigned(rows).rows, show_progress)
    founded = are_founded(clusters, method.views(trained.state))
    evaluator = Evaluator(model, arrivals)
    accuracy, further = evaluator.cluster_accuracy(models, rows), evaluator.cluster_metrics(models, rows, clusters)
    metrics = {name: {"cluster": each["cluster"], "local": own[:, n]} for n, (name, each) in enumerate(further.items())}
    return _Joined(ids, clusters, founded, accuracy, local, metrics, everyone, views)


def are_founded(clusters: np.ndarray, before: Views) -> np.ndarray:
    """Which of the clusters `int [B]` have no participant. Participants that the server has not met do not count: no
    newcomer could join them, whatever their number."""
    return ~np.isin(clusters, np.asarray(before.clusters)[before.known_or_all])


def _personalised(
    trained: TrainedRun, arrivals: Population, models: np.ndarray, rows: np.ndarray, show_progress: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Trains every newcomer's model on its own data; of a mixture, the model with the largest weight. Returns the
    accuracies `float [B]` and further metrics `float [B, M]` after that."""
    config, model = trained.config, trained.method.model.whole
    training = dataclasses.replace(config.train.local, epochs=config.newcomers.epochs)
    own_round = build_own_round(model, training)
    # As in a round after the last one, with its learning rate; no cohort of the run has this seed.
    seed = (cohort.stream(config.seed, "newcomers"), trained.round_number + 1)
    accuracies, metrics = [], [np.zeros([0, len(model.metrics_of_outputs)])]
    with progress_bar(len(arrivals), "newcomers train", "client", show=show_progress) as bar:
        everyone = Cohort(arrivals, arrivals.client_ids, seed, np.ones(len(arrivals), bool))
        for part, few in everyone.parts(_AT_A_TIME):
            reports = run_round(own_round, few, kept=KeptStates(models[0]), brought=models[rows[part]]).reports
            tested = np.maximum(reports["test_examples"], 1)
            accuracies.append(np.where(reports["test_examples"] > 0, reports["test_correct"] / tested, np.nan))
            if "test_outputs" in reports:
                metrics.append(own_metrics(model, arrivals, few.client_ids, reports["test_outputs"]))
            bar.update(len(few.client_ids))
    return np.concatenate(accuracies), np.concatenate(metrics)


def _contents(trained: TrainedRun, joined: _Joined, ended: bool) -> dict:
    config, federated = trained.config, trained.federated
    known, counts = np.unique(joined.clusters[~joined.founded], return_counts=True)
    return {
        "task": config.task,
        "algorithm": config.algorithm,
        "seed": config.seed,
        "round": trained.round_number,
        "rounds": trained.round_number if ended else config.train.rounds,
        "epochs": config.newcomers.epochs,
        "newcomers": len(joined.client_ids),
        "clusters": {
            "joined": {str(cluster): int(count) for cluster, count in zip(known, counts, strict=True)},
            "founded": len(np.unique(joined.clusters[joined.founded])),
            "ari": summary.agreement(joined.everyone, joined.views),
        },
        "accuracy": {
            "cluster": summary.spread(joined.cluster_accuracy),
            "local": summary.spread(joined.local_accuracy),
        },
        **({"metrics": further} if (further := _metrics(joined)) else {}),
        "clients": _rows(federated, joined),
        **({} if (cost := trained.ledger.summary()) is None else {"privacy": cost}),
    }


def _metrics(joined: _Joined) -> dict:
    """The further metrics, in the form of summary.json."""
    return {
        name: {"better": better_of(name), **{kind: summary.spread(own, better_of(name)) for kind, own in each.items()}}
        for name, each in joined.metrics.items()
    }


def _rows(federated, joined: _Joined) -> list[dict]:
    """A row for each newcomer, in the form of newcomers.csv."""
    truth, everyone = federated.shown_groups, joined.everyone
    named = everyone.shown_ids[everyone.index(joined.client_ids)].tolist()
    further = {f"{kind}_{name}": own for name, each in joined.metrics.items() for kind, own in each.items()}
    return [
        {
            "client_id": named[row],
            "true_cluster": None if truth is None else truth[client].item(),
            "cluster": int(joined.clusters[row]),
            "founded": bool(joined.founded[row]),
            "examples": len(federated.train_indices[client]),
            "test_examples": len(federated.test_indices[client]),
            "cluster_accuracy": finite(joined.cluster_accuracy[row]),
            "local_accuracy": finite(joined.local_accuracy[row]),
            **{name: finite(own[row]) for name, own in further.items()},
        }
        for row, client in enumerate(joined.client_ids)
    ]


def _write(out: pathlib.Path, contents: dict):
    rows, directory = contents["clients"], RunDirectory(out)
    cells = [[text_cell(each) if isinstance(each, str) else each for each in row.values()] for row in rows]
    directory.list_files([NEWCOMERS_CSV, NEWCOMERS])
    write_text(directory / NEWCOMERS_CSV, csv_text([rows[0], *cells]))
    directory.write_result(NEWCOMERS, contents)


def describe(contents: dict) -> str:
    """Returns the contents from `join_newcomers` as a table of clients and a few lines, for a terminal."""
    return "\n".join([table_of(contents, _MOST_ROWS).to_text(left=0), "", *_lines(contents)])


def _lines(contents: dict):
    clusters, accuracy = contents["clusters"], contents["accuracy"]
    done, planned = contents["round"], contents["rounds"]
    after = f"round {done}" if done == planned else f"round {done} of {planned}, the run is not finished"
    method = f"{contents['algorithm']} seed {contents['seed']}"
    yield f"{counted(contents['newcomers'], 'newcomer')} of {contents['task']}, {method}, after {after}"
    joined = ", ".join(f"{cluster} ({count})" for cluster, count in clusters["joined"].items())
    yield f"joined clusters (newcomers): {joined or 'none'}; new clusters founded: {clusters['founded']}"
    if clusters["ari"] is not None:
        yield f"adjusted Rand index of all clients, newcomers included: {clusters['ari']:.3f}"
    models = {"cluster": "the model that a newcomer is given"}
    if contents["epochs"]:
        models["local"] = f"after {counted(contents['epochs'], 'epoch')} on its own data"
    for kind, when in models.items():
        if accuracy[kind]["mean"] is not None:
            yield f"{kind} accuracy: {_mean(accuracy[kind], 100)} % ({when})"
        for name, each in contents.get("metrics", {}).items():
            yield f"{kind} {name}: {_mean(each[kind])} ({when})"
    yield from (f"{note}, newcomers included" for note in privacy_notes(contents.get("privacy")))


def _mean(statistics: dict, scale: int = 1) -> str:
    digits = 2 if scale > 1 else 4
    mean, std = (statistics[name] for name in ("mean", "std"))
    return MISSING if mean is None else f"{scale * mean:.{digits}f} ± {scale * std:.{digits}f}"
