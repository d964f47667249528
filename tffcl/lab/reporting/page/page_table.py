"""A table of the page, before it is HTML: what its cells say, and what they are sorted by."""

import dataclasses
import math
from collections.abc import Sequence

from tffcl.lab.reporting.number_format import MISSING


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
      text: What it says.
      value: What the column is sorted by; default the text, as a number if it is one. NaN and None come last.
      bars: Shares from 0 to 1 and what each says, drawn as bars in place of the text.
      picture: Address of a picture, drawn above the text.
      picture_width: How wide it is drawn where there is room, in pixels.
      words: Whether it is a text of several words, which stands at the left and is broken into lines.
    """

    text: str
    value: float | str | None = ""
    bars: Sequence[tuple[float, str]] = ()
    picture: str = ""
    picture_width: int = 0
    words: bool = False

    @property
    def sorted_by(self) -> str | None:
        """What the page's script sorts by; None where the text is that."""
        if self.value == "" or self.value == self.text:
            return None
        missing = self.value is None or isinstance(self.value, float) and math.isnan(self.value)
        return "" if missing else str(self.value)


@dataclasses.dataclass(frozen=True)
class PageTable:
    """A table.

    Attributes:
      heads: Titles of the columns.
      rows: Cells; the first of a row is its title.
      groups: What stands over how many columns, from the left; nothing where there are no groups.
      numbers: Whether the other cells are numbers, which stand at the right.
      stacked: Whether each row is a block of its own where the screen is narrow.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int]] = ()
    numbers: bool = False
    stacked: bool = False


def plain(heads: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: bool = False) -> PageTable:
    """Makes a table of cells that are sorted by what they say."""
    return PageTable(
        heads, [[each if isinstance(each, Cell) else Cell(str(each)) for each in row] for row in rows], numbers=numbers
    )


def percent(fraction: float) -> Cell:
    """Makes a cell of a fraction, in percent with two decimals."""
    return Cell(MISSING, None) if math.isnan(fraction) else Cell(f"{100 * fraction:.2f}")
