"""CelebA faces with their attributes (Liu et al. 2015), from TFDS, scaled down."""

from typing import Annotated

import msgspec
import numpy as np

from tffcl.errors import unknown
from tffcl.lab.datasets import storage
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.images import Images, measured
from tffcl.lab.datasets.loaders.tfds import read_arrays, read_split
from tffcl.validation import validated

_URL = "https://drive.google.com"
_COMPLETE = (162770, 19962)
_LEFT_OUT = (218 - 178) // 2  # rows above and below the square in the middle of 218x178


@validated
def load_celeba(
    *, size: Annotated[int, msgspec.Meta(ge=8, le=178)] = 32, target: str = "Male", data_dir=None
) -> Dataset:
    """Returns CelebA's training and test faces with their 40 attributes, [n, size, size, 3].

    The square in the middle of each picture is averaged down to `size`. The label is one attribute: 0 no, 1
    yes. Mean and deviation are measured.

    Args:
      size: Height and width, 8 to 178. The complete set takes 0.6 GB at 32 and grows with the square.
      target: The attribute that is the label.
      data_dir: As in `storage.resolve`.

    Raises:
      UserError: If there is no such attribute, or the set is neither there nor can be downloaded.
    """
    directory = storage.resolve(data_dir)
    arrays = read_arrays(
        "celeba", "celeb_a", _URL, directory, lambda builder, split: _split(builder, split, size), key=f"celeba_{size}"
    )
    names = tuple(str(name) for name in arrays["names_train"])
    if target not in names:
        raise unknown("attribute of celeba", target, names)
    column = names.index(target)
    marks = {split: arrays[f"attributes_{split}"] for split in ("train", "test")}
    train, test = (
        Images(arrays[f"x_{split}"], own[:, column].astype(np.int32), attributes=own) for split, own in marks.items()
    )
    found = len(train), len(test)
    note = f"a part: {found[0]:,} + {found[1]:,} of {_COMPLETE[0]:,} + {_COMPLETE[1]:,} images"
    return Dataset(
        "celeba", train, test, 2, *measured(train.x), (f"not {target}", target),
        note="" if found == _COMPLETE else note,
        attribute_names=names,
    )  # fmt: skip


def _split(builder, split: str, size: int) -> dict[str, np.ndarray]:
    import tensorflow as tf

    names = sorted(builder.info.features["attributes"])

    def convert(example):
        square = example["image"][_LEFT_OUT:-_LEFT_OUT]
        small = tf.image.resize(square, [size, size], method="area")
        attributes = tf.stack([example["attributes"][name] for name in names])
        return {"x": tf.cast(tf.round(small), tf.uint8), "attributes": attributes}

    return {**read_split(builder, split, convert), "names": np.array(names)}
