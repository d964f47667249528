"""Task files: where they are, how they are read, and which line of a file an error about a key belongs to."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import tomllib
from collections.abc import Mapping

from tffcl.display import Shown
from tffcl.errors import OVERRIDES, UserError, unknown
from tffcl.files import MOST_TOML, parse_toml, read_text
from tffcl.lab.datasets.catalog import NATURAL
from tffcl.registry import ALGORITHMS, Row, add
from tffcl.validation import Parameters, check_kind

SECTIONS = (
    "extends", "description", "source", "dataset", "partition", "model", "train", "evaluation", "checkpoint",
    "newcomers", "drift", "privacy", "attack", "aggregation", "algorithms",
)  # fmt: skip
ABOUT = ("description", "source")  # keys that are no settings
_TEXTS = ("extends", *ABOUT)
_COHORT_SIZES = ("clients_per_round", "participation")
# Keys of a section that replace each other: the one that is set last holds.
_ALTERNATIVES: dict[str, tuple[str, ...]] = {
    "train": _COHORT_SIZES,
    "algorithms": _COHORT_SIZES,
    "newcomers": ("clients", "share"),
}
_CUTS = {"threshold", "num_clusters"}  # most methods take only one of them
_DEEPEST = 20  # levels of tables and lists
_LARGEST = 2**31 - 1  # whole number: clients, rounds, units and labels are 32-bit where they are used
_MOST_EXTENDED = 20
_LONGEST_PATH = 300  # characters in a message
_SOURCES = ("name", "names", "builder")  # keys that say where data, partition and model come from


@dataclasses.dataclass(frozen=True)
class Task(Shown):
    """A task file that has been read.

    Attributes:
      name: The name of the task: the file's name without its ending.
      path: The file.
      contents: The file's tables, merged over those of the task that it extends.
    """

    name: str
    path: pathlib.Path
    contents: Mapping

    def facts(self):
        """The task's name, file and methods."""
        methods = ", ".join(self.contents.get("algorithms", {})) or "none"
        return {"name": self.name, "file": self.path, "methods": methods}

    @contextlib.contextmanager
    def locating(self, overrides: Mapping):
        """Adds file and line to an error about a key of this file, but not to one about a key of `overrides`."""
        try:
            yield
        except UserError as error:
            if error.table is None:
                raise
            if error.key in _table(overrides, error.table.split(".")):
                place = str(OVERRIDES)
            else:
                line = _line_of(self.path.read_text(encoding="utf-8"), error.table, error.key)
                place = f"{self.path.name}, line {line}" if line else ""
            located = f"{place}: {error}" if place else str(error)
            raise UserError(located, table=error.table, key=error.key) from None


def _table(contents: Mapping, path: list[str]) -> Mapping:
    for part in path:
        contents = contents.get(part, {}) if isinstance(contents, Mapping) else {}
    return contents if isinstance(contents, Mapping) else {}


def _line_of(text: str, table: str, key: str | None) -> int | None:
    """The line of a key in a table of a task file, or of the table's header if `key` is None; None if not found."""
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[([^\]]+)\]", line)
        current = header[1].strip() if header else current
        if header:
            found = current == (f"{table}.{key}" if key else table)
        else:
            found = current == table and key and re.match(rf"\s*{re.escape(key)}\s*=", line)
        if found:
            return number
    return None


@functools.cache
def task_directory() -> pathlib.Path:
    """The directory of the task files: beside the package in a checkout, inside it in an installed wheel."""
    package = pathlib.Path(__file__).resolve().parents[2]
    inside = package / "_tasks"
    return inside if inside.is_dir() else package.parent / "tasks"


def results_directory() -> pathlib.Path:
    """The directory that holds, for each study that comes with tffcl, a directory of its results."""
    return task_directory() / "results"


def task_names() -> list[str]:
    """The names of the tasks that come with tffcl."""
    return list(_names_in(task_directory(), task_directory().stat().st_mtime_ns))


@functools.cache
def _names_in(directory: pathlib.Path, modified: int) -> list[str]:
    del modified  # a directory that has changed is read again
    return sorted(name.removesuffix(".toml") for name in os.listdir(directory) if name.endswith(".toml"))


def _rows() -> dict[str, Row]:
    return {name: Row(load_task(name).contents.get("description", "").split("\n")[0]) for name in task_names()}


add("tasks", _rows)


def named_algorithms(task: str | pathlib.Path) -> list[str]:
    """The labels of a task's methods, in the order of their tables.

    Raises:
      UserError: If the task has none.
    """
    loaded = load_task(task)
    if not loaded.contents.get("algorithms"):
        raise UserError(f"task {loaded.name} names no algorithms; give --algorithms A,B,C")
    return list(loaded.contents["algorithms"])


def settings_in(contents: Mapping) -> dict:
    """Returns the tables of a task, or of a run, without its description and source."""
    return {key: value for key, value in contents.items() if key not in ABOUT}


