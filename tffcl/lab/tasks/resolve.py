"""A run's configuration: from a task file, the method's own table in it, and the command line's overrides."""

import dataclasses
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from tffcl.errors import UserError, no_server_data, unknown
from tffcl.lab.datasets.federated import check_settings
from tffcl.lab.reporting.files import runs_below
from tffcl.lab.tasks import task_file
from tffcl.lab.tasks.attack_settings import AttackSettings
from tffcl.lab.tasks.method_settings import KEYS, MethodSource, find_method
from tffcl.lab.tasks.own_builders import check_aggregation_keys, check_model, check_trusted, load_own_data
from tffcl.lab.tasks.plain_toml import check_plain, read_toml
from tffcl.lab.tasks.run_config import RunConfig
from tffcl.lab.tasks.settings import (
    CheckpointSettings,
    DriftSettings,
    EvaluationSettings,
    NewcomerSettings,
    TrainSettings,
)
from tffcl.registry import ALGORITHMS
from tffcl.regular_files import read_text
from tffcl.runs.privacy import PrivacySettings
from tffcl.validation import (
    Parameters,
    check_kind,
    check_labels,
    check_value,
    from_table,
    with_todays_keys,
)

Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


def parse_overrides(pairs: Sequence[str]) -> dict:
    """Turns `["train.rounds=3", ...]` into `{"train": {"rounds": 3}}`; values are TOML, or else text.

    Nothing after the equals sign is `task_file.UNSET`: the file's value is taken away.

    Raises:
      UserError: If a pair is not KEY=VALUE with a dotted key.
    """
    overrides: dict = {}
    for pair in pairs:
        if len(pair.splitlines()) > 1 or "\0" in pair:
            raise UserError(f"--set {pair[:100]!r} has a line break or NUL; one SECTION.KEY=VALUE a --set")
        key, equals, text = pair.partition("=")
        path = key.strip().split(".")
        if not equals or len(path) < 2 or not all(path):
            raise UserError(
                f"--set {pair[:100]!r} is not SECTION.KEY=VALUE, e.g. train.rounds=20 or algorithms.pacfl.num_clusters=4"
            )
        try:
            value = read_toml(f"value = {text}", f"--set {key.strip()[:100]}")["value"] if text.strip() else task_file.UNSET
        except tomllib.TOMLDecodeError:
            value = text
        table = overrides
        for part in path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise UserError(f"--set {pair!r}: {part} has a value already, so it has no keys")
        table[path[-1]] = value
    return overrides


def check_config(name: str, config: object):
    """Raises UserError if something else is given in the place of what `resolve` returns."""
    wanted = "what tffcl.resolve(task, algorithm) returns; methods and clients that were made in Python are for tffcl.train"
    check_kind(name, config, RunConfig, wanted)


def resolve(
    task: str | pathlib.Path,
    algorithm: str,
    *,
    seed: int = 0,
    overrides: Mapping | None = None,
) -> RunConfig:
    """Puts a run's configuration together.

    A task's [train] holds for all methods; [algorithms.NAME] holds that method's own parameters, and its own values of
    [train]'s keys where the papers used others.

    Args:
      task: A task file or a name in `tasks/`.
      algorithm: A label of the task's [algorithms], or a name of `tffcl list algorithms`.
      seed: See `RunConfig`.
      overrides: Nested tables that replace the file's values.

    Raises:
      UserError: For unknown or contradictory keys and values, by name.
    """
    loaded, source = check_before_imports(task, algorithm, seed=seed, overrides=overrides)
    overrides = overrides or {}
    with loaded.locating(overrides):
        overrides = _with_todays_keys(overrides, source)
        contents = task_file.merged(_without_replaced(_with_todays_keys(loaded.contents, source), overrides, source), overrides)
        directory = load_own_data(contents, str(loaded.path.parent))
        check_model(contents["model"], foreign=True)
        check_aggregation_keys(contents.get("aggregation", {}))
        return dataclasses.replace(
            _resolved(loaded.name, contents, source, seed, overrides), directory=source.directory or directory
        )


