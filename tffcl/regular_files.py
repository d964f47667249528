"""Files as tffcl reads and writes them: regular ones alone. No link is followed to be written, no pipe or
device is read."""

import contextlib
import hashlib
import io
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import BinaryIO

from tffcl.errors import UserError

MOST_TEXT = 2**28  # bytes of a text; the table of two million clients has as many


def opened(path: str | pathlib.Path, most: int | None = None) -> BinaryIO:
    """Opens a file to read its bytes.

    Args:
      path: The file, or a link to it.
      most: How many bytes it may have; default any number.

    Raises:
      UserError: If it is a directory, a pipe, a socket or a device, or has more bytes.
      OSError: If it is not there, or may not be read.
    """
    # What is no file is not opened: that could wait for ever, or change a device.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise UserError(f"{path} is not a file")
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    found = os.fstat(file.fileno())
    regular = stat.S_ISREG(found.st_mode)  # it may be another one by now
    if regular and (most is None or found.st_size <= most):
        return file
    file.close()
    raise UserError(
        f"{path} has {found.st_size:,} bytes; at most {most:,} can be of such a file"
        if regular
        else f"{path} is not a file"
    )


def read_text(path: str | pathlib.Path, most: int = MOST_TEXT, newline: str | None = None) -> str:
    """Returns the text of a file in UTF-8; `newline` as of `open`.

    Raises:
      UserError, OSError: As `opened`.
      UnicodeDecodeError: If it is no text.
    """
    with io.TextIOWrapper(opened(path, most), encoding="utf-8", newline=newline) as file:
        return file.read()


def read_bytes(path: str | pathlib.Path) -> bytes:
    """Returns the contents of a file; errors as of `opened`."""
    with opened(path, MOST_TEXT) as file:
        return file.read()


def digest_of_file(path: str | pathlib.Path) -> str:
    """Returns the SHA-256 of a file's contents in hexadecimal; errors as of `opened`."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_no_link(path: pathlib.Path):
    """Raises UserError if there is a link where something shall be written.

    It could lead anywhere: whoever may write into a directory would choose which of the user's files is written over.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a link, and nothing is written through one: remove it, or give another directory")


def check_replaceable(path: pathlib.Path):
    """Raises UserError if there is something else than a regular file where one shall be written."""
    check_no_link(path)
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a file: move it, or give another directory")


def make_directory(path: pathlib.Path):
    """Makes a directory inside of another, if it is not there; UserError if it is a link."""
    check_no_link(path)
    path.mkdir(exist_ok=True)


@contextlib.contextmanager
def replacing(path: pathlib.Path, *, private: bool = False, durable: bool = False) -> Iterator[BinaryIO]:
    """Gives a file to write to that takes the place of `path` when the block has ended: whole, or not at all.

    Args:
      path: What is written.
      private: Whether its owner alone may read it, whatever the umask says: examples and values of clients.
      durable: Whether it is on the disk when the block has ended, also if the machine loses its power then.

    Raises:
      UserError: As `check_replaceable`.
      OSError: If it cannot be written; what was there stays.
    """
    check_replaceable(path)
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)  # of a process that was killed, or somebody's link: not what it leads to
    new = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
    try:
        with open(new, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        with contextlib.suppress(OSError):  # some file systems do not sync a directory
            place = os.open(path.parent, os.O_RDONLY)
            os.fsync(place)
            os.close(place)


def write_bytes(path: pathlib.Path, contents: bytes, *, private: bool = False):
    """Writes a file as `replacing` does."""
    with replacing(path, private=private) as file:
        file.write(contents)


def write_text(path: pathlib.Path, text: str, *, private: bool = False):
    """Writes a text in UTF-8 as `replacing` does."""
    write_bytes(path, text.encode(), private=private)
