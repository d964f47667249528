"""Answers a reader's first questions in three sentences: whether there are groups; which method is best, and whether by
more than chance; and what it cost."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import scipy.stats

from tffcl.lab.reporting.number_format import Stat, human_bytes, human_time, show_number
from tffcl.registry import PLAIN
from tffcl.runs.metrics import BY_KEY, DOWN, Metric, rows_of
from tffcl.runs.run_files import RunFiles, by_method

_CHANCE = 0.05
_AGREEING = 0.5  # adjusted Rand index from which clusters agree with the true groups
_MOST_NAMED = 6  # methods in one list

ByMethod = Mapping[str, Sequence[RunFiles]]


def verdict(runs: Sequence[RunFiles]) -> list[str]:
    """Returns three sentences on the runs of a task: on groups, on the best method, and on its cost. If no accuracy or
    further metric was measured, returns only the first; without runs, none."""
    if not runs:
        return []
    methods = by_method(runs)
    measured = measure_of(runs)
    if measured is None:
        return [_groups(methods, None)]
    best, *others = ranked(methods, measured)
    return [_groups(methods, measured), _best(methods, measured, best, others), _cost(methods, best)]


def measure_of(runs: Sequence[RunFiles]) -> Metric | None:
    """Returns the metric of assigned models by which methods are compared: the first of the model's metrics that all
    runs have, which is the accuracy unless a user has named others before it; None if there is none."""
    accuracy = BY_KEY["cluster_accuracy"]
    named = dict.fromkeys(name for run in runs for name in run.summary.get("metrics", {}))
    for each in [*(accuracy if name == "accuracy" else rows_of(name)[0] for name in named), accuracy]:
        if not any(math.isnan(each.of_run(run)) for run in runs):
            return each
    return None


def ranked(methods: ByMethod, measured: Metric) -> list[str]:
    """Returns the methods, ordered by their mean over the seeds, the best first."""
    sign = 1 if measured.better == DOWN else -1
    return sorted(methods, key=lambda name: sign * _mean(methods[name], measured))


def paired_test(one: Sequence[RunFiles], other: Sequence[RunFiles], measured: Metric) -> tuple[float, float, int]:
    """Compares two methods on the clients that both have measured, by seed.

    Returns:
      The mean difference over clients and seeds in the metric's unit; the p value; and the number of pairs. The p value
      is the larger one of two paired t tests: over all pairs of client and seed, which takes clients as independent
      although those of a cluster share a model; and over the seeds' means, because other seeds give other models. In
      the first test, clients with the same test examples count as one, with their mean.
    """
    apart, of_sets = [], []
    for run in one:
        for beside in (each for each in other if each.seed == run.seed):
            if np.array_equal(run.clients.client_id, beside.clients.client_id):
                found = measured.scale * (of_clients(run, measured) - of_clients(beside, measured))
                known = ~np.isnan(found)
                sets = np.unique(_test_sets([run, beside])[known], return_inverse=True)[1]
                apart.append(found[known])
                of_sets.append(np.bincount(sets, found[known]) / np.bincount(sets))
    apart = [each for each in apart if each.size]
    if not apart:
        return math.nan, math.nan, 0
    pairs, means = np.concatenate(of_sets), np.array([each.mean() for each in apart])
    chance = max(_by_chance(pairs), _by_chance(means) if len(means) > 1 else 0.0)
    return float(np.concatenate(apart).mean()), chance, pairs.size


def _test_sets(runs: Iterable[RunFiles]) -> np.ndarray:
    """A number for each client, equal for clients with the same test examples, from the run with the fewest numbers."""
    return min((run.clients.test_set for run in runs), key=lambda sets: len(np.unique(sets)))


def _by_chance(differences: np.ndarray) -> float:
    """The p value of a t test: how often chance alone would make the mean of paired differences as large."""
    if len(differences) < 2 or not differences.any():
        return 1.0
    # If all are equal up to rounding, the t test would divide by 0; the sign test is used instead.
    if np.ptp(differences) <= 1e-9 * np.abs(differences).max():
        return 2.0 ** (1 - len(differences))
    return float(scipy.stats.ttest_1samp(differences, 0).pvalue)


def of_clients(run: RunFiles, measured: Metric) -> np.ndarray:
    """The metric of each client, as in the file; NaN if it is not defined."""
    if measured.column == "cluster_accuracy":
        return run.clients.cluster_accuracy
    return run.clients.further.get(measured.column, np.full(len(run.clients), math.nan))


def _mean(runs: Sequence[RunFiles], measured: Metric) -> float:
    return Stat.of(map(measured.of_run, runs)).mean


def _groups(methods: ByMethod, measured: Metric | None) -> str:
    """Says whether clusters were found, whether they are the true groups, and whether there is evidence of groups."""
    one, alone, untested, found, given, agreements = [], [], [], {}, {}, []
    for name, runs in methods.items():
        counts = sorted({int(run.number("clusters", "count")) for run in runs})
        if counts == [1] and _is_measured(runs, "global"):  # all clients use the same model
            one.append(name)
        elif counts == [1] and not _is_measured(runs, "cluster"):
            untested.append(name)
        elif counts == [1] or all(run.number("clusters", "count") == len(run.clients) for run in runs):
            alone.append(name)  # with one cluster, clients keep a part of their model
        else:
            span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            if any(run.has_given_groups for run in runs):
                given[name] = f"{name} was told {span} clusters"
                continue
            agreement = _mean(runs, BY_KEY["ari"])
            agreements.append(agreement)
            found.setdefault((span, f"{agreement:.2f}".replace("nan", "")), []).append(name)
    sentences = [
        f"{_listed(names)} {'finds' if len(names) == 1 else 'find'} {span} clusters"
        + (f" (adjusted Rand index with the true groups {agreement})" if agreement else "")
        for (span, agreement), names in found.items()
    ] + list(given.values())
    if not sentences:
        sentences = ["No groups were formed"]
    elif any(each >= _AGREEING for each in agreements):  # NaN, for unknown true groups, is never >=
        sentences[0] = f"There are groups: {sentences[0]}"
    elif measured is not None and (plain := [name for name in methods if _is_plain(methods[name])]):
        clustered = [*(name for names in found.values() for name in names), *given]
        gains = [_beyond_chance(methods, measured, name, plain[0], len(clustered)) for name in clustered]
        begun = "There are groups by which models gain" if any(gains) else "Nothing shows that there are groups"
        sentences[0] = f"{begun}: {sentences[0]}"
        sentences += [] if any(gains) else [f"no model of a cluster is better than {plain[0]}'s beyond chance"]
    if one:
        sentences.append(f"{_listed(one)} {'has' if len(one) == 1 else 'have'} one model for all")
    if untested:
        sentences.append(f"{_listed(untested)} {'ends' if len(untested) == 1 else 'end'} in one cluster")
    if alone:
        sentences.append(f"{_listed(alone)} {'has' if len(alone) == 1 else 'have'} a model for each client")
    return f"{'; '.join(sentences)}."


def _is_measured(runs: Sequence[RunFiles], kind: str) -> bool:
    """Whether runs have any metric of a kind; e.g. models of clusters have none if no client has test examples."""
    measured = [("accuracy", kind, "mean")]
    measured += [("metrics", name, kind, "mean") for name in runs[0].summary.get("metrics", {})]
    return any(not math.isnan(run.number(*keys)) for run in runs for keys in measured)


def _beyond_chance(methods: ByMethod, measured: Metric, name: str, rival: str, compared: int) -> bool:
    """Whether a method is better than another by more than chance, corrected for `compared` comparisons."""
    apart, chance, _ = paired_test(methods[name], methods[rival], measured)
    return (apart < 0) == (measured.better == DOWN) and chance * compared < _CHANCE


def _best(methods: ByMethod, measured: Metric, best: str, others: Sequence[str]) -> str:
    """Says which method is best, and whether beyond chance, compared with the second best and with FedAvg."""
    value, what = _shown(_mean(methods[best], measured), measured), measured.title
    if not others:
        return f"The {what} of {best} is {value}; what it gains is known beside another method (tffcl compare)."
    rivals = list(dict.fromkeys([others[0], *(name for name in others if _is_plain(methods[name]))]))
    seeds = {run.seed for run in methods[best]}
    sentences, counts = [], []
    for rival in rivals:
        apart, chance, pairs = paired_test(methods[best], methods[rival], measured)
        if not pairs:
            sentences.append(f"{rival}, which was not measured on the same clients")
            continue
        counts.append(f"{pairs:,}")
        chance = min(1.0, chance * len(others))
        words = "beyond chance" if chance < _CHANCE else "not beyond chance"
        # Means are over all seeds of a method; over the seeds that both have, the difference may have another sign.
        both = "" if {run.seed for run in methods[rival]} == seeds else " with the seeds that both have"
        by = f"{_shown(abs(apart), measured, ' points')} {'below' if apart < 0 else 'above'}" if apart else "equal to"
        sentences.append(f"{by} {rival}{both}, {words} (p {_probability(chance)})")
    sets = _test_sets([run for name in (best, *rivals) for run in methods[name]])
    shared = len(np.unique(sets)) < len(sets)
    units = "test sets" if shared else "clients"
    # Chance is tested over seeds only for rivals that share more than one seed with the best method.
    common = [len(seeds.intersection(run.seed for run in methods[rival])) for rival in rivals]
    units = units if max(common) <= 1 else f"pairs of {units.removesuffix('s')} and seed and over seeds"
    test = f"paired t tests over {' and '.join(dict.fromkeys(counts)) or '0'} {units}"
    alone = "" if min(common) > 1 else "; other seeds may say otherwise"
    corrected = f", for the best of {len(others) + 1}" if len(others) > 1 else ""
    return f"Best by {what} is {best} with {value}: {' and '.join(sentences)}; {test}{corrected}{alone}."


def _cost(methods: ByMethod, best: str) -> str:
    """Says what the best method sent, compared with FedAvg, and how long it took."""
    runs = methods[best]
    sent, signed = _sent(runs), _mean(runs, BY_KEY["signature_bytes"])
    sentence = f"{best} sent {human_bytes(sent)} in all"
    if signed > 0:
        sentence += f", {human_bytes(signed)} of it signatures"
    plain = next((name for name in methods if _is_plain(methods[name])), None)
    if plain not in (None, best) and _sent(methods[plain]) > 0:
        times = sent / _sent(methods[plain])
        sentence += f", {'about' if 0.95 < times < 1.05 else f'{times:.2g} times'} as much as {plain}"
    seconds = _mean(runs, BY_KEY["seconds"])
    if not math.isnan(seconds):
        sentence += f", and took {human_time(seconds)} here"
    epsilon = _mean(runs, BY_KEY["epsilon"])
    if not math.isnan(epsilon):
        sentence += f"; its releases cost each client epsilon {show_number(Stat(epsilon, math.nan, 1), 2)}"
    return f"{sentence}."


def _sent(runs: Sequence[RunFiles]) -> float:
    return sum(_mean(runs, BY_KEY[key]) for key in ("down_bytes", "up_bytes"))


def _is_plain(runs: Sequence[RunFiles]) -> bool:
    # In Python, users choose the names of methods: compare({"FedAvg": ...}).
    return runs[0].algorithm.casefold() == PLAIN


def _shown(value: float, measured: Metric, unit: str = " %") -> str:
    """A value of the metric with its unit; a difference of fractions is in points."""
    if measured.unit == "%":
        return f"{value:.1f}{unit}"
    return show_number(Stat.of([value]), measured.digits if measured.digits == "number" else 2)


def _probability(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.2g}"


def _listed(names: Sequence[str]) -> str:
    """Lists names for a sentence: "a, b and c", or "a, b, ... and 5 more"."""
    shown, left = list(names[:_MOST_NAMED]), len(names) - _MOST_NAMED
    last = f"{left} more" if left > 0 else shown.pop()
    return f"{', '.join(shown)} and {last}" if shown else last