def check_before_imports(
    task: str | pathlib.Path, algorithm: str, *, seed: int = 0, overrides: Mapping | None = None
) -> tuple[task_file.Task, MethodSource]:
    """Checks what `resolve` does without importing TensorFlow, which takes seconds; returns the task and the method's source."""
    check_value("seed", seed, Seed)
    loaded = task_file.load_task(task)
    overrides = overrides or {}
    check_plain(overrides, "on the command line")
    for section in overrides:
        if section not in task_file.SECTIONS:
            raise _unknown_section(section, overrides[section], loaded)
    task_file.check_tables(overrides, "on the command line")
    with loaded.locating(overrides):
        source = _find(algorithm, task_file.merged(loaded.contents, overrides), str(loaded.path.parent))
        _check_at_once(loaded, source, seed, overrides)
    return loaded, source


def _unknown_section(section: str, table: object, loaded: task_file.Task) -> UserError:
    labels = {name.casefold(): name for name in (*ALGORITHMS, *loaded.contents.get("algorithms", {}))}
    if label := labels.get(section.casefold()):
        key = next(iter(table), "KEY") if isinstance(table, Mapping) else "KEY"
        return UserError(f"unknown section {section!r}; did you mean algorithms.{label}.{key}?")
    return unknown("section", section, task_file.SECTIONS)


def _check_at_once(loaded: task_file.Task, source: MethodSource, seed: int, overrides: Mapping):
    """Checks what needs no TensorFlow, which takes seconds to import: all tables but the model's own keys."""
    contents = task_file.merged(loaded.contents, overrides)
    check_model(contents["model"], foreign=False)
    check_settings(contents["dataset"], contents["partition"])
    source.check_aggregation(contents.get("algorithms", {}).get(source.label, {}), contents.get("aggregation", {}))
    source.check_attack(contents.get("attack", {}))
    needs = ALGORITHMS[source.base].needs if source.base in ALGORITHMS else ()
    if "server_images" in needs and not contents["dataset"].get("server_examples"):
        raise no_server_data()
    if source.base in ALGORITHMS:
        overrides = _with_todays_keys(overrides, source)
        contents = task_file.merged(_without_replaced(_with_todays_keys(loaded.contents, source), overrides, source), overrides)
        _resolved(loaded.name, contents, source, seed, overrides)


def full_key(task: str | pathlib.Path, algorithm: str | None, key: str) -> str:
    """Returns a key that has no section with it: "train.rounds" for "rounds", "algorithms.pacfl.threshold" for "threshold".

    Args:
      task: The task.
      algorithm: The method that runs; None where several may.
      key: Of [train], or of the method's own table.

    Raises:
      UserError: If the key is of neither.
    """
    if algorithm:
        source = find_source(task, algorithm)
        return method_key(key, source)
    known = {field.name for field in dataclasses.fields(TrainSettings)}
    if key not in known:
        raise UserError(
            f"--set {key}=... is not SECTION.KEY=VALUE, e.g. train.rounds=20 or algorithms.pacfl.num_clusters=4; without a section "
            f"there are train's keys: {', '.join(sorted(known))}"
        )
    return f"train.{key}"


def method_key(key: str, algorithm: str | MethodSource) -> str:
    """Returns the key with its section: a parameter of the method, or a key of [train], may come without.

    Raises:
      UserError: If it comes without and is neither, or the method is unknown.
    """
    source = find_method(algorithm, {}) if isinstance(algorithm, str) else algorithm
    if "." in key:
        return key
    train = [field.name for field in dataclasses.fields(TrainSettings)]
    if key in train:
        return f"train.{key}"
    cls = source.parameter_class
    own = [field.name for field in dataclasses.fields(cls)] if cls else []
    if cls:  # as a task's table: keys of earlier versions too, with a hint
        (key,) = with_todays_keys({key: None}, cls.renamed, f"algorithms.{source.label}")
    if key in own:
        return f"algorithms.{source.label}.{key}"
    raise unknown(f"parameter of {source.label} or key of [train]", key, [*own, *train])


