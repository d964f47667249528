"""Fingerprints of a run: shapes and hashes of its data, and what its method was built from."""

import ast
import contextlib
import dataclasses
import dis
import functools
import hashlib
import numbers
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.contract import traits
from tffcl.algorithms.method import Method
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel, FlatWeights
from tffcl.models.graph_function import graph_function
from tffcl.references import references_in, source_of
from tffcl.runs.run_directory import RunDirectory
from tffcl.trace_cache import built_once
from tffcl.validation import Parameters

_MOST_BYTES = 2**28  # of an array that are hashed, in some 0.3 s; of a larger one evenly spread rows are


def of_array(*parts: np.ndarray) -> str:
    """Returns the size of arrays, taken together, and a hash of their shapes, types and bytes."""
    found = hashlib.blake2b(digest_size=12)
    for array in map(np.asarray, parts):
        found.update(f"{array.shape} {array.dtype}".encode())
        step = max(1, -(-array.nbytes // _MOST_BYTES))
        array = array[::step] if array.ndim else array
        found.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes())
    return f"{sum(np.shape(part)[0] for part in parts if np.ndim(part))} {found.hexdigest()}"


def of_parts(indices: Iterable[np.ndarray]) -> str:
    """Does what `of_array` does for a list of arrays, one for each client."""
    held = [np.asarray(each) for each in indices]
    lengths = np.array([len(each) for each in held])
    return f"{lengths.sum()} {of_array(np.concatenate(held), lengths).split()[1]}"


def of_function(function: Callable) -> str:
    """Returns the name of a function and a hash. The hash covers its code, the code of functions of its own module that
    it calls, and the values that it reads if these cannot grow: numbers, texts and arrays."""
    found, seen = hashlib.blake2b(digest_size=6), set()

    def note(value):
        if isinstance(value, (np.ndarray, np.generic)):
            value = of_array(value)
        if value is None or isinstance(value, (bool, numbers.Number, str, bytes)):
            found.update(f"{value!r} ".encode())
        elif isinstance(value, (Parameters, *_PARTS)):
            note(str(_plain(value)))
        elif isinstance(value, (tuple, frozenset)):
            found.update(f"{len(value)} ".encode())
            for each in sorted(value, key=repr) if isinstance(value, frozenset) else value:
                note(each)
        elif isinstance(value, types.CodeType):
            note((value.co_code, value.co_names, value.co_consts))
        elif isinstance(value, functools.partial):
            note((value.func, value.args, *sorted(value.keywords.items())))
        elif isinstance(value, types.MethodType):
            note(value.__func__)
        elif isinstance(value, types.FunctionType) and value not in seen:
            seen.add(value)
            note(_parts_of(value))
        elif callable(value) and hasattr(value, "__wrapped__"):  # e.g. of functools.cache, as signatures are
            note(value.__wrapped__)

    of_tensorflow = isinstance(function, tf.Module) or hasattr(function, "python_function")  # these count their calls
    if not of_tensorflow and not isinstance(
        function, (types.FunctionType, types.BuiltinFunctionType, functools.partial)
    ):
        owner = getattr(function, "__self__", function)  # the object of a method, or a callable object
        told = getattr(owner, "__dict__", {})
        given = {name: each for name, each in told.items() if isinstance(each, (numbers.Number, str))}
        note(
            (getattr(type(function), "__call__", None), *sorted(given.items()))
        )  # its other attributes may be cached answers
    note(getattr(function, "python_function", function))
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name} {found.hexdigest()}"


def _parts_of(function: types.FunctionType) -> tuple:
    """What a function is made of, as `of_function` notes it."""
    code, known = function.__code__, function.__globals__
    named = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    looked_at = [(name, known[name]) for name in sorted(named) if name in known]
    own = [(name, each) for name, each in looked_at if getattr(each, "__module__", None) in (None, function.__module__)]
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]  # an empty cell
    defaults = (function.__defaults__, *sorted((function.__kwdefaults__ or {}).items()))
    consts = tuple(each for each in code.co_consts if each != function.__doc__)
    return (code.co_code, code.co_names, consts, defaults, tuple(cells), tuple(own))


