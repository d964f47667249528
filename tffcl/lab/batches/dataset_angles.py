"""How far apart whole data sets lie: the angles between the subspaces of their images (PACFL Table 1)."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tffcl.clustering.proximity import principal_angles
from tffcl.errors import UserError, unknown
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.federated import load_dataset
from tffcl.lab.datasets.images import Images
from tffcl.lab.reporting.table import Column, Table

PACFL_SETS = ("cifar10", "svhn_cropped", "fashion_mnist", "usps")

# PACFL (arXiv:2209.10526) Table 1, p = 2: x, "the smallest principal angle", and y, "the summation over
# the principal angles", in degrees. Every y is p times its x, which sums of different angles would not be.
PACFL_TABLE_1 = {
    ("cifar10", "svhn_cropped"): (6.13, 12.3),
    ("cifar10", "fashion_mnist"): (45.79, 91.6),
    ("cifar10", "usps"): (66.26, 132.5),
    ("svhn_cropped", "fashion_mnist"): (43.42, 86.8),
    ("svhn_cropped", "usps"): (64.86, 129.7),
    ("fashion_mnist", "usps"): (43.36, 86.7),
}

PREPROCESSING = {
    "raw": "pixels as they are, neither centred nor scaled; gives the paper's values",
    "centred": "each set's mean image subtracted: subspaces of what varies",
    "normalized": "minus mean, over deviation of each set's channels, frame and all",
    "grey": "as raw, but colours brought to grey first (ITU-R BT.601)",
}

MEASURES = {
    "first_vectors": "angle between the first singular vectors alone",
    "smallest_angle": "smallest principal angle (PACFL Eq. 2 as written)",
    "angle_sum": "sum of the principal angles",
    "trace": "sum over corresponding vectors (PACFL Eq. 3)",
    "smallest_entry": "smallest angle between any two vectors",
}

_COLUMNS = (
    Column(""),
    Column("x (y)", "PACFL Table 1"),
    Column("x (p x)", "first vectors"),
    Column("smallest (sum)", "principal angles"),
    Column("trace", "Eq. 3"),
    Column("vectors", "any two"),
)

_GREY = (0.299, 0.587, 0.114)
_BLOCK = 2048  # images at a time; float32 of 32x32x3: 25 MB
_MOST_FEATURES = 8192  # the Gram matrix is then 0.5 GB, and there are some copies of it


@dataclasses.dataclass(frozen=True, eq=False)
class DatasetAngles:
    """Angles between data sets.

    Attributes:
      names: Of the N sets.
      matrices: For each of `MEASURES` float32 [N, N], degrees.
      num_vectors: p, singular vectors of each set.
      preprocessing: A name in `PREPROCESSING`.
      examples: How many training images of each set were used.
      notes: What a reader should know, e.g. that a set is a part only.
    """

    names: tuple[str, ...]
    matrices: Mapping[str, np.ndarray]
    num_vectors: int
    preprocessing: str
    examples: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def figure(self):
        """Draws two heat maps: what gives the paper's values, and the true smallest principal angle."""
        from tffcl.lab.reporting.figures.matrices import angles_figure

        shown = {name: self.matrices[name] for name in ("first_vectors", "smallest_angle")}
        titles = {
            "first_vectors": "First singular vectors",
            "smallest_angle": f"Smallest principal angle, p = {self.num_vectors}",
        }
        return angles_figure({titles[name]: matrix for name, matrix in shown.items()}, self.names)

    def paper(self) -> np.ndarray:
        """Returns float64 [N, N]: the paper's smallest angles, NaN for pairs that it does not have."""
        result = np.full((len(self.names),) * 2, np.nan)
        for i, j, published in self._pairs():
            if published:
                result[i, j] = result[j, i] = published[0]
        return result

    def to_text(self) -> str:
        """Returns a table, a line for each pair of sets, with the paper's values beside ours."""
        return "\n".join(self._lines())

    def _pairs(self) -> Iterator[tuple[int, int, tuple[float, float] | None]]:
        """Pairs of sets, and what the paper has for them; it has p = 2 only."""
        for i in range(len(self.names)):
            for j in range(i + 1, len(self.names)):
                pair = self.names[i], self.names[j]
                known = PACFL_TABLE_1.get(pair) or PACFL_TABLE_1.get(pair[::-1])
                yield i, j, known if self.num_vectors == 2 else None

    def _lines(self) -> Iterator[str]:
        p, rows = self.num_vectors, []
        yield f"Angles in degrees between the first {p} left singular vectors of each set's training images"
        yield f"({self.preprocessing}: {PREPROCESSING[self.preprocessing]})"
        yield ""
        for i, j, published in self._pairs():
            x = {name: float(matrix[i, j]) for name, matrix in self.matrices.items()}
            paper = f"{published[0]:.2f} ({published[1]:.1f})" if published else "-"
            first = f"{x['first_vectors']:.2f} ({p * x['first_vectors']:.1f})"
            true = f"{x['smallest_angle']:.2f} ({x['angle_sum']:.1f})"
            pair = f"{self.names[i]} - {self.names[j]}"
            rows.append([pair, paper, first, true, f"{x['trace']:.1f}", f"{x['smallest_entry']:.2f}"])
        yield Table(_COLUMNS, rows).to_text()
        yield ""
        yield from self._remarks()

    def _remarks(self) -> Iterator[str]:
        difference = np.abs(self.matrices["first_vectors"] - self.paper())
        if np.isfinite(difference).any():
            yield f"first vectors differ from the paper's x by {np.nanmax(difference):.2f} degrees at most"
        if np.isfinite(difference).any() and self.preprocessing == "raw":
            yield "the paper calls x the smallest principal angle and y the sum of the angles; its values are"
            yield "those of the first vectors alone, once and p times"
        used = ", ".join(f"{name} {count:,}" for name, count in zip(self.names, self.examples, strict=True))
        yield f"training images: {used}"
        yield from (f"note: {note}" for note in self.notes)


