"""Builds the parts of a run from its configuration: data, model and method. Also loads a run, with its data and models,
from its directory."""

import dataclasses
import os
import pathlib

import numpy as np

from tffcl import runtime
from tffcl.aggregators.clustered_mean import keyed_factory
from tffcl.aggregators.upload_attacks import AttackedFactory
from tffcl.algorithms.method import Method
from tffcl.algorithms.one_shot import OneShotClustering
from tffcl.clients.client_state import KeptStore
from tffcl.clients.cohort import stream
from tffcl.clients.simulation_context import simulating
from tffcl.errors import RESUME, UserError
from tffcl.lab.datasets import storage
from tffcl.lab.datasets.core import FederatedDataset
from tffcl.lab.datasets.federated import load_federated
from tffcl.lab.tasks.populations import drifted_in, population_in
from tffcl.lab.tasks.resolve import RunConfig, check_config, load_own, load_run_config
from tffcl.lab.tasks.settings import OF_UPLOADS
from tffcl.models.flat import FlatModel
from tffcl.registry import aggregation, find_in_table, made_by
from tffcl.runs import fingerprint
from tffcl.runs.checkpoints import ANEW, Checkpoints, Foreign
from tffcl.runs.population_changes import names_of, taken_by
from tffcl.runs.privacy import Ledger
from tffcl.runs.result import Trained
from tffcl.runs.run_directory import CHECKPOINTS, CLIENT_STATES, LEDGER, RunDirectory

_loaded: list = []  # [key, data] of the last load: the runs of a comparison share their data


def load_data(config: RunConfig, data_dir: str | None = None) -> FederatedDataset:
    """Loads a task's data, partitioned among clients by the run's seed."""
    check_config("config", config)
    joining = (config.newcomers, config.seed) if config.newcomers.any else ()
    _use_own(config)
    tables = dict(config.dataset), dict(config.partition)
    drawn = stream(config.seed, "partition")
    places = storage.resolve(data_dir), config.directory, _written(config.dataset.get("path"))
    wanted = (*tables, drawn, joining, places)
    if wanted not in _loaded[:1]:
        _loaded.clear()  # two data sets at a time could need too much memory
        found = load_federated(*tables, seed=drawn, data_dir=data_dir, participants=config.participants)
        _loaded[:] = wanted, found
    return _loaded[1]


def _written(path: object) -> list[tuple]:
    """Sizes and times of the user's own files, which a notebook may write anew between two runs."""
    place = storage.expanded(path).absolute() if isinstance(path, str) else None
    there = [place, *sorted(place.rglob("*"))] if place and os.path.exists(place) else []  # the loader reports it
    return [(each, (about := each.lstat()).st_size, about.st_mtime_ns) for each in there]


def _use_own(config: RunConfig):
    """Imports the task's own builders from its directory; another task may have modules of the same names."""
    if config.directory:
        load_own(config.as_dict(), config.directory)


def data_fingerprint(federated) -> dict[str, str]:
    """Fingerprints of a task's data, including those of newcomers and of the server, see `runs.fingerprint`."""
    found = {}
    for name, images in (("training", federated.train), ("test", federated.test), ("the server's", federated.server)):
        if images is not None:
            found |= {
                f"{name} images": fingerprint.of_array(images.x),
                f"{name} labels": fingerprint.of_array(images.y),
            }
    for name, kind in (("training", "train"), ("test", "test"), ("validation", "validation")):
        if held := getattr(federated, f"{kind}_indices"):
            found[f"the clients' shares of {name} examples"] = fingerprint.of_parts(held)
    return {"clients": str(federated.num_clients), **found}


