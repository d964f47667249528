"""Exports a finished run of a task as files for a TFF deployment, and checks such files.

The check loads and runs every file, and compares its numbers with the library's.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.algorithms.method import Method
from tffcl.client_work.evaluation import build_predict, build_probabilities
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.example_types import as_type
from tffcl.errors import UserError
from tffcl.export import deployment_forms
from tffcl.export.dry_run import difference, rehearse
from tffcl.export.manifest import NAME, read_manifest
from tffcl.export.values_check import check_learned, check_trained, check_values, compared, loaded
from tffcl.export.writer import MODELS, SAVED_MODEL, STATE, check_free, write_export
from tffcl.files import text_cell
from tffcl.lab.tasks import build
from tffcl.lab.tasks.build import load_run
from tffcl.lab.tasks.resolve import RunConfig, load_run_config
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import graph_function
from tffcl.runs import checkpoints
from tffcl.runs.run_directory import RunDirectory

_TRIED_IMAGES = 64
_MOST_EXAMPLES = 20  # of each real client: the numbers need to be equal, not good


def check_export(
    directory: str | pathlib.Path, *, data_dir: str | None = None, trust_builders: bool = False
) -> list[str]:
    """Loads every file of an export, runs it, and compares its numbers with the library's.

    Computations and their forms are run on inputs that the export contains, and compared with the results that the
    library wrote beside them. Where the task's data can be loaded, they are also run on real clients and compared with
    the library's computations of today. Other files are compared where their contents can be computed again.

    Args:
      directory: The directory that `export_run` wrote.
      data_dir: Where data sets are; default as in `datasets`.
      trust_builders: As in `load_run`.

    Returns:
      A line for each file that was run or compared, and one line that names the other files.

    Raises:
      UserError: If a file is damaged, foreign, or gives other numbers; the message names it.
    """
    directory = pathlib.Path(directory)
    manifest = read_manifest(directory)
    of_a_task = "dataset" in RunDirectory(directory).settings()
    config = load_run_config(directory, trust_builders=trust_builders) if of_a_task else None  # before anything runs
    runtime.use_local_worker()
    lines, read = [], {}
    for name, described in manifest["computations"].items():
        read[name] = _read_computation(directory / described["file"], described["type"])
        lines += _check_computation(directory, name, described, read[name])
    lines += check_values(directory, manifest)
    if config is None:
        lines.append(
            "it is of tffcl.train, whose method and data no file holds: not compared with the library on real clients"
        )
    else:
        lines += _check_with_library(directory, manifest, config, data_dir, read)
    left = [
        name for name in manifest["files"] if not name.startswith("check/") and not _has_line(directory, name, lines)
    ]
    return [*lines, f"taken as they are: {', '.join(left)}"]


def _has_line(directory: pathlib.Path, name: str, lines: list[str]) -> bool:
    """Whether a line is about the file, or about a directory that contains it."""
    *above, _ = pathlib.PurePosixPath(name).parents
    return any(line.startswith(f"{directory / place}: ") for line in lines for place in (name, *above))


def _check_computation(directory: pathlib.Path, name: str, described: dict, computation):
    path = directory / described["file"]
    if "check" not in described:
        if computation.type_signature.parameter is not None:
            raise UserError(
                f"{directory / NAME} is damaged: the computation {name} takes values, and there is no check of it"
            )
        computation()
        yield f"{path}: runs"
        return
    signature = computation.type_signature
    given = deployment_forms.read_value(directory / described["check"]["input"], signature.parameter)
    expected = deployment_forms.read_value(directory / described["check"]["output"], signature.result)
    arguments = deployment_forms.from_argument(given, signature.parameter)
    comparing = _compared_noise if "noise" in described["check"] else compared
    yield comparing(
        path, lambda: deployment_forms.run(computation, *arguments), expected, "the library when it was exported"
    )
    for kind, form in described.get("forms", {}).items():
        if "directory" in form:
            place = directory / form["directory"]
            run = functools.partial(_run_form, kind, deployment_forms.read_form(place, kind), signature, arguments)
            yield comparing(place, run, expected, "the whole computation")


def _read_computation(path: pathlib.Path, kind: str):
    computation = deployment_forms.read_computation(path)
    if str(computation.type_signature) != kind:
        raise UserError(f"{path} is a computation of type {computation.type_signature}, the manifest says {kind}")
    return computation


def _run_form(kind: str, parts, signature, arguments):
    state, clients = arguments[0], list(arguments[1])
    if kind == "map_reduce":
        return deployment_forms.run_map_reduce(parts, state, clients)
    return deployment_forms.run_distribute_aggregate(parts, signature, state, clients)


def _compared_noise(path: pathlib.Path, run: Callable, expected, same: str) -> str:
    """Compares what can be compared under noise: equal shapes, finite values, and a difference between two runs."""
    found, again = run(), run()
    shaped, between = difference(expected, found), difference(found, again)
    if not np.isfinite(shaped.largest) or not np.isfinite(between.largest):
        raise UserError(f"{path} gives values of other shapes than {same}, or some that are not finite")
    if not between.largest:
        raise UserError(f"{path} draws no noise: two runs give the same; {same} does")
    return f"{path}: shapes as {same}, and noise drawn anew, so that numbers were not compared"


def _check_with_library(
    directory: pathlib.Path, manifest: dict, config: RunConfig, data_dir: str | None, read: Mapping[str, object]
) -> list[str]:
    """Compares with the method that the task builds, on the task's data.

    `read` holds the computations of the files by name, so that each is compiled only once.
    """
    try:
        federated = build.load_data(config, data_dir)
    except UserError as error:
        return [f"not compared with the library on real clients: no data of task {config.task} ({error})"]
    method = build.build_method(config, build.build_model(config, federated), federated, data_dir)
    try:
        with loaded(directory / STATE) as saved:
            state = checkpoints.unpack(saved, {"state": method.state_class})["state"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{directory / STATE} holds no state of {config.algorithm}: {error}") from None
    lines = list(_check_on_task(directory, manifest, method, state, federated, read))
    names = federated.client_names or range(federated.num_clients)
    lines += check_learned(directory, method, state, lambda client: text_cell(names[client]))
    return [
        *lines,
        _check_saved_model(directory, method.model.whole, _as_taken(method.model, federated.test.x[:_TRIED_IMAGES])),
    ]


def _check_on_task(directory: pathlib.Path, manifest: dict, method: Method, state, federated, read):
    """Runs the files and the library's computations on the same real clients."""

    def examples(client: int) -> ClientExamples:
        some = federated.train.take(federated.train_indices[client][:_MOST_EXAMPLES])
        return ClientExamples(_as_taken(method.model, some.x), some.y)

    context = tff.framework.get_context_stack().current
    computations = method.exports().computations(state)
    given = rehearse(method, computations, state, examples, context)
    for name, arguments in given.items():
        if name not in manifest["computations"]:
            raise UserError(f"{directory / NAME} has no computation {name}, and the library exports one of this method")
        path = directory / manifest["computations"][name]["file"]
        run = functools.partial(deployment_forms.run, read[name], *arguments)
        comparing = _compared_noise if "noise" in manifest["computations"][name].get("check", {}) else compared
        yield comparing(
            path, run, deployment_forms.run(computations[name], *arguments), "the library on clients of the task"
        )
    yield from check_trained(directory, manifest, method, state, given)


