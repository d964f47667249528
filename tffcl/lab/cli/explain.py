"""`tffcl list KIND NAME` prints the keys that NAME takes in a task file, with defaults and meanings."""

import dataclasses
import inspect
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping

from tffcl import registry
from tffcl.algorithms.parameters import ComposedParameters, metrics_of, why_not
from tffcl.choices import GROUPINGS, SOFT, TREE
from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.lab.batches import study_file
from tffcl.lab.datasets import federated
from tffcl.lab.tasks import resolve, task_file
from tffcl.lab.tasks.encoder_data import ENCODERS, training_sets
from tffcl.validation import describe, described_in, keys_of, types_of

_TIMES = {
    "before_training": {},
    "as_they_join": {"when": "as_they_join"},
    "when = N": {"when": 1},
    "regroup_every": {"regroup_every": 1},
    "regroup_on": {"regroup_on": {}},
}
_NEEDED = (inspect.Parameter.empty, dataclasses.MISSING)
_GIVEN = ("dataset",)  # the first parameter of a partition


def explain(kind: str, name: str) -> list[str]:
    """Describes what a task may set for a name from `tffcl list`.

    Args:
      kind: One of `registry.kinds`, e.g. "algorithms".
      name: A name of that kind.

    Returns:
      Lines: a summary, the table of a task file to which the keys belong, and one or more lines for each key.

    Raises:
      UserError: For an unknown name.
    """
    row, also = registry.find(kind, name), _ALSO.get(kind, lambda name: ())
    if kind in ("tasks", "studies", "encoders"):
        return [*([row.summary] if kind == "encoders" else []), *also(name)]
    table = f"algorithms.{name}" if kind == "algorithms" else registry.noun(kind)
    if row.parameters:
        keys = _settings(table, row.parameter_class())
    elif kind in ("algorithms", "signatures", "groupings", "trainings", "aggregations") and not row.foreign:
        keys = ["no keys of its own"]
    else:
        keys = _settings(table, row.builder(), registry.given(kind))
    return [row.summary, *keys, *also(name)]


def _algorithm(name: str) -> Iterator[str]:
    if name == registry.COMPOSED:
        yield "What goes together, by signature: metrics, with the groupings that take them:"
        for signature in registry.rows("signatures"):
            yield f"  {signature}: {_composed(signature)}"
        yield f"All of these at any time, {', '.join(_TIMES)}, with any training, but:"
        yield from _not_at_that_time()
    yield "It may also have its own values of [train]'s keys:"
    yield from _settings("train", resolve.TrainSettings)


def _study(name: str) -> Iterator[str]:
    study = study_file.load_study(name)
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
    for table, settings in resolve.SETTINGS.items():
        yield from _settings(table, settings)


def _dataset(name: str) -> Iterator[str]:
    yield "It takes too, as every data set does:"
    yield f"  {_meanings(federated.load_federated)['dataset']}"


def _compositions(signature: str) -> Mapping[tuple[str, ...], list[str]]:
    """Maps tuples of groupings to the metrics of a signature that exactly these groupings take."""
    found: dict[tuple[str, ...], list[str]] = {}
    for metric in metrics_of(signature):
        able = tuple(grouping for grouping in GROUPINGS if not why_not(signature, metric, grouping))
        found.setdefault(able, []).append(metric)
    return found


def _not_at_that_time() -> Iterator[str]:
    """Yields a line for each reason why `ComposedParameters` refuse groupings, trainings and times together."""
    refused: dict[str, list[str]] = {}
    named = {TREE: "any grouping", SOFT: SOFT}  # TREE stands for all other groupings
    for grouping, training in itertools.product((TREE, SOFT), registry.rows("trainings")):
        for time, keys in _TIMES.items():
            try:
                ComposedParameters(signature="label_histogram", grouping=grouping, training=training, **keys)
            except UserError as error:
                refused.setdefault(str(error), []).append(f"{named[grouping]}, {training}, {time}")
    for reason, cases in refused.items():
        parts = (dict.fromkeys(each) for each in zip(*(case.split(", ") for case in cases)))
        yield f"  not {' with '.join(' or '.join(each) for each in parts)}: {reason}"


def _composed(signature: str) -> str:
    return "; ".join(
        f"{', '.join(metrics)} with {'any' if len(able) == len(GROUPINGS) else ', '.join(able)}"
        for able, metrics in _compositions(signature).items()
    )


def _signature(name: str) -> Iterator[str]:
    yield f"metrics, with the groupings that take them: {_composed(name)}"
    for able, metrics in _compositions(name).items():
        for grouping in (each for each in GROUPINGS if each not in able):
            yield f"  not {grouping} by {', '.join(metrics)}: {why_not(name, metrics[0], grouping)}"


def _grouping(name: str) -> Iterator[str]:
    yield "as algorithms.LABEL.grouping of a composed method; what goes together: tffcl list algorithms composed"


def _encoder(name: str) -> Iterator[str]:
    yield f'the same as algorithms.flt.encoder = "{ENCODERS[name][0]}"'
    from tffcl.lab.tasks.encoders import kept_encoders

    for path, facts in kept_encoders():
        names = [facts["dataset"].get("name")] if "name" in facts["dataset"] else facts["dataset"]["names"]
        classes = facts.get("classes") or [[]] * len(names)
        if training_sets(name) == [(each, tuple(own)) for each, own in zip(names, classes)]:
            size = f"{facts['examples']:,} images, {counted(facts['epochs'], 'epoch')}, codes of {facts['latent']}"
            yield f"kept: {path} ({size}, loss {facts['loss']:.4f})"


# The functions that describe a name beside its keys.
_ALSO = {
    "algorithms": _algorithm, "tasks": _task, "studies": _study, "datasets": _dataset, "signatures": _signature,
    "groupings": _grouping, "encoders": _encoder,
}  # fmt: skip


def _settings(name: str, documented: Callable, given: tuple[str, ...] = ()) -> Iterator[str]:
    """Lines for the keys of a class of parameters, or for those of a function that the run does not give."""
    if dataclasses.is_dataclass(documented):
        fields = sorted(dataclasses.fields(documented), key=lambda field: field.kw_only)  # as in a call
        keys = {field.name: field.default for field in fields}
    else:
        keys = {key: default for key, default in keys_of(documented).items() if key not in (*_GIVEN, *given)}
    types, meanings = types_of(documented), _meanings(documented)
    yield f"[{name}]" if keys else "no keys of its own"
    for key, default in keys.items():
        value = "must be given" if default in _NEEDED else "not set" if default is None else _toml(default)
        allowed = describe(types[key]) if key in types else ""
        yield f"  {key} ({value}{'; ' if allowed else ''}{allowed}): {meanings.get(key, '')}".rstrip(": ")


def _toml(value) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def _meanings(documented: Callable) -> dict[str, str]:
    """The description of each key, in one line, from the docstrings of a class and its bases, or of a function."""
    found = {}
    for each in reversed(getattr(documented, "__mro__", (documented,))):
        found |= described_in(each)
    return found
