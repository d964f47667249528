"""Pre-training of FLT's encoder, and the file that it is kept in."""

import json

import numpy as np
import pytest

from tffcl.errors import UserError
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import encoders
from tffcl.lab.tasks.encoder_data import ENCODERS, training_sets
from tffcl.lab.tasks.encoders import encoder_path, find_encoder, load_encoder, pretrain_encoder

SHAPE = (8, 8, 1)
QUICK = {"epochs": 3, "examples": 300, "latent": 16, "seed": 5, "show_progress": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return pretrain_encoder({"name": "digits"}, data_dir=tmp_path_factory.mktemp("data"), **QUICK)


def changed(trained, tmp_path, **changes):
    """A copy of the file with another vector or other entries of the provenance."""
    with np.load(trained) as file:
        vector, provenance = file["vector"], json.loads(str(file["provenance"]))
    vector = changes.pop("vector", vector)
    path = tmp_path / "changed.npz"
    np.savez(path, vector=vector, provenance=np.array(json.dumps({**provenance, **changes})))
    return path


def test_the_file_says_where_the_encoder_is_from(trained, digits):
    assert trained.parts[-2:] == ("encoders", "digits.npz")
    autoencoder, vector, provenance = load_encoder(trained, SHAPE)
    assert autoencoder.name == provenance["autoencoder"] == "conv_autoencoder"
    assert vector.dtype == np.float32 and vector.shape == (autoencoder.size,) and autoencoder.latent == 16
    assert provenance["dataset"] == {"name": "digits"}
    assert (provenance["epochs"], provenance["examples"], provenance["seed"]) == (3, 300, 5)
    assert set(provenance["versions"]) == {"tffcl", "tensorflow", "numpy"}
    features = autoencoder.preprocess(digits[0][:300])
    before, after = (
        float(autoencoder.loss(autoencoder.unravel(each), features)) for each in (autoencoder.initial, vector)
    )
    assert after < 0.7 * before
    # The mean over the last epoch is that of vectors on the way.
    assert after < provenance["loss"] < before


@pytest.mark.slow
def test_the_seed_decides(trained, tmp_path):
    same, other = (
        pretrain_encoder({"name": "digits"}, out=tmp_path / f"{seed}.npz", **{**QUICK, "seed": seed}) for seed in (5, 6)
    )
    vectors = [load_encoder(path, SHAPE)[1] for path in (trained, same, other)]
    np.testing.assert_allclose(vectors[1], vectors[0], atol=1e-6)
    assert np.abs(vectors[2] - vectors[0]).max() > 1e-3


def test_a_file_is_replaced_only_if_told(trained, tmp_path):
    path = tmp_path / "kept.npz"
    path.write_bytes(trained.read_bytes())
    with pytest.raises(UserError, match="exists; name another file"):
        pretrain_encoder({"name": "digits"}, out=path, **QUICK)
    pretrain_encoder({"name": "digits"}, out=path, overwrite=True, **{**QUICK, "epochs": 1})
    assert load_encoder(path, SHAPE)[2]["epochs"] == 1
    assert [each.name for each in tmp_path.iterdir()] == ["kept.npz"]


def test_where_encoders_are(tmp_path, monkeypatch):
    assert encoder_path("mnist", tmp_path) == tmp_path / "encoders" / "mnist.npz"
    monkeypatch.setenv("TFFCL_DATA_DIR", str(tmp_path / "set"))
    assert encoder_path("mnist") == tmp_path / "set" / "encoders" / "mnist.npz"
    monkeypatch.delenv("TFFCL_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert encoder_path("mnist") == tmp_path / ".cache" / "tffcl" / "encoders" / "mnist.npz"


@pytest.mark.slow
def test_colour_images(tmp_path):
    """The residual autoencoder, on noise in a file: the real sets take long."""
    x, y = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), np.uint8), np.arange(12) % 3
    np.savez(tmp_path / "one.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    path = pretrain_encoder(
        {"name": "npz", "path": str(tmp_path / "one.npz")},
        epochs=1,
        latent=4,
        out=tmp_path / "e.npz",
        show_progress=False,
    )
    autoencoder, _, provenance = load_encoder(path, (8, 8, 3))
    assert autoencoder.name == "residual_autoencoder" and provenance["examples"] == 12


