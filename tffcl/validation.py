"""The check of every value that a user can set, in a task file or in Python, against the type that its place asks for.

The type of a dataclass field or of a keyword-only parameter says once, where it is declared, what a value may be:

    rounds: Count = 10                      # a whole number from 1
    metric: one_of(METRICS) = "loss"        # one of the names in METRICS
    rotations: Literal[4, 2] = 4
    groups: Sequence[Sequence[Whole]] | None = None

Other bounds are `Annotated[float, msgspec.Meta(ge=-1, le=1)]`; with `description="a cosine, from -1 to 1"` in the Meta,
the message describes the value by this text. A whole number is allowed for any number, and becomes a float there. True
and false are not numbers, and no number may be NaN or infinite. NumPy's scalars count as numbers, and paths as texts.

This module imports nothing heavy, so that mistakes are reported before anything heavy is loaded.
"""

import dataclasses
import functools
import inspect
import math
import numbers
import os
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import msgspec.inspect as kinds

from tffcl.display import Shown
from tffcl.errors import UserError, unknown

Count = Annotated[int, msgspec.Meta(ge=1)]
Whole = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]

_SHOWN = 100  # characters of a wrong value in a message
_LONGEST_LABEL = 100  # bytes; file systems end at 255


def one_of(names: Collection[str]):
    """Returns the type of a text that must be one of some names.

    Args:
      names: The names, or a mapping with these keys.
    """
    return Literal[tuple(names)]


def wrong(key: str, value: object, rule: str) -> UserError:
    """Returns the error for the value of a key, e.g. if a rule between keys in `Parameters.check` is broken.

    Args:
      key: The key.
      value: Its value.
      rule: What it must be, e.g. "it must be 0 or a whole number from 2".
    """
    return UserError(f"{key} is {_shown(value)}; {rule}", key=key)


def check_value(key: str, value: object, kind: Any) -> Any:
    """Returns a value as the type `kind` has it: a float for a whole number, an int for NumPy's.

    Args:
      key: The value's name in messages.
      value: What the user gave.
      kind: A type, see the docstring of this module.

    Raises:
      UserError: If the value is not of that type or out of its bounds; the message says what it must be.
    """
    value = _plain(value)
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        names = _names(_info(kind))
        if names and isinstance(value, str):
            others = [_words(each) for each in _alternatives(_info(kind)) if not _choices(each)]
            raise unknown(key, value, names, besides=" or ".join(others), key=key) from None
        raise wrong(key, value, f"it must be {describe(kind)}") from None
    if not _finite(converted):
        raise wrong(key, value, f"it must be {describe(kind)}, and finite")
    return converted


def each_once(where: str, values: Sequence) -> Sequence:
    """Returns the values; raises a UserError that begins with `where` if one occurs twice."""
    for place, value in enumerate(values):
        if value in values[:place]:
            raise UserError(f"{where} names {str(value)[:100]} twice; give each once")
    return values


def check_label(label: object, what: str):
    """Raises UserError if a label cannot be the name of a directory, since results are written into a directory of this
    name.

    Args:
      label: What the user gave.
      what: What it is the name of, for messages.
    """
    text = label if isinstance(label, str) else ""
    odd = [letter for letter in text if letter in "/\\" or not letter.isprintable()]
    if not text.strip() or text.startswith(".") or text != text.strip() or odd or len(text.encode()) > _LONGEST_LABEL:
        raise UserError(
            f"{_shown(label)} cannot be {what}, which results are in: it must be of 1 to {_LONGEST_LABEL} bytes, with "
            "neither slashes nor control characters, no dot before it and no blanks around it"
        )


def check_labels(labels: Collection[str], what: str):
    """Raises UserError as `check_label`, or if two labels differ only by case: for some systems, their directories are
    the same."""
    known: dict[str, str] = {}
    for label in labels:
        check_label(label, what)
        other = known.setdefault(label.casefold(), label)
        if other != label:
            raise UserError(f"{other!r} and {label!r} differ by case alone; each must be {what}, which results are in")


