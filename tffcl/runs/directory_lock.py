"""The lock of a directory: who writes there, and since when."""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import pathlib

from tffcl.errors import UserError
from tffcl.files import check_replaceable, opened

LOCK = "run.lock"


@contextlib.contextmanager
def locked(out: pathlib.Path):
    """Holds the lock of the directory inside the block; the directory is made if it does not exist.

    The operating system releases the lock when the process ends, however it ends; the lock file of a dead process is
    reused.

    Raises:
      UserError: If another process, or another run of this one, holds it; the message says which, and since when.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = _acquire(out)
    try:
        now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "since": now}))
        file.flush()
        yield
    finally:
        (out / LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # closing writes again what a full disk did not take
            file.close()


def check_unlocked(out: pathlib.Path):
    """Raises UserError if another process or run holds the lock of the directory."""
    if not (out / LOCK).exists():
        return
    with opened(out / LOCK) as file:
        if not _lock(file):
            raise _held(out)


def _acquire(out: pathlib.Path):
    while True:
        check_replaceable(out / LOCK)
        file = open(
            os.open(out / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+", encoding="utf-8"
        )
        if not _lock(file):
            file.close()
            raise _held(out)
        with contextlib.suppress(FileNotFoundError):
            found = os.fstat(file.fileno())
            if found.st_nlink > 1:
                raise UserError(f"{out / LOCK} is another file, too, under a name elsewhere: remove it")
            if os.path.samestat(found, os.stat(out / LOCK)):
                return file
        file.close()  # its holder removed it after it was opened


def _lock(file) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems have no locks; there a run goes on without one.
        return error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
    return True


def _held(out: pathlib.Path) -> UserError:
    try:
        with opened(out / LOCK, most=1000) as file:
            noted = json.load(file)
        who = f"process {noted['pid']}, since {noted['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        who = "a process that is just starting"
    return UserError(f"{out} is being written by another run ({who}); wait for its end, or give another directory")
