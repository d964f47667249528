"""Every name that a user can write, and what it stands for. Imports nothing heavy: `tffcl list` answers at once.

The library's kinds are here; the lab adds its own by `add`, and installed packages theirs by entry points of the groups
"tffcl.algorithms", "tffcl.models", "tffcl.datasets", "tffcl.partitions", "tffcl.signatures" and "tffcl.aggregations".
"""

import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tffcl.choices import GROUPINGS, SOFT
from tffcl.errors import UserError, unknown
from tffcl.references import in_a_line, is_reference, load_reference
from tffcl.validation import Parameters, from_table

ANY = "any"  # a key of `Row.refuses`


@dataclasses.dataclass(frozen=True)
class Row:
    """What a name stands for.

    Attributes:
      summary: What it is, in one line.
      place: Its builder, "module:function"; "" if it has none, as the plain mean.
      parameters: The class of its keys in a task file, "module:class"; "" if its keys are the builder's keyword-only
        parameters, or if it has none.
      takes: The names of what its builder takes from a run, if the run has it.
      needs: The names of what its builder takes from a run and cannot do without.
      clustering: The builder of a method's grouping before training, "module:function"; "" for methods without one.
      sgd: Why its clients must train by SGD, and keys of local training that it cannot have; empty if any optimizer
        will do. See `LocalTraining.require_sgd`.
      refuses: Aggregations, or rules of "robust", that a method or a training cannot have, with the reason; `ANY`
        stands for all but the mean.
      method: The method that groups clients by a signature; "" for signatures that only composed methods have.
      foreign: Where a builder that is not tffcl's own was named, for messages; "" for tffcl's own.
    """

    summary: str
    place: str = ""
    parameters: str = ""
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    clustering: str = ""
    sgd: tuple[str, ...] = ()
    refuses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    method: str = ""
    foreign: str = ""

    def builder(self) -> Callable:
        """Imports its builder."""
        return load_reference(self.place, where=self.foreign) if self.foreign else _object(self.place)

    def clustering_builder(self) -> Callable | None:
        """Imports the builder of its grouping before training; None for methods without one."""
        return _object(self.clustering) if self.clustering else None

    def parameter_class(self) -> type[Parameters] | None:
        """Imports the class of its keys; None if it has none."""
        return _object(self.parameters) if self.parameters else None


def _object(place: str) -> Any:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


COMPOSED = "composed"  # the method that groups clients by any signature
PLAIN = "fedavg"  # the method that is used if any would do
# Notes on runs with known groups, whose clusters do not show whether groups can be found.
ORACLE = "clients are in their true groups, which no method that has to find them may know: an upper bound"
GIVEN = "clients are in the groups that were given; nothing had to find them"

_STEPS = {
    "dp": "FedNova's clients upload their numbers of steps beside the updates, which dp does not hide; "
    "secure_sum hides both"
}
# Of FedSoft and of the grouping "soft".
_BY_WEIGHTS = {
    **dict.fromkeys(
        ("dp", "uniform_mean", "median", "trimmed_mean", "multi_krum"),
        "its clusters' models are means by the clients' weights in them, and there all clients count the same",
    ),
    "secure_sum": "a sum in which one client weighs nearly all is its upload",
}
_OF_SGD = {
    "fednova": ("counts what a step of SGD is worth",),
    "scaffold": ("takes control variates from steps of SGD",),
    "per_fedavg": ("takes steps by α and β", "learning_rate_decay", "clip_norm", "clients"),
}


# Where the classes of keys are.
_OF_METHODS, _OF_TRAININGS = "tffcl.algorithms.parameters", "tffcl.algorithms.training_parameters"
_OF_EACH_ROUND = "tffcl.algorithms.each_round_parameters"
_OF_SIGNATURES, _OF_AGGREGATIONS = "tffcl.signatures.parameters", "tffcl.aggregators.parameters"


def _method(
    name: str, keys: str, summary: str, *, file: str = "", of: str = _OF_METHODS, clusters: bool = False, **columns
) -> tuple[str, Row]:
    """Returns a method's name and row. Its file has its name unless `file` is given; with `clusters`, it groups clients
    before training."""
    module = f"tffcl.algorithms.{file or name}"
    clustering = f"{module}:group_{name}" if clusters else ""
    return name, Row(summary, f"{module}:build_{name}", keys and f"{of}:{keys}", clustering=clustering, **columns)