def of_populations(populations: Mapping[int, Population]) -> dict[str, str]:
    """The fingerprint of the clients of a run, by the name of what is compared.

    Args:
      populations: Maps a round to the population from then on.
    """
    found = {}
    for start, population in populations.items():
        when = f" from round {start} on" if start else ""
        found[f"clients{when}"] = of_array(np.asarray(population.shown_ids).astype(str))
        if population.names is not None:
            found[f"numbers of clients{when}"] = of_array(population.client_ids)
        if population.groups is not None:
            found[f"true groups of clients{when}"] = of_array(population.groups)
        if population.versions.any():
            found[f"changes of clients' data{when}"] = of_array(population.versions)
        counted = population.read_before if population.sizes is None else population.client_ids
        found[f"sizes of clients{when}"] = of_array(population.sizes_of(counted))
        read = [population.train(client) for client in population.read_before]
        found[f"training images{when}"] = of_array(*(leaf for each in read for leaf in tf.nest.flatten(each.x)))
        found[f"training labels{when}"] = of_array(*(each.y for each in read))
        tested = population.evaluated
        pools = {"test": tested.pooled_tests, "validation": tested.pooled_validation}
        for kind, pool in pools.items():
            if pool is not None:  # each client's indices are hashed apart, so their number counts, too
                found[f"{kind} examples{when}"] = of_array(*tf.nest.flatten(pool.x), pool.y, *pool.indices)
        if population.label_names is not None:
            found[f"names of labels{when}"] = of_array(np.array(population.label_names))
    return found


def check_same_data(directory: RunDirectory, now: Mapping[str, str]):
    """Checks that the data are those of the run in a directory, if the run has noted their fingerprint.

    Args:
      directory: Of the run.
      now: The fingerprint of the data that are given now.

    Raises:
      UserError: If they differ; the message says in which part.
    """
    before = (directory.marker() or {}).get("data", now)
    if before == now:
        return
    differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    differences = [_difference(name, before.get(name), now.get(name)) for name in differing]
    changed = f"the data have changed since the run in {directory}: {', '.join(differences)}"
    raise UserError(f"{changed}; a new run needs another directory")


def _difference(name: str, before: str | None, now: str | None) -> str:
    if before is None or now is None:
        return f"{name} are {'new' if before is None else 'gone'}"
    was, are = (str(each).split()[0] for each in (before, now))
    return f"{name} differ ({are}, not {was})" if was != are else f"{name} differ"


def of_own_modules(method: Method, settings: Mapping) -> dict[str, str]:
    """Returns a hash of the code of each of the user's modules that a run uses, by the path of its file: the modules of
    the method's class and its base classes, those that the settings name, and those that were imported from the task's
    directory. For a class in a notebook or a script only the code of the class counts, by its name, because other lines
    there may be of other runs. Comments and layout do not count.

    Args:
      method: The method of the run.
      settings: The settings of the run; `directory` is where modules of builders are looked for.
    """
    found, ours, directory = {}, pathlib.Path(__file__).parents[1], settings.get("directory", "")
    classes = [each for each in type(method).__mro__ if each.__module__ not in sys.stdlib_module_names]
    named = {*(each.__module__ for each in classes), *(each.split(":")[0] for each in references_in(settings))}
    for name in [*sys.modules] if directory else named & sys.modules.keys():
        # `__dict__` is read directly: asking a module that loads lazily would load what nobody needs.
        path = pathlib.Path(getattr(sys.modules.get(name), "__dict__", {}).get("__file__") or "")
        beside = bool(directory) and path.is_relative_to(directory)
        own = (name in named or beside) and not path.is_relative_to(ours) and "site-packages" not in path.parts
        if own and name != "__main__" and path.suffix == ".py":
            called = path.relative_to(directory).as_posix() if beside else f"{name.replace('.', '/')}.py"
            found[called] = _code_of(sys.modules[name])
    found |= {f"class {each.__name__}": _code_of_class(each) for each in classes if each.__module__ == "__main__"}
    return dict(sorted(found.items()))


def _code_of_class(kind: type) -> str:
    """A hash of what a class itself defines, made as `of_function` makes that of a function."""
    own = {name: getattr(each, "__func__", getattr(each, "fget", each)) for name, each in vars(kind).items()}
    return of_function(functools.partial(kind, **{**own, "__doc__": None})).split()[1]


