"""Loaders on small files made here: a user's npz, TFDS sets that are not laid out, FEMNIST, the cache."""

import os
import time

import numpy as np
import pytest

from tffcl.errors import UserError
from tffcl.lab.datasets import storage
from tffcl.lab.datasets.federated import load_dataset, load_federated
from tffcl.lab.datasets.images import measured
from tffcl.lab.datasets.loaders.scikit_learn import from_openml


def write(path, **changes):
    """Writes an npz of 12 + 6 images 3x3 of three classes, with changes; None leaves an array out."""
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (12, 3, 3), dtype=np.uint8),
        "y_train": np.arange(12) % 3,
        "x_test": rng.integers(0, 256, (6, 3, 3), dtype=np.uint8),
        "y_test": np.arange(6) % 3,
        **changes,
    }
    arrays = {key: value for key, value in arrays.items() if value is not None}
    np.savez(path, **arrays)
    return arrays


def load(path, **more):
    return load_dataset({"name": "npz", "path": str(path), **more}, seed=0)


def test_npz_of_bytes(tmp_path):
    path = tmp_path / "mine.npz"
    arrays = write(path)
    data = load(path)
    np.testing.assert_array_equal(data.train.x[..., 0], arrays["x_train"])
    assert data.train.y.dtype == np.int32 and data.num_classes == 3 and data.name == "mine"
    np.testing.assert_allclose(data.mean, arrays["x_train"].mean() / 255)
    assert data.measured_noise == 0.0
    assert load(path, num_classes=5).num_classes == 5
    with pytest.raises(UserError, match="mine: a train label is 2; labels are 0 to 1"):
        load(path, num_classes=2)


def test_npz_of_floats_is_rounded_to_256_steps(tmp_path):
    path = tmp_path / "mine.npz"
    floats = np.random.default_rng(0).random((12, 3, 3, 2))
    write(path, x_train=floats, x_test=floats[:6].astype(np.float32))
    data = load(path)
    assert data.train.x.shape == (12, 3, 3, 2)
    assert np.abs(data.train.x / 255 - floats).max() <= 0.5 / 255 + 1e-9
    assert len(data.mean) == 2


def bad(value, place=(3, 0, 2), dtype=np.float64):
    x = np.full((12, 3, 3), 0.5).astype(dtype)
    x[place] = value
    return x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": bad(np.nan)}, r"mine.npz: x_train is nan at \[3, 0, 2, 0\]; floats must be 0 to 1"),
        ({"x_test": bad(np.inf)[:6]}, r"mine.npz: x_test is inf at \[3, 0, 2, 0\]"),
        ({"x_train": bad(1.5)}, r"x_train is 1.5 at"),
        ({"x_train": bad(-1, dtype=np.int64)}, r"x_train is -1 at .* integers must be 0 to 255"),
        ({"x_train": bad(1).astype(complex)}, "x_train is of type complex128"),
        ({"x_train": np.zeros((12, 9), np.uint8)}, r"x_train has shape \(12, 9\)"),
        ({"x_test": np.zeros((6, 4, 4), np.uint8)}, "the shapes must be equal"),
        ({"y_train": np.arange(11)}, "x_train has 12 images and y_train 11 labels"),
        ({"y_train": np.arange(12) - 1}, "y_train has labels -1 to 10"),
        ({"y_train": np.arange(12.0)}, r"labels of train are float32\[\] and of test int32\[\]; they must be alike"),
        ({"y_test": None, "x_test": None}, "lacks x_test, y_test"),
        ({"client_train": np.arange(12)}, "has client_train only"),
        ({"client_train": np.arange(12), "client_test": np.array(["a"] * 6)}, "must both be names or both integers"),
        ({"client_train": np.arange(12.0), "client_test": np.arange(6)}, "client_train is float64"),
        ({"client_train": np.arange(12), "client_test": np.arange(5)}, "6 test images have 5 entries of owner"),
        ({"x_train": np.array([{}] * 12)}, "cannot be read as an .npz file of plain arrays"),
    ],
)
def test_npz_refuses(tmp_path, changes, message):
    path = tmp_path / "mine.npz"
    write(path, **changes)
    with pytest.raises(UserError, match=message) as refused:
        load(path)
    assert "\n" not in str(refused.value)