def _signature(name: str, keys: str, summary: str, place: str = "", method: str = "") -> tuple[str, Row]:
    """Returns a signature's name and row; one that `algorithms.composed` builds itself has no place."""
    return name, Row(summary, place, keys and f"{_OF_SIGNATURES}:{keys}", method=method)


# fmt: off
ALGORITHMS: Mapping[str, Row] = dict([
    _method("pacfl", "PACFLParameters", "PACFL: clusters by principal angles between data subspaces, before training "
            "(AAAI 2023)",
            takes=("noise_seed",), file="presets", clusters=True),
    _method("composed", "ComposedParameters", "a signature, a metric, a grouping and a local training of your choice, "
            "also where no paper has it",
            takes=("seed", "server_images", "find_encoder", "noise_seed"), clusters=True),
    _method("flis_dc", "FLISDCParameters", "FLIS (DC): joint clusters by inference similarity on server data, anew "
            "in every round (2022)",
            of=_OF_EACH_ROUND, needs=("server_images",),
            refuses={ANY: "its server clusters the clients' models in every round, so that it needs each of them"}),
    _method("flis_hc", "FLISHCParameters", "FLIS (HC): hierarchical clusters by inference similarity on server data, "
            "after a warm-up (2022)",
            takes=("seed",), needs=("server_images",), file="presets", clusters=True),
    _method("ifca", "IFCAParameters", "IFCA: K models, every client takes the one of least loss (NeurIPS 2020)",
            of=_OF_EACH_ROUND, takes=("seed",)),
    _method("rr_cluster", "RRClusterParameters", "RR-Cluster: IFCA whose clusters have a least size by random moves, "
            "for dp (2025)",
            of=_OF_EACH_ROUND, takes=("seed",)),
    _method("r_dpcfl", "RDPCFLParameters", "R-DPCFL: a Gaussian mixture of noised updates draws each client's cluster, "
            "until losses decide (TMLR 2025)",
            of=_OF_EACH_ROUND, takes=("seed", "noise_seed")),
    _method("flt", "FLTParameters", "FLT: clients related by what an encoder makes of their data, joint or disjoint "
            "clusters (TNNLS 2022)",
            takes=("encoder", "seed", "noise_seed"), clusters=True,
            refuses={ANY: "its server relates clients and mixes their models itself, for which it needs each model"}),
    _method("pca_km_hc", "PCAKMHCParameters", "PCA+kM+HC: clusters by k-means centres of PCA projections, before "
            "training (FLT's baseline)",
            takes=("seed", "noise_seed"), file="presets", clusters=True),
    _method("cfl", "CFLParameters", "CFL: a cluster that stands still while members move is split by the cosines of "
            "their updates (TNNLS 2021)",
            of=_OF_EACH_ROUND,
            refuses={ANY: "its server compares the clients' updates, so that it needs each of them"}),
    _method("fedsem", "FedSEMParameters", "FedSEM: k-means on the clients' models in every round (2021)",
            of=_OF_EACH_ROUND, takes=("seed",),
            refuses={ANY: "its server clusters the clients' models, so that it needs each of them"}),
    _method("fedclust", "FedClustParameters", "FedClust: clusters by the last layer's weights after a local warm-up "
            "(2024)",
            takes=("seed",), file="presets", clusters=True),
    _method("flhc", "FLHCParameters", "FL+HC: clusters by the clients' updates after some rounds of FedAvg (IJCNN "
            "2020)",
            takes=("seed",), file="presets", clusters=True),
    _method("clove", "CLoVEParameters", "CLoVE: K models, clients clustered by their losses under all of them in "
            "every round (2025)",
            of=_OF_EACH_ROUND, takes=("seed",)),
    _method("flux", "FLUXParameters", "FLUX: clusters by descriptors of the data under a warmed-up model; newcomers "
            "need no labels (NeurIPS 2025)",
            of=_OF_EACH_ROUND),
    _method("feddrift", "FedDriftParameters", "FedDrift: a client whose loss rises opens a model; models that do well "
            "on each other's data merge (AISTATS 2023)",
            of=_OF_EACH_ROUND),
    _method("fedgwc", "FedGWCParameters", "FedGWC: clusters are split by how clients' losses go beside those of others "
            "(ICML 2025)",
            of=_OF_EACH_ROUND, takes=("seed",),
            refuses={each: "its clients tell the server the losses of their epochs, which that does not hide"
                     for each in ("dp", "secure_sum")}),
    _method("stocfl", "StoCFLParameters", "StoCFL: clusters merge by gradients at an anchor as clients become known, "
            "models held near a global one (2023)",
            of=_OF_EACH_ROUND, takes=("seed", "noise_seed"), clusters=True,
            refuses={each: "its clusters come and go, so that it cannot run once for each of them"
                     for each in ("dp", "secure_sum", "clipping")}),
    _method("fedem", "FedEMParameters", "FedEM: every client's data are a mixture of K distributions, and its answers "
            "those of K models (NeurIPS 2021)", of=_OF_EACH_ROUND, takes=("seed",)),
    _method("fedrc", "FedRCParameters", "FedRC: a mixture of K models that parts clients by what labels mean, not by "
            "which they have (ICML 2024)", of=_OF_EACH_ROUND, takes=("seed",),
            refuses={"dp": "its clients upload their numbers of labels beside the updates, which dp does not hide; "
                     "secure_sum hides both"}),
    _method("fedsoft", "FedSoftParameters", "FedSoft: clients near several clusters train one model held near theirs "
            "(AAAI 2022)", of=_OF_EACH_ROUND, takes=("seed",),
            refuses=_BY_WEIGHTS),
    _method("fedprox", "FedProxParameters", "FedProx: FedAvg whose local training is held near the global model "
            "(MLSys 2020)", of=_OF_TRAININGS, file="fedavg"),
    _method("fednova", "FedNovaParameters", "FedNova: FedAvg of updates per step's worth of training (NeurIPS 2020)",
            of=_OF_TRAININGS, sgd=_OF_SGD["fednova"], refuses=_STEPS),
    _method("scaffold", "ScaffoldParameters", "SCAFFOLD: FedAvg whose local steps are corrected by control variates "
            "(ICML 2020)", of=_OF_TRAININGS, sgd=_OF_SGD["scaffold"]),
    _method("lg_fedavg", "LGFedAvgParameters", "LG-FedAvg: clients keep their first layers and share the last ones "
            "(2020)", of=_OF_TRAININGS),
    _method("per_fedavg", "PerFedAvgParameters", "Per-FedAvg: a model from which one local step makes a good one "
            "(NeurIPS 2020)", of=_OF_TRAININGS, sgd=_OF_SGD["per_fedavg"]),
    _method("ditto", "DittoParameters", "Ditto: a personal model for every client, held near the global one (ICML "
            "2021)", of=_OF_TRAININGS),
    _method("kfed", "KFedParameters", "k-FED: clusters by k-means on the clients' own k-means centres, before training "
            "(ICML 2021)",
            takes=("seed", "noise_seed"), file="presets", clusters=True),
    _method("emd_cfl", "EMDCFLParameters", "EMD-CFL: clusters by the 1-Wasserstein distance of what a warmed-up model "
            "makes of the data (2025)",
            takes=("seed",), file="presets", clusters=True),
    _method("fedgroup", "FedGroupParameters", "FedGroup: clusters by decomposed cosines of updates after a "
            "pre-training (2021; FlexCFL, TPDS 2022)",
            takes=("seed",), clusters=True),
    _method("given", "GivenParameters", "FedAvg inside groups that are known; with the true groups, which no method "
            "may know, the oracle and upper bound"),
    _method("fedavg", "", "FedAvg: one global model (McMahan et al. 2017)"),
    _method("solo", "", "SOLO: every client trains alone, nothing is sent",
            refuses={ANY: "its clients upload nothing"}),
])

