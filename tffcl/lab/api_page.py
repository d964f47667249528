"""Makes `tffcl/docs/api.md`, the page of the public names, from their docstrings: `python -m tffcl.lab.api_page`."""

import dataclasses
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterator

import tffcl
from tffcl.validation import described_in

PAGE = pathlib.Path(tffcl.__file__).parent / "docs" / "api.md"
_PACKAGES = {
    "tffcl": "What most programs need.",
    "tffcl.algorithms": "The methods, each with its parameters.",
    "tffcl.parts": "What methods, signatures and aggregations of one's own are made of.",
    "tffcl.learning": "TFF learning processes.",
}
_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Example|Examples|Note):$")
_ENTRY = re.compile(r"  (\*{0,2}[\w.]+|[\w.]+(?:, [\w.]+)+): (.*)")
_CODE = re.compile(r"(`[^`]*`)")


class _Long:
    """Replaces a default whose text is long, or differs from process to process."""

    def __repr__(self):
        return "..."


_LONG = _Long()


def render() -> str:
    """Returns the page: for each package a table of its names, and their descriptions."""
    lines = [
        "# API reference",
        "",
        "Made of the docstrings by `python -m tffcl.lab.api_page`. Vectors of P parameters are models, K is the number",
        "of clusters, N that of clients; [methods](methods.md) says how the methods are set.",
    ]
    for package, about in _PACKAGES.items():
        module = importlib.import_module(package)
        found = {name: getattr(module, name) for name in dir(module)}
        found = {name: each for name, each in found.items() if not inspect.ismodule(each)}
        lines += ["", f"## {package}", "", about, "", "| name | what it is |", "|---|---|"]
        lines += [f"| [`{name}`](#{_anchor(package, name)}) | {_first(each)} |" for name, each in found.items()]
        for name, each in found.items():
            lines += ["", f'<a id="{_anchor(package, name)}"></a>', "", *_entry(name, each)]
    return "\n".join(lines) + "\n"


def _anchor(package: str, name: str) -> str:
    return f"{package}.{name}".replace(".", "-").lower()


def _first(found: object) -> str:
    """The first sentence of a docstring, in a cell of a table."""
    text = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
    return _escaped(re.split(r"(?<=[.:]) (?=[A-Z])", text)[0]).replace("|", "\\|")


def _entry(name: str, found: object) -> Iterator[str]:
    """The lines for a name; for a class, also the lines for its public methods and properties."""
    yield f"### `{name}{_signature(found)}`"
    yield ""
    yield from _prose(found)
    if not inspect.isclass(found):
        return
    if dataclasses.is_dataclass(found):
        yield from _inherited(found)
    for member, value in vars(found).items():
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        plain = getattr(plain, "fget", None) or getattr(plain, "func", None) or plain
        if member.startswith("_") or not inspect.isfunction(plain) or not plain.__doc__:
            continue
        is_value = not inspect.isfunction(getattr(value, "__func__", value))
        yield from ("", f"#### `{name}.{member}{'' if is_value else _signature(plain)}`", "", *_prose(plain))


def _inherited(found: type) -> Iterator[str]:
    """The fields of a dataclass that only its bases describe."""
    own, *further = map(described_in, found.__mro__)
    described = {name: text for each in reversed(further) for name, text in each.items() if name not in own}
    names = [field.name for field in dataclasses.fields(found) if field.name in described]
    if names:
        yield from ("", "**Further attributes:**", "", *(f"- `{name}`: {_escaped(described[name])}" for name in names))


def _signature(found: object) -> str:
    """The signature without types, which are in the text."""
    try:
        given = inspect.signature(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    kept = [each for name, each in given.parameters.items() if name not in ("self", "cls")]
    return str(inspect.Signature([_plain(each) for each in kept]))


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    if default is not inspect.Parameter.empty and re.search(r"<|\(", repr(default)):
        default = _LONG
    return parameter.replace(annotation=inspect.Parameter.empty, default=default)


def _prose(found: object) -> Iterator[str]:
    """Converts a docstring in Google's style to Markdown, with its sections as lists."""
    in_section, in_code = False, False
    for line in (inspect.getdoc(found) or "").split("\n"):
        if line.strip().startswith("```"):
            in_code = not in_code
        if in_code or line.startswith("    ") and not in_section:
            yield line
        elif _SECTION.match(line):
            in_section = True
            yield f"**{line}**"
            yield ""
        elif in_section and (entry := _ENTRY.fullmatch(line)):
            yield f"- `{entry[1]}`: {_escaped(entry[2])}"
        elif in_section and line.startswith("    "):
            yield f"  {_escaped(line.strip())}"
        else:
            in_section = in_section and (not line or line.startswith(" "))
            yield _escaped(line.strip())


def _escaped(text: str) -> str:
    """Escapes Markdown's special characters in text, except in code between backticks."""
    parts = _CODE.split(text)
    return "".join(each if number % 2 else re.sub(r"([<*_])", r"\\\1", each) for number, each in enumerate(parts))


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
