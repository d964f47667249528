"""Files are read and written where they are files: no pipe is waited for, no device is read, no link is followed to
be written.
"""

import os
import socket
import stat
import zipfile

import numpy as np
import pytest

from tffcl import files
from tffcl.clients.client_state import write_arrays
from tffcl.errors import UserError
from tffcl.files import read_text, replacing, write_text

NO_FILES = {
    "a pipe": lambda path: os.mkfifo(path),
    "a directory": lambda path: path.mkdir(),
    "a link to a device without an end": lambda path: path.symlink_to("/dev/zero"),
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
}


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    path = tmp_path / "a"
    make(path.relative_to(tmp_path))
    for call in (read_text, files.read_bytes, files.digest_of_file):
        with pytest.raises(UserError, match="a is not a file$"):
            call(path)
    with pytest.raises(UserError, match="a is (not a file|a link)"):
        write_text(path, "")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a"]


def test_what_takes_a_files_place_while_it_is_opened_is_told(tmp_path, monkeypatch):
    file = tmp_path / "a"
    file.write_text("x")
    whole = os.stat(file)
    file.unlink()
    os.mkfifo(file)
    monkeypatch.setattr(os, "stat", lambda path, **how: whole)
    with pytest.raises(UserError, match="is not a file"):
        files.opened(file)


def test_a_file_that_is_too_large_is_told_by_its_size(tmp_path):
    path = tmp_path / "a"
    path.touch()
    os.truncate(path, 2**31)
    with pytest.raises(UserError, match="2,147,483,648 bytes; at most 268,435,456 are allowed"):
        read_text(path)


@pytest.mark.parametrize("name", ["a", "a.partial"])
def test_what_a_link_leads_to_stays_as_it_is(tmp_path, name):
    own = tmp_path / "own"
    own.write_text("mine")
    (tmp_path / name).symlink_to(own)
    if name == "a":
        with pytest.raises(UserError, match="a is a link, and nothing is written through one"):
            write_text(tmp_path / "a", "new")
    else:
        write_text(tmp_path / "a", "new")
        assert read_text(tmp_path / "a") == "new" and not (tmp_path / "a").is_symlink()
    assert own.read_text() == "mine"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    write_text(tmp_path / "a", "before")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "before")]


def test_what_clients_keep_is_their_owners_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        write_arrays(tmp_path / "kept.npz", {"a": np.arange(3)})
        write_text(tmp_path / "table.csv", "")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"kept.npz": 0o600, "table.csv": 0o666}
    with zipfile.ZipFile(tmp_path / "kept.npz") as archive:
        assert archive.testzip() is None