def dataset_angles(
    names: Sequence[str] = PACFL_SETS,
    *,
    num_vectors: int = 2,
    data_dir: str | None = None,
    preprocessing: str = "raw",
    samples: int | None = None,
    seed: int = 0,
) -> DatasetAngles:
    """Measures the angles between the subspaces of whole data sets.

    Images are brought to the largest shape among the sets as for PACFL's MIX-4: smaller ones get a black
    frame (of the default four, FMNIST 2 pixels and USPS 8), grey ones three equal channels.

    With the default preprocessing the angles between the *first* singular vectors are the values of PACFL's
    Table 1: within 1.5 degrees on all pairs, although the paper describes principal angles for p = 2. Without
    centring the first vector is nearly the mean image, so this compares mean images. Framing matters: with
    USPS enlarged to 28x28 instead, FMNIST and USPS are 20 degrees apart and not 43.

    Args:
      names: Two or more names of data sets, all different.
      num_vectors: p; the paper's Table 1 has 2.
      data_dir: Where data sets are; see `lab.datasets.storage.resolve`.
      preprocessing: A name in `PREPROCESSING`.
      samples: At most so many training images of each set, at random; None: all.
      seed: Decides which.

    Raises:
      UserError: For unknown names, too large images, an impossible p, or data that is missing.
    """
    names = _checked(names, num_vectors, preprocessing, samples, seed)
    sets = [load_dataset({"name": name}, seed=seed, data_dir=data_dir) for name in names]
    images = [_sampled(each.train, samples, seed) for each in sets]
    grey = preprocessing == "grey"
    shape = tuple(max(part.x.shape[axis] for part in images) for axis in (1, 2, 3))
    shape = (*shape[:2], 1) if grey else shape
    _check_size(shape, num_vectors)
    bases, masks = [], []
    for each, part in zip(sets, images, strict=True):
        gram = _prepared(_moments(part.x, grey), part.x.shape[1:], shape, each, preprocessing)
        basis, mask = _basis(gram, num_vectors)
        bases.append(basis)
        masks.append(mask)
    notes = tuple(f"{each.name} is {each.note}" for each in sets if each.note)
    counts = tuple(len(part) for part in images)
    return DatasetAngles(names, _matrices(bases, masks), num_vectors, preprocessing, counts, notes)


