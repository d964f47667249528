"""Comparisons: several methods and seeds on one task, one after the other, in one directory."""

import itertools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from tffcl.algorithms.method import Method
from tffcl.clients.population import Population
from tffcl.errors import OVERWRITE, Option, UserError, argument, short_path
from tffcl.lab.batches.batch import Batch, Job, Options, settings_of, settings_there, settings_with_its_seed
from tffcl.lab.batches.run import Clients, ObjectRun, built, check_runs_fit, check_seeds, protocols
from tffcl.lab.batches.summaries import Summaries
from tffcl.lab.reporting import report
from tffcl.lab.reporting.batch_index import places_in, read_order
from tffcl.lab.reporting.targets import Target, parse_target, read_targets
from tffcl.lab.tasks.resolve import RunConfig, check_config
from tffcl.runs.callbacks import Callback
from tffcl.runs.metrics import check_measured
from tffcl.runs.run_directory import CURES, RunDirectory, State, first_difference
from tffcl.runtime import RemoteWorkers
from tffcl.validation import check_kind, check_labels


def compare(
    methods: Sequence[RunConfig] | Mapping[str, Method | Callable[..., Method]],
    population: Population | str | pathlib.Path | None = None,
    out: str | pathlib.Path | None = None,
    *,
    seeds: Iterable[int] = (0,),
    later: Mapping[int, Population] | None = None,
    task: str = "train",
    memory: str | int | None = None,
    data_dir: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    workers: RemoteWorkers | None = None,
    targets: Sequence[Target | str] = (),
    callbacks: Sequence[Callback] = (),
    **protocol,
) -> Summaries:
    """Runs several methods over several seeds, on clients made in Python or on tasks, and compares them.

        methods = {"PACFL": pacfl, "FedAvg": fedavg}
        compared = tffcl.compare(methods, clients, rounds=50, clients_per_round=10, seeds=[0, 1])
        compared.verdict, compared.frame, compared.summary_frame, compared.result("PACFL", seed=1)

    Every run is written to `OUT/<label>/seed-<n>/`. Beside the runs are `table.csv`, which is rewritten after each run,
    and `report.html`.

    Args:
      methods: Maps the label of each method in tables to the method, or to a function that returns one: `lambda seed:
        build_pacfl(model, training, seed=seed)`. One method serves every seed, and the seed decides sampling and
        shuffling. A builder's random numbers, such as the first models, differ between seeds only if a function takes
        `seed`. Or a list of what `tffcl.resolve` returns, distinct in label or seed.
      population: The clients. A list of what `tffcl.resolve` returns has its own; then the next argument is `out`.
      out: Directory of the comparison; default "runs/compare".
      seeds: The seeds of each method's runs.
      later: As in `tffcl.train`.
      task: The name of clients and protocol together in tables.
      memory: As in `tffcl.train`.
      data_dir: The directory with the data sets of tasks.
      resume: Go on with runs that were started; runs that have ended are kept in any case.
      overwrite: Delete the runs that are there.
      show_progress: Whether to print how long all runs will take, and a line and a bar for each run.
      workers: As in `tffcl.train`.
      targets: Values for which the report counts the rounds and bytes that a method needs to reach them: accuracies in
        percent, e.g. "local=75", or columns of rounds.csv, e.g. "cluster_auc=0.9". Only evaluated rounds count.
      callbacks: Objects that are called in each run and may end it, see `tffcl.Callback`.
      **protocol: `rounds`, `clients_per_round` and the other parameters of a protocol, as in `tffcl.train`: sampling,
        evaluate_every, place_unseen, checkpoint_every, keep_checkpoints, privacy.

    Raises:
      UserError: For errors that the user can correct, mostly before anything runs. Finished runs are kept.
    """
    check_kind("methods", methods, (Mapping, list, tuple), _WANTED)
    if not methods:
        raise UserError(f"methods is empty; it must be {_WANTED}")
    configs: Sequence[RunConfig | ObjectRun]
    if isinstance(methods, Mapping):
        clients = Clients(population, later or {}, task, memory)  # type: ignore[arg-type]  # which checks them
        configs = _object_runs(methods, clients, check_seeds(seeds), protocol)
    else:
        configs, out = methods, out or population  # type: ignore[assignment]  # comes after the configurations
        if any(isinstance(each, Method) for each in configs):
            raise UserError(f"methods is a list of methods; it must be {_WANTED}")
        if protocol:
            raise UserError(f"{next(iter(protocol))} is for methods made in Python; tffcl.resolve has a task's own")
    wanted = [parse_target(each) if isinstance(each, str) else each for each in targets]
    found = compare_runs(
        configs, out or "runs/compare", targets=wanted, data_dir=data_dir, resume=resume, overwrite=overwrite,
        show_progress=show_progress, workers=workers, callbacks=callbacks,
    )  # fmt: skip
    if any(found):
        if show_progress:
            report.say_drawing(len(found))
        report.write_report(found.out)
    return found


