"""A finished run as files for a TFF deployment; `tffcl export --check` proves that they run."""

import importlib.metadata
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tomli_w

from tffcl import runtime
from tffcl.algorithms.method import Exports, Method
from tffcl.client_work.evaluation import build_mixed_outputs
from tffcl.clients.client_state import KeptStore, write_arrays
from tffcl.clients.simulation_context import simulating
from tffcl.display import counted
from tffcl.errors import UserError, argument
from tffcl.export import deployment_forms
from tffcl.export.deployment_forms import missing_on_devices, operations_of
from tffcl.export.dry_run import difference, rehearse, synthetic_examples
from tffcl.export.manifest import read_manifest, write_manifest
from tffcl.export.phases import SUMMED, TRAININGS, Releases, describe_fields, describe_phases, describe_privacy
from tffcl.files import check_no_link, csv_text, text_cell, write_text
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import graph_function
from tffcl.models.model_rows import assigned
from tffcl.runs import checkpoints
from tffcl.runs.result import Result, Trained
from tffcl.runs.run import Interrupted, chooses_at_evaluations, watch_for_interrupts
from tffcl.runs.run_directory import CLIENT_STATES, CONFIG, RunDirectory
from tffcl.validation import check_kind

_PACKAGES = ("tffcl", "tensorflow-federated", "tensorflow", "numpy")
ASSIGNMENTS, STATE = "clustering/assignments.csv", "clustering/state.npz"
MODELS, SAVED_MODEL = "state/models.npy", "saved_model"
SCRIPT = pathlib.Path(__file__).parent / "run_one_round.py"


def export_result(result: Result, to: str | pathlib.Path) -> dict:
    """Writes the method of a result, and what it learned, as files. This also works for a method, model and data of
    your own.

    No client's examples are written; checks use random images instead. What clients sent (their signatures) and what
    the server broadcasts (an encoder, FLIS's server images) is written.

    | path | what |
    |---|---|
    | `manifest.json` | types, versions, checksums, what runs when, why a form is missing, operations of clients |
    | `computations/NAME/computation.pb` | a serialised `tff.Computation` |
    | `computations/NAME/{map_reduce,distribute_aggregate}/` | its deployment forms, a file for each part |
    | `state/` | server values before the first and after the last round, `models.npy float32 [K, P]` |
    | `saved_model/` | all models for TensorFlow alone, see `save_models` |
    | `clustering/` | `assignments.csv`, without what private rounds hide; `state.npz`: signatures, proximity, tree |
    | `check/` | arguments and results of the computations, for `tffcl export --check` |
    | `run_one_round.py` | a round with TFF alone |

    `tffcl export --check` runs the files. It does not compare them on the clients of a run of `tffcl.train`, because no
    file has their data.

    Args:
      result: The result of `tffcl.train` or `tffcl.run`.
      to: The directory to write; it must not exist, or be empty.

    Returns:
      The contents of manifest.json.

    Raises:
      UserError: If `to` holds something, or `<to>.partial` exists.
    """
    check_kind("result", result, Result, "what tffcl.train or tffcl.run returns")
    check_kind("to", to, (str, os.PathLike), "the path of a directory")
    to = pathlib.Path(to)
    check_free(to)
    directory = RunDirectory(result.out)
    settings = directory.settings()
    now, then = ({**(each or {}), "seconds": None} for each in (directory.summary(), result.summary))
    if now != then:
        raise UserError(
            f"{directory} holds another run since this result was made, or more rounds of it; export what made it last"
        )
    runtime.use_local_worker()
    with simulating(client_states=KeptStore(result.out / CLIENT_STATES)):
        return write_export(result.trained, settings, to, result.summary.get("privacy"))


def check_free(to: pathlib.Path):
    """Raises UserError if an export cannot be written to a directory, or to the temporary directory beside it."""
    check_no_link(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} holds something already; give {argument('to')} a new directory")
    if to.resolve() == pathlib.Path.cwd() or os.path.ismount(to):  # the empty directory would be replaced
        kept = "the directory that you are in, or one where something is mounted"
        raise UserError(f"{to} is {kept}; give {argument('to')} a new directory, e.g. inside of it")
    partial = _partial(to)
    if partial.exists() or partial.is_symlink():
        other = f"remove what a killed export has left, move what is yours, or give another {argument('to')}"
        raise UserError(f"{partial} exists, where the export would be written first; {other}")


def _partial(to: pathlib.Path) -> pathlib.Path:
    return to.with_name(f"{to.name}.partial")