class _Unset:
    """A value that removes a key's value."""

    def __repr__(self) -> str:
        return "nothing"


UNSET = _Unset()


def merged(base: Mapping, over: Mapping, section: str | None = None) -> dict:
    """`base` with the values of `over`, table by table; `UNSET` removes a key, and so does an alternative of the key.

    Args:
      base: The tables of a task, or one table of a `section`.
      over: The values that win.
      section: The section of the table; None for all tables of a task.
    """
    stands_for = _ALTERNATIVES.get(section, ()) if section else ()
    given = [key for key in stands_for if over.get(key, UNSET) is not UNSET]
    result = {key: value for key, value in base.items() if not given or key not in stands_for}
    for key, value in over.items():
        if value is UNSET:
            result.pop(key, None)
            continue
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value, section or key) if both else value
    return result


def overridden(before: Mapping, later: Mapping, task: str | pathlib.Path = "") -> dict:
    """Merges two sets of overrides of a task. A method's own value of a [train] key in `before` is dropped if `later`
    sets that key in [train]. If a task is given, the method of a label is read from it."""
    before = _with_one_cut(before, later, task)
    result, train = merged(before, later), later.get("train", {})
    for label, table in before.get("algorithms", {}).items() if isinstance(train, Mapping) else ():
        own = later.get("algorithms", {}).get(label, {})
        if not isinstance(own, Mapping):  # the reader of the result reports this
            continue
        given = {*train, *(_COHORT_SIZES if set(train) & set(_COHORT_SIZES) else ())}
        left = {key: value for key, value in table.items() if key not in given or key in own}
        result["algorithms"] = {**result["algorithms"], label: merged(left, own, "algorithms")}
    return result


def without_replaced(table: Mapping, over: Mapping, parameters: type[Parameters] | None) -> dict:
    """Returns a method's table without the keys that an alternative in `over` replaces, e.g. a threshold that a number
    of clusters replaces."""
    given = {key for key, value in over.items() if value is not UNSET}
    groups = parameters.alternatives if parameters else ()
    replaced = {key for group in groups if given.intersection(group) for key in group} - set(over)
    return {key: value for key, value in table.items() if key not in replaced}


def _with_one_cut(base: Mapping, over: Mapping, task: str | pathlib.Path = "") -> Mapping:
    """`base` without each method's threshold (or number of clusters) if `over` sets the number of clusters (or the
    threshold) instead."""
    methods, later = base.get("algorithms", {}), over.get("algorithms", {})
    for label in (each for each in methods if isinstance(later.get(each), Mapping)):
        was, table = methods[label], later[label]
        if _CUTS & set(table) and _CUTS & (set(was) - set(table)):  # otherwise read no task, import no class
            there = load_task(task).contents.get("algorithms", {}).get(label, {}) if task else {}
            row = ALGORITHMS.get(str({**there, **was, **table}.get("method", label)))
            methods = {**methods, label: without_replaced(was, table, row.parameter_class())} if row else methods
    return {**base, "algorithms": methods} if methods else base


def put(table: dict, section: str, key: str, value: object):
    """Sets a key of a section in one of its tables and removes the key's alternatives."""
    for other in _ALTERNATIVES.get(section, ()):
        if other != key and key in _ALTERNATIVES[section]:
            table.pop(other, None)
    table[key] = value


def load_task(task: str | pathlib.Path) -> Task:
    """Reads a task file.

    A file with `extends = "other"` takes the other task's values where it has none of its own; `other` is a name or a
    path relative to the file. A table that names another data set, partition or model replaces the other task's table.

    Args:
      task: A path that ends in .toml, or a name in `tasks/`.

    Raises:
      UserError: If the file does not exist, is not TOML, has unknown sections, lacks a section, or extends itself.
    """
    check_kind("task", task, (str, os.PathLike), "the name of one (tffcl list tasks), or the path of a file .toml")
    path = pathlib.Path(task)
    if path.suffix != ".toml":
        path = _by_name(str(task), pathlib.Path())
    contents = _read(path, ())
    if contents.get("dataset", {}).get("name") in NATURAL:
        contents.setdefault("partition", {"name": "by_owner"})
    for section in ("dataset", "partition", "model"):
        table = contents.get(section, {})
        if not set(_SOURCES) & set(table):
            raise UserError(f'{path.name} lacks [{section}] with name = "..." or builder = "module:function"')
    return Task(path.stem, path, contents)


def check_tables(contents: Mapping, where: str):
    """Raises UserError if a section that must be a table of keys is something else."""
    named = [(f"[{name}]", value) for name, value in contents.items() if name not in _TEXTS]
    methods = contents.get("algorithms", {})
    named += (
        [(f"[algorithms.{name}]", value) for name, value in methods.items()] if isinstance(methods, Mapping) else []
    )
    for name, value in named:
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: {name} is {value!r}; it must be a table of keys and values")
    for section in ("dataset", "partition", "model", "aggregation"):
        name = contents.get(section, {}).get("name", "")
        if not isinstance(name, str):
            raise UserError(f"{where}: {section}.name is {name!r}; it must be one name")
    for name in _TEXTS:
        if not isinstance(contents.get(name, ""), str):
            raise UserError(f"{where}: {name} is {contents[name]!r}; it must be text")