_WANTED = (
    'a dict of what tables call each method, {"PACFL": method, ...}, or a list of what tffcl.resolve(task, algorithm) '
    "returns"
)


def _object_runs(methods: Mapping, clients: Clients, seeds: Sequence[int], protocol: Mapping) -> list[ObjectRun]:
    """The runs, seed by seed; all have been checked to fit the clients."""
    check_labels(methods, "what tables call a method")
    made = protocols(seeds, protocol)
    own = {label: built(f"methods[{label!r}]", build, {}, seeds) for label, build in methods.items()}
    runs = [ObjectRun(label, own[label][place], each, clients) for place, each in enumerate(made) for label in methods]
    check_runs_fit(runs)
    return runs


def compare_runs(
    configs: Sequence[RunConfig | ObjectRun],
    out: str | pathlib.Path,
    *,
    targets: Sequence[Target] = (),
    others: Callable[[str], RunConfig] | None = None,
    **how,
) -> Summaries:
    """Does what `compare` does, except for the page.

    Args:
      configs: The runs, distinct in algorithm or seed. Tables have the methods in this order.
      out: Directory of the comparison.
      targets: Targets in addition to those of an earlier call.
      others: As in `check_comparable`.
      **how: As in `batch.Options`.

    Raises:
      UserError: If the directory has something that must not be changed, which is checked before anything runs; if two
        configurations are the same run, or configurations or existing runs have settings that do not fit in one table;
        or if a run fails for another reason than diverging.
    """
    for each in configs:
        if not isinstance(each, ObjectRun):
            check_config("one of configs", each)
    for target, config in itertools.product(targets, configs):
        check_measured(f"{argument('target')} {target}", target.metric.column, config.measured)
    _check_alike(configs)
    options = Options(**how)
    batch = Batch("comparison", out, options)
    jobs = [
        Job(each, pathlib.PurePath(each.algorithm, f"seed-{each.seed}"), f"{each.algorithm}, seed {each.seed}")
        for each in configs
    ]
    if len({job.place for job in jobs}) < len(jobs):
        raise UserError("a comparison needs each algorithm and each seed once")
    check_comparable(batch.out, configs, overwrite=options.overwrite, others=others)
    with batch.claimed(jobs, _contents(batch, configs, targets), built=True):
        found = batch.run(jobs, after_each=lambda: report.write_table(batch.out))
    return Summaries(found, batch, jobs, [(each.algorithm,) for each in configs])


def _contents(batch: Batch, configs: Sequence[RunConfig | ObjectRun], targets: Sequence[Target]) -> dict:
    """The methods and targets of this call, followed by those of earlier calls in this directory."""
    methods = dict.fromkeys([*(config.algorithm for config in configs), *read_order(batch.out)])
    wanted = dict.fromkeys(map(str, [*targets, *read_targets(batch.out)]))
    return {"algorithms": list(methods), "targets": list(wanted)}


# What all methods of a task share. [train] is not included, because each method may have its own values of it.
_SHARED = (
    "task", "dataset", "partition", "model", "evaluation", "newcomers", "drift", "privacy", "attack", "aggregation",
)  # fmt: skip
_LONGEST = 100  # characters of a value in a message


def _of_all_methods(settings: Mapping) -> dict:
    return {key: value for key, value in settings.items() if key in _SHARED}


