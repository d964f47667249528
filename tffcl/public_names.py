"""What a package shows of itself, loaded when it is first asked for: TensorFlow takes seconds to import."""

import importlib
from collections.abc import Mapping


def lazily(package: str, places: Mapping[str, str]):
    """Returns what a package's `__init__` needs to show names that live in modules.

    Args:
      package: The package's `__name__`.
      places: Name to the module that has it; a name whose module is `package.name` is that module itself.

    Returns:
      `(__getattr__, __dir__, __all__)`.
    """

    def get(name: str):
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(places[name])
        return module if places[name] == f"{package}.{name}" else getattr(module, name)

    return get, lambda: sorted(places), sorted(places)


def stub(package: str, places: Mapping[str, str]) -> str:
    """Returns what a type checker reads in the place of a package's `__init__`, which it could not see through.

    Args:
      package: As for `lazily`.
      places: As for `lazily`.
    """
    lines = [
        f"from {package} import {name} as {name}"
        if module == f"{package}.{name}"
        else f"from {module} import {name} as {name}"
        for name, module in sorted(places.items())
    ]
    return (
        "\n".join(["# Made from the names in __init__.py; tests/test_public_names.py holds them together.", *lines])
        + "\n"
    )