def build_model(config: RunConfig, federated) -> FlatModel:
    """Builds the task's model for the data's shape; the run's seed decides the initial weights.

    Raises:
      UserError: If a user's own builder gives no `FlatModel`, or one for other examples or too few classes. Labels of
        another kind are reported by `tffcl.train`, as for a population that was made in Python.
    """
    _use_own(config)
    name, row, options = find_in_table("models", config.model)
    shape, classes = federated.train.x.shape[1:], federated.num_classes
    # Numbers that are not images reach the model unchanged.
    normal = (np.asarray(federated.mean), np.asarray(federated.std)) if federated.train.are_images else None
    given = {"normalization": normal, "seed": stream(config.seed, "model")}
    model = made_by("models", name, row.builder(), FlatModel, shape, classes, **given, **options)
    takes, has = model.example_spec["x"], federated.train.x
    few = None not in (model.num_classes, classes) and model.num_classes < classes
    if few or (takes.dtype.as_numpy_dtype, tuple(takes.shape)) != (has.dtype.type, shape):
        wanted = f"{takes.dtype.name} {takes.shape.as_list()} of {_labels_in_words(model.num_classes)}"
        held = f"{has.dtype} {list(shape)} of {_labels_in_words(classes)}"
        raise UserError(f"model {name} takes {wanted}; {federated.name} has {held}")
    return model.with_metrics(config.evaluation.metrics) if config.evaluation.metrics else model


def _labels_in_words(classes: int | None) -> str:
    return "numbers" if classes is None else f"{classes} classes"


def _given(config: RunConfig, federated, data_dir: str | None, *, simulated: bool = True) -> dict:
    """The values that the method's builder needs beside model, training and parameters."""
    server, method = federated.server, config.method

    def find(encoder: str, **options):
        from tffcl.lab.tasks.encoders import find_encoder

        return find_encoder(encoder, federated.train.x.shape[1:], data_dir=data_dir, **options)

    def find_own():
        how = {"epochs": method.encoder_epochs, "examples": method.encoder_examples, "latent": method.latent}
        return find(method.encoder, **how)

    values = {
        "server_images": lambda: None if server is None else server.x,
        "seed": lambda: stream(config.seed, config.base or config.algorithm),
        "encoder": find_own,
        "find_encoder": lambda: find,
        "noise_seed": lambda: stream(config.seed, "signature noise") if simulated else None,
        "aggregation": lambda: None,
    }
    return {name: values[name]() for name in config.method_source.needs}


def build_method(
    config: RunConfig, model: FlatModel, federated, data_dir: str | None = None, *, simulated: bool = False
) -> Method:
    """Builds the configured method; FLT's encoder is read from the data directory, and kept there.

    Args:
      config: The run.
      model: The model to train.
      federated: The data of the run.
      data_dir: Where data sets are.
      simulated: True for a run: its noise repeats with its seed, and its malicious clients attack. False for the method
        as it would be deployed: with fresh noise, and without simulated attacks.
    """
    given = _given(config, federated, data_dir, simulated=simulated)
    factory = build_aggregation(config, model, simulated=simulated)
    malicious = config.attack.malicious(config.participants(federated.num_clients), config.seed)
    if simulated and len(malicious) and config.attack.kind in OF_UPLOADS:
        factory = AttackedFactory(factory, config.attack.kind, malicious, config.attack.strength)
    return config.method_source.build(model, config.train.local, config.method, given, factory)


def build_aggregation(config: RunConfig, model: FlatModel | None = None, *, simulated: bool = False):
    """Builds the factory that [aggregation] describes; None for the method's own mean.

    In simulations the factory's noise repeats with the seed.

    Raises:
      UserError: If a user's own builder gives no aggregation factory.
    """
    if not config.aggregation:
        return None
    _use_own(config)
    name, row, options = find_in_table("aggregations", config.aggregation)
    if not row.foreign:
        given = {
            "seed": stream(config.seed, "aggregation") if simulated else None,
            # The number of parameters of each layer, in order.
            "layers": model and tuple(part.stop - part.start for part in model.layer_slices().values()),
        }
        return aggregation(name, **options, **{key: given[key] for key in row.takes})
    factory = made_by("aggregations", name, row.builder(), None, **options)
    if factory is None:  # None would mean the plain mean, but a function without `return` gives it, too
        wanted = 'an aggregation factory, or "mean"'
        raise UserError(f"aggregation {name} gave None; it must give {wanted}", table="aggregation", key="builder")
    keyed_factory(factory)  # raises a UserError if it is no aggregation factory
    return factory


