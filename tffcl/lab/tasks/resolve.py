"""Makes a run's configuration from a task file, the method's own table in it, and the command line's overrides."""

import dataclasses
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import numpy as np

from tffcl.clients import cohort
from tffcl.display import Shown, counted
from tffcl.errors import OVERRIDES, Option, UserError, unknown
from tffcl.files import text_of_file
from tffcl.lab.datasets.catalog import MAY_BE_NUMBERS
from tffcl.lab.datasets.federated import check_settings
from tffcl.lab.reporting.batch_index import runs_below
from tffcl.lab.tasks import task_file
from tffcl.lab.tasks.method_settings import KEYS, MethodSource, find_method
from tffcl.lab.tasks.settings import (
    TRAIN_KEYS,
    AttackSettings,
    CheckpointSettings,
    DriftSettings,
    EvaluationSettings,
    NewcomerSettings,
    TrainSettings,
)
from tffcl.models.metrics import OF_NUMBERS
from tffcl.references import load_reference, references_in
from tffcl.registry import ALGORITHMS, find_in_table, given, noun, parameters_of
from tffcl.runs.metrics import Metric, measured
from tffcl.runs.privacy import PrivacySettings
from tffcl.runs.run_directory import BUILT_FROM, CONFIG, RunDirectory
from tffcl.validation import Parameters, check_kind, check_labels, check_options, check_value, from_table

Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_OWN = ("dataset", "partition", "model", "aggregation")  # tables that may name a user's own builder
# Tables that are the same for every method; [train] may also have a method's own values.
SETTINGS = {
    "evaluation": EvaluationSettings, "checkpoint": CheckpointSettings, "newcomers": NewcomerSettings,
    "drift": DriftSettings, "privacy": PrivacySettings, "attack": AttackSettings,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunConfig(Shown):
    """All values that decide a run.

    Attributes:
      task: The name of the task.
      algorithm: The label of the method's table; by default the method's name.
      seed: Decides partition, sampling, initial weights, shuffling and server-side randomness.
      description: The task in a sentence.
      source: Where the task's setting comes from, e.g. a paper.
      dataset: Name and options, see `datasets`.
      partition: Name and options.
      model: Name and options, see `models`.
      train: The protocol of training, with the method's own values.
      method: The method's own parameters; None for a method that has none.
      evaluation: When accuracies are measured.
      checkpoint: When the state is saved.
      newcomers: Who joins later.
      drift: Whose data change in the middle of the run.
      privacy: The budget of private releases.
      attack: Which clients are malicious.
      aggregation: Name and options of the aggregation of updates inside each cluster; empty for the plain mean.
      base: The method, if its label does not name it: a name in the registry, or a builder "module:function".
      directory: Where modules of builders are searched: the task file's directory; "" if there are no such modules.
    """

    task: str
    algorithm: str
    seed: int
    description: str
    source: str
    dataset: Mapping
    partition: Mapping
    model: Mapping
    train: TrainSettings
    method: Parameters | None
    evaluation: EvaluationSettings
    checkpoint: CheckpointSettings
    newcomers: NewcomerSettings = NewcomerSettings()
    drift: DriftSettings = DriftSettings()
    privacy: PrivacySettings = PrivacySettings()
    attack: AttackSettings = AttackSettings()
    aggregation: Mapping = dataclasses.field(default_factory=dict)
    base: str = ""
    directory: str = ""

    def facts(self):
        """The most important values; `as_dict` has every value."""
        train = self.train
        names = [each.get("name", each.get("builder")) for each in (self.dataset, self.partition, self.model)]
        each = train.participation
        clients = counted(train.clients_per_round, "client") if each is None else f"{100 * each:g} % of the clients"
        return {
            "task": self.task,
            "algorithm": self.algorithm,
            "seed": self.seed,
            "rounds": f"{train.rounds} of {clients}",
            **dict(zip(("dataset", "partition", "model"), names)),
        }

    @property
    def method_source(self) -> MethodSource:
        """Where the method comes from."""
        return MethodSource(self.algorithm, self.base or self.algorithm, self.directory)

    @property
    def evaluate_every(self) -> int:
        """Rounds between evaluations."""
        return self.evaluation.every

    @property
    def has_validation(self) -> bool:
        """Whether clients hold validation examples."""
        return bool(self.dataset.get("validation"))

    def held_out(self, num_clients: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the clients that are there from the first round on, and the newcomers, see `cohort.hold_out`."""
        return cohort.hold_out(num_clients, self.newcomers.count(num_clients), self.seed)

    def participants(self, num_clients: int) -> np.ndarray:
        """Returns the clients that are there from the first round on."""
        return self.held_out(num_clients)[0]

    @property
    def measured(self) -> Mapping[str, Metric] | None:
        """The metrics of the run by column of rounds.csv; None if a user's own builder gives the model and no metrics
        are named. If no metrics are named and only the data show whether labels are numbers, those of both kinds."""
        names = self.evaluation.metrics
        if references_in(self.model) and not names:
            return None
        found = measured(names, has_accuracy=not {*names} & {*OF_NUMBERS}, validation=self.has_validation)
        if names or not (references_in(self.dataset) or self.dataset.get("name") in MAY_BE_NUMBERS):
            return found
        return found | measured(OF_NUMBERS, validation=self.has_validation)

    @property
    def last_change(self) -> int:
        """The first round with newcomers or with drifted data, the later of the two; 0 without either."""
        return max(each.round if each.any else 0 for each in (self.drift, self.newcomers))

    def as_dict(self) -> dict:
        """Plain containers without None, as TOML takes them, and without tables that set nothing, such as [drift]."""
        values = _without_none(dataclasses.asdict(self))
        there = {"newcomers": self.newcomers.any, "drift": self.drift.any, "attack": self.attack.share}
        for name, is_there in {**there, "privacy": values["privacy"]}.items():
            if not is_there:
                del values[name]
        for name in ("aggregation", "base", "directory"):
            if not values[name]:
                del values[name]
        return values


def _without_none(value):
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return list(value) if isinstance(value, tuple) else value


def parse_overrides(pairs: Sequence[str]) -> dict:
    """Turns `["train.rounds=3", ...]` into `{"train": {"rounds": 3}}`; values are TOML, or else text.

    No value after the equals sign means `task_file.UNSET`: the file's value is removed.

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
                f"--set {pair[:100]!r} is not SECTION.KEY=VALUE, e.g. train.rounds=20 or "
                "algorithms.pacfl.num_clusters=4"
            )
        where = f"--set {key.strip()[:100]}"
        try:
            value = task_file.read_toml(f"value = {text}", where)["value"] if text.strip() else task_file.UNSET
        except tomllib.TOMLDecodeError:
            value = text
        table = overrides
        for part in path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise UserError(f"--set {pair!r}: {part} has a value already, so it has no keys")
        task_file.put(table, path[0], path[-1], value)
    return overrides


def check_config(name: str, config: object):
    """Raises UserError if `config` is not what `resolve` returns."""
    wanted = (
        "what tffcl.resolve(task, algorithm) returns; methods and clients that were made in Python are for tffcl.train"
    )
    check_kind(name, config, RunConfig, wanted)


def resolve(task: str | pathlib.Path, algorithm: str, *, seed: int = 0, overrides: Mapping | None = None) -> RunConfig:
    """Makes the configuration of a run, which `tffcl.run`, `compare` and `similarity` take, from a task and a method.

    A task's [train] applies to all methods. [algorithms.NAME] has that method's own parameters, and its own values of
    [train]'s keys where the papers used other values. TensorFlow is imported only if a user's own module imports it.

    Args:
      task: A task file or a name in `tasks/`.
      algorithm: A label of the task's [algorithms], or a name of `tffcl list algorithms`.
      seed: See `RunConfig`.
      overrides: Nested tables that replace the file's values.

    Raises:
      UserError: For unknown or contradictory keys and values; the message names them.
    """
    check_value("seed", seed, Seed)
    check_kind("algorithm", algorithm, str, "one name (tffcl list algorithms); tffcl.compare takes several of these")
    loaded = task_file.load_task(task)
    overrides = overrides or {}
    check_kind("overrides", overrides, Mapping, 'nested tables, e.g. {"train": {"rounds": 10}}')
    task_file.check_plain(overrides, str(OVERRIDES))
    for section in overrides:
        if section not in task_file.SECTIONS:
            raise _unknown_section(section, overrides[section], loaded)
    task_file.check_tables(overrides, str(OVERRIDES))
    with loaded.locating(overrides):
        source = _find(algorithm, task_file.merged(loaded.contents, overrides), str(loaded.path.parent))
        contents = task_file.merged(_without_replaced(loaded.contents, overrides, source), overrides)
        config = _resolved(loaded.name, contents, source, seed, overrides, str(loaded.path.parent))
        for kind, table in (("models", config.model), ("aggregations", config.aggregation)):
            if references_in(table):
                _check_named(kind, table)
        return config


def _unknown_section(section: str, table: object, loaded: task_file.Task) -> UserError:
    labels = {name.casefold(): name for name in (*ALGORITHMS, *loaded.contents.get("algorithms", {}))}
    if label := labels.get(section.casefold()):
        key = next(iter(table), "KEY") if isinstance(table, Mapping) else "KEY"
        return UserError(f"unknown section {section!r}; did you mean algorithms.{label}.{key}?")
    return unknown("section", section, task_file.SECTIONS)


def full_key(task: str | pathlib.Path, algorithm: str | None, key: str) -> str:
    """Returns a key with its section: "train.rounds" for "rounds", "algorithms.pacfl.threshold" for "threshold".

    Args:
      task: The task.
      algorithm: The method that runs; None if several may run.
      key: A key of [train], or of the method's own table.

    Raises:
      UserError: If the key is in neither table.
    """
    if algorithm:
        return method_key(key, find_source(task, algorithm))
    if key not in TRAIN_KEYS:
        raise UserError(
            f"--set {key}=... is not SECTION.KEY=VALUE, e.g. train.rounds=20 or algorithms.pacfl.num_clusters=4; "
            f"without a section there are train's keys: {', '.join(sorted(TRAIN_KEYS))}"
        )
    return f"train.{key}"


def method_key(key: str, algorithm: str | MethodSource) -> str:
    """Returns the key with its section; a parameter of the method, or a key of [train], may be given without one.

    Raises:
      UserError: If a key without section is neither of these, or the method is unknown.
    """
    source = find_method(algorithm, {}) if isinstance(algorithm, str) else algorithm
    if "." in key:
        return key
    if key in TRAIN_KEYS:
        return f"train.{key}"
    cls = source.parameter_class
    own = [field.name for field in dataclasses.fields(cls)] if cls else []
    if key in own:
        return f"algorithms.{source.label}.{key}"
    raise unknown(f"parameter of {source.label} or key of [train]", key, [*own, *TRAIN_KEYS])


def find_source(task: str | pathlib.Path, label: str, overrides: Mapping | None = None) -> MethodSource:
    """Finds the method of a label in a task.

    Raises:
      UserError: For an unknown task or method, as in `resolve`.
    """
    loaded = task_file.load_task(task)
    with loaded.locating(overrides or {}):
        return _find(label, task_file.merged(loaded.contents, overrides or {}), str(loaded.path.parent))


def _find(label: str, contents: Mapping, directory: str) -> MethodSource:
    """The method of a label; the task's other labels must name methods, too."""
    tables = contents.get("algorithms", {})
    check_labels(tables, "a label of [algorithms]")
    for other in tables:
        if other != label and "builder" not in tables[other]:
            find_method(other, tables[other], directory, "algorithm in [algorithms]")
    return find_method(label, tables.get(label, {}), directory)


def _without_replaced(contents: Mapping, overrides: Mapping, source: MethodSource) -> Mapping:
    """The file's tables without keys that an override replaces, e.g. a threshold that a number of clusters replaces."""
    label, methods = source.label, contents.get("algorithms", {})
    if label not in methods:
        return contents
    given = overrides.get("algorithms", {}).get(label, {})
    kept = task_file.without_replaced(methods[label], given, source.parameter_class)
    return {**contents, "algorithms": {**methods, label: kept}}


def _resolved(
    name: str, contents: Mapping, source: MethodSource, seed: int, overrides: Mapping, directory: str
) -> RunConfig:
    """Checks a task's tables, except the options of the user's own builders of model and aggregation.

    Args:
      name: The name of the task.
      contents: The task's tables, merged with the command line's values.
      source: Where the method comes from.
      seed: See `RunConfig`.
      overrides: The command line's values, which win over the method's own values of [train].
      directory: Where modules of builders are searched first.
    """
    label = source.label
    own = {key: value for key, value in contents.get("algorithms", {}).get(label, {}).items() if key not in KEYS}
    train = task_file.merged(contents.get("train", {}), {key: own[key] for key in own if key in TRAIN_KEYS}, "train")
    for table in (overrides.get("train", {}), overrides.get("algorithms", {}).get(label, {})):
        wins = {key: value for key, value in table.items() if key in TRAIN_KEYS and value is not task_file.UNSET}
        train = task_file.merged(train, wins, "train")
    parts = {key: contents[key] for key in ("dataset", "partition", "model")}
    aggregation = contents.get("aggregation", {})
    check_settings(parts["dataset"], parts["partition"])
    source.check(contents)
    config = RunConfig(
        task=name, algorithm=label, seed=seed, description=contents.get("description", ""),
        source=contents.get("source", ""), **parts, train=_train_settings(train, label, own, overrides),
        method=source.parameters_from({key: own[key] for key in own if key not in TRAIN_KEYS}),
        **{key: from_table(kind, contents.get(key, {}), key) for key, kind in SETTINGS.items()},
        aggregation=aggregation, base="" if source.base == label else source.base, directory=source.directory,
    )  # fmt: skip
    if error := never_happens(config):
        raise error
    source.check_training(contents, config.train.local)
    for kind, table in (("models", parts["model"]), ("aggregations", aggregation)):
        if table and not references_in(table):
            _check_named(kind, table)
    found = load_own(contents, directory)
    return dataclasses.replace(config, directory=source.directory or found)


def _check_named(kind: str, table: Mapping):
    """Checks the keys of [model] or [aggregation]; raises UserError for a key or value that is not allowed."""
    name, row, options = find_in_table(kind, table)
    if kind == "aggregations" and not row.foreign:
        parameters_of(row.parameter_class(), options, "aggregation")
    else:
        check_options(f"{noun(kind)} {name}", row.builder(), options, given=given(kind), also=("name",))


def load_own(contents: Mapping, directory: str) -> str:
    """Imports the user's own builders of data, model and aggregation; returns their directory, "" without any."""
    found = ""
    for section in _OWN:
        for reference in references_in(contents.get(section, {})):
            load_reference(reference, directory, f"{section}.builder")
            found = str(pathlib.Path(directory).resolve())
    return found


def never_happens(config: RunConfig) -> UserError | None:
    """Returns an error if clients join, or data change, only after the run's last round; otherwise None."""
    last = config.train.rounds
    for table, what, happens in (
        ("drift", "data would never change", config.drift.any and config.drift.round > last),
        ("newcomers", "nobody would ever join", config.newcomers.any and config.newcomers.round > last),
    ):
        if happens:
            given = getattr(config, table).round
            return UserError(
                f"{table}.round is {given}, and the run has {last}: {what}; it must be at most train.rounds",
                table=table,
                key="round",
            )
    return None


def _train_settings(train: Mapping, algorithm: str, own: Mapping, overrides: Mapping) -> TrainSettings:
    try:
        return from_table(TrainSettings, train, "train")
    except UserError as error:
        if error.table == "train" and error.key in own and error.key not in overrides.get("train", {}):
            error.table = f"algorithms.{algorithm}"  # the table that has the value
        raise


def load_run_config(out: str | pathlib.Path, *, trust_builders: bool | RunConfig = False) -> RunConfig:
    """Reads the configuration that a run has written into its directory.

    Args:
      out: The directory of one run.
      trust_builders: Whether functions that the file names as "module:function" may be imported and called. If it is
        the caller's own configuration, only functions that this names in the same directory may be.

    Raises:
      UserError: If `out` is not a run's directory, or its config.toml is damaged, was edited, or names functions that
        are not trusted.
    """
    out = pathlib.Path(out)
    file = out / CONFIG
    if not out.is_dir():
        raise UserError(f"{out} is not a directory; give the output directory of a run")
    if not file.exists():
        raise UserError(f"{out} holds no run: there is no config.toml in it{runs_below(out)}")
    try:
        values = task_file.read_toml(text_of_file(file), file.name)
        if BUILT_FROM in values:
            raise UserError(
                f"{out} is of tffcl.train, whose method and data no file holds; tffcl.train(..., resume=True) with "
                "them gives its result again, and tffcl.export_result(result, to) exports it"
            )
        task_file.check_tables({name: values.get(name, {}) for name in _OWN}, file.name)
        if trust_builders is not True:
            _check_trusted(values, file, trust_builders.as_dict() if trust_builders else {})
        RunDirectory(out).check_unedited(values)
        label, base, directory = values["algorithm"], values.get("base", ""), values.get("directory", "")
        named = {"builder": base} if ":" in base else {"method": base} if base else {}
        contents = {**values, "algorithms": {label: {**values.get("method", {}), **named}}}
        source = find_method(label, contents["algorithms"][label], directory)
        return _resolved(values["task"], contents, source, values["seed"], {}, directory)
    except KeyError as error:
        raise UserError(f"{file} is damaged: there is no {error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is damaged: {error}") from None


def _check_trusted(values: Mapping, file: pathlib.Path, own: Mapping):
    """Checks, before anything is imported, that a run's file names no function that the caller does not trust.

    Args:
      values: The contents of a run's config.toml, which may come from somebody else.
      file: That file, for the message.
      own: The caller's own settings, whose functions in the same directory are trusted; may be empty.

    Raises:
      UserError: If there is such a function; the message names the first one.
    """
    known = _named_in(own) if own.get("directory", "") == values.get("directory", "") else []
    foreign = [each for each in _named_in(values) if each not in known]
    if foreign:
        raise UserError(
            f"{file} names {foreign[0]!r}, which would be imported and called, and whoever made that run may have "
            f"written it; if you trust its code, say {Option('--trust-builders', 'trust_builders=True')}"
        )


def _named_in(values: Mapping) -> list[str]:
    return references_in([values.get(each, "") for each in ("base", "method", *_OWN)])
