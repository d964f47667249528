"""Functions that a user names as "module:function", in a module on the path or a file beside the task file."""

import importlib
import importlib.machinery
import importlib.util
import inspect
import pathlib
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping

from tffcl.errors import UserError, unknown
from tffcl.validation import tell_once


def is_reference(text: object) -> bool:
    """Whether this is a text of the form "module:function"."""
    return isinstance(text, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text) is not None


def references_in(value: object) -> list[str]:
    """Returns all "module:function" among the values of a table, and of the tables and lists in it."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [found for each in value for found in references_in(each)]
    return [str(value)] if is_reference(value) else []


def named(kind: str, value: str | Mapping) -> tuple[str, dict]:
    """Returns the name and the own parameters of something that is given by its name, or by a table of `name` or
    `builder` and parameters.

    Args:
      kind: Its key, for messages.
      value: What the user gave.

    Raises:
      UserError: If there is no name.
    """
    if isinstance(value, str):
        return value, {}
    own = dict(value)
    name = own.pop("name", None) or own.pop("builder", None)
    if not isinstance(name, str):
        raise UserError(f'{kind} is {value!r}; it must be a name, or a table with name = "..."', key=kind)
    return name, own


def load_reference(reference: str, directory: str | pathlib.Path | None = None, where: str = "builder") -> Callable:
    """Imports the function that a reference names.

    Args:
      reference: "module:function".
      directory: Where `module.py` is searched first; if it is not there, the module is imported as any other.
      where: The key that holds the reference, for messages.

    Raises:
      UserError: If the reference has another form, or the module cannot be imported or has no such function.
    """
    if not is_reference(reference):
        raise UserError(f'{where} is {reference!r}; it must be "module:function", e.g. "my_methods:build_mine"')
    module_name, name = reference.split(":")
    module = _module(module_name, directory, where)
    found = getattr(module, name, None)
    if found is None:
        public = [
            each for each, value in vars(module).items() if inspect.isfunction(value) and not each.startswith("_")
        ]
        raise unknown(f"function in {module_name}", name, public)
    if not callable(found):
        raise UserError(f"{where} names {reference}, which is of {type(found).__name__}; it must be a function")
    try:
        inspect.signature(found)
    except ValueError:  # raised for some functions that are written in C
        raise UserError(
            f"{where} names {reference}, whose parameters cannot be read; it must be a function of Python's"
        ) from None
    return found


def in_a_line(error: BaseException, file: object) -> str:
    """Returns an error in one line, with the last line of the user's code that led to it: in the file that was called,
    or one beside it."""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    for path, line in _frames(error):
        if _is_beside(path, file):
            return f"{message} ({path.name}:{line})"
    return message


def raised_in(error: BaseException, file: object) -> bool:
    """Whether an error was raised by the user's file, or one beside it, and not by code of this package that it
    called."""
    for path, _ in _frames(error):
        if _is_beside(path, __file__) or _is_beside(path, file):
            return not _is_beside(path, __file__)
    return False


def _frames(error: BaseException) -> Iterator[tuple[pathlib.Path, int | None]]:
    """Yields the files and lines that led to an error, the last one first."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        yield pathlib.Path(frame.filename).resolve(), frame.lineno


def _is_beside(path: pathlib.Path, file: object) -> bool:
    """Whether a path is below the folder of a file, and not part of a package that is installed there."""
    home = pathlib.Path(file).resolve().parent if isinstance(file, str) else None
    return home is not None and path.is_relative_to(home) and "site-packages" not in path.relative_to(home).parts


def source_of(module: types.ModuleType) -> bytes | None:
    """Returns the text of a module's file when a reference imported it; None if it was imported otherwise."""
    return getattr(getattr(module, "__spec__", None), "loader_state", None)


def _is_installed(name: str) -> bool:
    """Whether Python finds a module among the installed packages."""
    try:
        found = None if "." in name else importlib.machinery.PathFinder.find_spec(name)
    except ImportError:
        return False
    return found is not None and "site-packages" in pathlib.Path(found.origin or "").parts


def _module(name: str, directory, where: str):
    home = pathlib.Path(directory or ".").resolve()
    path = home.joinpath(*name.split(".")).with_suffix(".py").resolve()
    # Or later imports of Python's own module, or of an installed one, would get this one.
    pythons = name in sys.stdlib_module_names
    if path.is_file() and (pythons or _is_installed(name)):
        another = "Python has one of that name itself" if pythons else "one of that name is installed"
        raise UserError(f"{where} names the module {name}, but {another}; call {path.name} something else")
    try:
        if not path.is_file():
            return importlib.import_module(name)
        known, text = sys.modules.get(name), path.read_bytes()
        if known is not None and getattr(known, "__file__", None) == str(path):
            if source_of(known) not in (None, text):
                tell_once(f"tffcl: {path} was edited since it was imported; this process goes on with the code of then")
            return known
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader, path  # it ends in .py
        spec.loader_state = text
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs, since its dataclasses look it up
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if not path.is_file() and error.name in (name, missing) and missing == name.split(".")[0]:
            raise UserError(
                f"{where} names the module {name}, which is neither a file {name.replace('.', '/')}.py beside the task "
                f"file nor on Python's path{'; a module is named without .py' if name.endswith('.py') else ''}"
            ) from None
        beside = missing and ((home / missing).is_dir() or (home / f"{missing}.py").is_file())
        cure = f"; PYTHONPATH={home} puts what is beside the task file on Python's path" if beside else ""
        raise UserError(f"{where} names the module {name}, which cannot be imported: {error}{cure}") from None
    except (Exception, SystemExit) as error:  # whatever the user's module does when it is imported
        message = in_a_line(error, str(path))
        raise UserError(f"{where} names the module {name}, which cannot be imported: {message}") from None
