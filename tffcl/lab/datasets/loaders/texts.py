"""Documents that come with Python and TensorFlow, for models that predict the next character."""

import importlib.metadata
import importlib.util
import os
import pathlib
import platform
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.images import Images
from tffcl.validation import Count, each_once, one_of, validated

KINDS = ("prose", "python", "c++")
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # a character's class is its place; others share one class
_Kinds = Annotated[
    Sequence[one_of(KINDS)], msgspec.Meta(min_length=1, description=f"a list of one or more of {', '.join(KINDS)}")
]
_NAMES = ("newline", "space", *CHARACTERS[2:], "other")
_TEST_SHARE = 0.25


@validated
def load_texts(
    *, kinds: _Kinds = KINDS, documents: Count = 12, characters: Count = 8000, length: Count = 20
) -> Dataset:
    """Returns documents as sequences of characters; the labels are the same sequences, one character later.

    "prose" is the language reference that Python's `help()` shows, one document for each topic. "python" is the
    standard library, one document for each module. "c++" are TensorFlow's headers, from their first `#ifndef` on, which
    comes after the licence. Texts are those of the installed versions, which the data set's note names. Each document
    is a natural client, its kind is the true group, and the last quarter of its text is for tests.

    Args:
      kinds: The kinds of documents.
      documents: The number of documents of each kind, evenly spaced by name among those that are long enough.
      characters: The number of characters from the beginning of each document; shorter documents are left out.
      length: The length of a sequence.

    Raises:
      UserError: If a kind has fewer such documents, or the texts are not installed.
    """
    each_once("kinds", kinds)
    owners, groups, splits = [], [], {"train": [], "test": []}
    least = (length + 1) / _TEST_SHARE
    if characters < least:
        raise UserError(f"characters is {characters}; for a test sequence of {length} it must be {least:g} or more")
    for group, kind in enumerate(kinds):
        known = [(name, text) for name, text in _READERS[kind]() if len(text) >= characters]
        if len(known) < documents:
            raise UserError(
                f"documents is {documents}; {len(known)} of kind {kind} with {characters} characters are installed"
            )
        for place in np.linspace(0, len(known) - 1, documents).astype(int):
            name, text = known[place]
            codes, tested = encode(text[:characters]), round(characters * (1 - _TEST_SHARE))
            for split, part in (("train", codes[:tested]), ("test", codes[tested:])):
                end = (len(part) - 1) // length * length
                # The labels are the same sequences, one character later.
                splits[split].append([part[start : start + end].reshape(-1, length) for start in (0, 1)])
            owners.append(f"{kind}: {name}")
            groups.append(group)
    train, test = (_joined(splits[split]) for split in ("train", "test"))
    versions = f"Python {platform.python_version()} and TensorFlow {importlib.metadata.version('tensorflow')}"
    return Dataset(
        "texts", train, test, len(_NAMES), 0.0, 1.0, _NAMES, f"texts of {versions}",
        owner_names=tuple(owners), owner_groups=np.array(groups, np.int32), group_names=tuple(kinds),
    )  # fmt: skip


def encode(text: str) -> np.ndarray:
    """Returns the class of each character of a text, int32."""
    classes = {character: number for number, character in enumerate(CHARACTERS)}
    return np.array([classes.get(each, len(CHARACTERS)) for each in text], np.int32)


def _joined(parts: Sequence[Sequence[np.ndarray]]) -> Images:
    owner = np.repeat(np.arange(len(parts), dtype=np.int32), [len(x) for x, _ in parts])
    return Images(*(np.concatenate(each) for each in zip(*parts, strict=True)), owner)


def _prose() -> Iterator[tuple[str, str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError("this Python has no pydoc_data, texts of help(); kinds = ['python', 'c++'] need none") from None
    yield from sorted(topics.items())


def _modules() -> Iterator[tuple[str, str]]:
    for path in sorted(pathlib.Path(os.__file__).parent.glob("*.py")):
        yield path.stem, path.read_text(encoding="utf-8", errors="replace")


def _headers() -> Iterator[tuple[str, str]]:
    # There are several locations once TensorFlow is imported.
    places = [pathlib.Path(each) for each in importlib.util.find_spec("tensorflow").submodule_search_locations]
    found = [path for place in places for path in (place / "include" / "tensorflow" / "core").rglob("*.h")]
    if not found:
        raise UserError("TensorFlow is installed without its C++ headers; kinds = ['prose', 'python'] need none")
    for path in sorted(found):
        if path.name.endswith(".pb.h"):  # written by a program
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        yield f"{path.parent.name}/{path.stem}", text[max(text.find("#ifndef"), 0) :]


_READERS = {"prose": _prose, "python": _modules, "c++": _headers}