def find_source(task: str | pathlib.Path, label: str, overrides: Mapping | None = None) -> MethodSource:
    """Finds the method that a label means in a task.

    Raises:
      UserError: As `resolve`, for an unknown task or method.
    """
    loaded = task_file.load_task(task)
    with loaded.locating(overrides or {}):
        return _find(label, task_file.merged(loaded.contents, overrides or {}), str(loaded.path.parent))


def _find(label: str, contents: Mapping, directory: str) -> MethodSource:
    """The method of a label; the task's other labels must mean methods, too."""
    tables = contents.get("algorithms", {})
    check_labels(tables, "a label of [algorithms]")
    for other in tables:
        if other != label and "builder" not in tables[other]:
            find_method(other, tables[other], directory, "algorithm in [algorithms]")
    return find_method(label, tables.get(label, {}), directory)


def _with_todays_keys(contents: Mapping, source: MethodSource) -> Mapping:
    """The tables with the method's old keys under their names of today, so that those given later replace earlier ones."""
    cls, label = source.parameter_class, source.label
    table = contents.get("algorithms", {}).get(label, {})
    if cls is None or not isinstance(table, Mapping):
        return contents
    renamed = with_todays_keys(table, cls.renamed, f"algorithms.{label}")
    return contents if renamed == table else {**contents, "algorithms": {**contents["algorithms"], label: renamed}}


def _without_replaced(contents: Mapping, overrides: Mapping, source: MethodSource) -> Mapping:
    """The file's tables without the keys that one on the command line stands for, as a cut by count for one by threshold."""
    label, cls = source.label, source.parameter_class
    given = overrides.get("algorithms", {}).get(label, {})
    table = contents.get("algorithms", {}).get(label, {})
    replaced = {each for group in (cls.alternatives if cls else ()) if set(group) & set(given) for each in group} - set(given)
    if not replaced & set(table):
        return contents
    kept = {key: value for key, value in table.items() if key not in replaced}
    return {**contents, "algorithms": {**contents["algorithms"], label: kept}}


def _resolved(name: str, contents: Mapping, source: MethodSource, seed: int, overrides: Mapping) -> RunConfig:
    label = source.label
    own = {key: value for key, value in contents.get("algorithms", {}).get(label, {}).items() if key not in KEYS}
    train_keys = {field.name for field in dataclasses.fields(TrainSettings)}
    train = task_file.merged(contents.get("train", {}), {key: own[key] for key in own if key in train_keys}, "train")
    # A value given on the command line for all methods wins over the file's value for one of them.
    for table in (overrides.get("train", {}), overrides.get("algorithms", {}).get(label, {})):
        wins = {key: value for key, value in table.items() if key in train_keys and value is not task_file.UNSET}
        train = task_file.merged(train, wins, "train")
    config = RunConfig(
        task=name,
        algorithm=label,
        seed=seed,
        description=contents.get("description", ""),
        source=contents.get("source", ""),
        dataset=contents["dataset"],
        partition=contents["partition"],
        model=contents["model"],
        train=_train_settings(train, label, own, overrides),
        method=_method_parameters(source, {key: own[key] for key in own if key not in train_keys}),
        evaluation=from_table(EvaluationSettings, contents.get("evaluation", {}), "evaluation"),
        checkpoint=from_table(CheckpointSettings, contents.get("checkpoint", {}), "checkpoint"),
        newcomers=from_table(NewcomerSettings, contents.get("newcomers", {}), "newcomers"),
        drift=from_table(DriftSettings, contents.get("drift", {}), "drift"),
        privacy=from_table(PrivacySettings, contents.get("privacy", {}), "privacy"),
        attack=from_table(AttackSettings, contents.get("attack", {}), "attack"),
        aggregation=contents.get("aggregation", {}),
        base="" if source.base == label else source.base,
        directory=source.directory,
    )
    _check_happens(config)
    return config


