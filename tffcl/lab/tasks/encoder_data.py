"""Training data of FLT's encoders: published choices by name, and a notation for others. Imports nothing heavy."""

from collections.abc import Mapping, Sequence

from tffcl.errors import UserError
from tffcl.registry import Row, add

# Classes of the authors' code; the paper says only "10 classes of CIFAR100" and "without any overlap with CIFAR10".
_BESIDE_CIFAR10 = "11,20,22,31,37,51,54,65,86,90"
_APART_FROM_CIFAR10 = "3,8,13,15,20,22,25,29,31,37,43,46,51,54,65,84,85,86,90,92"

# Name of an encoder -> (its training data, its purpose).
ENCODERS: Mapping[str, tuple[str, str]] = {
    "flt_mnist_enc1": ("emnist_balanced", "FLT's Enc1 for MNIST: EMNIST covers its classes; with fine_tune_epochs = 0"),
    "flt_mnist_enc2": ("fashion_mnist", "FLT's Enc2 for MNIST, FEMNIST and EMNIST: other images; clients fine-tune it"),
    "flt_cifar10_enc1": (
        f"cifar10+cifar100:{_BESIDE_CIFAR10}",
        'FLT\'s Enc1 for CIFAR-10, "CIFAR20": CIFAR-10 and ten classes of CIFAR-100; with fine_tune_epochs = 0',
    ),
    "flt_cifar10_enc2": (
        f"cifar100:{_APART_FROM_CIFAR10}",
        "FLT's Enc2 for CIFAR-10: 20 classes of CIFAR-100 that CIFAR-10 does not have; clients fine-tune it",
    ),
}


add("encoders", lambda: {name: Row(summary) for name, (_, summary) in ENCODERS.items()})


def training_sets(encoder: str) -> list[tuple[str, tuple[int, ...]]]:
    """Returns the data that an encoder is trained on.

    Args:
      encoder: A name in `ENCODERS`, or data sets joined by "+", each alone or with chosen classes:
        "cifar10+cifar100:11,20,22".

    Returns:
      `(data set, classes)` for each data set; an empty `classes` means all classes.

    Raises:
      UserError: If `encoder` is not written so, or names a data set or a class twice.
    """
    found = []
    for part in ENCODERS.get(encoder, (encoder, ""))[0].split("+"):
        name, colon, listed = part.partition(":")
        classes = [each.strip() for each in listed.split(",")] if colon else []
        if not name or not all(each.isdecimal() for each in classes) or len(set(classes)) < len(classes):
            raise _unreadable(encoder)
        found.append((name, tuple(int(each) for each in classes)))
    if len({name for name, _ in found}) < len(found):
        raise _unreadable(encoder)
    return found


def _unreadable(encoder: str) -> UserError:
    return UserError(
        f"encoder is {encoder!r}; it must be a name of `tffcl list encoders`, a file (.npz), or different data sets "
        'with their classes, e.g. "cifar10+cifar100:11,20,22"',
        key="encoder",
    )


def file_name(sets: Sequence[tuple[str, Sequence[int]]], examples: int | None, epochs: int, latent: int) -> str:
    """The name, without its ending, of the file of an encoder that is trained on these data sets."""
    parts = [name + "".join(f"_{label}" for label in classes) for name, classes in sets]
    size = "" if latent == 128 else f"-{latent}"
    return f"{'+'.join(parts)}-{examples or 'all'}-{epochs}-epochs{size}"