def check_kind(name: str, value: object, kind: type | tuple[type, ...], wanted: str):
    """Checks that an argument is an object of a class.

    Args:
      name: The argument's name.
      value: What was given.
      kind: The class, or several.
      wanted: The class in words, and how to make one, e.g. "a tffcl.FlatModel, as FlatModel.from_keras makes one".

    Raises:
      UserError: If it is not such an object.
    """
    if not isinstance(value, kind):
        raise UserError(f"{name} is of {type(value).__name__}; it must be {wanted}", key=name)


def describe(kind: Any) -> str:
    """Says in words what a value of the type `kind` may be, e.g. "a whole number from 1"; "" if it may be anything."""
    return _words(_info(kind))


@functools.cache
def keys_of(function: Callable) -> Mapping[str, object]:
    """Returns the parameters of `function` that are keyword-only or have a default, and their defaults (else
    `inspect.Parameter.empty`)."""
    parameters = inspect.signature(function).parameters.values()
    named = [each for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return {
        each.name: each.default for each in named if each.kind is each.KEYWORD_ONLY or each.default is not each.empty
    }


@functools.cache
def types_of(declared: Callable) -> Mapping[str, Any]:
    """Returns the types that a dataclass declares for its fields, or a function for its parameters, by name.

    A function may be a user's. If some of its types are known only to type checkers, no types are returned; a type that
    no value can be checked against is returned as `object`.
    """
    try:
        hints = typing.get_type_hints(declared, include_extras=True)
    except NameError:
        if not inspect.isfunction(declared):
            raise
        return {}
    return {name: hint if _can_be_checked(hint) else object for name, hint in hints.items()}


def described_in(documented: Callable) -> dict[str, str]:
    """Returns what the docstring of a class, without its bases, or of a function says about each key, in one line."""
    import docstring_parser

    parsed = docstring_parser.parse(documented.__doc__ or "", docstring_parser.DocstringStyle.GOOGLE)
    return {entry.arg_name: " ".join((entry.description or "").split()) for entry in parsed.params}


def _can_be_checked(hint: Any) -> bool:
    try:
        msgspec.convert(None, hint)
    except msgspec.ValidationError:
        return True
    except (TypeError, NameError):  # a class whose fields are of types that only type checkers know
        return False
    return True


class Parameters(Shown):
    """Base of the frozen dataclasses of values that a user sets: every field is checked when an instance is made.

    Attributes:
      instead: Names that users of other libraries look for, and what to use instead.
      alternatives: Groups of keys of which only one is used: if it is given on the command line, or in a task that
        extends another, it replaces the others of the file.
      only_with: Keys that have a meaning only with some values of another key: `{key: (other, value, ...)}`. With other
        values, the key must have its default.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field]]  # those of the derived class
    instead: ClassVar[Mapping[str, str]] = {}
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = ()
    only_with: ClassVar[Mapping[str, tuple[str, *tuple[object, ...]]]] = {}

    def __new__(cls, *_, **given):
        """Raises UserError, with the nearest name, for an unknown field, for which Python would raise a TypeError."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name in cls.instead:
                raise UserError(f"{cls.__name__} has no {name}: {cls.instead[name]}", key=name)
            if name not in names:
                raise unknown(f"parameter of {cls.__name__}", name, names)
        return super().__new__(cls)

    def __post_init__(self):
        """Raises UserError if a field is not of its type or out of its bounds, or a rule between fields is broken."""
        hints = types_of(type(self))
        for field in dataclasses.fields(self):
            # The class is frozen, so that a converted value can be stored in no other way.
            value = _of_table(field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, check_value(field.name, value, hints[field.name]))
        for key, (other, *values) in self.only_with.items():
            chosen = getattr(self, other)
            if chosen not in values and not self._is_default(self.__dataclass_fields__[key]):
                beside = " or ".join(_shown(each) for each in values)
                raise wrong(key, getattr(self, key), f"it is for {other} {beside}, and {other} is {_shown(chosen)}")
        self.check()

    def _is_default(self, field: dataclasses.Field) -> bool:
        made = field.default_factory
        return getattr(self, field.name) == (field.default if made is dataclasses.MISSING else made())

    def __repr__(self) -> str:
        """The call that makes it, without defaults."""
        given = [field.name for field in dataclasses.fields(self) if not self._is_default(field)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in given)})"

    def facts(self) -> Mapping[str, object]:
        """Returns all fields; a field that is None is "not set"."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: "not set" if value is None else value for name, value in values.items()}

    def check(self):
        """Checks the rules between fields, of which this class has none; raises UserError, see `wrong`."""


def from_table(cls: type, values: Mapping, where: str):
    """Makes an instance of a dataclass from a table of a task file.

    Args:
      cls: A dataclass whose fields are the allowed keys; it should derive from `Parameters`.
      values: The table.
      where: The name of the table, for messages, e.g. "algorithms.pacfl".

    Raises:
      UserError: For an unknown or missing key and for a wrong value; its message, `table` and `key` say where.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in values:
        if key not in fields:
            raise unknown(f"key in [{where}]", key, fields, table=where, key=key)
    for key, field in fields.items():
        needed = field.init and field.default is field.default_factory is dataclasses.MISSING
        if needed and key not in values:
            raise UserError(f"[{where}] needs {key!r} (its keys: {', '.join(sorted(fields))})", table=where)
    try:
        hints = types_of(cls)
        values = {key: _of_table(f"{where}.{key}", value, hints[key]) for key, value in values.items()}
        if not issubclass(cls, Parameters):  # which checks its fields itself
            values = {key: check_value(key, value, hints[key]) for key, value in values.items()}
        return cls(**values)
    except UserError as error:
        raise _within(error, where) from None


