"""Sizes of memory: how much is free, how users write a limit, and what does not fit. Imports no TensorFlow."""

import pathlib
import re
from collections.abc import Iterator

from tffcl.errors import UserError

_UNITS = {"": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power}
# Where Linux says which control groups this process belongs to, and what they may use.
_GROUPS, _CONTROL = pathlib.Path("/proc/self/cgroup"), pathlib.Path("/sys/fs/cgroup")
# For both versions of control groups: the files of the limit and of the memory in use, and the name in memory.stat of
# file pages that are freed when memory is needed.
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def parse_bytes(text: str | int | float) -> int:
    """Reads "4GB", "500 MB", "2GiB" or a number of bytes.

    Raises:
      UserError: If it is something else, or not above 0.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]*)\s*", str(text), re.IGNORECASE)
    if found is None or found[2].upper() not in _UNITS:
        raise UserError(f"memory is {text!r}; it is written 4GB, 500MB or 2GiB")
    size = float(found[1]) * _UNITS[found[2].upper()]
    if not 1 <= size < 2**63:
        raise UserError(f"memory is {text!r}; it must be above 0 and possible")
    return int(size)


def free_bytes() -> int:
    """Returns how much memory can be taken without swapping: the least of what is free on the machine, and what each
    control group of this process, such as its container or a cluster scheduler's job, may still use."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return min([available, *_left_to_groups()])


def _left_to_groups() -> Iterator[int]:
    """Yields what each control group above this process may still use, if it has a limit."""
    for line in _GROUPS.read_text().splitlines() if _GROUPS.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, names = (_CONTROL / "memory", _V1) if controllers else (_CONTROL, _V2)
        # In a container the path may be the host's, and the root the container's own group.
        below = root / path.strip("/")
        for group in (below, *below.parents[: len(below.parts) - len(root.parts)]):
            try:
                limit, used = (int((group / name).read_text()) for name in names[:2])
                pages = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                yield max(limit - used + int(pages.get(names[2], 0)), 0)
            except (OSError, ValueError):  # there is no such group, or its limit reads "max"
                continue


def check_room(size: float, what: str):
    """Raises UserError if something needs more memory than can be taken without swapping.

    Args:
      size: The bytes that are needed.
      what: What needs them, in the plural, for the message.
    """
    if size > (free := free_bytes()):
        raise UserError(f"{what} need {shown(size)} of memory; {shown(free)} are free")


def shown(size: float) -> str:
    """Writes a size for people: "35 MB", "1.5 GB"."""
    unit = next((unit for unit in ("TB", "GB", "MB", "KB") if size >= _UNITS[unit]), "")
    return f"{size / _UNITS[unit]:.3g} {unit or 'bytes'}"
