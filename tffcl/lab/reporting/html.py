"""Makes the report as one HTML page that needs no other file: it contains its figures, style and script."""

import base64
import dataclasses
import hashlib
import importlib.resources
import math
import pathlib
import urllib.parse
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape

from tffcl.display import counted, sizes_of
from tffcl.errors import printable
from tffcl.files import digest_of_file
from tffcl.lab.reporting import (
    comparison_table,
    newcomers_table,
    report_figures,
    study_table,
    style,
    sweeps,
    targets,
    verdict,
)
from tffcl.lab.reporting.comparison_table import notes_of
from tffcl.lab.reporting.figures.values import line_names
from tffcl.lab.reporting.number_format import MISSING, human_bytes, show_value
from tffcl.lab.reporting.page import cluster_tables, panels, templates
from tffcl.lab.reporting.report_figures import CLUSTERS, Picture
from tffcl.lab.reporting.sweeps import Sweep
from tffcl.lab.reporting.table import Table
from tffcl.runs.run_directory import (
    CLIENTS,
    CLUSTERING,
    CONFIG,
    CONFUSION,
    REPORT,
    REPRESENTATIONS,
    ROUNDS,
    SAMPLES,
    SPLITS,
    SUMMARY,
)
from tffcl.runs.run_files import NO_CLUSTER, RunFiles, by_method

_FILES = (
    CONFIG, SUMMARY, ROUNDS, CLIENTS, CLUSTERING, REPRESENTATIONS, SPLITS, SAMPLES, CONFUSION,
    newcomers_table.NEWCOMERS, study_table.PUBLISHED,
)  # fmt: skip
_MOST_SIZES = 50  # sizes of clusters that are listed


@dataclasses.dataclass(frozen=True)
class _Group:
    """Pictures of the page that belong together.

    Attributes:
      title: The run of the pictures; "" for all runs.
      number: The number of its method, with which the page shows or hides it; None for all methods.
      pictures: The figures.
      table: The table above the figures.
      note: What a reader must know about the table.
    """

    title: str
    number: int | None
    pictures: Sequence[Picture]
    table: Table | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class _Section:
    """A section of the page with pictures."""

    name: str
    groups: Sequence[_Group]


def render(
    runs: Sequence[RunFiles], pictures: Sequence[Picture], root: pathlib.Path, sweep: Sweep | None = None
) -> str:
    """Returns the page.

    Args:
      runs: One run, or the runs of a comparison or a sweep.
      root: The directory of the page, which names files relative to it.
      sweep: The sweep of the runs, if there is one.
    """
    environment = templates()
    environment.filters |= {"coordinate": lambda value: f"{value:.1f}".removesuffix(".0"), "breakable": _breakable}
    environment.globals |= {"colors": len(style.COLORS), "dash": style.dash, "scale": panels.scale_colors()}
    rows = comparison_table.comparison_rows(runs) if sweep else comparison_table.directory_rows(root, runs)
    page = environment.get_template("report.html.j2").render(
        _of_runs(runs, root, rows) | _of_pictures(runs, pictures) | _of_sweep(sweep, pictures) | _parts()
    )
    return printable(page, keep="\n\t")


def _breakable(text: str) -> Markup:
    """A name that may break after each underscore, because a long one would leave no room for numbers on a phone."""
    return escape(text).replace("_", Markup("_<wbr>"))


