"""How objects are shown: a line at the prompt, a small table in a notebook. Imports nothing heavy."""

import html
from collections.abc import Iterable, Mapping, Sequence


class Shown:
    """An object that is described by a few facts; its `repr` is one line of them.

    Classes of arrays would otherwise print all of these. A class that defines `__repr__` itself keeps it.
    """

    def facts(self) -> Mapping[str, object]:
        """Returns the facts that a table shows of the object: names and values."""
        raise NotImplementedError

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # a dataclass would write one that prints every array
            cls.__repr__ = next(vars(base)["__repr__"] for base in cls.__mro__[1:] if "__repr__" in vars(base))

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}: {value}" for name, value in self.facts().items())
        return f"{type(self).__name__}({facts})"

    def _repr_html_(self) -> str:
        return table(type(self).__name__, self.facts())


def table(title: str, facts: Mapping[str, object]) -> str:
    """Returns an HTML table of names and values under a title."""
    rows = (
        f'<tr><th style="text-align: left">{html.escape(name)}</th><td style="text-align: '
        f'left">{html.escape(str(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><caption>{html.escape(title)}</caption>{''.join(rows)}</table>"


def ranges(numbers: Iterable[int], to: str = "-") -> str:
    """Writes ascending whole numbers briefly: "0-3, 7"."""
    runs = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][-1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}{to}{last}" for first, last in runs)


def listed(items: Sequence, most: int = 20) -> str:
    """Returns the first of many items for a message, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def percent(share: float) -> str:
    """Returns a share as text: "93.35 %"."""
    return f"{100 * share:.2f} %"


def counted(number: int, noun: str) -> str:
    """Returns how many there are of something: "1 row", "1,200 rows"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def sizes_of(lengths, noun: str = "") -> str:
    """Returns the range of several counts: "30 to 40", or "30" if all are the same; with a noun, "1 row"."""
    low, high = min(lengths), max(lengths)
    most = counted(high, noun) if noun else f"{high:,}"
    return most if low == high else f"{low:,} to {most}"
