"""The report as one HTML page that needs nothing else: styles and pictures are inside, and no script."""

import base64
import dataclasses
import hashlib
import importlib.resources
import math
import pathlib
import urllib.parse
from collections.abc import Sequence

import jinja2
import numpy as np

from tffcl.reporting import settings, sweeps, tables, targets
from tffcl.reporting.files import NO_CLUSTER, RunFiles
from tffcl.reporting.gallery import Picture
from tffcl.reporting.sweeps import Sweep
from tffcl.reporting.units import MISSING, human_bytes, show_value

_FILES = ("config.toml", "summary.json", "rounds.csv", "clients.csv", "clustering.npz")


@dataclasses.dataclass(frozen=True)
class _Table:
    """A plain table of the page.

    Attributes:
      head: Titles of the columns.
      rows: Cells; the first of a row is its title.
      numbers: Whether the other cells are numbers, which stand at the right.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    numbers: bool = False


def render(runs: Sequence[RunFiles], pictures: Sequence[Picture], root: pathlib.Path, sweep: Sweep | None = None) -> str:
    """Returns the page.

    Args:
      runs: One run, or those of a comparison or a sweep.
      pictures: The figures.
      root: The directory that the page is written to; it names files relative to it.
      sweep: What the runs are of, if it is one.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = importlib.resources.files("tffcl.reporting").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode("ascii")
    page = environment.from_string(source)
    rows = tables.comparison_rows(runs) if sweep else tables.directory_rows(root)
    return page.render(_of_runs(runs, root, rows) | _of_sweep(sweep) | {"sections": _sections(pictures)})


def _of_runs(runs: Sequence[RunFiles], root: pathlib.Path, rows: Sequence[tables.Row]) -> dict:
    """What the page says of the runs."""
    comparison = runs[0].path != root
    methods, differing = settings.differing(runs)
    return {
        "title": _title(runs, comparison),
        "description": _texts(runs, "description"),
        "source": _texts(runs, "source"),
        "facts": _facts(runs),
        "result": tables.to_html(rows, tables.ACCURACY_GROUPS),
        "traffic": tables.to_html(rows, tables.TRAFFIC_GROUPS),
        "seconds": tables.to_html(rows, tables.TIME_GROUPS),
        "legend": tables.LEGEND,
        "caution": tables.CAUTION,
        "targets": _targets(runs, root),
        "targets_legend": targets.LEGEND,
        "failures": [str(each) for row in rows for each in row.failures],
        "shared": _Table(("setting", "value"), settings.shared(runs)),
        "differing": _Table(("setting", *methods), differing),
        "versions": _Table(("software", "version"), settings.versions(runs)),
        "clients": _clients_compared(runs) if comparison else _clients(runs[0]),
        "clients_seed": runs[0].seed if comparison else None,
        "files": _Table(("file", "size", "SHA-256 begins"), [row for run in runs for row in _provenance(run, root)]),
        "reports": [_link(run, root) for run in runs if comparison and (run.path / "report.html").is_file()],
    }


def _of_sweep(sweep: Sweep | None) -> dict:
    """What it says otherwise where the runs are those of a sweep."""
    if sweep is None:
        return {}
    rows = tables.comparison_rows(sweep.runs)
    failures = [str(each) for point in sweep.points for each in point.failures]
    facts = [fact for fact in _facts(sweep.runs) if not fact[0].startswith("method")]
    values = [
        (label, ", ".join(dict.fromkeys(show_value(point.values[place]) for point in sweep.points)))
        for place, label in enumerate(sweep.labels)
    ]
    return {
        "title": f"{sweep.task}: {sweep.algorithm} over {' and '.join(sweep.labels)}",
        "facts": [facts[0], ("method", sweep.algorithm), *values, *facts[1:]],
        "result": sweeps.to_html(sweep),
        "traffic": tables.to_html(rows, tables.TRAFFIC_GROUPS, first=sweep.title),
        "seconds": tables.to_html(rows, tables.TIME_GROUPS, first=sweep.title),
        "legend": sweeps.legend(sweep),
        "failures": failures,
        "clients": None,  # two columns for each point are too many
    }


def _targets(runs: Sequence[RunFiles], root: pathlib.Path) -> _Table | None:
    wanted = targets.read_targets(root)
    return (
        _Table(targets.HEADS, [targets.cells(row) for row in targets.reached(runs, wanted)], numbers=True) if wanted else None
    )


