"""What there is by name, a line each: `tffcl list`."""

from collections.abc import Iterator, Mapping

from tffcl.datasets import registry as data
from tffcl.experiments import catalog, study_files, tasks
from tffcl.experiments.encoder_data import ENCODERS
from tffcl.references import registered


def described() -> dict[str, Mapping[str, str]]:
    """Returns for every kind of thing what there is, name to description, what installed packages register with it."""
    found = {
        "algorithms": {name: entry.description for name, entry in catalog.ALGORITHMS.items()},
        "tasks": tasks.task_descriptions(),
        "studies": study_files.study_titles(),
        "datasets": {name: entry.summary for name, entry in data.DATASETS.items()},
        "partitions": {name: entry.summary for name, entry in data.PARTITIONS.items()},
        "models": {name: entry.description for name, entry in catalog.MODELS.items()},
        "signatures": catalog.COMPOSED_SIGNATURES,
        "trainings": catalog.TRAININGS,
        "aggregations": {name: entry.description for name, entry in catalog.AGGREGATIONS.items()},
        "encoders": {name: description for name, (_, description) in ENCODERS.items()},
    }
    for kind, known in found.items():
        others = registered(kind.removesuffix("s")).items()
        found[kind] = {**known, **{name: f"{value}, of an installed package" for name, value in others if name not in known}}
    return found


def listing(kind: str | None, kinds: tuple[str, ...]) -> Iterator[str]:
    """Yields the lines of one kind, or of all of these under headings."""
    everything = described()
    for each in [kind] if kind else kinds:
        if not kind:
            yield f"{each}:"
        width = max(map(len, everything[each]), default=0)
        for name, description in everything[each].items():
            yield f"  {name:<{width}}  {description}"