@pytest.mark.slow
def test_several_sets_become_one(tmp_path, monkeypatch, digits):
    """Which sets, and that they are put together with labels apart; the mixture itself has tests of its own."""
    from tffcl.lab.datasets.core import Dataset
    from tffcl.lab.datasets.images import Images
    from tffcl.lab.tasks import encoders

    asked = {}

    def load(dataset, **options):
        asked.update(options, dataset=dataset)
        images = Images(digits[0][:20], digits[1][:20])
        return Dataset("two", images, images, 10, 0.5, 0.5)

    monkeypatch.setattr(encoders, "load_dataset", load)
    path = pretrain_encoder({"names": ["digits", "usps"]}, data_dir=tmp_path, epochs=1, show_progress=False)
    assert path.name == "digits+usps.npz"
    assert asked["dataset"] == {"names": ["digits", "usps"]} and asked["mixing"] == {"labels": "apart"}


@pytest.mark.parametrize("keep", [0, 100, 3000, -200])
def test_a_damaged_file(trained, tmp_path, keep):
    path = tmp_path / "short.npz"
    path.write_bytes(trained.read_bytes()[:keep])
    with pytest.raises(UserError, match="is damaged or no encoder of ours") as caught:
        load_encoder(path, SHAPE)
    assert "\n" not in str(caught.value)


def test_a_flipped_byte(trained, tmp_path):
    content = bytearray(trained.read_bytes())
    content[2000] ^= 1
    path = tmp_path / "flipped.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        load_encoder(path, SHAPE)


def test_foreign_files(trained, tmp_path, digits):
    np.savez(tmp_path / "foreign.npz", x_train=digits[0][:5])
    np.savez(tmp_path / "objects.npz", vector=np.array([{}], object), provenance=np.array("{}"))
    np.save(tmp_path / "array.npy", digits[0][:5])
    (tmp_path / "text.npz").write_text("hello")
    for name in ("foreign.npz", "objects.npz", "array.npy", "text.npz"):
        with pytest.raises(UserError, match="is damaged or no encoder of ours"):
            load_encoder(tmp_path / name, SHAPE)
    with pytest.raises(UserError, match="there is no encoder in"):
        load_encoder(tmp_path / "absent.npz", SHAPE)


def test_another_version_or_vector(trained, tmp_path):
    for changes, message in [
        ({"format": "tffcl encoder 0"}, "is of format 'tffcl encoder 0'; it must be 'tffcl encoder 1'"),
        ({"vector": np.zeros(5, np.float32)}, "its vector is not the one that was written"),
        ({"latent": 17}, "is of another version of conv_autoencoder"),
    ]:
        with pytest.raises(UserError, match=message):
            load_encoder(changed(trained, tmp_path, **changes), SHAPE)


def test_other_images(trained, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="takes images of 8x8x1, not 8x8x3"):
        load_encoder(trained, (8, 8, 3))
    monkeypatch.setattr(encoders, "_train", lambda *_: pytest.fail("an encoder was trained for nothing"))
    with pytest.raises(UserError, match="an encoder of digits takes images of 8x8x1, not 8x8x3"):
        find_encoder("digits", (8, 8, 3), epochs=1, data_dir=str(tmp_path))


