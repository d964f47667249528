"""The names of data sets and partitions, rows of the lab in the registry. Imports nothing heavy."""

from collections.abc import Mapping

from tffcl.registry import Row

_LOADERS = "tffcl.lab.datasets.loaders"
_RULES = "tffcl.lab.datasets.partitions"

DATASETS: Mapping[str, Row] = {
    "digits": Row(
        "8x8 grey digits that come with scikit-learn: 1,347 + 450, 10 classes; no network",
        f"{_LOADERS}.digits:load_digits",
    ),
    "mnist": Row("28x28 grey digits: 60,000 + 10,000, 10 classes", f"{_LOADERS}.tfds:load_mnist"),
    "fashion_mnist": Row("28x28 grey clothes: 60,000 + 10,000, 10 classes", f"{_LOADERS}.tfds:load_fashion_mnist"),
    "cifar10": Row("32x32 colour photos: 50,000 + 10,000, 10 classes", f"{_LOADERS}.tfds:load_cifar10"),
    "cifar100": Row("32x32 colour photos: 50,000 + 10,000, 100 classes", f"{_LOADERS}.tfds:load_cifar100"),
    "svhn_cropped": Row(
        "32x32 colour house numbers: 73,257 + 26,032, 10 classes", f"{_LOADERS}.tfds:load_svhn_cropped"
    ),
    "emnist_balanced": Row(
        "28x28 grey digits and letters: 112,800 + 18,800, 47 classes", f"{_LOADERS}.tfds:load_emnist_balanced"
    ),
    "emnist_letters": Row(
        "28x28 grey letters, upper and lower case as one: 88,800 + 14,800, 26 classes",
        f"{_LOADERS}.tfds:load_emnist_letters",
    ),
    "femnist": Row(
        "LEAF FEMNIST, 28x28 grey, with its 3,400 writers as clients; 62 classes, or 10 with only_digits",
        f"{_LOADERS}.femnist:load_femnist",
    ),
    "usps": Row(
        "16x16 grey digits of the US postal service: 7,291 + 2,007, 10 classes", f"{_LOADERS}.digits:load_usps"
    ),
    "celeba": Row(
        "faces with 40 yes-or-no attributes, scaled down: 162,770 + 19,962, 2 classes", f"{_LOADERS}.celeba:load_celeba"
    ),
    "breast_cancer": Row(
        "30 numbers of a tumour, malignant or benign, that come with scikit-learn: 398 + 171; no network",
        f"{_LOADERS}.tables:load_breast_cancer",
    ),
    "diabetes": Row(
        "10 numbers of a patient and the course of diabetes, that come with scikit-learn: 309 + 133; no network",
        f"{_LOADERS}.tables:load_diabetes",
    ),
    "texts": Row(
        "characters of prose, Python and C++ that are installed, to be predicted; documents as clients; no network",
        f"{_LOADERS}.texts:load_texts",
    ),
    "npz": Row(
        "your own file: x_train, y_train, x_test, y_test; with natural clients or not", f"{_LOADERS}.npz:load_npz"
    ),
    "table": Row(
        "your own CSV or Parquet file: a column says whose a row is, one its class; natural clients",
        f"{_LOADERS}.own:load_table",
    ),
    "folders": Row("your own pictures: CLIENT/LABEL/NAME.png; natural clients", f"{_LOADERS}.own:load_folders"),
}
# Those that always have natural clients: a task file needs no partition for them.
NATURAL = ("femnist", "texts", "table", "folders")

PARTITIONS: Mapping[str, Row] = {
    "iid": Row("equal parts of a shuffled set", f"{_RULES}.by_label:iid"),
    "label_skew": Row(
        "each client holds a few classes (NIID-Bench; PACFL's and FLIS's 20 % and 30 %)",
        f"{_RULES}.by_label:label_skew",
    ),
    "dirichlet": Row(
        "each class is shared out by Dirichlet(alpha) proportions (NIID-Bench)", f"{_RULES}.by_label:dirichlet"
    ),
    "quantity_skew": Row("same labels, sizes by a power law", f"{_RULES}.by_label:quantity_skew"),
    "label_groups": Row(
        "groups of clients hold groups of classes (StoCFL's pathological; FLT's scenarios 1 and 2)",
        f"{_RULES}.by_label:label_groups",
    ),
    "structured": Row(
        "groups of 5 classes, half in equal and half in growing parts (FLT's scenario 4)",
        f"{_RULES}.by_label:structured",
    ),
    "rotated": Row(
        "groups of clients whose images are turned by quarter turns (IFCA, StoCFL)", f"{_RULES}.transformed:rotated"
    ),
    "shifted": Row("groups of clients whose labels are shifted (StoCFL)", f"{_RULES}.transformed:shifted"),
    "devices": Row(
        "groups of clients whose devices measure the numbers of a table with gains and offsets of their own",
        f"{_RULES}.transformed:devices",
    ),
    "shift_features": Row(
        "P(X), level 1 to 8: groups of clients whose images are turned and tinted (FLUX, ANDA)",
        f"{_RULES}.shifts:shift_features",
    ),
    "shift_labels": Row(
        "P(Y), level 1 to 8: groups of clients hold fewer and fewer classes (FLUX, ANDA)",
        f"{_RULES}.shifts:shift_labels",
    ),
    "shift_concept": Row(
        "P(Y|X), level 1 to 8: groups of clients whose labels are swapped (FLUX, ANDA)",
        f"{_RULES}.shifts:shift_concept",
    ),
    "shift_class_features": Row(
        "P(X|Y), level 1 to 8: groups of clients in which the images of some classes are turned (FLUX, ANDA)",
        f"{_RULES}.shifts:shift_class_features",
    ),
    "hybrid": Row(
        "a group of clients per data set, labels in common (StoCFL: MNIST and Fashion-MNIST)", f"{_RULES}.mixed:hybrid"
    ),
    "mix4": Row(
        "USPS, CIFAR-10, SVHN, Fashion-MNIST: one of them per client, 40 labels (PACFL)", f"{_RULES}.mixed:mix4"
    ),
    "by_dataset": Row(
        "each client holds all of one data set and is called as it (PACFL Table 1)", f"{_RULES}.mixed:by_dataset"
    ),
    "by_owner": Row(
        "natural clients: FEMNIST's writers, or those of a table, of folders or an npz file",
        f"{_RULES}.natural:by_owner",
    ),
    "by_attribute": Row(
        "groups of clients hold images with one attribute each (PACFL: CelebA)", f"{_RULES}.natural:by_attribute"
    ),
}
