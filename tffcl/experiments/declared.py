"""What a method's parameters may be, read from its file without running it, so that a mistake is told before TensorFlow loads.

Only what the text alone tells is checked: the keys, and the types that `validation` and `clustering` name. The class itself checks all
values, and the rules between them, when it is imported for the run.
"""

import ast
import dataclasses
import functools
import importlib
import importlib.util
import pathlib
from typing import Annotated, Literal

import msgspec

from tffcl import validation
from tffcl.experiments.catalog import ALGORITHMS
from tffcl.experiments.methods import MethodSource

_LIGHT = "tffcl.clustering."  # NumPy and SciPy at most


class DeclaredSource(MethodSource):
    """A method of the catalog whose `parameter_class` is read from its file; all else as `MethodSource`."""

    @property
    def parameter_class(self) -> type | None:
        return _declared(self.base)


def declared(source: MethodSource) -> MethodSource | None:
    """Returns the method with its parameters as its file declares them; None for one that is not the library's."""
    return DeclaredSource(source.label, source.base, source.directory) if source.base in ALGORITHMS else None


@functools.cache
def _declared(name: str) -> type | None:
    entry = ALGORITHMS[name]
    if entry.parameters is None:
        return None
    package = pathlib.Path(importlib.util.find_spec("tffcl").origin).parent
    tree = ast.parse(package.joinpath(*entry.module.split(".")[1:]).with_suffix(".py").read_text(encoding="utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == entry.parameters).body
    names, fields, constants = _Names(tree), [], {"renamed": {}, "alternatives": ()}
    for node in body:
        if not isinstance(node, ast.AnnAssign):
            continue
        if node.target.id in constants:
            constants[node.target.id] = names.value(node.value, constants[node.target.id])
            continue
        kind = names.value(node.annotation, object)
        default = dataclasses.field() if node.value is None else dataclasses.field(default=None)
        fields.append((node.target.id, kind, default))
    return dataclasses.make_dataclass(entry.parameters, fields, namespace=constants, frozen=True)


class _Names(dict):
    """The names that a file's text gives a meaning to without importing anything heavy."""

    def __init__(self, tree: ast.Module):
        super().__init__(vars(validation), Annotated=Annotated, Literal=Literal, msgspec=msgspec)
        self._imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith(_LIGHT)
            for alias in node.names
        }
        self._assigned = {
            node.targets[0].id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }

    def __missing__(self, name: str):
        if name in self._imported:
            module, wanted = self._imported[name]
            if module == _LIGHT[:-1]:
                return importlib.import_module(f"{module}.{wanted}")
            return getattr(importlib.import_module(module), wanted)
        return ast.literal_eval(self._assigned[name])

    def value(self, node: ast.expr, otherwise):
        """Returns what an expression means; `otherwise` if that takes more than these names."""
        try:
            return eval(compile(ast.Expression(node), "parameters", "eval"), {}, self)  # text of our own package
        except (KeyError, NameError, ValueError, TypeError, AttributeError):
            return otherwise