@functools.cache  # the file may be edited while the code that was imported before still runs
def _code_of(module: types.ModuleType) -> str:
    try:
        code = ast.dump(ast.parse(source_of(module) or pathlib.Path(module.__file__).read_bytes()))
    except (OSError, SyntaxError, ValueError):  # it was edited after the import, or is gone
        code = ""
    return hashlib.blake2b(code.encode(), digest_size=6).hexdigest()


def of_method(method: Method) -> dict:
    """Returns a method's model, training, parameters and options in plain containers, as config.toml takes them.

    An option that was not given is "none", so that a method with this option is another one. A function becomes what
    `of_function` returns; what has no plain form is left out.
    """
    model = _model(method.model) | _named_layers(method.model.whole, _plain(method.parameters))
    own = {} if "options" in vars(method) else _own(method.made_of)  # a builder of ours sets options
    given = {**own, "model": model, "training": method.training, "parameters": method.parameters}
    return _table({**given, **{name: "none" if value is None else value for name, value in method.options.items()}})


_FACTORIES = (tff.aggregators.UnweightedAggregationFactory, tff.aggregators.WeightedAggregationFactory)
_PARTS = (tff.learning.optimizers.Optimizer, *_FACTORIES)
_OWN = (numbers.Number, str, np.ndarray, np.generic, tf.Tensor, Parameters, *_PARTS)


def _own(given: Mapping) -> dict:
    """Returns the arguments of a user's own class that are numbers, texts, arrays, parameters, optimizers or
    aggregations, or lists of these. An engine is replaced by its training (or by its clients' work, if that is the
    user's own), its weights, its aggregations and its server step."""
    kept = {}
    for name, value in given.items():
        kept[name] = getattr(value, "training", None) or value
        if hasattr(value, "round_for"):  # an engine
            composed = value.round_for(1)
            if value.training is None:
                kept[name] = of_function(composed.work.compute)
            steps = [each for each in (composed.weighting, composed.server.step) if each is not None]
            kept[f"{name}_server"] = [of_function(each) for each in steps]
            if uploads := [each for each in composed.uploads.values() if not getattr(each, "is_plain", False)]:
                kept[f"{name}_aggregation"] = [getattr(each, "inner_factory", each) for each in uploads]
    return {name: value for name, value in kept.items() if all(isinstance(e, _OWN) for e in tf.nest.flatten(value))}


def _named_layers(model: FlatModel, parameters) -> dict:
    """Where in a model those layers are that parameters name, since Keras may give a layer another name in a process
    that builds more models."""
    layers = model.layer_slices()
    words = (str(each).split("/")[0] for each in tf.nest.flatten(parameters))
    named = {word: layers[word].start for word in words if word in layers}
    return {"named_layers": named} if named else {}


def _model(model: FlatModel) -> dict:
    """Describes a model without the name that Keras made, which counts the models of the process."""
    if model.own is not None:
        return _model(model.whole) | {"shared": model.size}
    known = {"parameters": model.size, "examples": model.examples, "classes": model.num_classes}
    if model.key is None:
        if model.metrics_of_outputs:
            known["metrics"] = _metrics(model)
        return known | {
            "initial_weights": model.initial,
            "weights": [list(weight.shape) for weight in model.weights],
            "computes": _probe(model),
            **({} if model.keras is None else _keras_layers(model.keras.model)),
        }
    found = known | {"name": model.name, **{name: value for name, value in model.key[2:]}}
    return found | ({"metrics": ", ".join(_metrics(model))} if "metrics" in found else {})


def _metrics(model: FlatModel) -> list[str]:
    return [each.name if each.function is None else of_function(each.function) for each in model.metrics]


def _keras_layers(keras_model: tf.keras.Model) -> dict:
    """The settings and precisions of layers that may not show in the losses of a few examples."""
    # If everything is float32, the precision is left out.
    layers = (each for each in keras_model._flatten_layers() if tf.as_dtype(each.dtype or "float32").is_floating)
    computed_in = [layer.dtype_policy.name for layer in layers]
    precision = {"precision": computed_in} if {*computed_in} - {"float32"} else {}
    return {"layers": _numbers_of_layers(keras_model), **precision}