def _parts() -> dict:
    """Style and script from their files, and the hash with which the page's security policy allows the script."""
    folder = importlib.resources.files("tffcl.lab.reporting").joinpath("page")
    script = folder.joinpath("report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    look = folder.joinpath("report.css").read_text(encoding="utf-8")
    return {"style": Markup(look), "script": Markup(script), "script_hash": f"sha256-{digest}"}


def _of_runs(runs: Sequence[RunFiles], root: pathlib.Path, rows: Sequence[comparison_table.Row]) -> dict:
    """The values that fill the template for runs."""
    comparison = runs[0].path != root
    methods, differing = comparison_table.differing_settings(runs)
    further = comparison_table.page_table(rows, comparison_table.FURTHER_GROUPS)
    return {
        "title": _title(runs, comparison),
        "verdict": verdict.verdict(runs),
        "description": _texts(runs, "description"),
        "source": _texts(runs, "source"),
        "facts": _facts(runs),
        "result": comparison_table.page_table(rows, comparison_table.RESULT_GROUPS),
        "further": further if len(further.heads) > 2 else None,
        "published": study_table.published_to_page(runs),
        "traffic": comparison_table.page_table(rows, comparison_table.TRAFFIC_GROUPS),
        "seconds": comparison_table.page_table(rows, comparison_table.TIME_GROUPS),
        "legend": comparison_table.LEGEND,
        "caution": comparison_table.CAUTION,
        **_targets(runs, root),
        "failures": [str(each) for row in rows for each in row.failures],
        "shared": Table.of(("setting", "value"), comparison_table.shared_settings(runs), numbers=False),
        "differing": Table.of(("setting", *methods), differing, numbers=False),
        "versions": Table.of(("software", "version"), comparison_table.versions_of(runs), numbers=False),
        "clients": cluster_tables.clients_compared(runs) if comparison else cluster_tables.clients_table(runs[0]),
        "clients_seed": runs[0].seed if comparison else None,
        "clients_left": max(0, len(runs[0].clients) - cluster_tables.MOST_CLIENTS),
        "newcomers": newcomers_table.to_page(runs),
        "newcomers_legend": newcomers_table.LEGEND,
        "newcomers_each": None if comparison else newcomers_table.clients_table(runs[0]),
        "files": Table.of(
            ("file", "size", "SHA-256 begins"), [row for run in runs for row in _provenance(run, root)], numbers=False
        ),
        "reports": [_link(run, root) for run in runs if comparison and (run.path / REPORT).is_file()],
    }


def _of_pictures(runs: Sequence[RunFiles], pictures: Sequence[Picture]) -> dict:
    """The values for the template's pictures, and the methods that readers can show or hide."""
    methods = list(by_method(runs))
    return {
        "sections": _sections(pictures, report_figures.first_runs(runs)),
        "switched": methods if len(methods) > 1 else [],
        "switches_title": "Show",
    }


def _of_sweep(sweep: Sweep | None, pictures: Sequence[Picture]) -> dict:
    """The values that differ if the runs are those of a sweep."""
    if sweep is None:
        return {}
    rows = comparison_table.comparison_rows(sweep.runs)
    facts = [fact for fact in _facts(sweep.runs) if not fact[0].startswith("method")]
    values = [
        (label, ", ".join(dict.fromkeys(show_value(point.values[place]) for point in sweep.points)))
        for place, label in enumerate(sweep.labels)
    ]
    return {
        "title": f"{sweep.task}: {sweep.algorithm} over {' and '.join(sweep.labels)}",
        "facts": [facts[0], ("method", sweep.algorithm), *values, *facts[1:]],
        "result": sweeps.to_table(sweep).without_empty(),
        "traffic": comparison_table.page_table(rows, comparison_table.TRAFFIC_GROUPS, first=sweep.title),
        "seconds": comparison_table.page_table(rows, comparison_table.TIME_GROUPS, first=sweep.title),
        "legend": sweeps.legend(sweep),
        "failures": [str(each) for row in sweep.rows for each in row.failures],
        # With a column or a line for each point, these would be too large.
        "verdict": [], "clients": None, "newcomers": None, "further": None, "published": None, "targets": None,
        "sections": _sections(pictures, []),
        "switched": line_names(sweep) if len(sweep.labels) == 2 else [],
        "switches_title": sweep.labels[-1],
    }  # fmt: skip


def _targets(runs: Sequence[RunFiles], root: pathlib.Path) -> dict:
    """The table of rounds and bytes to the requested targets, or to a suggested one, with a note that says so."""
    given = targets.read_targets(root)
    wanted = given or targets.suggested(runs)
    words = targets.LEGEND if given else f"{targets.LEGEND} {targets.NONE_GIVEN}"
    return {
        "targets": targets.to_table(targets.reached(runs, wanted)).without_empty() if wanted else None,
        "targets_legend": words,
    }


def _title(runs: Sequence[RunFiles], comparison: bool) -> str:
    tasks = ", ".join(dict.fromkeys(run.task for run in runs))
    methods = list(by_method(runs))
    if not comparison:
        return f"{tasks}: {runs[0].algorithm}"
    return f"{tasks}: {counted(len(methods), 'method')} compared"


def _texts(runs: Sequence[RunFiles], name: str) -> list[str]:
    """The different texts of the runs' configurations under a name; in a comparison, mostly only one."""
    return list(dict.fromkeys(str(run.config[name]) for run in runs if run.config.get(name)))


def _facts(runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    seeds = sorted({run.seed for run in runs})
    facts = [
        ("task", ", ".join(dict.fromkeys(run.task for run in runs))),
        ("method" if len(by_method(runs)) == 1 else "methods", ", ".join(by_method(runs))),
        ("seed" if len(seeds) == 1 else "seeds", ", ".join(map(str, seeds))),
        ("rounds", _span(run.number("rounds") for run in runs)),
        ("clients", _span(len(run.clients) for run in runs)),
        ("training examples", _span(run.clients.examples.sum() or math.nan for run in runs)),
        ("classes", _span(run.clients.label_counts.shape[1] or math.nan for run in runs)),
    ]
    # If an example has several labels, each 0 or 1, the classes are the two values of each label.
    several = [run.clients.label_counts.sum() / max(run.clients.examples.sum(), 1) for run in runs]
    if max(several, default=0) > 1:
        facts.append(("labels of an example", _span(several)))
    if len(runs) == 1:
        facts.append(("clients per cluster", _cluster_sizes(runs[0])))
    return facts + [("note", note) for note in notes_of(runs)]


def _cluster_sizes(run: RunFiles) -> str:
    labels = run.clients.cluster
    _, sizes = np.unique(labels[labels != NO_CLUSTER], return_counts=True)
    largest = ", ".join(map(str, sorted(sizes.tolist(), reverse=True)[:_MOST_SIZES])) or MISSING
    return largest + (f" and {counted(len(sizes) - _MOST_SIZES, 'smaller one')}" if len(sizes) > _MOST_SIZES else "")


def _span(values) -> str:
    known = [int(value) for value in values if not math.isnan(value)]
    return sizes_of(known) if known else MISSING


def _sections(pictures: Sequence[Picture], shown: Sequence[RunFiles]) -> list[_Section]:
    """The sections with pictures; that of the clusters also has a table for each run in `shown`."""
    names = dict.fromkeys([*(picture.section for picture in pictures), *([CLUSTERS] if shown else [])])
    sections = []
    for name in names:
        own = [picture for picture in pictures if picture.section == name]
        if name == CLUSTERS and shown:
            groups = [
                _cluster_group(run, number, own, shown[:number], len(shown) > 1) for number, run in enumerate(shown)
            ]
        else:
            groups = [_Group("", None, own)]
        sections.append(_Section(name, [group for group in groups if group.pictures or group.table]))
    return [section for section in sections if section.groups]


def _cluster_group(
    run: RunFiles, number: int, pictures: Sequence[Picture], before: Sequence[RunFiles], several: bool
) -> _Group:
    """The group with the clusters of one run; labels are left out if an earlier run has the same clusters."""
    table = cluster_tables.clusters_table(run, compared=several)
    left = cluster_tables.clusters_left_out(run) if table else 0
    note = f"Left out: the {counted(left, 'smallest cluster')}; the table of all clients has all." if left else ""
    own = [picture for picture in pictures if picture.number in (number, None)]
    same = [each.method for each in before if cluster_tables.same_clusters(each, run)]
    if same:
        drawn = [picture for picture in own if picture.name != f"labels-{run.method}"]
        there = "; who holds which labels is shown there" if len(drawn) < len(own) else ""
        own, note = drawn, f"{note} The clusters are those of {same[0]}{there}.".lstrip()
    return _Group(f"{run.method}, seed {run.seed}" if several else "", number if several else None, own, table, note)


def _provenance(run: RunFiles, root: pathlib.Path) -> list[tuple[str, str, str]]:
    found = [run.path / name for name in _FILES if (run.path / name).is_file()]
    return [
        (path.relative_to(root).as_posix(), human_bytes(path.stat().st_size), digest_of_file(path)[:16])
        for path in found
    ]


def _link(run: RunFiles, root: pathlib.Path) -> tuple[str, str]:
    path = (run.path / REPORT).relative_to(root).as_posix()
    return urllib.parse.quote(path), path