def test_npz_that_is_none(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "mine.npz")
    (tmp_path / "mine.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(UserError, match="cannot be read as an .npz"):
        load(tmp_path / "mine.npz")
    with pytest.raises(UserError, match="dataset npz needs 'path'"):
        load_dataset({"name": "npz"}, seed=0)


def test_npz_with_clients(tmp_path):
    path = tmp_path / "mine.npz"
    names = np.array(["zoe", "ann", "bob"])
    arrays = write(path, client_train=names[np.arange(12) % 3], client_test=names[np.arange(6) % 3])
    data = load_federated({"name": "npz", "path": str(path)}, {"name": "by_owner"}, seed=0)
    assert data.num_clients == 3
    ann = arrays["client_train"] == "ann"
    np.testing.assert_array_equal(data.train.x[data.train_indices[0]][..., 0], arrays["x_train"][ann])


def test_usps_from_openmls_table():
    rng = np.random.default_rng(0)
    pixels = rng.uniform(-1, 1, (9298, 256))
    pixels[0, :2] = -1, 1
    labels = np.array([str(1 + number % 10) for number in range(9298)], object)
    arrays = from_openml(pixels, labels)
    assert arrays["x_train"].shape == (7291, 16, 16) and arrays["x_test"].shape == (2007, 16, 16)
    assert arrays["x_train"][0, 0, :2].tolist() == [0, 255]
    assert arrays["y_train"][:3].tolist() == [0, 1, 2] and arrays["y_test"][0] == 7291 % 10
    pixels[5, 5] = np.nan
    with pytest.raises(UserError, match="is not USPS as it was"):
        from_openml(pixels, labels)


@pytest.mark.parametrize("name", ["mnist", "emnist_balanced", "femnist", "usps", "celeba"])
def test_a_missing_set_gets_one_line_at_once(tmp_path, monkeypatch, name):
    monkeypatch.setattr(storage, "reachable", lambda url: False)
    start = time.perf_counter()
    with pytest.raises(UserError) as refused:
        load_dataset({"name": name}, seed=0, data_dir=str(tmp_path))
    assert time.perf_counter() - start < 5
    line = str(refused.value)
    assert "\n" not in line
    for part in (f"{name} is not in {tmp_path}", "connect once", "data_dir=DIR or TFFCL_DATA_DIR=DIR"):
        assert part in line
    assert not list(tmp_path.iterdir())  # nothing half made is left


def test_a_server_that_is_not_there_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(storage, "_SECONDS", 2)
    start = time.perf_counter()
    assert not storage.reachable("http://no-such-host.invalid")
    assert not storage.reachable("http://127.0.0.1:9")
    assert time.perf_counter() - start < 6


def test_a_server_that_answers_is_reachable_whatever_it_says():
    import http.server
    import threading

    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_error(403)

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert storage.reachable(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_data_dir_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TFFCL_DATA_DIR", str(tmp_path / "ours"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "theirs"))
    assert storage.resolve(tmp_path / "given") == tmp_path / "given"
    assert storage.resolve(None) == tmp_path / "ours"
    monkeypatch.delenv("TFFCL_DATA_DIR")
    assert storage.resolve(None) == tmp_path / "theirs"
    monkeypatch.delenv("TFDS_DATA_DIR")
    assert storage.resolve(None).name == "tensorflow_datasets"


def test_the_cache_is_read_until_its_source_changes(tmp_path):
    source, made = tmp_path / "source", []
    source.write_text("a")

    def build():
        made.append(source.read_text())
        return {"x": np.array([len(made)])}

    def get():
        return int(storage.cached(tmp_path, "toy", [source], build)["x"][0])

    assert (get(), get(), len(made)) == (1, 1, 1)
    source.write_text("other")
    assert (get(), get(), len(made)) == (2, 2, 2)
    (tmp_path / ".tffcl" / "toy.npz").write_bytes(b"damaged")
    assert get() == 3
    assert [path.name for path in (tmp_path / ".tffcl").iterdir()] == ["toy.npz"]


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path):
    source = tmp_path / "source"
    source.write_text("a")
    (tmp_path / ".tffcl").write_text("in the way")  # also root cannot make a directory here
    assert storage.cached(tmp_path, "toy", [source], lambda: {"x": np.ones(1)})["x"][0] == 1


def test_measured_is_numpys_mean_and_deviation():
    x = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3), dtype=np.uint8)
    x[..., 2] = 7
    mean, std = measured(x)
    np.testing.assert_allclose(mean, x.mean(axis=(0, 1, 2)) / 255)
    np.testing.assert_allclose(std[:2], x[..., :2].std(axis=(0, 1, 2)) / 255)
    assert std[2] == 1.0


@pytest.fixture
def tfds():
    return pytest.importorskip("tensorflow_datasets")


@pytest.mark.slow
def test_emnist_balanced_is_turned_upright(tmp_path, tfds):
    x = np.random.default_rng(0).integers(0, 256, (94, 28, 28, 1), dtype=np.uint8)
    y = np.arange(94) % 47
    features = tfds.features.FeaturesDict(
        {"image": tfds.features.Image(shape=(28, 28, 1)), "label": tfds.features.ClassLabel(num_classes=47)}
    )
    rows = [{"image": image.transpose(1, 0, 2), "label": label} for image, label in zip(x, y, strict=True)]
    store(tfds, tmp_path, "emnist", features, rows, config="balanced")
    data = load_dataset({"name": "emnist_balanced"}, seed=0, data_dir=str(tmp_path))
    order = [x[np.flatnonzero(data.train.y[i] == y)] for i in range(94)]
    assert all((image == pair).all(axis=(1, 2, 3)).any() for image, pair in zip(data.train.x, order, strict=True))
    assert data.num_classes == 47 and len(data.class_names) == 47
    assert data.note == "a part: 94 + 94 of emnist_balanced's 112,800 + 18,800 images"