def _check_happens(config: RunConfig):
    """Raises UserError if clients are to join, or data to change, in a round that the run does not have."""
    last = config.train.rounds
    for table, what, happens in (
        ("drift", "data would never change", config.drift.clients and config.drift.round > last),
        ("newcomers", "nobody would ever join", config.newcomers.any and config.newcomers.round > last),
    ):
        if happens:
            given = getattr(config, table).round
            raise UserError(
                f"{table}.round is {given}, and the run has {last}: {what}; it must be at most train.rounds",
                table=table,
                key="round",
            )


def _train_settings(train: Mapping, algorithm: str, own: Mapping, overrides: Mapping) -> TrainSettings:
    try:
        return from_table(TrainSettings, train, "train")
    except UserError as error:
        if error.table == "train" and error.key in own and error.key not in overrides.get("train", {}):
            error.table = f"algorithms.{algorithm}"  # where the value stands
        raise


def _method_parameters(source: MethodSource, values: Mapping) -> Parameters | None:
    table = f"algorithms.{source.label}"
    if source.parameter_class is None:
        if values:
            found = sorted(values)
            raise UserError(f"{source.label} has no parameters of its own; found {', '.join(found)}", table=table, key=found[0])
        return None
    return from_table(source.parameter_class, values, table)


def load_run_config(out: str | pathlib.Path, *, trust_builders: bool | RunConfig = False) -> RunConfig:
    """Reads the configuration that a run has written into its directory.

    Args:
      out: The directory of one run.
      trust_builders: Whether functions that the file names as "module:function" may be imported and called; a configuration of the
        reader's own: those that it names in the same directory.

    Raises:
      UserError: If it is not a run's directory, its config.toml is damaged, or it names functions that are not trusted.
    """
    out = pathlib.Path(out)
    file = out / "config.toml"
    if not out.is_dir():
        raise UserError(f"{out} is not a directory; give the output directory of a run")
    if not file.is_file():
        raise UserError(f"{out} holds no run: there is no config.toml in it{runs_below(out)}")
    try:
        values = read_toml(read_text(file), file.name)
        if "dataset" not in values:
            raise UserError(
                f"{out} is of tffcl.train, whose method and data no file holds; tffcl.train(..., resume=True) with them gives its result "
                "again, and tffcl.export_result(result, to) exports it"
            )
        task_file.check_tables({name: values.get(name, {}) for name in ("dataset", "partition", "model", "aggregation")}, file.name)
        if trust_builders is not True:
            check_trusted(values, file, trust_builders.as_dict() if trust_builders else {})
        return _written(values)
    except KeyError as error:
        raise UserError(f"{file} is damaged: there is no {error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is damaged: {error}") from None


def _written(values: dict) -> RunConfig:
    """The inverse of `RunConfig.as_dict`."""
    base = values.get("base", "")
    named = {"builder": base} if ":" in base else {"method": base} if base else {}
    source = find_method(values["algorithm"], {**values.get("method", {}), **named}, values.get("directory", ""))
    kinds = {"train": TrainSettings, "evaluation": EvaluationSettings, "checkpoint": CheckpointSettings}
    kinds |= {"newcomers": NewcomerSettings, "drift": DriftSettings, "privacy": PrivacySettings, "attack": AttackSettings}
    tables = {name: from_table(kind, values.get(name, {}), name) for name, kind in kinds.items()}
    method = _method_parameters(source, values.get("method", {}))
    plain = {name: values[name] for name in ("task", "algorithm", "seed", "description", "source")}
    data = {name: values[name] for name in ("dataset", "partition", "model")}
    directory = values.get("directory", "")
    load_own_data(values, directory)
    aggregation = values.get("aggregation", {})
    return RunConfig(**plain, **data, **tables, method=method, aggregation=aggregation, base=base, directory=directory)