@pytest.mark.parametrize(
    "dataset, options, message",
    [
        ({"name": "digits"}, {"epochs": 0}, "epochs is 0; it must be a whole number from 1"),
        ({"name": "digits"}, {"batch_size": 0}, "batch_size is 0"),
        ({"name": "digits"}, {"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"name": "digits"}, {"learning_rate": 1e30, "examples": 40}, "training diverged"),
        ({"name": "digits"}, {"examples": 10**6}, "examples is 1000000; digits has only 1347"),
        ({"name": "digitz"}, {}, "did you mean 'digits'"),
        ("digits", {}, "it must have a name and options"),
    ],
)
def test_bad_input(tmp_path, dataset, options, message):
    with pytest.raises(UserError, match=message):
        pretrain_encoder(dataset, out=tmp_path / "e.npz", **{"epochs": 1, "show_progress": False, **options})
    assert not (tmp_path / "e.npz").exists()


@pytest.mark.parametrize(
    "encoder, expected",
    [
        ("mnist", [("mnist", ())]),
        ("flt_mnist_enc2", [("fashion_mnist", ())]),
        ("cifar10+cifar100:11, 20", [("cifar10", ()), ("cifar100", (11, 20))]),
    ],
)
def test_what_an_encoder_is_trained_on(encoder, expected):
    assert training_sets(encoder) == expected


def test_the_published_choices_have_twenty_classes_and_those_of_enc2_none_of_cifar10s():
    (whole, every), (beside, ten) = training_sets("flt_cifar10_enc1")
    assert (whole, every, beside, len(ten)) == ("cifar10", (), "cifar100", 10)
    ((name, twenty),) = training_sets("flt_cifar10_enc2")
    assert (name, len(twenty)) == ("cifar100", 20)
    # CIFAR-100's automobiles, trucks and the like would be CIFAR-10's own: pickup truck, and no other there.
    assert not {58} & {*ten, *twenty}


@pytest.mark.parametrize("encoder", ["digits:", "digits:1,x", "digits:1,1", "digits+digits", "+digits"])
def test_an_encoder_that_cannot_be_read(encoder):
    with pytest.raises(UserError, match="it must be a name of `tffcl list encoders`, a file"):
        training_sets(encoder)


def test_an_encoder_of_chosen_classes_sees_no_others(tmp_path, monkeypatch, digits):
    from tffcl.lab.tasks import encoders

    seen = {}
    monkeypatch.setattr(
        encoders, "_train", lambda autoencoder, x, *rest: (seen.update(x=x), autoencoder.initial, 0.0)[1:]
    )
    find_encoder("digits:3,5", SHAPE, epochs=1, latent=7, data_dir=tmp_path, show_progress=False)
    (path,) = (tmp_path / "encoders").glob("*.npz")
    assert path.name == "digits_3_5-all-1-epochs-7.npz"
    assert load_encoder(path, SHAPE)[2]["classes"] == [[3, 5]]
    chosen = {image.tobytes() for image in digits[0][np.isin(digits[1], (3, 5))]}
    others = {image.tobytes() for image in digits[0][~np.isin(digits[1], (3, 5))]}
    found = {image.tobytes() for image in seen["x"]}
    assert found <= chosen and not found & others and len(found) > 200
    with pytest.raises(UserError, match="classes has 10; those of digits are 0 to 9"):
        find_encoder("digits:3,10", SHAPE, epochs=1, data_dir=tmp_path, show_progress=False)


def test_classes_of_several_sets(tmp_path, monkeypatch):
    from tffcl.lab.tasks import encoders

    rng, paths = np.random.default_rng(0), []
    for name in ("one", "two"):
        x, y = rng.integers(0, 256, (12, 8, 8, 1), np.uint8), np.arange(12) % 3
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        paths.append((x, y))
    seen = {}
    monkeypatch.setattr(
        encoders, "_train", lambda autoencoder, x, *rest: (seen.update(x=x), autoencoder.initial, 0.0)[1:]
    )
    load = encoders.load_dataset
    files = {name: {"name": "npz", "path": str(tmp_path / f"{name}.npz")} for name in ("one", "two")}
    monkeypatch.setattr(encoders, "load_dataset", lambda dataset, **more: load(files[dataset["name"]], **more))
    pretrain_encoder(
        {"names": ["one", "two"]}, classes=[[], [0, 2]], epochs=1, out=tmp_path / "e.npz", show_progress=False
    )
    (first, _), (second, labels) = paths
    np.testing.assert_array_equal(seen["x"], np.concatenate([first, second[np.isin(labels, (0, 2))]]))


def test_the_list_says_what_an_encoder_is_and_which_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFFCL_DATA_DIR", str(tmp_path))
    assert main(["list", "encoders"]) == 0
    assert "flt_cifar10_enc1" in capsys.readouterr().out
    monkeypatch.setitem(ENCODERS, "of_digits", ("digits:3,5", "a test"))
    pretrain_encoder(
        {"name": "digits"},
        classes=[[3, 5]],
        epochs=1,
        latent=4,
        out=tmp_path / "encoders" / "d.npz",
        show_progress=False,
    )
    assert main(["list", "encoders", "of_digits"]) == 0
    told = capsys.readouterr().out
    assert 'algorithms.flt.encoder = "digits:3,5"' in told and str(tmp_path / "encoders" / "d.npz") in told
    assert "codes of 4" in told
