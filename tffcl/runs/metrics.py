"""The table of metrics: what a run measures, where it is in the run's files, and how it is shown.

rounds.csv, summary.json, tables, figures, studies, sweeps, targets and early stopping read it. A further metric of a
round needs a row here, and a line where it is computed.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from tffcl.errors import UserError, unknown
from tffcl.models import metrics as answer_metrics
from tffcl.models.metrics import DOWN, UP

ROUND = "round"  # the column of rounds.csv that numbers its rows
_SCALES = {"%": 100, "%²": 1e4}  # factors for the fractions in files
_IN_NAMES = {"%": "_percent", "%²": "_percent2"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """A number of a run. Tables over several seeds have its mean and sample standard deviation.

    Attributes:
      key: Its name.
      about: What it is.
      column: Its column in rounds.csv; "" if it is measured only at the end.
      in_all: Whether rounds.csv has the column in every run.
      source: Its keys in summary.json; () if it follows from the rounds. The last key of an accuracy says how it is
        reduced over clients: "mean", "variance", "worst_decile".
      over_rounds: Its value at the end if summary.json lacks it: that of the "last" round, or the "mean" or "std" (ddof
        1) over all rounds.
      unit: "%" or "%²" for a number that is a fraction in files, else "".
      digits: How many follow the point; or "number", "count", "bytes", "seconds", "epsilon": it depends on the size.
      better: `UP`, `DOWN`, or "" if neither is better.
      title: The title of its panel in figures.
      axis: The label of this panel's axis.
      limits: The smallest and the largest possible value, in its unit; None if there is no limit.
      panels: The figures over the rounds that show it: "accuracy", "progress", "merging", "privacy".
      group: The heading over its column in the table of a comparison; "" if it has none there.
      header: The header of this column.
      measure: Its name in studies; "" if it is in no paper's table.
      compared: Its name in the table of a study; default: the measure.
    """

    key: str
    about: str
    column: str = ""
    in_all: bool = False
    source: tuple[str, ...] = ()
    over_rounds: str = "last"
    unit: str = ""
    digits: int | str = 2
    better: str = ""
    title: str = ""
    axis: str = ""
    limits: tuple[float | None, float | None] = (None, None)
    panels: tuple[str, ...] = ()
    group: str = ""
    header: str = ""
    measure: str = ""
    compared: str = ""

    @property
    def name(self) -> str:
        """Its name in CSV files of tables: the key and the unit."""
        return self.key + _IN_NAMES.get(self.unit, "")

    @property
    def scale(self) -> float:
        """The factor by which a number in the files is multiplied."""
        return _SCALES.get(self.unit, 1)

    def of_run(self, run) -> float:
        """Returns its value at the end of a run, in its unit; NaN if it has none.

        Args:
          run: Has the columns of rounds.csv as arrays in the mapping `rounds`, and `number(*keys)` of summary.json.
        """
        if self.source:
            return self.scale * run.number(*self.source)
        values = self.scale * run.rounds.get(self.column, np.zeros(0))
        values = values[~np.isnan(values)]
        if self.over_rounds == "std":
            return float(values.std(ddof=1)) if values.size > 1 else math.nan
        if not values.size:
            return math.nan
        return float(values.mean()) if self.over_rounds == "mean" else float(values[-1])

    def first_reached(self, rounds: Mapping[str, np.ndarray], target: float) -> int | None:
        """Returns the row of the first evaluated round that reaches a target in the metric's unit; None if none does.

        Args:
          rounds: Columns of rounds.csv.
          target: The value that it must reach from below; from above if less is better.
        """
        values = self.scale * rounds.get(self.column, np.zeros(0))
        slack = 1e-9 * abs(target)  # 100 * 0.58 is less than 58
        reached = np.flatnonzero(values <= target + slack if self.better == DOWN else values >= target - slack)
        return int(reached[0]) if reached.size else None


def _accuracy(key: str, about: str, *source: str, **others) -> Metric:
    others = {"unit": "%", "better": UP, "axis": "accuracy (%)", "limits": (0, 100)} | others
    return Metric(key=key, about=about, source=source, **others)


def _main_accuracy(kind: str, about: str) -> Metric:
    key, others = f"{kind}_accuracy", {"title": f"{kind} accuracy", "panels": ("accuracy",), "measure": kind}
    source, group = ("accuracy", kind, "mean"), {"group": "accuracy %", "header": kind}
    return _accuracy(key, about, *source, column=key, in_all=True, **group, **others)


def _variance(kind: str) -> Metric:
    key, source = f"{kind}_variance", ("accuracy", kind, "variance")
    shown = {"digits": 1, "group": "variance", "header": kind, "measure": key, "compared": f"variance, {kind}"}
    about = f"variance over clients of the {kind} accuracy, %²"
    return Metric(key=key, about=about, source=source, unit="%²", better=DOWN, **shown)


def _worst_decile(kind: str) -> Metric:
    about, source = f"mean {kind} accuracy over the worst served tenth", ("accuracy", kind, "worst_decile")
    return _accuracy(f"{kind}_worst_decile", about, *source, group="worst 10 %", header=kind)


def _bytes(key: str, about: str, **others) -> Metric:
    return Metric(key=key, about=about, source=("traffic", key), digits="bytes", better=DOWN, group="traffic", **others)


def _seconds(part: str) -> Metric:
    key, about, source = f"{part}_seconds", f"seconds of {part}", ("seconds", part)
    return Metric(key=key, about=about, source=source, digits="seconds", better=DOWN, group="of which", header=part)


def _count(key: str, about: str, **others) -> Metric:
    return Metric(**{"key": key, "about": about, "column": key, "digits": "count", "limits": (0, None)} | others)


# Columns of a table stand in this order.
METRICS = (
    Metric(
        key="train_loss", about="mean over the examples of a cohort", column="train_loss", in_all=True, better=DOWN,
        title="training loss", axis="loss", panels=("progress",),
    ),
    _main_accuracy("cluster", "accuracy %, the assigned model before local training"),
    _main_accuracy("local", "accuracy %, the client's own model after its last local training"),
    _accuracy(
        "local_trained", "how many of all clients have trained, %", "accuracy", "local", "share", column="local_share",
        in_all=True, better="", axis="clients (%)", digits=0, group="clients %", header="trained",
    ),
    _main_accuracy("global", "accuracy %, one model on all test data"),
    _variance("cluster"),
    _variance("local"),
    _worst_decile("cluster"),
    _worst_decile("local"),
    _count(
        "clusters", "number of clusters", in_all=True, source=("clusters", "count"), title="clusters",
        axis="number of clusters", panels=("progress", "merging"), group="clusters", header="found", measure="clusters",
    ),
    Metric(
        key="ari", about="adjusted Rand index", column="ari", in_all=True, source=("clusters", "ari"), digits=3,
        better=UP, title="agreement with true groups", axis="adjusted Rand index", limits=(None, 1),
        panels=("progress",), group="clusters", header="ARI", measure="ari", compared="ARI",
    ),
    Metric(
        key="largest_cluster", about="share of the clients in the largest cluster, %: near 100 a method has one model",
        column="largest_cluster", source=("clusters", "largest_cluster"), unit="%", digits=1, limits=(0, 100),
    ),
    Metric(
        key="nmi", about="normalised mutual information", source=("clusters", "nmi"), digits=3, better=UP,
        group="agreement", header="NMI",
    ),
    Metric(
        key="was", about="Wasserstein-adjusted score: how alike members are in how evenly their labels are spread",
        source=("clusters", "was"), digits=3, better=UP, limits=(-1, 1), group="agreement", header="WAS",
        measure="was", compared="WAS",
    ),
    _accuracy(
        "participants_accuracy", "cluster accuracy %, over the clients that took part in a round", "accuracy",
        "cluster", "participants", "mean", column="cluster_accuracy_participants", group="those that took part",
        header="cluster", measure="participants", compared="cluster, took part",
    ),
    _accuracy(
        "participation_gap", "by how much the cluster accuracy of the others is lower, %", "accuracy", "cluster",
        "participants", "gap", better="", limits=(-100, 100), group="those that took part", header="gap",
    ),
    _accuracy(
        "participants_pooled", "cluster accuracy %, on all test examples of the clients that took part", "accuracy",
        "cluster", "participants", "pooled", measure="participants_pooled", compared="cluster, took part, pooled",
    ),
    _accuracy(
        "local_all_accuracy", "local accuracy %, over all clients, some with the untrained model", "accuracy", "local",
        "all", "mean", column="local_accuracy_all", group="never trained counted", header="local",
    ),
    _accuracy(
        "validation_cluster_accuracy", "cluster accuracy %, on validation examples", "validation", "cluster", "mean",
        column="validation_cluster_accuracy",
    ),
    _accuracy(
        "validation_global_accuracy", "global accuracy %, on validation examples", "validation", "global", "mean",
        column="validation_global_accuracy",
    ),
    _accuracy(
        "benign_accuracy", "cluster accuracy %, over benign clients where others are malicious", "attack",
        "benign_accuracy", "mean", measure="benign",
    ),
    _bytes("down_bytes", "from the server to all clients", column="down_bytes", in_all=True, header="down"),
    _bytes("up_bytes", "from all clients to the server", column="up_bytes", in_all=True, header="up"),
    _bytes("signature_bytes", "what the signatures took of both", header="signatures"),
    Metric(
        key="seconds", about="of training, evaluation and clustering", column="seconds", in_all=True,
        source=("seconds", "total"), digits="seconds", better=DOWN, group="seconds", header="total",
    ),
    _seconds("clustering"),
    _seconds("training"),
    _seconds("evaluation"),
    Metric(
        key="epsilon", about="epsilon of all that clients released; infinite where a release had no noise",
        column="epsilon", source=("privacy", "epsilon"), digits="epsilon", better=DOWN, title="privacy spent", axis="ε",
        limits=(0, None), panels=("privacy",), measure="epsilon",
    ),
    Metric(
        key="noised_epsilon", about="epsilon of the releases that have noise, whatever the others cost",
        source=("privacy", "noised_epsilon"), digits="epsilon", better=DOWN, measure="noised_epsilon",
        compared="epsilon, noised releases",
    ),
    Metric(
        key="clustering_error", about="clients wrongly joined or parted, mean over the rounds",
        column="clustering_error", over_rounds="mean", better=DOWN, title="clustering error",
        axis="wrongly joined or parted clients",
        limits=(0, None), measure="clustering_error", compared="clustering error",
    ),
    Metric(
        key="clustering_error_over_rounds", about="its deviation over the rounds", column="clustering_error",
        over_rounds="std", better=DOWN,
    ),
    Metric(
        key="known_ari", about="adjusted Rand index of the clients that took part in a round, or were asked",
        column="known_ari", source=("clusters", "known_ari"), digits=3, better=UP, limits=(None, 1),
    ),
    _count("known_clients", "number of clients that took part in a round"),
    _count(
        "known_clusters", "number of clusters of the clients that took part in a round",
        title="clusters of known clients", axis="number of clusters", panels=("merging",), measure="known_clusters",
        compared="clusters, took part",
    ),
    _count("merges", "how often two clusters were merged in the round"),
    Metric(
        key="objective", about="what StoCFL minimises, Eq. 2", column="objective", better=DOWN,
        title="clustering objective", axis="sum of cosines of all pairs", panels=("merging",),
    ),
    Metric(key="mean_cosine", about="of all pairs of clusters", column="mean_cosine", digits=3, better=DOWN),
    _count("change_flags", "clients whose data have changed, as they say"),
    _count("formed_anew", "whether clusters were formed anew in the round"),
    _count("newcomers", "how many have joined", column="", source=("newcomers",)),
    _count("clusters_founded", "clusters that newcomers founded", column="", source=("clusters", "founded")),
)  # fmt: skip
BY_KEY = {each.key: each for each in METRICS}
BY_MEASURE = {each.measure: each for each in METRICS if each.measure}
OF_ROUNDS = {each.column: each for each in reversed(METRICS) if each.column}  # if two have one column, the first
COLUMNS = tuple(each.column for each in METRICS if each.in_all)  # of every rounds.csv


# The kinds of values of a further metric, which are keys below the metric's name in summary.json.
_KINDS = {"cluster": "assigned model before local training", "local": "own model after training", "global": "one model"}
ACCURACIES = tuple(_KINDS)
_OF_ANSWERS = re.compile(rf"(validation_)?({'|'.join(_KINDS)})_(\w+)")


@functools.cache
def rows_of(name: str) -> tuple[Metric, ...]:
    """Returns the rows of a metric of answers (`tffcl.models.metrics`) with this name: `cluster`, `local` and `global`,
    and those on validation examples."""
    known = answer_metrics.METRICS.get(name)
    title = known.title if known else name
    share = known is not None and known.is_share
    look: dict = {"unit": "%", "limits": (0, 100)} if share else {"digits": "number"}
    if known and not share:
        look["limits"] = known.limits
    shown = {**look, "better": answer_metrics.better_of(name), "axis": f"{title} (%)" if share else title}
    tested = [
        Metric(
            key=f"{kind}_{name}", about=f"{title}, {about}", column=f"{kind}_{name}",
            source=("metrics", name, kind, "mean"), title=f"{kind} {title}", panels=("metrics",),
            group=f"{title} %" if share else title, header=kind, measure=f"{kind}_{name}",
            compared=f"{title}{' %' * share}, {kind}", **shown,
        )
        for kind, about in _KINDS.items()
    ]  # fmt: skip
    validated = [
        Metric(
            key=f"validation_{kind}_{name}", about=f"{title}, on validation examples",
            column=f"validation_{kind}_{name}", source=("validation", "metrics", name, kind, "mean"), **shown,
        )
        for kind in ("cluster", "global")
    ]  # fmt: skip
    return (*tested, *validated)


BY_MEASURE |= {
    each.measure: each
    for name in answer_metrics.METRICS
    if name != answer_metrics.ACCURACY.name
    for each in rows_of(name)
    if each.measure
}


def of_column(column: str) -> Metric | None:
    """Returns the metric of a column of rounds.csv, also of one that a user named; None if it is of no metric."""
    if column in OF_ROUNDS:
        return OF_ROUNDS[column]
    found = _OF_ANSWERS.fullmatch(column)
    return next((each for each in rows_of(found[3]) if each.column == column), None) if found else None


def is_further(column: str) -> bool:
    """Whether a column is of a further metric, beside the accuracies."""
    found = None if column in OF_ROUNDS else of_column(column)
    return found is not None and found.source[0] == "metrics"


def find(column: str, known: Collection[str] = ()) -> Metric:
    """Returns the metric of a column of rounds.csv.

    Args:
      column: Its name.
      known: The columns of the run, if they are known; default: those of all runs, and of all metrics by name.

    Raises:
      UserError: If no metric of a round has this name.
    """
    named = known or [*OF_ROUNDS, *(each.column for name in answer_metrics.METRICS for each in rows_of(name))]
    found = of_column(column)
    if found is None or column not in named:
        raise unknown("metric of a round", column, known or OF_ROUNDS)
    return found


def measured(names: Iterable[str], *, has_accuracy: bool = True, validation: bool = True) -> dict[str, Metric]:
    """Returns the metrics that a run has in rounds.csv, by column.

    Args:
      names: The names of its metrics of answers, see `rows_of`.
      has_accuracy: Whether the model has accuracies; a model of numbers has none.
      validation: Whether clients hold validation examples.
    """
    lacking = [] if has_accuracy else [("accuracy",), ("validation",)]
    found = {column: metric for column, metric in OF_ROUNDS.items() if metric.source[:1] not in lacking}
    found |= {each.column: each for name in names if name != answer_metrics.ACCURACY.name for each in rows_of(name)}
    return {name: metric for name, metric in found.items() if validation or metric.source[:1] != ("validation",)}


def check_measured(option: str, column: str, known: Mapping[str, Metric] | None):
    """Raises UserError if runs do not measure the metric by which something is chosen or stopped.

    Args:
      option: The option that names it, for the message.
      column: Its column in rounds.csv.
      known: What the runs measure, see `measured`; None if only the runs show it.
    """
    if known is None or column in known:
        return
    name = column.removeprefix("validation_").partition("_")[2]
    if name in answer_metrics.METRICS and name != answer_metrics.ACCURACY.name:
        raise UserError(
            f"{option} needs the metric: --set 'evaluation.metrics=[\"{name}\"]' of a task, "
            f'metrics=("{name}", ...) of a model in Python'
        )
    raise unknown(f"metric of {option}", column, [each for each in known if known[each].better])


def on_validation(select: str) -> Metric | None:
    """Returns the metric on validation examples by which a setting is chosen. "cluster" and "global" are accuracies;
    another name is a column of rounds.csv, e.g. "cluster_auc". None if there is no such metric."""
    return of_column(f"validation_{select}_accuracy" if select in ("cluster", "global") else f"validation_{select}")


def on_test(metric: Metric) -> Metric:
    """Returns the metric on test examples that belongs to one on validation examples."""
    return of_column(metric.column.removeprefix("validation_"))


def of_panel(figure: str) -> tuple[Metric, ...]:
    """Returns the metrics that a figure over the rounds draws, each in its own panel."""
    return tuple(each for each in METRICS if figure in each.panels)