def build_clustering(config: RunConfig, model: FlatModel, federated, data_dir: str | None = None) -> OneShotClustering:
    """Builds the clustering of a method that clusters before training."""
    own = () if config.method is None else (config.method,)
    build, given = config.method_source.clustering_builder, _given(config, federated, data_dir)
    assert build, f"{config.algorithm} does not cluster before training"
    return build(model, config.train.local, *own, **given)


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedRun(Trained):
    """A run of a task at its newest checkpoint.

    Attributes:
      config: The configuration of the run.
      federated: The data of each client in that round.
      ledger: The private releases about the clients up to that round, without a file.
    """

    config: RunConfig
    federated: FederatedDataset
    ledger: Ledger


def load_run(
    out: str | pathlib.Path,
    *,
    data_dir: str | None = None,
    trust_builders: bool | RunConfig = False,
    simulated: bool = False,
) -> TrainedRun:
    """Loads a run with its data and the state of its newest checkpoint.

    Args:
      out: The directory of one run.
      data_dir: Where data sets are; default as in `datasets`.
      trust_builders: As in `resolve.load_run_config`; by default a run that names somebody's own functions is refused.
      simulated: As in `build_method`: whether noise follows from the run's seed and malicious clients attack.

    Raises:
      UserError: If `out` holds no run or no checkpoint, the newest checkpoint is damaged or missing, or the data or the
        settings have changed since. An older checkpoint is not used: the run's results belong to other models.
    """
    directory = RunDirectory(out)
    out = directory.path
    config = load_run_config(out, trust_builders=trust_builders)
    checkpoints = Checkpoints(directory / CHECKPOINTS, run=directory.run_name)
    newest = checkpoints.latest()
    if newest is None:
        raise UserError(f"{out} has no checkpoint; a run with {RESUME} makes one")
    if newest > config.train.rounds:
        raise UserError(
            f"{out} has a checkpoint of round {newest}, but the run has {config.train.rounds}; it is of another run"
        )
    summary = directory.summary()
    if summary is not None and newest < summary["rounds"]:
        last = summary["rounds"]
        raise UserError(f"the checkpoint of round {last} in {out} is missing; {_again(newest)}")
    federated = load_data(config, data_dir)
    fingerprint.check_same_data(directory, data_fingerprint(federated))
    method = build_method(config, build_model(config, federated), federated, data_dir, simulated=simulated)
    directory.tell_edits(fingerprint.of_own_modules(method, config.as_dict()))
    runtime.use_local_worker()
    with simulating(client_states=KeptStore(directory / CLIENT_STATES, run=directory.run_name)):
        state, totals = _newest(checkpoints, method.state_class)
    ledger = _ledger(config, federated, out, totals.releases)
    population = taken_by(method.model, population_in(config, federated, newest))
    state = method.choose(state, population.evaluated)  # a checkpoint between two evaluations holds older choices
    federated, _ = drifted_in(config, federated, newest)
    return TrainedRun(method, state, population, newest, names_of(population), config, federated, ledger)


def _newest(checkpoints: Checkpoints, state_class: type):
    *before, newest = checkpoints.rounds()
    try:
        return checkpoints.load(newest, state_class)
    except UserError as error:
        if not before or isinstance(error, Foreign):  # the checkpoints before it are foreign, too
            raise
        raise UserError(f"{str(error).removesuffix(str(ANEW))}; {_again(before[-1])}") from None


def _ledger(config: RunConfig, federated: FederatedDataset, out: pathlib.Path, then: np.ndarray) -> Ledger:
    """The ledger of the run at its newest checkpoint. Releases that no seed repeats count even if their rounds were
    lost."""
    everyone = population_in(config, federated, config.train.rounds)
    ledger = Ledger(config.privacy, len(everyone), then)
    ledger.file = out / LEDGER
    ledger.read_file()
    ledger.check_holds(then, "the newest checkpoint")
    ledger.file = None
    return ledger


def _again(done: int) -> str:
    return f"a run with {RESUME} goes on from round {done} and makes it again"
