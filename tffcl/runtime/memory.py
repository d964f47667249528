"""Sizes of memory: how much is free, how a user writes a limit, and what does not fit. Imports neither TensorFlow nor
TFF."""

import contextlib
import pathlib
import re

from tffcl.errors import UserError

_UNITS = {"": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power}
_CGROUP = pathlib.Path("/sys/fs/cgroup")


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
    """Returns how much memory can be taken without swapping, of the machine or of what a container may use."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    with contextlib.suppress(OSError, ValueError):  # no limit reads "max"
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        available = min(available, max(limit - used, 0))
    return available


def check_room(size: float, what: str):
    """Raises UserError if something takes more memory than can be taken without swapping.

    Args:
      size: In bytes.
      what: Several things, for the message.
    """
    if size > (free := free_bytes()):
        raise UserError(f"{what} need {shown(size)} of memory; {shown(free)} are free")


def shown(size: float) -> str:
    """Writes a size for people: "35 MB", "1.5 GB"."""
    unit = next((unit for unit in ("TB", "GB", "MB", "KB") if size >= _UNITS[unit]), "")
    return f"{size / _UNITS[unit]:.3g} {unit or 'bytes'}"
