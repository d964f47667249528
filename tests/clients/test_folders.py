"""Folders of pictures as populations, of scikit-learn's digits."""

import numpy as np
import pytest
from PIL import Image

from tests import digits
from tffcl.clients.population import Population
from tffcl.errors import UserError


def write(root, clients=("bonn", "oslo"), each=12):
    """Some digits of each client as PNG files; returns them by client, in the order of their paths."""
    x, y = digits.load()
    held = {}
    for place, client in enumerate(clients):
        rows = np.arange(place * each, (place + 1) * each)
        for row in rows:
            folder = root / client / str(y[row])
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[row].squeeze(-1)).save(folder / f"{row:03}.png")
        held[client] = rows[np.argsort(y[rows], kind="stable")]
    return held


def test_folders_become_clients_with_named_labels(tmp_path):
    held, (x, y) = write(tmp_path), digits.load()
    for name in ("Thumbs.db", "photo.HEIC", ".hidden.heic"):
        (tmp_path / "bonn" / "3" / name).write_text("no picture")
    (tmp_path / ".hidden").mkdir()
    population = Population.from_folders(tmp_path, test=0.25, validation=0.2)
    assert population.names.tolist() == ["bonn", "oslo"] and population.label_names == tuple("0123456789")
    for number, name in enumerate(population.names):
        parts = [getattr(population, kind)(number) for kind in ("train", "test", "validation")]
        assert [len(each) for each in parts] == [7, 3, 2]
        found = np.concatenate([each.x for each in parts]), np.concatenate([each.y for each in parts])
        order, wanted = ([each.tobytes() for each in images] for images in (found[0], x[held[name]]))
        assert sorted(order) == sorted(wanted) and sorted(found[1]) == sorted(y[held[name]])
    assert population.note == "2 files are no pictures by their names, and left out: .db, .heic"
    (tmp_path / "bonn" / "3" / "photo.HEIC").unlink()
    assert Population.from_folders(tmp_path).note == "1 file is no picture by its name, and left out: .db"
    same = Population.from_folders(tmp_path, test=0.25, validation=0.2)
    np.testing.assert_array_equal(same.test(0).x, population.test(0).x)


def test_sizes_colours_and_newcomers(tmp_path):
    write(tmp_path / "known")
    known = Population.from_folders(tmp_path / "known", image_size=[4, 6], channels=3)
    assert known.example_spec["x"].shape == [4, 6, 3] and known.example_spec["x"].dtype.name == "uint8"
    write(tmp_path / "new", ["york"])
    new = Population.from_folders(tmp_path / "new", image_size=[4, 6], channels=3, known=known)
    assert new.client_ids.tolist() == [2] and new.label_names == known.label_names
    for options, cure in (
        ({}, r"\[8, 8, 1\], those of the known clients \[4, 6, 3\]; .*: image_size=\[4, 6\], channels=3 makes them so"),
        ({"image_size": [4, 6]}, "all must be alike: channels=3 makes"),
    ):
        with pytest.raises(UserError, match=cure):
            Population.from_folders(tmp_path / "new", **options, known=known)
    (tmp_path / "new" / "york" / "3").rename(tmp_path / "new" / "york" / "seven")
    with pytest.raises(UserError, match="client york has the label 'seven', which is none of those known"):
        Population.from_folders(tmp_path / "new", image_size=[4, 6], channels=3, known=known)
    Image.new("RGB", (8, 8)).save(tmp_path / "known" / "oslo" / "1" / "red.jpg")
    assert Population.from_folders(tmp_path / "known").example_spec["x"].shape == [8, 8, 3]


def test_an_empty_folder_names_a_label_of_newcomers(tmp_path):
    write(tmp_path / "known")
    (tmp_path / "known" / "oslo" / "10").mkdir()
    known = Population.from_folders(tmp_path / "known", image_size=8)
    assert known.label_names == tuple(map(str, range(11)))
    write(tmp_path / "new", ["york"])
    (tmp_path / "new" / "york" / "3").rename(tmp_path / "new" / "york" / "10")
    new = Population.from_folders(tmp_path / "new", image_size=8, known=known)
    assert 10 in np.concatenate([new.train(2).y, new.test(2).y])


