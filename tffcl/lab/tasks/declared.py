"""What parameters of methods and models may be, read from their files without running them, so that a mistake is told before
TensorFlow loads.

Only what the text alone tells is checked: the keys, and the types that `validation` and `clustering` name. The class itself
checks all values, and the rules between them, when it is imported for the run.
"""

import ast
import dataclasses
import functools
import importlib
import importlib.util
import pathlib
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from tffcl import validation
from tffcl.lab.tasks.method_settings import MethodSource
from tffcl.registry import ALGORITHMS

_LIGHT = "tffcl.clustering."  # NumPy and SciPy at most
_OWN = "tffcl."  # all else of the package may import TensorFlow: only the text is read
_UNREADABLE = (KeyError, NameError, ValueError, TypeError, AttributeError)  # what takes more than text raises one of these


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
    if not entry.parameters:
        return None
    module, class_name = entry.parameters.split(":")
    tree = _text_of(module)
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name).body
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
    return dataclasses.make_dataclass(class_name, fields, namespace=constants, frozen=True)


@functools.cache
def _text_of(module: str) -> ast.Module:
    return ast.parse(_file_of(module).read_text(encoding="utf-8"))


def _file_of(module: str) -> pathlib.Path:
    package = pathlib.Path(importlib.util.find_spec("tffcl").origin).parent
    return package.joinpath(*module.split(".")[1:]).with_suffix(".py")


class _Assigned:
    """A module, as far as the text of its file gives names a meaning: `flat.Initialization`."""

    def __init__(self, module: str):
        self._names = _Names(_text_of(module))

    def __getattr__(self, name: str):
        try:
            return self._names[name]
        except _UNREADABLE:
            raise AttributeError(name) from None


class _Names(dict):
    """The names that a file's text gives a meaning to without importing anything heavy."""

    def __init__(self, tree: ast.Module):
        super().__init__(vars(validation), Annotated=Annotated, Literal=Literal, Sequence=Sequence, msgspec=msgspec)
        self._imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_OWN)
            for alias in node.names
        }
        assigned = [(node.targets[0], node.value) for node in tree.body if isinstance(node, ast.Assign)]
        assigned += [(node.target, node.value) for node in tree.body if isinstance(node, ast.AnnAssign)]
        self._assigned = {target.id: value for target, value in assigned if isinstance(target, ast.Name)}

    def __missing__(self, name: str):
        if name in self._imported:
            module, wanted = self._imported[name]
            if f"{module}." == _LIGHT:
                return importlib.import_module(f"{module}.{wanted}")
            if module.startswith(_LIGHT):
                return getattr(importlib.import_module(module), wanted)
            return _Names(_text_of(module))[wanted] if _file_of(module).is_file() else _Assigned(f"{module}.{wanted}")
        node = self._assigned[name]
        if isinstance(node, ast.Dict):  # its values may be functions: its names are what counts
            return dict.fromkeys(map(self._evaluated, node.keys))
        return self._evaluated(node)

    def value(self, node: ast.expr, otherwise):
        """Returns what an expression means; `otherwise` if that takes more than these names."""
        try:
            return self._evaluated(node)
        except _UNREADABLE:
            return otherwise

    def _evaluated(self, node: ast.expr):
        return eval(compile(ast.Expression(node), "parameters", "eval"), {}, self)  # text of our own package