# What clients report before training, and how it is compared.
SIGNATURES: Mapping[str, Row] = dict([
    _signature("subspace", "SubspaceSignatureParameters", "the first singular vectors of the data (PACFL); by "
               "principal angles", method="pacfl"),
    _signature("inference", "InferenceParameters", "what a warmed-up model says of the server's images (FLIS); by "
               "agreement", method="flis_hc"),
    _signature("pca_centres", "PCACentresSignatureParameters", "k-means centres of PCA projections (FLT's baseline); "
               "by distances of centres", method="pca_km_hc"),
    _signature("embedding", "EmbeddingSignatureParameters", "k-means centres of an encoder's embeddings (FLT); by "
               "distances of centres", method="flt"),
    _signature("centres", "CentresParameters", "k-means centres of the examples as they are (k-FED); by distances of "
               "centres"),
    _signature("outputs", "OutputsParameters", "a model's outputs of some examples (EMD-CFL); by the 1-Wasserstein "
               "distance"),
    _signature("anchor_gradient", "AnchorGradientSignatureParameters", "the gradient at the initial model (StoCFL); by "
               "cosines", method="stocfl"),
    _signature("descriptors", "", "moments of the model's outputs, over all data and by class (FLUX)",
               "tffcl.signatures.predictions:build_descriptors"),
    _signature("partial_weights", "PartialWeightsParameters", "the last layer's weights after a local warm-up "
               "(FedClust)", method="fedclust"),
    _signature("label_histogram", "LabelHistogramParameters", "the shares of the labels",
               "tffcl.signatures.label_histogram:build_label_histogram"),
])
# What a cluster's members do with its model; each builds an engine of `(model, training, [parameters,] *,
# aggregation)`.
TRAININGS: Mapping[str, Row] = {
    "sgd": Row("the cluster's model by [train]'s optimizer, and nothing beside it (FedAvg's)",
               "tffcl.algorithms.clustered_training:build_clustered_training"),
    "proximal": Row("held near the cluster's model (FedProx's)", "tffcl.algorithms.fedavg:build_proximal_training",
                    f"{_OF_TRAININGS}:FedProxParameters"),
    "fednova": Row("updates are averaged per step's worth of training (FedNova's)",
                   "tffcl.algorithms.fednova:build_normalized_training", f"{_OF_TRAININGS}:FedNovaParameters",
                   sgd=_OF_SGD["fednova"], refuses=_STEPS),
    "scaffold": Row("steps are corrected by control variates (SCAFFOLD's)",
                    "tffcl.algorithms.scaffold:build_controlled_training", f"{_OF_TRAININGS}:ScaffoldParameters",
                    sgd=_OF_SGD["scaffold"]),
    "ditto": Row("a model of the client's own beside the cluster's, held near it (Ditto's)",
                 "tffcl.algorithms.ditto:build_personal_training", f"{_OF_TRAININGS}:DittoParameters"),
    "lg_fedavg": Row("some layers stay with the client, the others are shared (LG-FedAvg's)",
                     "tffcl.algorithms.lg_fedavg:build_partly_shared_training", f"{_OF_TRAININGS}:LGFedAvgParameters"),
    "per_fedavg": Row("a start from which one step of adaptation makes a good model (Per-FedAvg's)",
                      "tffcl.algorithms.per_fedavg:build_meta_training", f"{_OF_TRAININGS}:PerFedAvgParameters",
                      sgd=_OF_SGD["per_fedavg"]),
}