def write_export(trained: Trained, settings: Mapping, to: pathlib.Path, spent: Mapping | None) -> dict:
    """Writes an export, first to a directory beside `to`; a run's settings are `task`, `algorithm`, `seed` and tables.

    `spent` is the `privacy` of the run's summary. An interruption by anything but SIGKILL leaves no files.
    """
    partial = _partial(to)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise _unwritten(to, error) from None
    with watch_for_interrupts() as interrupts:
        try:
            contents = _write(partial, trained, settings, spent)
            write_manifest(partial, contents)
            interrupts.check()
            if to.is_dir():
                to.rmdir()
            partial.replace(to)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(f"stopped; {to} was not written") from None
            if isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError)):  # of a file
                raise _unwritten(to, error) from None
            raise
    return read_manifest(to)


def _unwritten(to: pathlib.Path, error: OSError) -> UserError:
    return UserError(f"{to} cannot be written: {error.strerror or error}")


def _write(directory: pathlib.Path, trained: Trained, settings: Mapping, spent: Mapping | None) -> dict:
    method, state = trained.method, trained.state
    values = {**settings, "versions": {name: importlib.metadata.version(name) for name in _PACKAGES}}
    (directory / CONFIG).write_text(tomli_w.dumps(values), encoding="utf-8")
    context = tff.framework.get_context_stack().current
    exports = method.exports()
    computations = exports.computations(state)
    releases = Releases()
    with simulating(ledger=releases):
        arguments = rehearse(method, computations, state, synthetic_examples(method.model, settings["seed"]), context)
    if exports.summed and "training" in arguments:
        # Clients that are new to the server may found clusters in the rehearsal.
        clusters = max(len(exports.server_values(state)["models"]), len(arguments["training"][0]["models"]))
        computations[SUMMED] = exports.summed(clusters)
        arguments[SUMMED] = _summed_argument(arguments["training"], clusters)
    described = {
        name: _write_computation(directory, name, computation, arguments.get(name), SUMMED in computations)
        for name, computation in computations.items()
    }
    states = _write_states(directory, computations, arguments, exports, state)
    _write_models(directory, trained)
    chosen = _write_clustering(directory, trained, private=releases.hide_clients)
    if TRAININGS & computations.keys():
        shutil.copy(SCRIPT, directory / "run_one_round.py")
    return {
        "task": settings["task"],
        "algorithm": settings["algorithm"],
        "seed": settings["seed"],
        "rounds": trained.round_number,
        "versions": values["versions"],
        "model": _describe_model(trained),
        "phases": describe_phases(method, exports, computations),
        "fields": describe_fields(computations),
        "privacy": {**describe_privacy(releases.found, spent), **chosen},
        "computations": described,
        "values": states,
    }


def _summed_argument(argument: tuple, clusters: int) -> tuple:
    server, clients = argument
    values = {name: value for name, value in server.items() if name != "aggregators"}
    models = np.asarray(values["models"])
    return {**values, "models": np.pad(models, [[0, clusters - len(models)], [0, 0]])}, clients


def _write_computation(directory: pathlib.Path, name: str, computation, argument, has_summed: bool) -> dict:
    """Writes one computation, its forms, and its result for its argument; returns its entry in the manifest."""
    place = directory / "computations" / name
    deployment_forms.write_computation(place / "computation.pb", computation)
    described = {"file": f"computations/{name}/computation.pb", "type": str(computation.type_signature)}
    if argument is None:
        return described
    described["check"] = {"input": f"check/{name}.input.pb", "output": f"check/{name}.output.pb"}
    signature = computation.type_signature
    given = deployment_forms.as_argument(argument, signature.parameter)
    deployment_forms.write_value(directory / described["check"]["input"], given, signature.parameter)
    output = deployment_forms.run(computation, *argument)
    deployment_forms.write_value(directory / described["check"]["output"], output, signature.result)
    # Operations that draw may have no effect, as with a noise multiplier of 0, so two results are compared.
    if (
        deployment_forms.draws_noise(computation)
        and difference(output, deployment_forms.run(computation, *argument)).largest
    ):
        described["check"]["noise"] = "drawn anew in each run"
    described["forms"] = {}
    for kind in deployment_forms.PARTS:
        form, reason = deployment_forms.write_form(place / kind, kind, computation)
        described["forms"][kind] = _describe_form(f"computations/{name}/{kind}", kind, form, reason)
        if kind == "map_reduce" and form:
            counts = operations_of(form.work)
            described["device_operations"] = {"count": counts, "not_in_tflite_select_ops": missing_on_devices(counts)}
        if kind == "distribute_aggregate" and not form and name == "training" and has_summed:
            described["forms"][kind]["instead"] = SUMMED
    return described