def _of_table(where: str, value: object, kind: Any) -> Any:
    """Returns the parameters that a value stands for if its key, named by `where`, is a table of its own; other values
    are unchanged."""
    kinds_of_key = (kind, *typing.get_args(kind))
    inner = next((each for each in kinds_of_key if inspect.isclass(each) and issubclass(each, Parameters)), None)
    if inner is None or not isinstance(value, Mapping):
        return value
    return from_table(inner, value, where)


def check_options(
    kind: str, function: Callable, options: Mapping, *, given: Collection[str] = (), also: Collection[str] = ()
) -> dict[str, Any]:
    """Checks a user's options for a function whose keyword-only parameters are the options.

    Args:
      kind: What has the options: the table of a task file and a name in it, e.g. "partition label_skew".
      function: The function; the values are checked against the types of its parameters.
      options: The user's keys and values.
      given: Parameters that tffcl gives and that users may not.
      also: Keys that are read elsewhere, to be named among the allowed ones.

    Returns:
      The options, converted as `check_value` does.

    Raises:
      UserError: For an option that `function` does not have, or that it needs and did not get, and for a wrong value.
    """
    table = kind.split()[0]
    own = {key: default for key, default in keys_of(function).items() if key not in given}
    allowed = sorted({*own, *also})
    for key in options:
        if key not in own:
            raise unknown(f"option of {kind}", key, allowed, table=table, key=key)
    for key, default in own.items():
        if default is inspect.Parameter.empty and key not in options:
            raise UserError(f"{kind} needs {key!r} (its options: {', '.join(allowed)})", table=table)
    try:
        return _checked(function, options)
    except UserError as error:
        raise _within(error, table) from None


def validated(function: Callable) -> Callable:
    """Decorates a function: its keyword-only arguments are checked against their types before it runs.

    Raises:
      UserError: When the function is called with a value that `check_value` refuses.
    """

    @functools.wraps(function)
    def with_checked(*positional, **named):
        return function(*positional, **_checked(function, named))

    return with_checked


def _checked(function: Callable, values: Mapping) -> dict[str, Any]:
    hints, own = types_of(function), keys_of(function)
    return {
        key: check_value(key, value, hints[key]) if key in hints and key in own else value
        for key, value in values.items()
    }


@functools.cache
def tell_once(hint: str):
    """Writes a line to standard error, only the first time that this is called with it."""
    print(hint, file=sys.stderr)