def test_celeba_by_attribute(tmp_path, tfds):
    rng = np.random.default_rng(0)
    names = ["Male", "Smiling", "Wavy_Hair", "Wearing_Hat"]
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(218, 178, 3)),
            "attributes": tfds.features.FeaturesDict({name: np.bool_ for name in names}),
        }
    )
    rows = []
    for number in range(24):
        image = np.zeros((218, 178, 3), np.uint8)
        image[:20], image[-20:] = 255, 255  # outside of the square in the middle
        image[20:109] = 10 * number
        marks = {name: bool(rng.random() < 0.5) for name in names}
        marks.update({name: names.index(name) == 1 + number % 3 for name in names[1:]})
        rows.append({"image": image, "attributes": marks})
    store(tfds, tmp_path, "celeb_a", features, rows)
    dataset = {"name": "celeba", "size": 16}
    data = load_dataset(dataset, seed=0, data_dir=str(tmp_path))
    assert data.train.x.shape == (24, 16, 16, 3) and data.attribute_names == tuple(names)
    assert (data.train.x[:, 8:] == 0).all()
    assert sorted(data.train.x[:, 0, 0, 0]) == [10 * number for number in range(24)]
    for image, y, marks in zip(data.train.x, data.train.y, data.train.attributes, strict=True):
        row = rows[image[0, 0, 0] // 10]["attributes"]
        assert marks.tolist() == [row[name] for name in names] and y == row["Male"]
    split = load_federated(dataset, {"name": "by_attribute", "clients": 6}, seed=0, data_dir=str(tmp_path))
    for index, group in zip(split.train_indices, split.true_groups, strict=True):
        assert len(index) == 4 and (split.train.x[index, 0, 0, 0] // 10 % 3 == group).all()
    with pytest.raises(UserError, match="unknown attribute of celeba 'Mal'; did you mean 'Male'"):
        load_dataset({**dataset, "target": "Mal"}, seed=0, data_dir=str(tmp_path))


def store(tfds, directory, name, features, rows, config=None):
    """Writes rows as both splits of a TFDS data set."""
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="3.1.0",
        features=features,
        split_datasets={split: list(enumerate(rows)) for split in ("train", "test")},
        config=config,
        data_dir=str(directory),
        disable_shuffling=True,
    )


def test_a_damaged_tfds_set_gets_one_line(tmp_path):
    version = tmp_path / "mnist" / "3.0.1"
    os.makedirs(version)
    (version / "dataset_info.json").write_text("{}")
    with pytest.raises(UserError, match="mnist in .*3.0.1 cannot be read") as refused:
        load_dataset({"name": "mnist"}, seed=0, data_dir=str(tmp_path))
    assert "\n" not in str(refused.value)


def test_a_tfds_set_that_cannot_be_read_is_not_downloaded(tmp_path):
    (tmp_path / "mnist").symlink_to("mnist")
    with pytest.raises(UserError, match="/mnist cannot be read: Too many levels"):
        load_dataset({"name": "mnist"}, seed=0, data_dir=str(tmp_path))


def test_a_damaged_femnist_gets_one_line(tmp_path):
    (tmp_path / "emnist_all.sqlite").write_bytes(b"half a download")
    with pytest.raises(UserError, match=r"emnist_all.sqlite cannot be read") as refused:
        load_dataset({"name": "femnist"}, seed=0, data_dir=str(tmp_path))
    assert "\n" not in str(refused.value)


def test_femnist_inverts_and_keeps_writers():
    import collections

    import tensorflow_federated as tff

    from tffcl.lab.datasets.loaders.femnist import _split

    def client(value, label, n):
        pixels = np.full((n, 28, 28), value, np.float32)
        return collections.OrderedDict(label=np.full(n, label, np.int32), pixels=pixels)

    people = tff.simulation.datasets.TestClientData({"b": client(1.0, 3, 2), "a": client(0.2, 61, 3)})
    arrays = _split(people, ["a", "aa", "b"], "train")
    by_owner = {int(owner): arrays["x"][arrays["owner"] == owner] for owner in set(arrays["owner"])}
    assert {owner: len(images) for owner, images in by_owner.items()} == {0: 3, 2: 2}
    assert (by_owner[2] == 0).all() and (by_owner[0] == 204).all()  # background 1.0 is 0; ink 0.2 is 0.8 x 255
    assert set(arrays["y"][arrays["owner"] == 0]) == {61}
    broken = tff.simulation.datasets.TestClientData({"a": client(np.nan, 0, 1)})
    with pytest.raises(UserError, match="femnist: train images of writers a to a is nan"):
        _split(broken, ["a"], "train")


def test_the_home_of_nobody():
    with pytest.raises(
        UserError, match="~nobody-of-that-name/data begins with the home of a user who is not known here"
    ):
        storage.resolve("~nobody-of-that-name/data")
    assert storage.expanded("~") == storage.expanded(os.environ["HOME"])
