"""What `tffcl list KIND NAME` prints: the keys that something takes in a task file, with defaults and meanings."""

import dataclasses
import inspect
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping

from tffcl import registry
from tffcl.algorithms.parameters import METRICS
from tffcl.choices import VECTOR_METRICS
from tffcl.lab.batches import study_files
from tffcl.lab.datasets import federated
from tffcl.lab.tasks import resolve, task_file
from tffcl.lab.tasks.encoder_data import ENCODERS, training_sets
from tffcl.validation import describe, keys_of, types_of

_NEEDED = (inspect.Parameter.empty, dataclasses.MISSING)
_GIVEN = ("dataset",)  # a partition's first parameter


def explain(kind: str, name: str) -> list[str]:
    """Says what a task may set for something that `tffcl list` names.

    Args:
      kind: One of `registry.kinds`, e.g. "algorithms".
      name: Of one of that kind.

    Returns:
      Lines: what it is, the table of a task file that its keys belong to, and a line or more for each key.

    Raises:
      UserError: For an unknown name.
    """
    row, also = registry.find(kind, name), _ALSO.get(kind, _nothing)
    if kind in ("tasks", "studies", "encoders"):
        return [*([row.summary] if kind == "encoders" else []), *also(name)]
    table = f"algorithms.{name}" if kind == "algorithms" else registry.noun(kind)
    if row.parameters:
        keys = _settings(table, row.parameter_class())
    elif kind in ("algorithms", "signatures", "trainings", "aggregations") and not row.foreign:
        keys = ["no keys of its own"]
    else:
        keys = _function(table, row.builder(), registry.given(kind))
    return [row.summary, *keys, *also(name)]


def _nothing(name: str) -> Iterator[str]:
    yield from ()


def _algorithm(name: str) -> Iterator[str]:
    yield "It may also have its own values of [train]'s keys:"
    yield from _settings("train", resolve.TrainSettings)


def _study(name: str) -> Iterator[str]:
    study = study_files.load_study(name)
    yield ", ".join(filter(None, [study.title, study.paper, study.table]))
    if study.note:
        yield study.note
    for cell in study.cells:
        mean, spread = cell.published
        printed = "nothing printed" if mean is None else f"{mean:g}{'' if spread is None else f' ± {spread:g}'}"
        able = f"not available: {cell.missing}" if cell.missing else f"{cell.method} on {pathlib.Path(cell.task).stem}"
        yield f"  {cell.name}: {cell.measure}, {printed}; {able}"


def _task(name: str) -> Iterator[str]:
    task = task_file.load_task(name)
    yield task.contents.get("description", "")
    if task.contents.get("source"):
        yield f"source: {task.contents['source']}"
    yield f"file: {task.path}"
    yield f"methods with a table: {', '.join(task.contents.get('algorithms', {})) or 'none'}"
    yield "Beside [dataset], [partition], [model], [train] and [algorithms.NAME] a task may have:"
    for table, settings in (
        ("evaluation", resolve.EvaluationSettings),
        ("checkpoint", resolve.CheckpointSettings),
        ("newcomers", resolve.NewcomerSettings),
        ("drift", resolve.DriftSettings),
        ("privacy", resolve.PrivacySettings),
        ("attack", resolve.AttackSettings),
    ):
        yield from _settings(table, settings)


def _dataset(name: str) -> Iterator[str]:
    yield "It takes too, as every data set does:"
    loader = inspect.cleandoc(federated.load_federated.__doc__).split("dataset: ")[1].split("partition: ")[0]
    yield f"  {_for_users(' '.join(loader.split()))}"


def _signature(name: str) -> Iterator[str]:
    yield f"metrics: {', '.join({**METRICS.get(name, {}), **VECTOR_METRICS})}"


def _encoder(name: str) -> Iterator[str]:
    yield f'the same as algorithms.flt.encoder = "{ENCODERS[name][0]}"'
    from tffcl.lab.tasks.encoders import kept_encoders

    for path, told in kept_encoders():
        told_sets = [told["dataset"].get("name")] if "name" in told["dataset"] else told["dataset"]["names"]
        classes = told.get("classes") or [[]] * len(told_sets)
        if training_sets(name) == [(each, tuple(own)) for each, own in zip(told_sets, classes)]:
            size = f"{told['examples']:,} images, {told['epochs']} epochs, codes of {told['latent']}"
            yield f"kept: {path} ({size}, loss {told['loss']:.4f})"


# What is said of a name beside its keys.
_ALSO = {
    "algorithms": _algorithm, "tasks": _task, "studies": _study, "datasets": _dataset, "signatures": _signature,
    "encoders": _encoder,
}  # fmt: skip


def _settings(table: str, settings: type) -> Iterator[str]:
    keys = {field.name: field.default for field in dataclasses.fields(settings)}
    classes = [each for each in reversed(settings.__mro__) if dataclasses.is_dataclass(each)]
    texts = {key: text for each in classes for key, text in _told(each.__doc__, "Attributes").items()}
    yield from _table(table, keys, types_of(settings), texts)


def _function(table: str, function: Callable, given: tuple[str, ...]) -> Iterator[str]:
    keys = {key: default for key, default in keys_of(function).items() if key not in (*_GIVEN, *given)}
    yield from _table(table, keys, types_of(function), _told(function.__doc__, "Args"))


def _table(name: str, keys: Mapping, types: Mapping, told: Mapping[str, str]) -> Iterator[str]:
    yield f"[{name}]" if keys else "no keys of its own"
    for key, default in keys.items():
        value = "must be given" if default in _NEEDED else "not set" if default is None else _toml(default)
        allowed = describe(types[key]) if key in types else ""
        yield f"  {key} ({value}{'; ' if allowed else ''}{allowed}): {told.get(key, '')}".rstrip(": ")


def _toml(value) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def _told(text: str | None, section: str) -> dict[str, str]:
    """The entries of a section of a Google style docstring, each in one line, by name."""
    lines = inspect.cleandoc(text or "").splitlines()
    if f"{section}:" not in lines:
        return {}
    told, name = {}, None
    for line in lines[lines.index(f"{section}:") + 1 :]:
        if line and not line.startswith(" "):
            break
        entry = re.match(r"  (\w+): (.*)", line)
        if entry:
            name = entry[1]
            told[name] = entry[2]
        elif name and line.strip():
            told[name] += f" {line.strip()}"
    return {key: _for_users(text) for key, text in told.items()}


# What docstrings say to who reads the code, and what a user of task files knows it as.
_NAMES = {
    r"([Aa]) name in `SIGNATURES`": r"\1 name of `tffcl list signatures`",
    r"([Aa]) name in `TRAININGS`": r"\1 name of `tffcl list trainings`",
    r"`(\w+\.)?DATASETS`": "`tffcl list datasets`",
    r"(A name in|One of|Name in) `[\w.]*[A-Z]{3}[A-Z_]*`": "One of these",
    r"(a name in|one of|name in) `[\w.]*[A-Z]{3}[A-Z_]*`": "one of these",
    r"As in `local_tests`": (
        'Which test images a client has: all of its own "classes"; "all" of its domain; a "share" that no other client gets; '
        'its "own", where images have owners'
    ),
    r"another rule of `local_tests`": 'all of its own "classes", "all", or a "share" that no other client gets',
    r"[,;:]? see `[a-z_]+(\.\w+)*`": "",
    r"`core\.Dataset`": "`tffcl.Dataset`",
    r"\bNone\b": "not set",
}


def _for_users(text: str) -> str:
    for code, words in _NAMES.items():
        text = re.sub(code, words, text)
    return text
