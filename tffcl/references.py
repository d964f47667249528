"""Functions that a user names as "module:function": in a module on the path, or in a file beside the task file."""

import importlib
import importlib.util
import inspect
import pathlib
import re
import sys
from collections.abc import Callable

from tffcl.errors import UserError, unknown


def is_reference(text: object) -> bool:
    """Whether this is a text of the form "module:function"."""
    return isinstance(text, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text) is not None


def load_reference(reference: str, directory: str | pathlib.Path | None = None, where: str = "builder") -> Callable:
    """Imports the function that a reference names.

    Args:
      reference: "module:function".
      directory: Where `module.py` is looked for first; then the module is imported as any other.
      where: The key that holds the reference, for messages.

    Raises:
      UserError: If it is of another form, the module cannot be imported, or has no such function.
    """
    if not is_reference(reference):
        raise UserError(f'{where} is {reference!r}; it must be "module:function", e.g. "my_methods:build_mine"')
    module_name, name = reference.split(":")
    module = _module(module_name, directory, where)
    found = getattr(module, name, None)
    if found is None:
        public = [each for each, value in vars(module).items() if inspect.isfunction(value) and not each.startswith("_")]
        raise unknown(f"function in {module_name}", name, public)
    if not callable(found):
        raise UserError(f"{where} names {reference}, which is of {type(found).__name__}; it must be a function")
    return found


def _module(name: str, directory, where: str):
    path = pathlib.Path(directory or ".", *name.split(".")).with_suffix(".py").resolve()
    try:
        if not path.is_file():
            return importlib.import_module(name)
        known = sys.modules.get(name)
        if known is not None and getattr(known, "__file__", None) == str(path):
            return known
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs: its dataclasses look themselves up by it
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
    except ModuleNotFoundError as error:
        if error.name == name.split(".")[0] or error.name == name:
            raise UserError(
                f"{where} names the module {name}, which is neither a file {path.name} beside the task file nor on Python's path"
            ) from None
        raise UserError(f"{where} names the module {name}, which cannot be imported: {error}") from None
    except Exception as error:  # whatever the user's module does when it is imported
        raise UserError(f"{where} names the module {name}, which cannot be imported: {type(error).__name__}: {error}") from None
