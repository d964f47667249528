"""Checks that the values of an export are those that its computations, its state and the library give."""

import csv
import importlib.metadata
import pathlib
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import plain_containers
from tffcl.algorithms.method import Method
from tffcl.errors import UserError
from tffcl.export import deployment_forms
from tffcl.export.dry_run import difference
from tffcl.export.manifest import NAME
from tffcl.export.writer import ASSIGNMENTS, MODELS, SAVED_MODEL, SCRIPT, STATE, assignments, first_value


def compared(path: pathlib.Path, run: Callable, expected, same: str) -> str:
    """Returns a line that says that a file gives the same numbers; raises UserError if it gives others."""
    apart = difference(expected, run())
    if not apart.close:
        raise UserError(f"{path} gives other numbers than {same}: they differ by up to {apart.largest:.3g}")
    return f"{path}: as {same} (largest difference {apart.largest:.1e})"


def loaded(path: pathlib.Path):
    """Opens a NumPy file; raises UserError if it is none, or holds objects, which would be code."""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.lib.npyio.NpzFile):
            dict(found)  # reads all of it now
        return found
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged, or holds other things than numbers: {error}") from None


def check_values(directory: pathlib.Path, manifest: Mapping):
    """Compares the values that can be checked with the export alone; yields a line for each file."""
    values = manifest.get("values", {})
    if "initial" in values:
        initialize = _computation(directory, manifest, "initialize")
        start, again = (plain_containers(initialize()) for _ in range(2))
        (place, initial), (_, trained) = (
            _server_value(directory, manifest, name, "training") for name in ("initial", "trained")
        )
        if difference(start, again).close:
            yield compared(place, lambda: initial, first_value(start, trained), "what initialize gives")
        else:  # e.g. because TFF's tree aggregation takes the time as its seed
            yield f"{place}: not compared, since initialize gives other numbers each time"
    if "signature_context" in values:
        place, context = _server_value(directory, manifest, "signature_context", "signature")
        kind = _computation(directory, manifest, "signature").type_signature.parameter
        given = deployment_forms.read_value(directory / manifest["computations"]["signature"]["check"]["input"], kind)
        computed_from = deployment_forms.from_argument(given, kind)[0]
        yield compared(place, lambda: context, computed_from, "what the signatures of the check were computed from")
    script = directory / SCRIPT.name
    if script.is_file():
        if script.read_bytes() == SCRIPT.read_bytes():
            yield f"{script}: the script of this tffcl"
        elif manifest.get("versions", {}).get("tffcl") == importlib.metadata.version("tffcl"):
            raise UserError(f"{script} is not the script that this tffcl writes")
    place = directory / SAVED_MODEL
    served = getattr(tf.saved_model.load(str(place)), "models", None)
    if served is None:
        raise UserError(f"{place} has no variable models")
    yield compared(place, served.numpy, loaded(directory / MODELS), f"the parameters in {MODELS}")


def check_trained(directory: pathlib.Path, manifest: Mapping, method: Method, state, arguments: Mapping[str, tuple]):
    """Compares the value from which a deployment goes on with the library's value for the state; yields a line."""
    exports = method.exports()
    if "trained" in manifest.get("values", {}) and "training" in arguments and exports.server_values:
        expected = {**plain_containers(arguments["training"][0]), **exports.server_values(state)}
        place, trained = _server_value(directory, manifest, "trained", "training")
        yield compared(place, lambda: trained, expected, f"the library by {STATE}")


def check_learned(directory: pathlib.Path, method: Method, state, called: Callable[[int], str]):
    """Compares assignments, with clients as they are `called`, and models with the library's for the state; yields a
    line for each."""
    models, _ = method.used_models(state, method.views(state).client_ids)
    saved = loaded(directory / MODELS)
    # clients that keep models have rows of their own, which the exported state cannot restore
    whole = np.shape(models) == saved.shape and method.model.own is None
    if whole:
        yield compared(directory / MODELS, lambda: saved, np.asarray(models), f"the library's by {STATE}")
    if (directory / ASSIGNMENTS).is_file():
        place, columns = directory / ASSIGNMENTS, slice(None if whole else 2)
        expected = [list(map(str, row))[columns] for row in assignments(method, state, called)]
        with open(place, newline="", encoding="utf-8") as opened:
            found = [row[columns] for row in csv.reader(opened)]
        if found != expected:
            line = next(n for n, pair in enumerate(zip([*found, None], [*expected, None]), 1) if pair[0] != pair[1])
            raise UserError(f"{place}, line {line}, tells something else than the library's by {STATE}")
        yield f"{place}: {', '.join(expected[0])} are the library's by {STATE}"


def _computation(directory: pathlib.Path, manifest: Mapping, name: str) -> tff.Computation:
    if name not in manifest["computations"]:
        raise UserError(
            f"{directory / NAME} is damaged: it has values of the computation {name}, and not the computation"
        )
    return deployment_forms.read_computation(directory / manifest["computations"][name]["file"])


def _server_value(directory: pathlib.Path, manifest: Mapping, name: str, computation: str) -> tuple[pathlib.Path, Any]:
    """The file of a server's value in the export, and the value, by name."""
    kind = _computation(directory, manifest, computation).type_signature.parameter
    if name not in manifest["values"] or not isinstance(kind, tff.StructType):
        raise UserError(f"{directory / NAME} is damaged: there is no value {name} that {computation} takes")
    file = directory / manifest["values"][name]["file"]
    return file, deployment_forms.read_value(file, kind[0])