def test_folders_that_are_none_are_refused_in_one_line(tmp_path):
    write(tmp_path / "good")
    (tmp_path / "good" / "york").mkdir()
    (tmp_path / "none").mkdir()
    for path, options, message in (
        (
            tmp_path / "nowhere",
            {},
            "nowhere is no folder; the pictures of a client are in folders of labels, ROOT/CLIENT",
        ),
        (tmp_path / "none", {}, "none has no folders; the pictures of a client are in folders of labels"),
        (tmp_path / "good", {}, "client york has no pictures; .* ending in .png"),
        (tmp_path / "good" / "bonn", {}, "client 0 has no pictures"),
        (tmp_path / "good", {"test": 1}, "test is 1; it must be"),
    ):
        with pytest.raises(UserError, match=message):
            Population.from_folders(path, **options)
    (tmp_path / "good" / "york").rmdir()
    for name in ("e\u0301", "\u00e9"):  # as one system writes it and another one
        (tmp_path / "good" / "bonn" / name).mkdir()
    with pytest.raises(UserError, match=r"the labels 'e\\u0301' and '\\xe9' are both written"):
        Population.from_folders(tmp_path / "good")
    (tmp_path / "good" / "bonn" / name).rmdir()
    for options, message in (
        ({"image_size": [8]}, r"image_size is \[8\]; it must be height and width"),
        ({"channels": 2}, "channels is 2; it must be 1 for grey or 3"),
    ):
        with pytest.raises(UserError, match=message):
            Population.from_folders(tmp_path / "good", **options)
    wide = tmp_path / "good" / "oslo" / "1" / "wide.png"
    Image.new("L", (9, 8)).save(wide)
    with pytest.raises(UserError, match=r"wide.png is of 8 x 9 pixels, .* of 8 x 8; image_size=\[8, 8\] makes all so"):
        Population.from_folders(tmp_path / "good")
    assert Population.from_folders(tmp_path / "good", image_size=8).example_spec["x"].shape == [8, 8, 1]
    wide.with_name("._wide.png").write_text("what another system puts there")
    for place in (".", "oslo", "oslo/1/more"):  # silently, some of the pictures would be missing
        (tmp_path / "good" / place).mkdir(exist_ok=True)
        with pytest.raises(UserError, match="stray.png would be left out; the pictures of a client are in folders of"):
            wide.rename(stray := tmp_path / "good" / place / "stray.png")
            Population.from_folders(tmp_path / "good")
        stray.rename(wide)
    wide.unlink()
    Population.from_folders(tmp_path / "good")
    large = b"BM" + bytes(12) + np.array([40, 60_000, 60_000], "<i4").tobytes() + bytes([1, 0, 24, *[0] * 25])
    for content in (b"no picture", large):  # more pixels than Pillow reads
        wide.with_suffix(".bmp").write_bytes(content)
        with pytest.raises(UserError, match="wide.bmp cannot be read as a picture"):
            Population.from_folders(tmp_path / "good")


def test_grey_values_of_16_bits_and_turned_pictures_are_read_as_they_look(tmp_path):
    grey = np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation: a quarter turn
    for name, image in (("deep", Image.fromarray(grey)), ("turned", Image.fromarray(grey.T.astype(np.uint8)))):
        (tmp_path / "oslo" / name).mkdir(parents=True)
        image.save(tmp_path / "oslo" / name / "1.png", exif=turned if name == "turned" else None)
    found = Population.from_folders(tmp_path, test=0.0).train(0)
    np.testing.assert_array_equal(found.x[0].squeeze(-1), np.round(grey / 257))
    np.testing.assert_array_equal(found.x[1].squeeze(-1), np.rot90(grey.T.astype(np.uint8), -1))
    Image.fromarray(grey.astype(np.float32)).save(tmp_path / "oslo" / "deep" / "2.tif")
    with pytest.raises(UserError, match="cannot be read as a picture: its values are of mode F"):
        Population.from_folders(tmp_path)
