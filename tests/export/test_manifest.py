"""An export's manifest: what it names stays inside, and nothing but plain files is opened."""

import hashlib
import json
import os

import pytest

from tffcl.errors import UserError
from tffcl.export import manifest


@pytest.fixture
def export(tmp_path):
    place = tmp_path / "export"
    place.mkdir()
    (place / "a.pb").write_bytes(b"a")
    return place


def write(place, **described):
    manifest.write_manifest(
        place, {"computations": {"training": {"file": "a.pb", "type": "t", "forms": {}, **described}}}
    )


def test_a_whole_export_is_read(export):
    write(export)
    checksum = hashlib.sha256(b"a").hexdigest()
    assert manifest.read_manifest(export)["files"] == {"a.pb": {"bytes": 1, "sha256": checksum}}


@pytest.mark.parametrize(
    "described",
    [
        {"file": "/etc/passwd"},
        {"file": "../a.pb"},
        {"file": 3},
        {"file": ["a.pb"]},
        {"check": {"input": "../x", "output": "a.pb"}},
        {"forms": {"map_reduce": {"directory": "/etc"}}},
    ],
)
def test_places_outside_are_refused(export, described):
    write(export, **described)
    with pytest.raises(UserError, match="must be one of the export's own files"):
        manifest.read_manifest(export)


def test_links_and_pipes_are_refused_and_not_opened(export):
    write(export)
    (export / "link").symlink_to("/etc")
    with pytest.raises(UserError, match="link is a link, pipe or device"):
        manifest.read_manifest(export)
    (export / "link").unlink()
    os.mkfifo(export / "pipe")
    with pytest.raises(UserError, match="pipe is a link, pipe or device"):
        manifest.read_manifest(export)


@pytest.mark.parametrize(
    "contents", ["", "[]", "{}", "[" * 100_000, '{"format": "tffcl export 1", "files": {"a": 3}, "sha256": ""}']
)
def test_damaged_manifests_are_told(export, contents):
    (export / manifest.NAME).write_text(contents)
    with pytest.raises(UserError, match="damaged"):
        manifest.read_manifest(export)


def test_computations_of_another_kind_are_told(export):
    manifest.write_manifest(export, {"computations": []})
    assert json.loads((export / manifest.NAME).read_text())["computations"] == []
    with pytest.raises(UserError, match="computations must be tables"):
        manifest.read_manifest(export)