_FACTORIES = "tffcl.aggregators"

# How the updates inside a cluster are aggregated; each builds a factory of `([parameters,] *, ...)`.
AGGREGATIONS: Mapping[str, Row] = {
    "mean": Row("the mean, weighted by examples"),
    "uniform_mean": Row("the plain mean of the clients' models, each counts the same",
                        f"{_FACTORIES}.clustered_mean:UniformClusteredMeanFactory"),
    "secure_sum": Row("the mean, weighted by examples, by secure sums: the server sees no client's update",
                      f"{_FACTORIES}.secure_mean:SecureClusteredMeanFactory",
                      f"{_OF_AGGREGATIONS}:SecureSumParameters"),
    "dp": Row("differentially private: clipped updates, noised sums and counts",
              f"{_FACTORIES}.private_mean:PrivateClusteredMeanFactory", f"{_OF_AGGREGATIONS}:DPParameters",
              takes=("seed",)),
    "compression": Row("updates in few bits, with a range for each layer",
                       f"{_FACTORIES}.compressed_mean:CompressedClusteredMeanFactory",
                       f"{_OF_AGGREGATIONS}:CompressionParameters", takes=("seed", "layers")),
    "robust": Row("against malicious clients: clipping, median, trimmed mean or multi-Krum; not private",
                  f"{_FACTORIES}.robust_means:build_robust_mean", f"{_OF_AGGREGATIONS}:RobustParameters"),
}