def _numbers_of_layers(keras_model: tf.keras.Model) -> dict[str, float | list[float]]:
    """The numbers that layers are set to, by the setting's name: one number if all layers have the same, else a list.

    Momenta and epsilons of normalizations and limits of constraints do not show in the losses of a few examples.
    """
    found: dict[str, list[float]] = {}

    def visit(name: str, value):
        if isinstance(value, Mapping):
            for inner in [each for each in value if not str(each).endswith("initializer")]:  # initial weights are noted
                visit(str(inner), value[inner])
        elif isinstance(value, numbers.Real) and not isinstance(value, bool):
            found.setdefault(name, []).append(float(value))

    for layer in keras_model._flatten_layers():
        if not isinstance(layer, tf.keras.Model):  # its layers are visited, too
            with contextlib.suppress(Exception):  # a user's own layer may have no config
                config = layer.get_config()
                # A layer's own whole numbers are sizes, which show in other entries.
                visit("", {name: value for name, value in config.items() if not isinstance(value, int)})
    return {name: values if len({*values}) > 1 else values[0] for name, values in found.items()}


@built_once  # several methods train one model
def _probe(model: FlatModel) -> str:
    """Returns the losses of made-up examples under made-up weights, with labels in three orders, to three digits.

    Models of equal shapes have other losses here if they differ in activations, weights that are not trained, losses,
    weights of classes, regularizers or rates of dropout.
    """
    rng, examples = np.random.default_rng(0), 8

    def some(spec, classes=None):
        shape, dtype = [examples, *spec.shape], spec.dtype.as_numpy_dtype
        if spec.dtype.is_floating:
            return rng.standard_normal(shape).astype(dtype)
        most = classes or (256 if spec.dtype == tf.uint8 else 1)  # other whole numbers may be tokens
        return (np.arange(np.prod(shape)) % most).reshape(shape).astype(dtype)

    x = tf.nest.map_structure(lambda spec: tf.constant(some(spec)), model.example_spec["x"])
    y = some(model.objective.label, model.num_classes or 2)
    # Weights are drawn as layers draw them, but larger, so that losses differ in more than their last digit.
    drawn = [2 * rng.standard_normal(w.shape) / max(1, np.prod(w.shape[:-1])) ** 0.5 for w in model.weights]
    vector = tf.constant(model.on_trained(model.ravel(drawn), model.initial))

    def loss(vector, x, y, seed):
        return model.training_loss(model.unravel(vector), model.preprocess(x), y, seed)[0]

    given = vector, x, tf.constant(y), tf.constant([0, 0])
    computed = graph_function(loss, *tf.nest.map_structure(tf.TensorSpec.from_tensor, given))
    shifted = [tf.constant(np.roll(y, by, axis=0)) for by in range(3)]
    return " ".join(f"{float(computed(vector, x, each, given[-1])):.3g}" for each in shifted)


def _plain(value):
    """The value in plain containers; None for None, and for what has no plain form."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, str, numbers.Integral, float)):
        return value
    if isinstance(value, (np.ndarray, tf.Tensor)):
        return f"array {of_array(np.asarray(value))}"
    if isinstance(value, FlatWeights):
        return {"name": value.name, "parameters": value.size}
    if isinstance(value, (list, tuple)):
        return [each for each in map(_plain, value) if each is not None]
    if isinstance(value, tff.learning.optimizers.Optimizer):
        told = _table(value.get_hparams(value.initialize(tf.TensorSpec([1], tf.float32))))
        # TFF's Yogi and Adagrad do not list their first preconditioner, nor a user's own optimizer all that it has.
        known = {"_hparams_keys", *(f"_{name}" for name in told), *(["_lr"] if told else [])}
        held = {name: each for name, each in vars(value).items() if name not in {*known, *told}}
        return {"kind": type(value).__name__, **_table(held), **told}
    if isinstance(value, _FACTORIES):
        # A factory of this package holds the dataclass it was made from; one of TFF's is known by its name alone.
        own = [_table(vars(each)) for each in vars(value).values() if isinstance(each, Parameters)]
        return {
            "kind": type(value).__name__,
            **(own[0] if own else {}),
            **_table({"noise_seed": traits(value).noise_seed}),
        }
    if callable(value) and not isinstance(value, type):
        return of_function(value)
    if dataclasses.is_dataclass(value):
        return _table({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    return _table(value) if isinstance(value, Mapping) else None


def _table(values: Mapping) -> dict:
    plain = {str(name): _plain(value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if value is not None}
