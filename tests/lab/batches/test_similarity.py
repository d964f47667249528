"""How far whole data sets are apart: `tffcl similarity` of a client a data set (PACFL Table 1)."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.linalg import subspace_angles

import tffcl
from tests import own_data, own_objectives
from tests.lab.datasets.helpers import need
from tffcl.errors import Diverged, UserError
from tffcl.lab.batches import similarity as similarity_file
from tffcl.lab.cli.main import main
from tffcl.lab.datasets import federated
from tffcl.lab.datasets.core import Dataset

NAMES = ("digits", "mnist", "usps")
# PACFL (arXiv:2209.10526) Table 1, "the smallest principal angle" in degrees between pairs of the task's sets in order.
PACFL_TABLE_1 = (6.13, 45.79, 66.26, 43.42, 64.86, 43.36)


@pytest.fixture
def sets(digits, monkeypatch):
    """Three sets of images by name, float [n, 8, 8, 3] from 0 to 1 as they are framed: two alike, and smaller ones in
    colour."""
    x, y = digits
    coloured = np.repeat(x[:, 1:7, 1:7], 3, axis=3) // np.array([1, 2, 3], np.uint8)
    images = {"digits": x[:700], "mnist": x[:700], "usps": coloured[700:1400]}
    labels = {"digits": y[:700], "mnist": y[:700], "usps": y[700:1400]}
    made = {
        name: Dataset.from_arrays(name, (images[name], labels[name]), (images[name][:5], labels[name][:5]))
        for name in NAMES
    }
    monkeypatch.setattr(federated, "_load_one", lambda asked, **_: made[asked["name"]])
    framed = {name: np.repeat(x[:700], 3, axis=3) for name in NAMES[:2]}
    framed["usps"] = np.pad(coloured[700:1400], ((0, 0), (1, 1), (1, 1), (0, 0)))
    return {name: each / 255 for name, each in framed.items()}


def angles_between(**pacfl):
    few = {"dataset": {"names": list(NAMES)}, "model": {"name": "mlp", "hidden": 4}}
    task = tffcl.resolve(
        "pacfl_datasets", "pacfl", overrides=few | {"algorithms": {"pacfl": {"num_clusters": 3} | pacfl}}
    )
    return tffcl.similarity(task)


@pytest.mark.slow
@pytest.mark.parametrize("preprocess", ["grey", "raw", "centred"])
def test_angles_between_data_sets_are_scipys(sets, preprocess):
    found = angles_between(num_vectors=2, preprocess=preprocess)
    assert found.client_ids.tolist() == list(NAMES)
    if preprocess == "centred":
        sets = {name: x - x.mean(axis=0) for name, x in sets.items()}
    if preprocess == "grey":
        sets = {name: x @ [0.299, 0.587, 0.114] for name, x in sets.items()}
    bases = [np.linalg.svd(sets[name].reshape(700, -1).T, full_matrices=False)[0][:, :2] for name in NAMES]
    expected = np.degrees([[subspace_angles(one, other).min() for other in bases] for one in bases])
    np.testing.assert_allclose(found.proximity, expected, atol=0.02)
    assert found.proximity[0, 1] == pytest.approx(0, abs=1e-3) and found.proximity[0, 2] > 1


@pytest.mark.slow
def test_a_table_and_a_picture_have_names_and_values(sets, capsys, tmp_path):
    few = [f"--set=algorithms.pacfl.{key}" for key in ("num_clusters=3", "num_vectors=2", "preprocess=raw")]
    few += ['--set=dataset.names=["digits","mnist","usps"]', "--set=model.name=mlp", "--set=model.hidden=4"]
    assert main(["similarity", "pacfl_datasets", "--out", str(tmp_path), *few]) == 0
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["degrees", *NAMES] and first.split()[:2] == ["digits", "0.00"]
    with np.load(tmp_path / "proximity.npz") as saved:
        assert saved["client_ids"].tolist() == list(NAMES)
    axes = angles_between(num_vectors=2, preprocess="raw").heat_map().axes[0]
    assert sorted(tick.get_text() for tick in axes.get_yticklabels()) == sorted(NAMES)
    assert len(axes.texts) == 9 and axes.texts[0].get_text() == "0"


@pytest.mark.parametrize(
    "names, message",
    [
        (["digits"], r"different names = \['\.\.\.', '\.\.\.'\], no name"),
        (["digits", "digits"], "different names"),
        (["digits", "mnits"], "unknown dataset 'mnits'; did you mean 'mnist'"),
    ],
)
def test_what_a_user_can_mend(names, message):
    with pytest.raises(UserError, match=message):
        tffcl.similarity(tffcl.resolve("pacfl_datasets", "pacfl", overrides={"dataset": {"names": names}}))


@pytest.mark.slow
def test_first_vectors_are_the_papers_table_1():
    need("cifar10", "svhn_cropped", "fashion_mnist", "usps")
    first = tffcl.similarity(tffcl.resolve("pacfl_datasets_small", "pacfl")).proximity[np.triu_indices(4, 1)]
    np.testing.assert_allclose(first, PACFL_TABLE_1, atol=2)
    assert first[1] == pytest.approx(45.79, abs=0.5)  # CIFAR-10 and Fashion-MNIST are the copies that everyone has


@pytest.mark.slow
def test_clients_made_in_python_are_looked_at_and_the_number_of_clusters_has_its_uncertainty():
    clients = tffcl.Population.from_arrays(*own_data.clinics(8))
    parameters = tffcl.algorithms.ComposedParameters(signature={"name": "subspace", "num_vectors": 2})
    found = tffcl.similarity(clients, parameters, model=own_data.perceptron())
    assert found.client_ids.tolist() == [f"clinic_{clinic}" for clinic in range(8)]
    assert found.suggestion.num_clusters == next(iter(found.numbers)) == 2, "every other clinic has other features"
    assert sum(found.numbers.values()) == pytest.approx(1) and "2 in " in repr(found)
    again = tffcl.similarity(clients, {"name": "subspace", "num_vectors": 2}, model=own_data.perceptron())
    assert again.numbers == found.numbers and found._repr_html_().count("data:image/png;base64,") == 2
    for signature in ("anchor_gradient", "label_histogram", "pca_centres"):
        assert tffcl.similarity(clients, signature, model=own_data.perceptron()).numbers, "of every signature"
    with pytest.raises(UserError, match="clients is of dict; it must be a tffcl.Population, or what tffcl.resolve"):
        tffcl.similarity({"a": clients}, model=own_data.perceptron())
    with pytest.raises(UserError, match="unknown signature 'subspce'; did you mean 'subspace'"):
        tffcl.similarity(clients, "subspce", model=own_data.perceptron())
    with pytest.raises(UserError, match="the signature embedding needs an encoder of images; give find_encoder="):
        tffcl.similarity(clients, "embedding", model=own_data.perceptron())


def test_a_client_whose_signature_overflows_is_named():
    train, _ = own_data.clinics(4)
    (name, (x, y)), *_ = train.items()
    clients = tffcl.Population.from_arrays({**train, name: (np.full_like(x, 3e38, np.float32), y)})
    with pytest.raises(Diverged, match=f"client {name} has a signature that is not finite"):
        tffcl.similarity(clients, "pca_centres", model=own_data.perceptron())


@pytest.mark.slow
def test_clients_of_a_model_that_gives_its_input_again_are_looked_at():
    clients = tffcl.Population.from_arrays(own_objectives.examples("reconstruction")[0])
    found = tffcl.similarity(clients, "anchor_gradient", model=own_objectives.model("reconstruction"))
    assert found.proximity.shape == (4, 4) and np.isfinite(found.proximity).all()


@pytest.mark.slow
def test_of_too_few_features_for_the_vectors_it_is_said_that_angles_say_nothing():
    """Every other clinic has other features, and by three vectors of each "nothing differs"."""
    features, cure = 5, '2, or metric = "angle_sum"'
    train, _ = own_data.clinics(8)
    few = tffcl.Population.from_arrays(
        {name: (x[:, 15 - features // 2 :][:, :features], y) for name, (x, y) in train.items()}
    )
    layer = tf.keras.layers.Dense(2, input_shape=(features,))
    model = tffcl.FlatModel.from_keras(own_data.sequential(layer), own_data.CROSS_ENTROPY, few.example_spec)
    assert (
        f"share a direction, so that the smallest angle is 0 whatever the data are; set num_vectors = {cure}"
        in (tffcl.similarity(few, model=model).notes[-1])
    )
    assert len(tffcl.similarity(few, {"name": "subspace", "num_vectors": 1}, model=model).notes) == 1


@pytest.mark.slow
def test_of_many_clients_fewer_draws_say_how_sure_the_number_of_clusters_is(monkeypatch):
    monkeypatch.setattr(similarity_file, "_ALL_DRAWS_OF", 4)
    clients = tffcl.Population.from_arrays(*own_data.clinics(8))
    found = tffcl.similarity(clients, {"name": "subspace", "num_vectors": 1}, model=own_data.perceptron())
    assert all((50 * share) % 1 == pytest.approx(0) for share in found.numbers.values()), "50 draws"
    assert sum(found.numbers.values()) == pytest.approx(1)


@pytest.mark.slow
def test_of_private_signatures_no_halves_are_asked_and_it_is_said():
    clients = tffcl.Population.from_arrays(*own_data.clinics(8))
    private = {"name": "subspace", "num_vectors": 2, "noise_multiplier": 1.0, "clip": 5.0}
    how = tffcl.algorithms.ComposedParameters(signature=private, threshold="gap")
    found = tffcl.similarity(clients, how, model=own_data.perceptron(), noise_seed=1)
    assert not found.numbers and "private signatures of halves would be further releases" in repr(found)


@pytest.mark.slow
def test_of_flt_the_number_of_clusters_has_its_uncertainty_too():
    """By halves that are laid out in one map."""
    how = {"flt": {"encoder": "digits", "encoder_epochs": 3}}
    found = tffcl.similarity(tffcl.resolve("demo_digits", "flt", overrides={"algorithms": how}))
    assert sum(found.numbers.values()) == pytest.approx(1)
    assert next(iter(found.numbers)) == found.labels.max() + 1
