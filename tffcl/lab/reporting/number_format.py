"""Formats numbers for readers: bytes, times, and means with their deviation over seeds."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping

MISSING = "–"
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclasses.dataclass(frozen=True)
class Stat:
    """Statistics of a number over the seeds of a method.

    Attributes:
      mean: The mean; NaN if no seed has the number.
      std: Sample standard deviation (ddof=1); NaN with fewer than two seeds.
      count: How many seeds have the number.
    """

    mean: float
    std: float
    count: int

    @property
    def stderr(self) -> float:
        """Standard error of the mean; NaN with fewer than two seeds."""
        return self.std / math.sqrt(self.count) if self.count else math.nan

    @classmethod
    def of(cls, values: Iterable[float]) -> "Stat":
        """Returns the statistics of the values that are not NaN."""
        present = [value for value in values if not math.isnan(value)]
        if not present:
            return cls(math.nan, math.nan, 0)
        # Infinite values, e.g. an epsilon without noise, have no deviation; nor has a single value.
        able = len(present) > 1 and all(map(math.isfinite, present))
        std = statistics.stdev(present) if able else math.nan
        return cls(statistics.fmean(present), std, len(present))


def show_number(stat: Stat, decimals: int | str) -> str:
    """Returns "91.23 ± 0.40", "91.23" with one seed, "infinite", or a dash.

    With "number" it has three decimals; a value below 0.001 has two digits and a power of ten.
    """
    if not stat.count:
        return MISSING
    if math.isinf(stat.mean):
        return "infinite"
    if decimals == "number":
        decimals = 3
        if 0 < abs(stat.mean) < 0.001:
            return f"{stat.mean:.1e}" if stat.count == 1 else f"{stat.mean:.1e} ± {stat.std:.1e}"
    mean = f"{stat.mean:,.{decimals}f}"
    return mean if stat.count == 1 else f"{mean} ± {stat.std:,.{decimals}f}"


def show_stat(stat: Stat, digits: int | str) -> str:
    """Returns a number in the format of the table of metrics, see `Metric.digits`."""
    if isinstance(digits, int) or digits in ("epsilon", "number"):
        return show_number(stat, decimals_of(stat, digits) if digits == "epsilon" else digits)
    return {"count": show_count, "bytes": show_bytes, "seconds": show_seconds}[digits](stat)


def decimals_of(stat: Stat, digits: int | str) -> int:
    """Returns the decimals of a number beside a published one: at least two, or none for a count."""
    if digits == "number":
        return 3
    return max(digits, 2) if isinstance(digits, int) else int(digits == "epsilon" and stat.mean < 100)


def show_count(stat: Stat) -> str:
    """Returns a count: whole with one seed, with one decimal over several seeds."""
    return show_number(stat, 0 if stat.count == 1 else 1)


def show_reached(shown: str, count: int, missed: int) -> str:
    """Returns a number over `count` seeds, with how many other seeds never reached its target."""
    if not missed:
        return shown
    return f"{shown} ({missed} not reached)" if count else "not reached"


def show_of_seeds(shown: str, count: int, seeds: int) -> str:
    """Returns a number over `count` seeds. If other seeds ran without such a number, says how many seeds have it; e.g.
    a run has no global model if its clients chose several models."""
    return f"{shown} ({count} of {seeds})" if 0 < count < seeds else shown


def show_seconds(stat: Stat) -> str:
    """Returns seconds, with two decimals below ten and one from ten on."""
    return show_number(stat, 2 if stat.mean < 10 else 1)


def show_bytes(stat: Stat) -> str:
    """Returns "1.23 ± 0.02 MB"; without ± if all seeds sent the same."""
    if not stat.count:
        return MISSING
    power = _power(stat.mean)
    mean = _digits(stat.mean, power)
    if stat.count == 1 or stat.std == 0:
        return f"{mean} {_BYTE_UNITS[power]}"
    decimals = len(mean.partition(".")[2])
    return f"{mean} ± {stat.std / 1000**power:.{decimals}f} {_BYTE_UNITS[power]}"


def human_bytes(count: float) -> str:
    """Returns a number of bytes with three digits, in powers of 1,000: "1.23 MB"."""
    return show_bytes(Stat(count, math.nan, 1))


def human_time(seconds: float) -> str:
    """Returns a duration in a suitable unit: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def _power(count: float) -> int:
    power = 0
    # 999.5 would be printed as 1000, so the next unit begins there.
    while abs(count) / 1000**power >= 999.5 and power < len(_BYTE_UNITS) - 1:
        power += 1
    return power


def _digits(count: float, power: int) -> str:
    value = count / 1000**power
    if power == 0 or abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def show_value(value: object) -> str:
    """Returns the value of a setting as a user would type it: "210" for 210.0, "true", "0.1, 0.2"."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(show_value, value))
    return str(value)


def show_settings(values: Mapping[str, object]) -> str:
    """Returns settings in words: "learning rate 0.1, threshold 4" for {"train.learning_rate": 0.1, "threshold": 4}."""
    return ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {show_value(values[key])}" for key in values)