_CLASSIFIERS = "tffcl.models.classifiers"
MODELS: Mapping[str, Row] = {
    "lenet5": Row("LeNet-5, 44,426 parameters on 28x28x1 with 10 classes (PACFL Table 10)",
                  f"{_CLASSIFIERS}:build_lenet5"),
    "mlp": Row("one hidden layer of `hidden` ReLU units, default 200: 159,010 parameters on 28x28x1 with 10 classes; "
               "any image size, and tables", f"{_CLASSIFIERS}:build_mlp"),
    "resnet9": Row("ResNet-9 with GroupNorm, 6,621,540 parameters on 32x32x3 with 100 classes (PACFL Table 11)",
                   f"{_CLASSIFIERS}:build_resnet9"),
    "leaf_cnn": Row("LEAF's CNN, 6,603,710 parameters on 28x28x1 with 62 classes (FLT, scenarios 3 and 4)",
                    f"{_CLASSIFIERS}:build_leaf_cnn"),
    "stocfl_femnist_cnn": Row("StoCFL's CNN with dropout for FEMNIST, 1,206,590 parameters on 28x28x1 with 62 classes",
                              f"{_CLASSIFIERS}:build_stocfl_femnist_cnn"),
    "stocfl_cifar_cnn": Row("StoCFL's CNN for CIFAR-10, 52,202 parameters on 32x32x3 with 10 classes (62,006 with "
                            "`dense_layers` 3)", f"{_CLASSIFIERS}:build_stocfl_cifar_cnn"),
    "char_lstm": Row("an embedding and LSTM layers for next characters, 25,769 parameters with 97 characters",
                     f"{_CLASSIFIERS}:build_char_lstm"),
}
# fmt: on


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of names.

    Attributes:
      rows: Returns a mapping of names to what they stand for.
      given: What a run gives to the builders of this kind, and a task file may not.
    """

    rows: Callable[[], Mapping[str, Row]]
    given: tuple[str, ...] = ()


_KINDS: dict[str, Kind] = {
    "algorithms": Kind(
        lambda: ALGORITHMS, ("seed", "server_images", "encoder", "find_encoder", "noise_seed", "aggregation")
    ),
    "models": Kind(lambda: MODELS, ("input_shape", "num_classes", "normalization", "seed")),
    "signatures": Kind(lambda: SIGNATURES, ("training", "seed", "server_images", "find_encoder", "noise_seed")),
    "groupings": Kind(
        lambda: {name: Row(text, refuses=_BY_WEIGHTS if name == SOFT else {}) for name, text in GROUPINGS.items()}
    ),
    "trainings": Kind(lambda: TRAININGS),
    "aggregations": Kind(lambda: AGGREGATIONS, ("seed", "layers")),
}


def add(kind: str, rows: Callable[[], Mapping[str, Row]], *, given: tuple[str, ...] = ()):
    """Adds a kind of names, or replaces it.

    Args:
      kind: As `tffcl list` calls it, e.g. "datasets".
      rows: See `Kind`.
      given: See `Kind`.
    """
    _KINDS[kind] = Kind(rows, given)


def kinds() -> tuple[str, ...]:
    """The kinds of names that there are, as `tffcl list` calls them."""
    return tuple(_KINDS)


def given(kind: str) -> tuple[str, ...]:
    """What a run gives to the builders of a kind, see `Kind`."""
    return _KINDS[kind].given


def noun(kind: str) -> str:
    """Returns the noun of a kind, "algorithm" for "algorithms"; the table of one in a task file has it as its name."""
    return "study" if kind == "studies" else kind.removesuffix("s")


def rows(kind: str) -> dict[str, Row]:
    """Returns all names of a kind, tffcl's own before those of installed packages."""
    found = dict(_KINDS[kind].rows())
    for name, place in registered(kind).items():
        found.setdefault(name, Row(f"{place}, of an installed package", place, foreign=f"{noun(kind)} {name}"))
    return found


@functools.cache
def registered(kind: str) -> Mapping[str, str]:
    """Returns what installed packages have registered as entry points of a kind's group, name to "module:function"."""
    return {each.name: each.value for each in importlib.metadata.entry_points(group=f"tffcl.{kind}")}


