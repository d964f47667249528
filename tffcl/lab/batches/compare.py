"""Several methods and seeds on one task, one after the other, in the layout of a comparison."""

import pathlib
from collections.abc import Callable, Mapping, Sequence

from tffcl.errors import UserError
from tffcl.lab.batches.batch import Batch, Job, Options, settings_of
from tffcl.lab.reporting import report
from tffcl.lab.reporting.batch_index import read_order
from tffcl.lab.reporting.targets import Target, read_targets
from tffcl.lab.tasks.resolve import RunConfig, check_config, load_run_config
from tffcl.runs.callbacks import Callback
from tffcl.runs.run_directory import RunDirectory, State, first_difference, short_path
from tffcl.runtime import RemoteWorkers
from tffcl.validation import check_kind


def compare(
    configs: Sequence[RunConfig],
    out: str | pathlib.Path,
    *,
    data_dir: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    workers: RemoteWorkers | None = None,
    targets: Sequence[Target] = (),
    others: Callable[[str], RunConfig] | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[dict | None]:
    """Runs every configuration into `OUT/<algorithm>/seed-<n>/`, and writes `OUT/table.csv` anew after each.

    Args:
      configs: What to run; distinct in algorithm or seed. Tables have the methods in this order.
      out: Directory of the comparison.
      data_dir: As in `run.run`.
      resume: A started run goes on; one that has ended is kept in any case.
      overwrite: Runs that are there are deleted.
      show_progress: What all runs will take, and a line and a bar a run.
      workers: As in `run.run`.
      targets: Accuracies to which rounds and bytes are counted in the report, beside those of an earlier call.
      others: Returns what a method that is there already, but not among `configs`, would be run with, see
        `check_comparable`.
      callbacks: Are called in each run and may end it, see `tffcl.Callback`.

    Returns:
      The summaries in the order of `configs`; None for a run that diverged.

    Raises:
      UserError: If the directory or a place in it holds what may not be touched, which is found before anything runs;
        if two configurations are the same run, or one that is there already has other settings; or if a run fails
        otherwise than by diverging.
    """
    check_kind("configs", configs, (list, tuple), "a list of what tffcl.resolve(task, algorithm) returns")
    for each in configs:
        check_config("one of configs", each)
    options = Options(data_dir, resume, overwrite, show_progress, workers, callbacks)
    batch = Batch("comparison", out, options, written=["report.html", "table.csv", "targets.csv"])
    jobs = [
        Job(each, pathlib.PurePath(each.algorithm, f"seed-{each.seed}"), f"{each.algorithm}, seed {each.seed}")
        for each in configs
    ]
    if len({job.place for job in jobs}) < len(jobs):
        raise UserError("a comparison needs each algorithm and each seed once")
    check_comparable(batch.out, configs, overwrite=overwrite, others=others)
    with batch.begun(jobs, _contents(batch, configs, targets)):
        return batch.run(jobs, after_each=lambda: report.write_table(batch.out))


def _contents(batch: Batch, configs: Sequence[RunConfig], targets: Sequence[Target]) -> dict:
    """Which methods and targets were asked for, those of an earlier command in this directory behind them."""
    asked = dict.fromkeys([*(config.algorithm for config in configs), *read_order(batch.out)])
    wanted = dict.fromkeys(map(str, [*targets, *read_targets(batch.out)]))
    return {"algorithms": list(asked), "targets": list(wanted)}


# What all methods of a task have in common, beside [train], of which each may have values of its own.
_SHARED = (
    "task",
    "dataset",
    "partition",
    "model",
    "evaluation",
    "newcomers",
    "drift",
    "privacy",
    "attack",
    "aggregation",
)
_LONGEST = 100  # characters of a value in a message


def check_comparable(
    out: pathlib.Path,
    configs: Sequence[RunConfig],
    *,
    overwrite: bool,
    others: Callable[[str], RunConfig] | None = None,
):
    """Checks that the runs which stay in a comparison's directory may stand beside those that are asked for.

    Another seed of a method that is asked for must have all of its settings; another method those that all methods
    share, and the [train] that the task has for it.

    Args:
      out: Directory of the comparison.
      configs: What is asked for.
      overwrite: Whether what is there of it is deleted.
      others: Returns what another method would be run with; without it, of its [train] the rounds alone are compared.

    Raises:
      UserError: Naming the first run that is of other settings, what differs, and what to do.
    """
    asked = {config.algorithm: config for config in configs}
    places = {(config.algorithm, config.seed) for config in configs}
    for place in sorted(out.glob("*/seed-*")):
        label, seed = place.parent.name, place.name.removeprefix("seed-")
        again = seed.isdecimal() and (label, int(seed)) in places
        # What has been asked for and has not ended is looked at where it is claimed.
        directory = RunDirectory(place)
        if not seed.isdecimal() or directory.state is State.EMPTY or again and (overwrite or not directory.ended):
            continue
        there = _settings_there(place, asked.get(label))
        if label in asked:
            wanted = {**settings_of(asked[label]), "seed": there.get("seed")}
            anew = "--overwrite" if again else f"--overwrite with {seed} among --seeds"
        else:
            there, wanted = _shared(there, configs, others)
            anew = f"--overwrite with {label} among --algorithms"
        difference = first_difference(there, wanted)
        if difference:
            raise UserError(
                f"{short_path(place)} {_told(label, *difference, own=label not in asked)}, or run it anew ({anew})"
            )


def _settings_there(place: pathlib.Path, own: RunConfig | None) -> dict:
    """The settings of the run in a directory."""
    try:
        return settings_of(load_run_config(place, trust_builders=own or False))
    except UserError:  # its own code is not there any more, or another's
        settings = RunDirectory(place).settings()
        return {key: value for key, value in settings.items() if key not in ("description", "source")}


def _shared(
    there: Mapping, configs: Sequence[RunConfig], others: Callable[[str], RunConfig] | None
) -> tuple[dict, dict]:
    """Of a run of a method that is not asked for, what must be the same; and what it must be."""
    wanted = {key: value for key, value in settings_of(configs[0]).items() if key in _SHARED}
    found = {key: value for key, value in there.items() if key in _SHARED}
    if found == wanted:
        try:
            train = settings_of(others(there.get("algorithm", "")))["train"] if others else None
        except UserError:  # the task has no such method any more
            train = None
        same = {config.train.rounds for config in configs}
        if train is None:
            train = {"rounds": same.pop()} if len(same) == 1 else {}
            there = {"train": {key: value for key, value in there.get("train", {}).items() if key in train}}
        wanted["train"], found["train"] = train, there.get("train", {})
    return found, wanted


def _told(label: str, key: str, before: object, now: object, *, own: bool) -> str:
    """What a run was made with otherwise, and what can be done about it but running it anew."""
    given = f", say that this is {label}'s own (--set algorithms.{label}.{key.removeprefix('train.')}={before})"
    # A method seldom has rounds of its own: rather a run that was made shorter to try it out.
    own = own and key.startswith("train.") and key != "train.rounds" and before is not None
    return (
        f"was run with {key} {_said(before)}, not {_said(now)}; a table has runs of the same settings: give another "
        f"--out{given if own else ''}"
    )


def _said(value: object) -> str:
    text = "not set" if value is None else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
