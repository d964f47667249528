"""The public names of a package, each loaded when it is first used: TensorFlow takes seconds to import."""

import importlib
import pathlib
import re

from tffcl.errors import did_you_mean

_LINE = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def lazily(package: str, file: str):
    """Returns what a package's `__init__` needs to show the names that its stub, `__init__.pyi`, imports.

    Args:
      package: The package's `__name__`.
      file: The package's `__file__`.

    Returns:
      `(__getattr__, __dir__, __all__)`.
    """
    stub = pathlib.Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    places = {name: module for module, name in _LINE.findall(stub)}

    def get(name: str):
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{did_you_mean(name, places)}")
        if places[name] == package:  # a package in this one
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(places[name]), name)

    return get, lambda: sorted(places), sorted(places)
