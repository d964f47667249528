"""The encoder that FLT's server broadcasts: trained on a public data set, and kept in a file with its provenance."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tffcl.client_work.autoencoding import build_steps, start_steps
from tffcl.clients.cohort import stream
from tffcl.errors import UserError
from tffcl.lab.datasets.federated import load_dataset
from tffcl.lab.datasets.partitions.mixed import mixture
from tffcl.lab.datasets.storage import expanded, write_npz
from tffcl.lab.tasks.encoder_data import file_name, training_sets
from tffcl.models.autoencoder import FlatAutoencoder, build_autoencoder
from tffcl.runs.callbacks import progress_bar
from tffcl.validation import Count, Positive, Whole, validated

_FORMAT = "tffcl encoder 1"  # change this when an autoencoder computes something else from its vector
_STEPS_AT_A_TIME = 100  # between two updates of the progress bar


def encoder_path(name: str, data_dir: str | os.PathLike | None = None) -> pathlib.Path:
    """Returns the file of the encoder `name`: `<data_dir, $TFFCL_DATA_DIR or ~/.cache/tffcl>/encoders/<name>.npz`."""
    directory = data_dir or os.environ.get("TFFCL_DATA_DIR") or "~/.cache/tffcl"
    return expanded(directory).absolute() / "encoders" / f"{name}.npz"


@validated
def pretrain_encoder(
    dataset: Mapping,
    *,
    epochs: Count = 25,
    batch_size: Count = 10,
    learning_rate: Positive = 1e-3,
    latent: Count = 128,
    examples: Count | None = None,
    classes: Sequence[Sequence[Whole]] | None = None,
    seed: Whole = 0,
    data_dir: str | None = None,
    out: str | None = None,
    overwrite: bool = False,
    input_shape: Sequence[Whole] | None = None,
    show_progress: bool = True,
) -> pathlib.Path:
    """Trains FLT's autoencoder on the images of a data set, with Adam on the mean squared error (FLT section IV-A2).

    The defaults are those of the authors' code. Unlike there, the order of the images is drawn anew in each epoch.

    Args:
      dataset: `name` and options as in a task file, or `names` of several data sets, which are joined into one.
      epochs: Passes over the training images.
      batch_size: Examples in each step.
      learning_rate: The learning rate of Adam.
      latent: The size of a code.
      examples: The number of random training images to use; default all.
      classes: For each data set, the classes whose images are used; an empty list is all classes.
      seed: Decides the subset of images, the initial weights and the order.
      data_dir: Where data sets are; default as in `datasets`.
      out: The file to write; default `encoder_path` of the data set's name.
      overwrite: Whether an existing file may be replaced.
      input_shape: The shape of the images that the encoder is for; default the shape of the data set's images.
      show_progress: Whether to show a progress bar on standard error.

    Returns:
      The file that was written; `load_encoder` reads it.

    Raises:
      UserError: For bad numbers, a data set that cannot be loaded or has images of another shape, a file that exists or
        cannot be written, and if the training diverges.
    """
    several = isinstance(dataset, Mapping) and "names" in dataset
    # A file that may not be replaced is reported before the data are read.
    path = expanded(out) if out else encoder_path(_name(dataset), data_dir)
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists; name another file (out), or allow to replace it (overwrite)")
    if classes is None or not any(classes):
        mixing = {"labels": "apart"} if several else None
        whole = load_dataset(
            dataset, seed=stream(seed, "partition"), data_dir=data_dir, mixing=mixing, partition="an encoder"
        )
    else:
        whole = _of_classes(dataset, classes, seed, data_dir)
    x = _chosen(whole, examples, seed)
    if input_shape is not None:  # checked first, because training takes minutes
        _check_shape(f"an encoder of {_name(dataset)}", x.shape[1:], input_shape)
    autoencoder = build_autoencoder(x.shape[1:], latent=latent, seed=stream(seed, "encoder"))
    vector, loss = _train(autoencoder, x, epochs, batch_size, learning_rate, seed, show_progress)
    provenance = {
        "format": _FORMAT,
        "autoencoder": autoencoder.name,
        "input_shape": list(autoencoder.input_shape),
        "latent": latent,
        "dataset": dict(dataset),
        **({"classes": [list(each) for each in classes]} if classes is not None and any(classes) else {}),
        "note": whole.note,
        "examples": len(x),
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "loss": loss,
        "versions": {package: importlib.metadata.version(package) for package in ("tffcl", "tensorflow", "numpy")},
        "sha256": _digest(vector),
    }
    try:
        write_npz(path, {"vector": vector, "provenance": np.array(json.dumps(provenance))})
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror})") from None
    return path


def find_encoder(
    encoder: str,
    input_shape,
    *,
    epochs: int = 25,
    examples: int | None = None,
    latent: int = 128,
    data_dir: str | None = None,
    show_progress: bool = True,
) -> tuple[FlatAutoencoder, np.ndarray]:
    """Finds a pre-trained encoder, or pre-trains it and keeps it for the next time.

    Args:
      encoder: A file (.npz), or the data to pre-train on, see `encoder_data.training_sets`. The encoder does not depend
        on a run's seed.
      input_shape: The shape of the clients' raw images.
      epochs: Passes over the data set, if the encoder is pre-trained.
      examples: The number of images to pre-train on; default all.
      latent: The size of a code, if the encoder is pre-trained.
      data_dir: Where data sets are, and where encoders are kept.
      show_progress: Whether to show a progress bar on standard error.

    Returns:
      `(autoencoder, vector float32 [P])`.

    Raises:
      UserError: As in `pretrain_encoder` and `load_encoder`.
    """
    path = pathlib.Path(encoder)
    if path.suffix != ".npz":
        sets = training_sets(encoder)
        path = encoder_path(file_name(sets, examples, epochs, latent), data_dir)
        if not path.exists():
            names, classes = [name for name, _ in sets], [own for _, own in sets]
            pretrain_encoder(
                {"names": names} if len(names) > 1 else {"name": names[0]}, classes=classes, epochs=epochs,
                examples=examples, latent=latent, data_dir=data_dir, out=path,
                input_shape=[int(size) for size in input_shape], show_progress=show_progress,
            )  # fmt: skip
    return load_encoder(path, input_shape)[:2]


def kept_encoders() -> Iterator[tuple[pathlib.Path, dict]]:
    """Yields the file and the provenance of every encoder in the data directory."""
    for path in sorted(encoder_path("any").parent.glob("*.npz")):
        try:
            yield path, _read(path)[1]
        except UserError:  # a foreign or damaged file is reported when somebody asks for it
            continue


def _of_classes(dataset: Mapping, classes, seed: int, data_dir: str | None):
    """Joins the data sets into one, with only the images of the chosen classes."""
    names = dataset.get("names", [dataset.get("name")])
    if len(classes) != len(names):
        raise UserError(f"classes has {len(classes)} lists; there must be one for each of {len(names)} data sets")
    options, sets = {key: value for key, value in dataset.items() if key not in ("name", "names")}, []
    for name, chosen in zip(names, classes, strict=True):
        one = load_dataset({**options, "name": name}, seed=stream(seed, "partition"), data_dir=data_dir)
        for label in chosen:
            if not 0 <= label < one.num_classes:
                raise UserError(f"classes has {label}; those of {name} are 0 to {one.num_classes - 1}")
        rows = np.flatnonzero(np.isin(one.train.y, chosen)) if chosen else np.arange(len(one.train))
        sets.append(dataclasses.replace(one, train=one.train.take(rows)))
    return mixture(sets, labels="apart") if len(sets) > 1 else sets[0]


def _name(dataset: object) -> str:
    """Makes a file's name from a data set's section; `load_dataset` reports what is wrong with the section."""
    if not isinstance(dataset, Mapping):
        return "encoder"
    names = dataset.get("names", dataset.get("name"))
    names = [names] if isinstance(names, str) else names if isinstance(names, (list, tuple)) else []
    return "+".join(each for each in names if isinstance(each, str)).replace(os.sep, "_") or "encoder"


def _chosen(whole, examples: int | None, seed: int) -> np.ndarray:
    x = whole.train.x
    if examples is None:
        return x
    if examples > len(x):
        raise UserError(f"examples is {examples}; {whole.name} has only {len(x)}")
    rng = np.random.default_rng(stream(seed, "encoder examples"))
    return x[np.sort(rng.choice(len(x), examples, replace=False))]


def _train(
    autoencoder: FlatAutoencoder, x, epochs, batch_size, learning_rate, seed, show_progress
) -> tuple[np.ndarray, float]:
    """Returns the trained vector, `float32 [P]`, and the mean loss over the last epoch."""
    take_steps = build_steps(autoencoder, batch_size, learning_rate)
    rng = np.random.default_rng(stream(seed, "encoder order"))
    state, images = start_steps(autoencoder.initial), tf.constant(x)
    at_a_time = _STEPS_AT_A_TIME * batch_size
    with progress_bar(epochs * len(x), "encoder", "image", show=show_progress) as bar:
        for _ in range(epochs):
            order, total = rng.permutation(len(x)).astype(np.int32), 0.0
            for start in range(0, len(x), at_a_time):
                few = order[start : start + at_a_time]
                state, loss = take_steps(state, images, tf.constant(few))
                total += float(loss)
                bar.update(len(few))
            mean = total / len(x)
            bar.set_postfix(loss=f"{mean:.4f}")
            vector = state["vector"].numpy()
            if not np.isfinite(vector).all():
                raise UserError(f"the encoder's training diverged; try a smaller learning rate than {learning_rate}")
    return vector, mean


def _digest(vector: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(vector, "<f4").tobytes()).hexdigest()


def load_encoder(path: str | os.PathLike, input_shape) -> tuple[FlatAutoencoder, np.ndarray, dict]:
    """Loads what `pretrain_encoder` wrote.

    Args:
      input_shape: The shape of the clients' raw images.

    Returns:
      `(autoencoder, vector float32 [P], provenance)`; the provenance holds the data set, hyper-parameters, loss,
      versions and the vector's SHA-256.

    Raises:
      UserError: If the file does not exist, is damaged or is no encoder, or if the encoder takes images of another
        shape.
    """
    path = expanded(path)
    vector, provenance = _read(path)
    takes = tuple(provenance["input_shape"])
    _check_shape(f"the encoder in {path}", takes, input_shape)
    autoencoder = build_autoencoder(takes, latent=provenance["latent"])
    if autoencoder.name != provenance["autoencoder"] or vector.shape != (autoencoder.size,):
        raise UserError(f"the encoder in {path} is of another version of {autoencoder.name}; train it anew")
    return autoencoder, vector, provenance


def _check_shape(what: str, takes: Sequence[int], given: Sequence[int]):
    shapes = ["x".join(str(int(size)) for size in shape) for shape in (takes, given)]
    if shapes[0] != shapes[1]:
        cure = "give encoder another of `tffcl list encoders`, or one that is trained on such images"
        raise UserError(f"{what} takes images of {shapes[0]}, not {shapes[1]}; {cure}")


def _read(path: pathlib.Path) -> tuple[np.ndarray, dict]:
    try:
        with np.load(path, allow_pickle=False) as file:
            vector, provenance = file["vector"], json.loads(str(file["provenance"]))
            found = provenance["format"], provenance["sha256"]
    except FileNotFoundError:
        raise UserError(f"there is no encoder in {path}; pretrain_encoder makes one") from None
    except Exception as error:  # NumPy and zipfile raise a dozen types of errors for damaged files
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise UserError(f"{path} is damaged or no encoder of ours ({reason})") from None
    if found[0] != _FORMAT:
        raise UserError(f"{path} is of format {found[0]!r}; it must be {_FORMAT!r}: train the encoder anew")
    if vector.dtype != np.float32 or vector.ndim != 1 or _digest(vector) != found[1]:
        raise UserError(f"{path} is damaged: its vector is not the one that was written")
    return vector, provenance