def _as_taken(model: FlatModel, x: np.ndarray) -> np.ndarray:
    """Converts examples to the type that the model takes, as a run does."""
    return as_type(x, model.example_spec["x"].dtype.as_numpy_dtype, "the task's examples")


def _check_saved_model(directory: pathlib.Path, model: FlatModel, images: np.ndarray):
    path, models = directory / SAVED_MODEL, loaded(directory / MODELS)
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    spec = model.example_spec["x"]
    x = tf.TensorSpec([None, *spec.shape], spec.dtype)
    name, build = "probabilities", build_probabilities
    if model.objective.probabilities is None:
        name, build = "numbers", build_predict
    answer = graph_function(build(model), tf.TensorSpec([model.size]), x)
    found = [serve(images=tf.constant(images), cluster=tf.constant(row))[name] for row in range(len(models))]
    expected = [answer(vector, images) for vector in models]
    return compared(path, lambda: found, expected, "the library on examples of the task")


def export_run(
    out: str | pathlib.Path, to: str | pathlib.Path, *, data_dir: str | None = None, trust_builders: bool = False
) -> dict:
    """Writes a run's method and what it learned as files.

    The files are those of `export.writer.export_result`.

    Args:
      out: The directory of one run, with a checkpoint.
      to: The directory to write; it must be empty or not exist.
      data_dir: Where data sets are; default as in `datasets`.
      trust_builders: As in `load_run`.

    Returns:
      The contents of manifest.json.

    Raises:
      UserError: If there is no run, `to` is not empty, or `<to>.partial` exists.
    """
    to = pathlib.Path(to)
    check_free(to)
    trained = load_run(out, data_dir=data_dir, trust_builders=trust_builders)
    return write_export(trained, trained.config.as_dict(), to, trained.ledger.summary())