def _describe_form(place: str, kind: str, form, reason: str | None) -> dict:
    if form is None:
        return {"impossible": reason}
    return {
        "directory": place,
        "parts": {part: str(getattr(form, part).type_signature) for part in deployment_forms.PARTS[kind]},
    }


def _write_states(directory: pathlib.Path, computations, arguments, exports: Exports, state) -> dict:
    """Writes the server's values: before the first round, after the last, and what the signature phase broadcasts."""
    written = {}

    def write(name, value, kind):
        path = f"state/{name}.pb"
        deployment_forms.write_value(directory / path, value, kind)
        written[name] = {"file": path, "type": str(kind)}

    if "training" in arguments and exports.server_values:
        kind = computations["training"].type_signature.parameter[0]
        # These are all models, not only those of the clients in the rehearsal.
        trained = {**arguments["training"][0], **exports.server_values(state)}
        write("trained", trained, kind)
        if "initialize" in computations:
            write("initial", first_value(computations["initialize"](), trained), kind)
    if "signature" in arguments:
        kind = computations["signature"].type_signature.parameter[0]
        write("signature_context", arguments["signature"][0], kind)
    return written


def first_value(start, trained):
    """Returns the first value with as many models as the trained one; if a method draws one model, all start from
    it."""
    rows = len(trained["models"])
    if len(start["models"]) == rows:
        return start

    def repeated(leaf):
        return np.repeat(leaf, rows, axis=0) if np.ndim(leaf) > 1 and len(leaf) == 1 else leaf

    values = {name: value for name, value in start.items() if name != "aggregators"}
    return {**start, **tf.nest.map_structure(repeated, values)}


def _used(method: Method, state):
    """The models, whose rows the assignment table names, and which client uses which."""
    return method.used_models(state, method.views(state).client_ids)


def _write_models(directory: pathlib.Path, trained: Trained):
    models, given = _used(trained.method, trained.state)
    models, used = np.asarray(models), assigned(given)
    save_models(directory / SAVED_MODEL, trained.method.model.whole, models, mixes=used.weights is not None)
    (directory / "state").mkdir(exist_ok=True)
    np.save(directory / MODELS, models)


def _describe_model(trained: Trained) -> dict:
    model, who, start, tensors = trained.method.model.whole, trained.population, 0, []
    for weight in model.weights:
        tensors.append({"name": weight.name, "shape": list(weight.shape), "start": start})
        start += weight.size
    rows, _ = _used(trained.method, trained.state)
    return {
        "name": model.name,
        "parameters": model.size,
        "models": len(rows),
        "input": str(tff.types.tensorflow_to_type(model.x_spec)),
        "labels": model.objective.name,
        "classes": model.num_classes,
        **({"label_names": list(who.label_names)} if who.label_names else {}),
        **({"features": who.table.described()} if who.table else {}),
        "saved_model": SAVED_MODEL,
        "tensors": tensors,
    }


def _write_clustering(directory: pathlib.Path, trained: Trained, *, private: bool) -> dict:
    """Writes the assignment table, and all that the method keeps between rounds (signatures, proximity, tree,
    threshold).

    The clients' choices among the models, for which only simulations ask, are left out if a round hides what clients
    send, or if only some of very many clients were asked; the returned entry of the manifest says so.
    """
    method, state = trained.method, trained.state
    (directory / "clustering").mkdir()
    few = chooses_at_evaluations(method) and not np.isin(trained.population.client_ids, trained.asked).all()
    hidden = private and method.clients_choose or few
    if hidden:
        state = method.without_choices(state)
    else:
        rows = assignments(method, state, lambda client: text_cell(trained.names[client]))
        write_text(directory / ASSIGNMENTS, csv_text(rows))
    arrays, _ = checkpoints.pack({"state": state}, with_client_states=False)
    write_arrays(directory / STATE, arrays, shipped=True)
    why = "not written: only a simulation asks clients for their choices, and "
    why += "few of so many were asked" if few else "a round tells the server nobody's"
    return {ASSIGNMENTS: why} if hidden else {}


def assignments(method: Method, state, called: Callable[[int], str]) -> list[list]:
    """Returns the rows of the assignment table: for each client its name by `called`, its cluster, the row of its
    model, and the weights of all models if it uses a mixture."""
    views = method.views(state)
    used = assigned(_used(method, state)[1])
    columns = {"client_id": map(called, views.client_ids.tolist()), "cluster": np.asarray(views.clusters).tolist()}
    columns["model"] = used.rows.tolist()
    if used.weights is not None:
        columns |= {f"weight_{row}": own.tolist() for row, own in enumerate(used.weights.T)}
    return [list(columns), *map(list, zip(*columns.values(), strict=True))]


