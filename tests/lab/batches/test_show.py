"""Who holds what of a task: the text, the pictures, and that they are of what a run trains on."""

import dataclasses
import io
import os
import pathlib
import weakref

import numpy as np
import pytest

from tffcl.clients.cohort import stream
from tffcl.display import ranges
from tffcl.errors import UserError
from tffcl.lab.batches.show import _label_lines, _lines, _over_classes, _samples, gini, label_distances, show
from tffcl.lab.datasets.federated import load_federated
from tffcl.lab.tasks import resolve

PICTURES = ("labels.png", "sizes.png", "samples.png")


def resolved(task, seed=0, *pairs):
    return resolve.resolve(task, "fedavg", seed=seed, overrides=resolve.parse_overrides(pairs))


def write(path, dataset, partition):
    path.write_text(f'[dataset]\n{dataset}\n[partition]\n{partition}\n[model]\nname = "mlp"\n')
    return path


@pytest.mark.slow
def test_the_demo(tmp_path, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    # Bars that tests of interrupted work have left open would push these off the screen.
    monkeypatch.setattr("tqdm.std.tqdm._instances", weakref.WeakSet())
    text = show(resolved("demo_digits"), tmp_path / "out")
    assert all(each in terminal.getvalue() for each in ("reads and parts the data", "draws pictures"))
    assert "40 clients, 4 true groups of 10 clients" in text
    assert "33 to 34, median 34; 1,347 in all" in text
    assert "group 3: 10 clients, 330 training examples, labels 0-9" in text
    assert "note:" not in text
    assert "skew of labels: distance of a client's labels from everyone's 0." in text
    assert "skew of sizes: Gini coefficient 0." in text
    for name in PICTURES:
        assert (tmp_path / "out" / name).stat().st_size > 3000 and name in text


OWN = """import numpy as np
from tffcl import Dataset

def build(*, kind: str, name: str = ""):
    y = np.arange(90) % 2
    owner = np.array([f"clinic {each % 3}" for each in range(90)], kind)
    train, test = (np.ones([60, 5]), y[:60]), (np.ones([30, 5]), y[60:])
    return Dataset.from_arrays("mine", train, test, clients=(owner[:60], owner[60:]))
"""


@pytest.mark.parametrize("kind", ["object", "str"])
def test_a_table_has_no_pictures(tmp_path, kind):
    """Of a builder with a parameter `kind`, whose clients have names as pandas holds them, or NumPy."""
    (tmp_path / "my_table.py").write_text(OWN)
    path = write(tmp_path / "own.toml", f'builder = "my_table:build"\nkind = "{kind}"', 'name = "by_owner"')
    text = show(resolved(path), tmp_path / "out")
    assert "mine/by_owner, examples of 5" in text and "3 clients, no true groups" in text
    assert "by client and label:\n      client   0   1\n    clinic 0  10  10\n" in text
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["labels.png", "sizes.png"]


@pytest.mark.parametrize(
    "shape, more", [((10, 12), ""), ((11, 12), "and 1 more client"), ((12, 15), "and 2 more clients, 3 more labels")]
)
def test_a_table_of_labels_says_what_it_leaves_out(shape, more):
    counts = np.arange(shape[0] * shape[1]).reshape(shape)
    head, rows, *left = _label_lines(counts, None, None)
    assert [each.strip() for each in left] == [more] * bool(more)
    assert [list(map(int, row.split()[1:])) for row in rows.splitlines()[-10:]] == counts[:10, :12].tolist()


def test_the_samples_are_what_a_run_trains_on(tmp_path):
    """The picture's rows are of the same clients' data as `build.load_data` gives."""
    from tffcl.lab.tasks import build

    task = resolved("demo_digits", 3)
    trained = build.load_data(task)
    shown = load_federated(task.dataset, task.partition, seed=stream(3, "partition"))
    rows, titles, labels = _samples(shown)
    assert [each.tolist() for each in labels] == [list(range(10))] * 4
    assert titles == [f"group {group}" for group in range(4)]
    for group, row in enumerate(rows):
        clients = np.flatnonzero(trained.true_groups == group)
        held = np.concatenate([trained.train.x[trained.train_indices[each]] for each in clients])
        for picture in row:
            assert (held == picture).all(axis=(1, 2, 3)).any()


@pytest.mark.slow
def test_without_groups_there_are_clients(tmp_path):
    path = write(tmp_path / "plain.toml", 'name = "digits"', 'name = "quantity_skew"\nclients = 14')
    text = show(resolved(path, 0), tmp_path)
    assert "14 clients, one true group" in text and "group 0" not in text
    federated = load_federated(
        {"name": "digits"}, {"name": "quantity_skew", "clients": 14}, seed=stream(0, "partition")
    )
    rows, titles, labels = _samples(federated)
    assert list(map(len, labels)) == list(map(len, rows))
    assert titles == [f"client {client}" for client in range(10)]
    assert all(1 <= len(row) <= 10 for row in rows)


def test_pictures_are_spread_over_classes():
    labels = np.repeat([0, 3, 7], [50, 4, 1])
    index = np.arange(100, 155)
    chosen = labels[_over_classes(index, labels) - 100]
    assert chosen.tolist() == [0] * 5 + [3] * 4 + [7]
    many = np.arange(200) % 62
    assert len(np.unique(many[_over_classes(np.arange(200), many)])) == 10
    assert _over_classes(np.array([5]), np.array([2])).tolist() == [5]


def test_ranges():
    assert ranges(np.array([0, 1, 2, 5, 8, 9])) == "0-2, 5, 8-9"
    assert ranges(np.array([4])) == "4"


def test_classes_have_their_names_and_an_example_may_have_several_labels():
    config = resolved("demo_digits")
    data = load_federated(config.dataset, config.partition, seed=0)
    named = "\n".join(_lines(config, dataclasses.replace(data, class_names=tuple("abcdefghij"))))
    assert "group 3: 10 clients, 330 training examples, labels a, b, c, d, e, f, g, h, i, j" in named
    both = [dataclasses.replace(each, y=np.stack([each.y % 2, each.y // 5], 1)) for each in (data.train, data.test)]
    several = dataclasses.replace(data, train=both[0], test=both[1], num_classes=2)
    assert "classes of a client: 2; 2 in all, of each of 2 labels\n" in "\n".join(_lines(config, several))


def test_errors_are_those_of_the_data(tmp_path):
    with pytest.raises(UserError, match="did you mean 'rotations'"):
        show(resolved("demo_digits", 0, "partition.rotation=2"), tmp_path)
    with pytest.raises(UserError, match="unknown model 'mpl'"):
        resolved("demo_digits", 0, "model.name=mpl")


def _lacks(*names):
    directory = pathlib.Path(os.environ.get("TFFCL_DATA_DIR") or "nowhere")
    missing = [name for name in names if not any((directory / each).exists() for each in (name, f"{name}.npz"))]
    return pytest.mark.skipif(bool(missing), reason=f"TFFCL_DATA_DIR lacks {', '.join(missing)}")


@pytest.mark.slow
@_lacks("fashion_mnist")
def test_label_skew_of_fashion_mnist(tmp_path):
    text = show(resolved("pacfl_fmnist_label_skew_20"), tmp_path)
    assert "fashion_mnist/label_skew, images of 28x28x1" in text
    assert "60,000 in all" in text
    assert "test examples of a client: 2,000; 10,000 different ones" in text
    assert "classes of a client: 2; 10 in all" in text


@pytest.mark.slow
@_lacks("svhn_cropped", "usps")
def test_sets_of_different_shapes(tmp_path):
    path = write(
        tmp_path / "two.toml", 'names = ["usps", "svhn_cropped"]', 'name = "mix4"\ncounts = [3, 5]\nper_class = 30'
    )
    text = show(resolved(path), tmp_path)
    assert "8 clients, 2 true groups of 3 to 5" in text and "images of 32x32x3" in text
    assert "group svhn_cropped: 5 clients, 1,500 training examples, labels svhn_cropped 0, svhn_cropped 1, " in text
    # How much of a set there is, is said.
    assert ("a part" in text) == ("note:" in text)


def test_the_skew_of_a_partition():
    """By hand: equal shares are at 0, one label of two equal ones at one half, all with one client at Gini (N
    - 1) / N.
    """
    same = np.array([[5, 5], [10, 10]])
    np.testing.assert_allclose(label_distances(same), 0)
    np.testing.assert_allclose(label_distances(np.array([[4, 0], [0, 4]])), 0.5)
    np.testing.assert_allclose(label_distances(np.eye(10, dtype=int)), 0.9)
    assert gini(np.full(7, 3)) == pytest.approx(0)
    assert gini(np.array([0, 0, 0, 9])) == pytest.approx(3 / 4)
    sizes = np.array([1, 2, 4, 9])
    pairs = np.abs(sizes[:, None] - sizes[None]).sum()  # the definition: mean absolute difference over twice the mean
    assert gini(sizes) == pytest.approx(pairs / 16 / (2 * sizes.mean()))