def find(kind: str, name: object, *, table: str | None = None, key: str | None = None) -> Row:
    """Returns what a name stands for.

    Args:
      kind: See `kinds`.
      name: What the user gave.
      table: See `UserError`.
      key: See `UserError`.

    Raises:
      UserError: If there is no such name; the message gives the nearest one.
    """
    known = rows(kind)
    if not isinstance(name, str) or name not in known:
        raise unknown(noun(kind), name, known, listed=kind, table=table, key=key)
    return known[name]


def find_in_table(kind: str, table: Mapping) -> tuple[str, Row, dict]:
    """Finds what a table of a task file names.

    Args:
      kind: See `kinds`; the table's name is one of that kind.
      table: Its `name` is a name of that kind, or its `builder` is "module:function"; the other keys are options.

    Returns:
      `(name, row, options)`, the name for messages.

    Raises:
      UserError: For an unknown name, a builder that cannot be imported, or a table with both or neither of the two.
    """
    options, one = dict(table), noun(kind)
    name, builder = options.pop("name", None), options.pop("builder", None)
    if builder is not None and name is not None:
        raise UserError(f"{one} has name and builder; give one of the two", table=one, key="builder")
    if builder is not None:
        row = Row("", builder, foreign=f"{one}.builder")
        row.builder()  # raises UserError if something is wrong with it
        return builder, row, options
    if name is None:
        raise UserError(f"{one} has no 'name' (allowed: {', '.join(sorted(rows(kind)))})")
    return name, find(kind, name, table=one, key="name"), options


def parameters_of(cls: type[Parameters] | None, values: Mapping, where: str) -> Parameters | None:
    """Makes the parameters of what a name stands for.

    Args:
      cls: Their class, see `Row.parameter_class`.
      values: The user's keys.
      where: The name of their table, for messages.

    Returns:
      The parameters; None if it has none.

    Raises:
      UserError: For an unknown key or a wrong value.
    """
    if cls is not None:
        return from_table(cls, values, where)
    if values:
        found = sorted(values)
        raise UserError(f"{where} has no parameters of its own; found {', '.join(found)}", table=where, key=found[0])
    return None


def made_by(kind: str, name: str, function: Callable, wanted: type | None, /, *args, **kwargs):
    """Returns what the builder of a row makes.

    Args:
      kind: See `kinds`.
      name: As `find_in_table` returned it.
      function: The row's builder.
      wanted: The class of what it must make; None for anything.
      *args: The function's arguments.
      **kwargs: The same by name; `seed`, `data_dir` and `normalization` are passed only if it takes them.

    Raises:
      UserError: If the function is the user's and fails, or makes something else.
    """
    taken, one = inspect.signature(function).parameters, noun(kind)
    optional = ("seed", "data_dir", "normalization")
    kwargs = {key: value for key, value in kwargs.items() if key in taken or key not in optional}
    try:
        made = function(*args, **kwargs)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's own function raises
        if not is_reference(name) and name not in registered(kind):
            raise
        reason = in_a_line(error, getattr(sys.modules.get(function.__module__), "__file__", None))
        raise UserError(f"{one} {name} failed: {reason}", table=one, key="builder") from error
    if wanted is not None and not isinstance(made, wanted):
        made = type(made).__name__
        raise UserError(f"{one} {name} gave {made}; it must give a tffcl.{wanted.__name__}", table=one, key="builder")
    return made


def aggregation(name: str, **options):
    """Builds an aggregation by its name, for `aggregation=` of the methods' builders.

    Args:
      name: "mean", "uniform_mean", "secure_sum", "dp", "compression" or "robust".
      **options: The keys of its table in a task file, see `tffcl list aggregations NAME`. "dp" and "compression" also
        take `seed`, which makes their randomness repeatable; simulations may need it, deployments must not have it.
        "compression" also takes `layers`, the numbers of parameters of the parts that have a range each.

    Returns:
      A weighted aggregation factory over keyed uploads; None for the mean, which is the default of methods.

    Raises:
      UserError: For an unknown name or key, or a wrong value.
    """
    row = find("aggregations", name, table="aggregation", key="name")
    taken = {key: options.pop(key) for key in row.takes if key in options}
    parameters = parameters_of(row.parameter_class(), options, "aggregation")
    if not row.place:
        return None
    return row.builder()(*(() if parameters is None else (parameters,)), **taken)