def _by_name(name: str, beside: pathlib.Path) -> pathlib.Path:
    """The file of a task that comes with tffcl; `beside` is the directory where a user's own file would be."""
    path = task_directory() / f"{name}.toml"
    if name not in task_names():
        if name and is_file(beside / f"{name}.toml"):
            raise UserError(f"unknown task {name!r}; did you mean the file {name}.toml?")
        raise unknown("task", name, task_names(), listed="tasks")
    return path


def is_file(path: pathlib.Path) -> bool:
    """Whether the file exists, or may exist; a name that no file can have gives False."""
    try:
        return path.is_file()
    except PermissionError:
        return True  # reading the file reports the error
    except (OSError, ValueError):
        return False


def _read(path: pathlib.Path, extending: tuple) -> dict:
    if path.absolute() in extending or (extending and path.resolve() in [each.resolve() for each in extending]):
        raise UserError(f"{path.name} extends itself")
    if len(extending) > _MOST_EXTENDED:
        raise UserError(
            f"{extending[0].name} extends more than {_MOST_EXTENDED} tasks, one after the other; fewer are allowed"
        )
    own = dict(_parse(path))
    for section in own:
        if section not in SECTIONS:
            raise unknown(f"key in {path.name}", section, SECTIONS)
    check_tables(own, path.name)
    other = own.pop("extends", None)
    if other is None:
        return own
    if "\0" in other:
        raise UserError(f"{path.name}: extends is {other[:100]!r}; no file has such a name")
    beside = path.parent / str(other)
    base = _read(
        beside if beside.suffix == ".toml" else _by_name(str(other), path.parent), (*extending, path.absolute())
    )
    for section in ("dataset", "partition", "model"):
        # The options of another data set, partition or model mean nothing here.
        tables = own.get(section, {}), base.get(section, {})
        now, was = ([table.get(key) for key in ("name", "builder")] for table in tables)
        if set(_SOURCES) & set(tables[0]) and now != was:
            base.pop(section, None)
    return merged(_with_one_cut(base, own), own)


@functools.cache
def _parsed(path: pathlib.Path, modified: float) -> dict:
    del modified  # a file that has changed is read again
    try:
        return read_toml(read_text(path, MOST_TOML), path.name)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML: {error}") from None


def _parse(path: pathlib.Path) -> dict:
    if not is_file(path):
        if len(str(path)) > _LONGEST_PATH:
            raise UserError(f"there is no task file {str(path)[:100]}...; its name is too long for a file")
        if path.stem in task_names():
            raise UserError(f"there is no task file {path}; did you mean {path.stem}, which comes with tffcl?")
        raise UserError(f"there is no task file {path}; `tffcl list tasks` names those that come with tffcl")
    return _parsed(path, path.stat().st_mtime)


def read_toml(text: str, where: str) -> dict:
    """Reads TOML text.

    Args:
      text: What the user wrote.
      where: The name of its place, for messages.

    Raises:
      UserError: If the text is too long, or has a date, a whole number beyond 32 bits, or more than 20 levels.
      tomllib.TOMLDecodeError: If the text is not TOML; the caller decides what that means.
    """
    if len(text) > MOST_TOML:
        raise UserError(f"{where} has {len(text):,} characters; at most {MOST_TOML:,} are allowed")
    try:
        contents = parse_toml(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise UserError(
            f"{where} is nested too deep; at most {_DEEPEST} tables and lists within each other are allowed"
        ) from None
    except ValueError:  # Python reads no whole number of more than 4,300 digits
        raise UserError(f"{where} has a whole number of thousands of digits; at most {_LARGEST} is allowed") from None
    check_plain(contents, where)
    return contents


def check_plain(contents: Mapping, where: str):
    """Raises UserError, which names the key, for values that `read_toml` refuses."""
    left: list[tuple[object, tuple[str, ...], int]] = [(contents, (), 0)]
    while left:
        value, path, depth = left.pop()
        key = ".".join(path)[:100]
        if depth > _DEEPEST:
            raise UserError(
                f"{where}: {key[:40]}... is nested too deep; at most {_DEEPEST} tables and lists are allowed"
            )
        if isinstance(value, Mapping):
            left += [(each, (*path, name), depth + 1) for name, each in value.items()]
        elif isinstance(value, (list, tuple)):
            left += [(each, path, depth + 1) for each in value]
        elif isinstance(value, int) and abs(value) > _LARGEST:
            raise UserError(f"{where}: {key} is a whole number beyond {_LARGEST}, the largest that is allowed")
        elif type(value).__module__ == "datetime":
            raise UserError(f"{where}: {key} is the date or time {value}; texts are written in quotes")