def _title(runs: Sequence[RunFiles], comparison: bool) -> str:
    tasks = ", ".join(dict.fromkeys(run.task for run in runs))
    methods = list(dict.fromkeys(run.method for run in runs))
    if not comparison:
        return f"{tasks}: {runs[0].algorithm}"
    return f"{tasks}: {len(methods)} method{'s' * (len(methods) != 1)} compared"


def _texts(runs: Sequence[RunFiles], name: str) -> list[str]:
    """The different texts that the runs give under a name; in a comparison there is mostly one."""
    return list(dict.fromkeys(str(run.config[name]) for run in runs if run.config.get(name)))


def _facts(runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    seeds = sorted({run.seed for run in runs})
    facts = [
        ("task", ", ".join(dict.fromkeys(run.task for run in runs))),
        (
            "method" if len({run.method for run in runs}) == 1 else "methods",
            ", ".join(dict.fromkeys(run.method for run in runs)),
        ),
        ("seed" if len(seeds) == 1 else "seeds", ", ".join(map(str, seeds))),
        ("rounds", _span(run.number("rounds") for run in runs)),
        ("clients", _span(len(run.clients) for run in runs)),
        ("training examples", _span(run.clients.examples.sum() for run in runs)),
        ("classes", _span(run.clients.label_counts.shape[1] or math.nan for run in runs)),
    ]
    if len(runs) == 1:
        facts.append(("clients per cluster", _cluster_sizes(runs[0])))
    notes = dict.fromkeys(note for run in runs for note in run.summary.get("notes", []))
    return facts + [("note", note) for note in notes]


def _cluster_sizes(run: RunFiles) -> str:
    labels = run.clients.cluster
    _, sizes = np.unique(labels[labels != NO_CLUSTER], return_counts=True)
    return ", ".join(map(str, sorted(sizes.tolist(), reverse=True))) or MISSING


def _span(values) -> str:
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return MISSING
    ends = dict.fromkeys((min(values), max(values)))
    return " to ".join(f"{end:,.0f}" for end in ends)


def _sections(pictures: Sequence[Picture]) -> dict[str, list[Picture]]:
    sections: dict[str, list[Picture]] = {}
    for picture in pictures:
        sections.setdefault(picture.section, []).append(picture)
    return sections


def _clients(run: RunFiles) -> _Table:
    head = (
        "client",
        "true group",
        "cluster",
        "examples",
        "test examples",
        "rounds trained",
        "cluster %",
        "local %",
    )
    who = run.clients
    columns = (
        who.client_id,
        [each or MISSING for each in who.true_cluster],
        [MISSING if each == NO_CLUSTER else each for each in who.cluster],
        who.examples,
        who.test_examples,
        who.rounds_trained,
        _percents(who.cluster_accuracy),
        _percents(who.local_accuracy),
    )
    return _Table(head, list(zip(*columns, strict=True)), numbers=True)


def _clients_compared(runs: Sequence[RunFiles]) -> _Table | None:
    """The accuracies of the same clients under each method; only runs of one seed have the same clients."""
    same = [run for run in runs if run.seed == runs[0].seed]
    names = ("client_id", "examples")
    if any(not np.array_equal(getattr(run.clients, name), getattr(runs[0].clients, name)) for run in same for name in names):
        return None
    head = ["client", "true group", "examples"]
    first = runs[0].clients
    columns = [first.client_id, [each or MISSING for each in first.true_cluster], first.examples]
    for kind in ("cluster", "local"):
        head += [f"{run.method}: {kind} %" for run in same]
        columns += [_percents(getattr(run.clients, f"{kind}_accuracy")) for run in same]
    return _Table(head, list(zip(*columns, strict=True)), numbers=True)


def _percents(fractions: np.ndarray) -> list[str]:
    return [MISSING if math.isnan(each) else f"{100 * each:.2f}" for each in fractions]


def _provenance(run: RunFiles, root: pathlib.Path) -> list[tuple[str, str, str]]:
    found = [run.path / name for name in _FILES if (run.path / name).is_file()]
    return [
        (
            path.relative_to(root).as_posix(),
            human_bytes(path.stat().st_size),
            hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        )
        for path in found
    ]


def _link(run: RunFiles, root: pathlib.Path) -> tuple[str, str]:
    path = (run.path / "report.html").relative_to(root).as_posix()
    return urllib.parse.quote(path), path