def describe(manifest: dict, to: str | pathlib.Path, *, more: str = "") -> str:
    """Returns a few lines for a terminal on what was written; `more` are options of the command that checks it."""
    run = f"{manifest['algorithm']} on {manifest['task']} after round {manifest['rounds']}"
    lines = [f"{to}: {run}, {counted(len(manifest['files']), 'file')}"]
    for name, about in manifest["computations"].items():
        made = [kind for kind, form in about.get("forms", {}).items() if "directory" in form]
        lines.append(f"  {about['file']}" + (f"; forms: {', '.join(made)}" if made else ""))
        missing = about.get("device_operations", {}).get("not_in_tflite_select_ops")
        if missing:
            lines.append(f"    operations of clients that TFLite's select ops lack: {', '.join(missing)}")
    models = counted(manifest["model"]["models"], "model")
    lines.append(f"  saved_model: {models} of {manifest['model']['parameters']} parameters")
    if "features" in manifest["model"]:
        lines.append(
            "  it takes features, not rows of the table: model.features of manifest.json says how they are made"
        )
    lines.append(f"prove that they run: tffcl export --check {to}{more}")
    if "run_one_round.py" in manifest["files"]:
        lines.append(f"a round with TFF alone: python {to}/run_one_round.py")
    return "\n".join(lines)


def save_models(directory: str | pathlib.Path, model: FlatModel, models: np.ndarray, *, mixes: bool = False):
    """Writes models of one architecture as a TensorFlow SavedModel.

    Its signature `serving_default` takes `images`, raw examples `[n, ...]` as the model takes them (or each of several
    inputs by its name), and `cluster int32`, the row of `models`. It returns `probabilities float32[n, classes]` and
    `labels int32[n]`, or `numbers` if labels are numbers. For a row that does not exist TensorFlow raises
    InvalidArgumentError, which says which rows exist. The loaded object has the parameters as the variable `models`. If
    clients use mixtures of the models, the signature `mixture` takes `weights float32 [K]` instead of `cluster`.

    Args:
      directory: The directory of the SavedModel.
      models: `float32 [K, P]`.
      mixes: Whether clients use mixtures of the models.
    """
    served = tf.Module()
    served.models = tf.Variable(models, trainable=False, name="models")

    inputs = model.x_spec if isinstance(model.x_spec, Mapping) else {"images": model.x_spec}
    for name in {"cluster", "weights"} & inputs.keys():
        raise UserError(f"an input of the model is called {name!r}, as what the SavedModel takes beside it; rename it")
    images_spec = {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in inputs.items()}
    images_spec = images_spec if isinstance(model.x_spec, Mapping) else images_spec["images"]

    def outputs_of(vector, images):
        return model.logits(model.unravel(vector), model.preprocess(images), None)

    def answers_of(outputs):
        answers = model.objective.predictions(outputs)
        if model.objective.probabilities is None:
            return {"numbers": answers}
        return {"probabilities": model.objective.probabilities(outputs), "labels": answers}

    run = graph_function(
        lambda vector, images: answers_of(outputs_of(vector, images)), tf.TensorSpec([model.size]), images_spec
    )

    @tf.function(autograph=False, input_signature=[images_spec, tf.TensorSpec([], tf.int32, "cluster")])
    def predict(images, cluster):
        there = tf.logical_and(cluster >= 0, cluster < len(models))  # -1 would mean the last row
        check = tf.debugging.Assert(there, [f"cluster must be from 0 to {len(models) - 1}, but is", cluster])
        with tf.control_dependencies([check]):
            return run(served.models[cluster], images)

    served.predict, signatures = predict, {"serving_default": predict}
    if mixes:
        mixed = build_mixed_outputs(model)
        run_mixture = graph_function(
            lambda vectors, weights, images: answers_of(mixed(vectors, weights, images)),
            tf.TensorSpec(models.shape), tf.TensorSpec([len(models)]), images_spec,
        )  # fmt: skip
        weights_spec = tf.TensorSpec([len(models)], tf.float32, "weights")

        @tf.function(autograph=False, input_signature=[images_spec, weights_spec])
        def predict_mixture(images, weights):
            return run_mixture(served.models, weights, images)

        served.predict_mixture = signatures["mixture"] = predict_mixture
    try:
        tf.saved_model.save(served, str(directory), signatures=signatures)
    except tf.errors.OpError as error:  # e.g. for a full disk, where TensorFlow raises no OSError
        raise UserError(f"{directory} cannot be written: {error.message.split(';')[-1].strip()}") from None