def _check_alike(configs: Sequence[RunConfig | ObjectRun]):
    """Raises UserError if two configurations of tasks differ in what all methods share, or two seeds of a method in
    anything but the seed. Runs of objects share clients and protocol."""
    firsts: dict[str, RunConfig | ObjectRun] = {}
    for config in configs if not isinstance(configs[0], ObjectRun) else ():
        same, settings = firsts.setdefault(config.algorithm, config), settings_of(config)
        for other, before, after in (
            (configs[0], _of_all_methods(settings_of(configs[0])), _of_all_methods(settings)),
            (same, {**settings_of(same), "seed": config.seed}, settings),
        ):
            if difference := first_difference(before, after):
                key, was, now = difference
                raise UserError(
                    f"{config.algorithm}, seed {config.seed}, has {key} {_written(now)}, and {other.algorithm}, seed "
                    f"{other.seed}, has it {_written(was)}; a table has runs of the same settings: compare them apart"
                )


def check_comparable(
    out: pathlib.Path,
    configs: Sequence[RunConfig | ObjectRun],
    *,
    overwrite: bool,
    others: Callable[[str], RunConfig] | None,
):
    """Checks that the runs which stay in a comparison's directory fit in one table with the requested runs.

    A run of a requested method with another seed must have all of the method's settings. A run of another method must
    have the settings that all methods share, and the [train] that the task has for it.

    Args:
      out: Directory of the comparison.
      configs: The requested runs.
      overwrite: Whether existing runs of `configs` are deleted.
      others: Returns the configuration with which another method of the task would be run. Without it, only the rounds
        of its [train] are compared.

    Raises:
      UserError: If a run has other settings; the message names the first one, what differs, and what to do.
    """
    wanted_configs, of_objects = {config.algorithm: config for config in configs}, isinstance(configs[0], ObjectRun)
    asked = {(config.algorithm, config.seed): config for config in configs}
    for label, seed, place in places_in(out):
        again, directory = (label, seed) in asked, RunDirectory(place)
        # A requested run that has not ended is checked when the batch is claimed.
        if directory.state is State.EMPTY or again and (overwrite or not directory.ended):
            continue
        if label in wanted_configs:
            pair = settings_with_its_seed(place, asked.get((label, seed), wanted_configs[label]))
            anew = f"{OVERWRITE}" if again else f"{OVERWRITE} with {seed} among {argument('seeds')}"
        else:
            pair = _shared(settings_there(place, None), configs, others)
            anew = f"{OVERWRITE} with {label} among {Option('--algorithms', 'methods')}"
        if difference := first_difference(*pair):
            own = label not in wanted_configs and not of_objects
            reason = _reason(label, *difference, own=own)
            raise UserError(f"{short_path(place)} {reason} give another {argument('out')}, or run it anew ({anew})")
        if isinstance(configs[0], ObjectRun):
            configs[0].check_same_data(directory)


def _shared(
    there: Mapping, configs: Sequence[RunConfig | ObjectRun], others: Callable[[str], RunConfig] | None
) -> tuple[dict, dict]:
    """The settings of a run of another method that must be the same as in the requested runs; and these."""
    wanted, found = _of_all_methods(settings_of(configs[0])), _of_all_methods(there)
    if found == wanted:
        try:
            if isinstance(configs[0], ObjectRun):  # which all have one protocol
                train = settings_of(configs[0])["train"]
            else:
                train = settings_of(others(there.get("algorithm", "")))["train"] if others else None
        except UserError:  # the task no longer has this method
            train = None
        same = {config.train.rounds for config in configs}
        if train is None:
            train = {"rounds": same.pop()} if len(same) == 1 else {}
            there = {"train": {key: value for key, value in there.get("train", {}).items() if key in train}}
        wanted["train"], found["train"] = train, there.get("train", {})
    return found, wanted


def _reason(label: str, key: str, before: object, now: object, *, own: bool) -> str:
    """Says which setting of a run differs, and what the user can do except run it anew."""
    given = f" say that this is {label}'s own (--set algorithms.{label}.{key.removeprefix('train.')}={before}),"
    # A method seldom has its own number of rounds; more likely, the run was shortened to try the method out.
    own = own and key.startswith("train.") and key != "train.rounds" and before is not None
    cure = f" {CURES[key]}," if before and key in CURES else given if own else ""
    return f"was run with {key} {_written(before)}, not {_written(now)}; a table has runs of the same settings:{cure}"


def _written(value: object) -> str:
    text = "not set" if value is None else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
