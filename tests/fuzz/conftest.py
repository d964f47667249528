"""What the tests of damaged inputs share."""

import pytest


@pytest.fixture
def directory(tmp_path, monkeypatch):
    place = tmp_path / "task"
    place.mkdir()
    monkeypatch.chdir(place)
    return place
