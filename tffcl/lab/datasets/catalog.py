"""The names of data sets and partitions, which the lab adds to the registry. Imports nothing heavy."""

from collections.abc import Mapping

from tffcl.registry import Row


def _set(name: str, file: str, summary: str) -> tuple[str, Row]:
    return name, Row(summary, f"tffcl.lab.datasets.loaders.{file}:load_{name}")


def _rule(name: str, file: str, summary: str) -> tuple[str, Row]:
    return name, Row(summary, f"tffcl.lab.datasets.partitions.{file}:{name}")


# fmt: off
DATASETS: Mapping[str, Row] = dict([
    _set("digits", "scikit_learn", "8x8 grey digits that come with scikit-learn: 1,347 + 450, 10 classes; no network"),
    _set("mnist", "tfds", "28x28 grey digits: 60,000 + 10,000, 10 classes"),
    _set("fashion_mnist", "tfds", "28x28 grey clothes: 60,000 + 10,000, 10 classes"),
    _set("cifar10", "tfds", "32x32 colour photos: 50,000 + 10,000, 10 classes"),
    _set("cifar100", "tfds", "32x32 colour photos: 50,000 + 10,000, 100 classes"),
    _set("svhn_cropped", "tfds", "32x32 colour house numbers: 73,257 + 26,032, 10 classes"),
    _set("emnist_balanced", "tfds", "28x28 grey digits and letters: 112,800 + 18,800, 47 classes"),
    _set("emnist_letters", "tfds", "28x28 grey letters, upper and lower case as one: 88,800 + 14,800, 26 classes"),
    _set("femnist", "femnist", "LEAF FEMNIST, 28x28 grey, with its 3,400 writers as clients; 62 classes, or 10 with "
         "only_digits"),
    _set("usps", "scikit_learn", "16x16 grey digits of the US postal service: 7,291 + 2,007, 10 classes"),
    _set("celeba", "tfds", "faces with 40 yes-or-no attributes, scaled down: 162,770 + 19,962, 2 classes"),
    _set("breast_cancer", "scikit_learn", "30 numbers of a tumour, malignant or benign, that come with scikit-learn: "
         "398 + 171; no network"),
    _set("diabetes", "scikit_learn", "10 numbers of a patient and the course of diabetes, that come with scikit-learn: "
         "309 + 133; no network"),
    _set("texts", "texts", "characters of prose, Python and C++ that are installed, to be predicted; documents as "
         "clients; no network"),
    _set("npz", "own", "your own file: x_train, y_train, x_test, y_test; with natural clients or not"),
    _set("table", "own", "your own CSV or Parquet file: a column says whose a row is, one its class; natural clients"),
    _set("folders", "own", "your own pictures: CLIENT/LABEL/NAME.png; natural clients"),
])
# Data sets that always have natural clients: a task file needs no partition for them.
NATURAL = ("femnist", "texts", "table", "folders")
# Data sets whose labels may be numbers to predict.
MAY_BE_NUMBERS = ("diabetes", "npz", "table")

PARTITIONS: Mapping[str, Row] = dict([
    _rule("iid", "by_label", "equal parts of a shuffled set"),
    _rule("label_skew", "by_label", "each client holds a few classes (NIID-Bench; PACFL's and FLIS's 20 % and 30 %)"),
    _rule("dirichlet", "by_label", "each class is shared out by Dirichlet(alpha) proportions (NIID-Bench)"),
    _rule("quantity_skew", "by_label", "same labels, sizes by a power law"),
    _rule("label_groups", "by_label", "groups of clients hold groups of classes (StoCFL's pathological; FLT's "
          "scenarios 1 and 2)"),
    _rule("structured", "by_label", "groups of 5 classes, half in equal and half in growing parts (FLT's scenario 4)"),
    _rule("rotated", "transformed", "groups of clients whose images are turned by quarter turns (IFCA, StoCFL)"),
    _rule("shifted", "transformed", "groups of clients whose labels are shifted (StoCFL)"),
    _rule("devices", "transformed", "groups of clients whose devices measure the numbers of a table with gains and "
          "offsets of their own"),
    _rule("shift_features", "shifts", "P(X), level 1 to 8: groups of clients whose images are turned and tinted (FLUX, "
          "ANDA)"),
    _rule("shift_labels", "shifts", "P(Y), level 1 to 8: groups of clients hold fewer and fewer classes (FLUX, ANDA)"),
    _rule("shift_concept", "shifts", "P(Y|X), level 1 to 8: groups of clients whose labels are swapped (FLUX, ANDA)"),
    _rule("shift_class_features", "shifts", "P(X|Y), level 1 to 8: groups of clients in which the images of some "
          "classes are turned (FLUX, ANDA)"),
    _rule("hybrid", "mixed", "a group of clients per data set, labels in common (StoCFL: MNIST and Fashion-MNIST)"),
    _rule("mix4", "mixed", "USPS, CIFAR-10, SVHN, Fashion-MNIST: one of them per client, 40 labels (PACFL)"),
    _rule("by_dataset", "mixed", "each client holds all of one data set and is called as it (PACFL Table 1)"),
    _rule("by_owner", "natural", "natural clients: FEMNIST's writers, or those of a table, of folders or an npz file"),
    _rule("by_attribute", "natural", "groups of clients hold images with one attribute each (PACFL: CelebA)"),
])
# fmt: on