def _within(error: UserError, table: str) -> UserError:
    """Returns an error about a key with the key's table in front; other errors are unchanged."""
    if not error.key or error.table:
        return error
    message = str(error)
    for start in ("unknown ", ""):
        if message.startswith(f"{start}{error.key} "):
            message = f"{start}{table}.{message.removeprefix(start)}"
            break
    return UserError(message, table=table, key=error.key)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python does not write out whole numbers of thousands of digits
        return "a number of too many digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _plain(value):
    """Returns NumPy's scalars as Python's own values and paths as text, also in lists; other values are unchanged."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str):
        return str(value)
    # NumPy registers all its numbers with Python's abstract ones, except its bool.
    if isinstance(value, numbers.Number) or type(value).__name__ in ("bool_", "bool"):
        return value.item() if hasattr(value, "item") else value
    return value


def _finite(value) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return all(map(_finite, value)) if isinstance(value, (list, tuple)) else True


@functools.cache
def _info(kind: Any) -> kinds.Type:
    return kinds.type_info(kind)


def _alternatives(info: kinds.Type) -> list[kinds.Type]:
    each = info.types if isinstance(info, kinds.UnionType) else (info,)
    return [one for one in each if not isinstance(one, kinds.NoneType)]


def _names(info: kinds.Type) -> list[str]:
    """Returns the texts that a value may be, if not every text is allowed; else none."""
    names = []
    for each in _alternatives(info):
        each = each.type if isinstance(each, kinds.Metadata) else each
        if isinstance(each, (kinds.StrType, kinds.AnyType)):
            return []
        names += [value for value in _choices(each) if isinstance(value, str)]
    return names


def _choices(info: kinds.Type) -> list:
    """Returns the allowed values if they are listed one by one; else none."""
    if isinstance(info, kinds.EnumType):
        return [each.value for each in info.cls]
    return list(info.values) if isinstance(info, kinds.LiteralType) else []


def _words(info: kinds.Type, many: bool = False) -> str:
    if isinstance(info, kinds.Metadata):
        described = (info.extra_json_schema or {}).get("description")
        return described or _words(info.type, many)
    if isinstance(info, kinds.UnionType):
        words = [_words(each, many).removeprefix("some of " if many else "one of ") for each in _alternatives(info)]
        return " or ".join(words) if len(words) > 1 else _words(_alternatives(info)[0], many)
    if isinstance(info, (kinds.IntType, kinds.FloatType)):
        noun = "whole number" if isinstance(info, kinds.IntType) else "number"
        return f"{f'{noun}s' if many else f'a {noun}'}{_bounds(info)}"
    if isinstance(info, (kinds.ListType, kinds.VarTupleType, kinds.SetType, kinds.FrozenSetType)):
        least = f"{info.min_length} or more " if info.min_length else ""
        return f"{'lists' if many else 'a list'} of {least}{_words(info.item_type, True)}"
    if isinstance(info, kinds.TupleType):
        items = f"{len(info.item_types)}: {', '.join(map(_words, info.item_types))}"
        return f"{'lists' if many else 'a list'} of {items.removesuffix(': ')}"
    if choices := _choices(info):
        choice = "some of" if many else "one of"
        return f"{choice} {', '.join(map(str, choices))}" if len(choices) > 1 else str(choices[0])
    if isinstance(info, kinds.AnyType):
        return "values" if many else ""
    if isinstance(info, kinds.DataclassType):
        return f"a table or {info.cls.__name__} of {', '.join(field.name for field in info.fields)}"
    plain = {kinds.BoolType: "true or false", kinds.StrType: "texts" if many else "text", kinds.DictType: "a table"}
    name = info.cls.__name__ if hasattr(info, "cls") else type(info).__name__.removesuffix("Type").lower()
    return plain.get(type(info)) or f"{'values ' * many}of type {name}"


def _bounds(info) -> str:
    """Returns what follows "a number" for its bounds: " from 0 to below 1", " above 0"."""
    low = (
        f" from {_number(info.ge)}"
        if info.ge is not None
        else f" above {_number(info.gt)}"
        if info.gt is not None
        else ""
    )
    if info.le is not None:
        high = (
            f" to {_number(info.le)}" if info.ge is not None else f"{', ' if low else ' of '}at most {_number(info.le)}"
        )
    elif info.lt is not None:
        high = (
            f" to below {_number(info.lt)}"
            if info.ge is not None
            else f"{' and' if low else ''} below {_number(info.lt)}"
        )
    else:
        high = ""
    return low + high


def _number(value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