def _checked(names, num_vectors, preprocessing, samples, seed) -> tuple[str, ...]:
    names = tuple(names)
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError(f"angles are between two or more data sets, all different, not {', '.join(names)}")
    if preprocessing not in PREPROCESSING:
        raise unknown("preprocessing", preprocessing, PREPROCESSING)
    for what, value, least in (("num_vectors", num_vectors, 1), ("samples", samples, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise UserError(f"{what} is {value}; it must be a whole number from {least}")
    return names


def _check_size(shape: tuple[int, ...], num_vectors: int) -> None:
    size, described = int(np.prod(shape)), f"images of {'x'.join(map(str, shape))}"
    if size > _MOST_FEATURES:
        raise UserError(f"{described} have {size} values; angles are for up to {_MOST_FEATURES}")
    if num_vectors > size:
        raise UserError(f"num_vectors is {num_vectors}; {described} have fewer values")


def _sampled(images: Images, samples: int | None, seed: int) -> Images:
    if samples is None or samples >= len(images):
        return images
    chosen = np.random.default_rng(seed).choice(len(images), samples, replace=False)
    return images.take(np.sort(chosen))


@dataclasses.dataclass(frozen=True, eq=False)
class _Moments:
    """What is to know about n images of d values, on the scale 0 to 1.

    All preprocessing here is linear, so it can be done to the moments, and the pixels are read only once.

    Attributes:
      second: float64 [d, d], the mean of x x'.
      mean: float64 [d].
    """

    second: np.ndarray
    mean: np.ndarray

    def chosen(self, features: np.ndarray) -> "_Moments":
        """Returns the moments of `x[features]`; a feature of -1 is 0."""
        if np.array_equal(features, np.arange(len(self.mean))):
            return self
        second, mean = np.pad(self.second, (0, 1)), np.pad(self.mean, (0, 1))
        return _Moments(second[np.ix_(features, features)], mean[features])

    def shifted(self, shift: np.ndarray) -> "_Moments":
        """Returns the moments of `x - shift`, `shift` of shape [d]."""
        cross = np.multiply.outer(self.mean, shift)
        second = self.second - cross - cross.T + np.multiply.outer(shift, shift)
        return _Moments(second, self.mean - shift)


def _moments(x: np.ndarray, grey: bool) -> _Moments:
    """Reads uint8 images [n, h, w, c] block by block; of grey ones only one value a pixel is kept."""
    weights = np.array(_GREY if x.shape[3] == 3 else 1.0, np.float32).reshape(-1, 1)
    size = int(np.prod(x.shape[1:3])) * (1 if grey else x.shape[3])
    second, total = np.zeros((size, size)), np.zeros(size)
    for start in range(0, len(x), _BLOCK):
        block = x[start : start + _BLOCK].astype(np.float32) / np.float32(255)
        rows = (block @ weights if grey else block).reshape(len(block), size)
        # Sums of products within a block may be float32 (1e-7 of them is lost), the sum over blocks may not.
        second += rows.T @ rows
        total += rows.sum(axis=0, dtype=np.float64)
    return _Moments(second / len(x), total / len(x))


def _prepared(
    moments: _Moments, of: tuple[int, ...], shape: tuple[int, ...], dataset: Dataset, preprocessing: str
) -> np.ndarray:
    """Frames and preprocesses images of the shape `of`, by their moments.

    Returns:
      float64 [d, d], the Gram matrix of the framed images, over their number.
    """
    framed = moments.chosen(_framing(of, shape))
    if preprocessing == "centred":
        return framed.shifted(framed.mean).second
    if preprocessing == "normalized":
        mean, std = (np.broadcast_to(each, shape).ravel() for each in (dataset.mean, dataset.std))
        return framed.shifted(mean).second / np.multiply.outer(std, std)
    return framed.second


def _framing(of: tuple[int, int, int], shape: tuple[int, int, int]) -> np.ndarray:
    """For each value of an image of `shape`, which value of the smaller image it is; -1 in the frame."""
    channels = min(of[2], shape[2])
    small = np.arange(of[0] * of[1] * channels).reshape(*of[:2], channels)
    margins = [(large - own) for large, own in zip(shape[:2], of[:2], strict=True)]
    around = [(margin // 2, margin - margin // 2) for margin in margins]
    framed = np.pad(small, (*around, (0, 0)), constant_values=-1)
    return np.broadcast_to(framed, shape).ravel()


def _basis(gram: np.ndarray, num_vectors: int) -> tuple[np.ndarray, np.ndarray]:
    from tffcl.signatures.subspace import left_singular_vectors

    held = gram.diagonal() > 0  # a black frame needs no work
    # A matrix and its Gram matrix have the same left singular vectors, in the same order.
    basis, mask = left_singular_vectors(gram[np.ix_(held, held)], num_vectors)
    framed = np.zeros((len(gram), num_vectors), np.float32)
    framed[held] = basis
    return framed, mask.numpy()


def _matrices(bases: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    bases, masks = np.stack(bases), np.stack(masks)
    first = principal_angles(bases[:, :, :1], masks[:, :1], metric="smallest_angle")
    others = (name for name in MEASURES if name != "first_vectors")
    return {"first_vectors": first} | {name: principal_angles(bases, masks, metric=name) for name in others}
