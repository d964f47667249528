"""Checks of a run before its first round.

They check that an object is a method whose state gives what a run needs, that the run fits into memory and on the disk,
and that the processor computes in its precision.
"""

import dataclasses
import inspect
import pathlib
import shutil
from collections.abc import Iterable

import numpy as np

from tffcl.algorithms.method import Method, Views
from tffcl.client_work.local_sgd import kept_state
from tffcl.client_work.local_training import LocalTraining
from tffcl.clients import cohort
from tffcl.clients.population import Population
from tffcl.display import counted, listed
from tffcl.errors import Diverged, UserError, short_path, unknown
from tffcl.files import nearest_existing
from tffcl.models.flat import FlatModel
from tffcl.models.model_rows import ModelRows
from tffcl.rounds.blocks import INPUT_COPIES, SUMMED_COPIES
from tffcl.rounds.traffic import RoundMetrics, Traffic
from tffcl.runs import checkpoints
from tffcl.runs.metrics import OF_ROUNDS, ROUND, rows_of
from tffcl.runs.population_changes import Stages
from tffcl.runs.run_directory import CLIENT_STATES
from tffcl.runtime import memory

_ROUNDING = 1e-4  # by how much the sum of a mixture's weights may differ from one
_ATTRIBUTES = {
    "name": (str, "text"),
    "model": (FlatModel, "a tffcl.FlatModel"),
    "joining": (Traffic, "a tffcl.parts.Traffic"),
    "clients_choose": (bool, "True or False"),
}


def check_method(method):
    """Raises UserError if the object is not a `Method`, or one of its attributes is of a wrong kind."""
    kind = type(method).__name__
    if not isinstance(method, Method):
        if inspect.isfunction(method):
            name = method.__name__
            raise UserError(f"{name} is a function, and no method: call it, {name}(model, training)")
        if inspect.isclass(method):
            raise UserError(f"{method.__name__} is a class, and no method: make one of it")
        if method is None:
            raise UserError("None is no method; a function that builds one returns it")
        raise UserError(f"{kind} is no method: its class does not derive from tffcl.algorithms.Method")
    for name, (wanted, words) in _ATTRIBUTES.items():
        if not isinstance(getattr(method, name, None), wanted):
            raise UserError(f"{kind} is no method: its {name} must be {words}")
    if not dataclasses.is_dataclass(getattr(method, "state_class", None)):
        raise UserError(f"{kind} is no method: its state_class must be the dataclass of its state")


def check_own_settings(training, populations: Iterable[Population]):
    """Raises UserError if a local training has settings for single clients that are in no population.

    Args:
      training: A `LocalTraining`, or None if it is not known.
      populations: The populations of the run.
    """
    named = training.clients if isinstance(training, LocalTraining) else None
    if named is None:
        return
    known = {str(client) for population in populations for client in population.shown_ids.tolist()}
    for client in named:
        if str(client) not in known:
            raise unknown("client in clients", str(client), known, key="clients")


def check_state(method, state, client_ids: np.ndarray, size: int):
    """Checks what a method returns for a state.

    Args:
      state: Its state.
      client_ids: `int32 [N]`, the clients that take part.
      size: P, the number of the model's parameters.

    Raises:
      UserError: If the state is of another class, views or models have wrong shapes, or a model is not finite.
    """
    _check_read_again(method, _check_saved(method, state))
    told, of = getattr(state, "assignment", None), getattr(state, "client_ids", client_ids)
    if told is not None and len(told) != len(of):
        raise UserError(f"{method.name}: its state has assignment [{len(told)}]; it must be [{len(of)}], one a client")
    check_views(method.name, method.views(state), client_ids, size)
    check_models(method.name, *method.models_for(state, client_ids), len(client_ids), size)


def admitted(method: Method, state, newcomers: Population):
    """Returns the state after newcomers have joined; raises UserError as `check_state` does."""
    joined = method.admit(state, newcomers)
    # The state may know more clients than a population, such as those who have left.
    known = np.union1d(method.views(state).client_ids, newcomers.client_ids)
    check_state(method, joined, known, method.model.size)
    return joined


def _check_saved(method: Method, state) -> dict:
    """Returns a state as arrays; raises UserError if it is of another class than checkpoints are read as, or holds what
    they cannot hold."""
    if type(state) is not method.state_class:
        raise UserError(f"{method.name}: its state is of {type(state).__name__}, not of {method.state_class.__name__}")
    try:
        return checkpoints.pack({"state": state}, with_client_states=False)[0]
    except UserError as error:
        raise UserError(f"{method.name}: {error}") from None


def _check_read_again(method: Method, arrays: dict):
    """Raises UserError if the state cannot be made again from its arrays."""
    try:
        checkpoints.unpack(arrays, {"state": method.state_class})
    except Exception as error:  # a class of the user's own may raise anything
        raise UserError(
            f"{method.name}: no checkpoint could make a state again, {method.state_class.__name__} of its fields: "
            f"{type(error).__name__}: {error}"
        ) from None


def check_round(method: Method, found, given, drawn: cohort.Cohort) -> tuple:
    """Returns what `Method.next` makes of the `given` state and a cohort; raises UserError if that is not a new state
    with the metrics of this cohort, or cannot be saved."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise UserError(
            f"{method.name}: next gives {type(found).__name__}; it must give the next state and its metrics"
        )
    state, metrics = found
    _check_saved(method, state)
    if not isinstance(metrics, RoundMetrics):
        raise UserError(
            f"{method.name}: next gives metrics of {type(metrics).__name__}; they must be tffcl.parts.RoundMetrics, "
            "as RoundResult.metrics makes them"
        )
    if state is given and len(metrics.client_ids):
        raise UserError(
            f"{method.name}: next gives the state that it was given; it must give a new one, as dataclasses.replace "
            "makes it, and leave that one as it is: a round that fails goes back to it"
        )
    if wrong := _wrong_metrics(metrics, drawn, method.model):
        raise UserError(f"{method.name}: in the RoundMetrics of next {wrong}")
    return found


def _wrong_metrics(metrics: RoundMetrics, drawn: cohort.Cohort, model: FlatModel) -> str:
    """Says which of a round's metrics is not as `RoundMetrics` declares it; "" if all are."""
    ids = np.asarray(metrics.client_ids)
    if len(np.unique(ids)) < ids.size or not np.isin(ids, drawn.client_ids).all():
        return f"client_ids are {listed(ids.reshape(-1).tolist())}; they must be different ones of the cohort's"
    shapes = dict.fromkeys(("clusters", "examples", "losses", "test_correct", "test_examples"), [ids.size])
    further = {"relatedness": [ids.size] * 2, "changed": [ids.size], "test_outputs": [ids.size]}
    shapes |= {name: shape for name, shape in further.items() if getattr(metrics, name) is not None}
    for name, shape in shapes.items():
        given = np.asarray(getattr(metrics, name))
        if list(given.shape) != shape:
            return f"{name} is {_shape(given)}; its shape must be {shape}"
    tested = np.asarray(metrics.test_examples)
    for name, most in (("examples", np.inf), ("test_examples", np.inf), ("test_correct", tested)):
        given = np.asarray(getattr(metrics, name))
        if given.dtype.kind not in "iu" or not np.all((0 <= given) & (given <= most)):
            bounds = " to test_examples" if name == "test_correct" else ""
            return f"{name} is {listed(given.tolist())}; each must be a whole number from 0{bounds}"
    for name in ("traffic", "signatures"):
        if not isinstance(getattr(metrics, name), Traffic):
            return f"{name} is of {type(getattr(metrics, name)).__name__}; it must be a tffcl.parts.Traffic"
    taken = {column for column, metric in OF_ROUNDS.items() if metric.in_all or metric.source} | {ROUND}
    taken |= {row.column for metric in model.metrics_of_outputs for row in rows_of(metric.name)}
    for name, value in metrics.scalars.items():
        if name in taken:
            return f"scalars have {name}, which is a column of rounds.csv of something else; rename it"
        if value is not None and (np.ndim(value) or np.asarray(value).dtype.kind not in "biuf"):
            return f"scalars have {name} = {value!r:.60}; it must be a number"
    return ""


def may_wait(method: Method) -> bool:
    """Whether clients of a round may wait, untrained, because too few of their cluster are in it."""
    given = method.options.get("aggregation", method), method.options.get("global_aggregation")
    if all(each is None for each in given):  # a plain mean waits for nobody
        return False
    if type(method).exports is Method.exports:  # the method does not define what can be deployed
        return False
    return method.exports().members_needed() > 1  # this also refuses an aggregation that cannot be built


def check_own(method: Method, state):
    """Raises UserError if clients keep a part of the model and the method has lost it after a round."""
    if method.model.own is not None and method.own_states(state) is None:
        raise UserError(
            f"{method.name}: its state has no optimizers after a round, in which clients keep their part of "
            f'{method.model.name}; take statistics="global" or "reset", or keep RoundResult.optimizers'
        )


def check_models(name: str, models, rows, clients: int, size: int):
    """Raises UserError if what `models_for` returned for so many clients is not `(float32 [K, P], int [n])` or
    `(float32 [K, P], float32 [n, K])`; Diverged if not finite."""
    models, rows = models if isinstance(models, ModelRows) else np.asarray(models), np.asarray(rows)
    if models.dtype != np.float32 or models.ndim != 2 or models.shape[1] != size:
        raise UserError(f"{name}: models_for gives models {_shape(models)}; they must be float32 [K, {size}]")
    if rows.ndim == 2:
        _check_weights(name, rows, (clients, len(models)))
    elif rows.shape != (clients,) or not np.issubdtype(rows.dtype, np.integer):
        raise UserError(
            f"{name}: models_for gives rows {_shape(rows)}; they must be integers [{clients}], one a client, or "
            f"weights float32 [{clients}, {len(models)}]"
        )
    elif clients and not 0 <= rows.min() <= rows.max() < len(models):
        raise UserError(f"{name}: models_for gives rows {rows.min()} to {rows.max()}, not 0 to {len(models) - 1}")
    used = np.unique(rows) if rows.ndim == 1 else np.flatnonzero((rows > 0).any(axis=0))
    bad = [row for row in used if not np.isfinite(models[row]).all()]
    if bad:
        raise Diverged(
            f"{name}: model {bad[0]} is not finite; a lower learning_rate helps, or features on a smaller scale"
        )


def _check_weights(name: str, weights: np.ndarray, shape: tuple[int, int]):
    """Raises UserError if mixtures of models are not float32 of this shape, or if one has a weight below 0 or weights
    that do not sum to one."""
    if weights.shape != shape or weights.dtype != np.float32:
        raise UserError(f"{name}: models_for gives weights {_shape(weights)}; they must be float32 {list(shape)}")
    sums = weights.sum(axis=1)
    wrong = np.flatnonzero(~((weights >= 0).all(axis=1) & (np.abs(sums - 1) <= _ROUNDING)))
    if wrong.size:
        shown = ", ".join(f"{weight:.3g}" for weight in weights[wrong[0], :5]) + (", ..." if shape[1] > 5 else "")
        raise UserError(
            f"{name}: models_for gives the weights {shown} in row {wrong[0]}, which sum to {sums[wrong[0]]:.4g}; a "
            "client's weights must be from 0 and sum to 1"
        )


def check_views(name: str, views, client_ids: np.ndarray, size: int):
    """Raises UserError if the views of a state are not as `algorithms.method.Views` says."""
    if not isinstance(views, Views):
        raise UserError(f"{name}: views must return tffcl.algorithms.Views, not {type(views).__name__}")
    if not np.array_equal(np.asarray(views.client_ids), client_ids):
        raise UserError(f"{name}: views must be of the {len(client_ids)} clients that take part, ascending")
    count = len(client_ids)
    wanted = {
        "clusters": (views.clusters, (count,)),
        "known": (views.known, (count,)),
        "global_model": (views.global_model, (size,)),
        "relatedness": (views.relatedness, (count, count)),
        "mixture": (views.mixture, (count, np.shape(views.mixture)[-1] if np.ndim(views.mixture) else 0)),
    }
    if views.metric is not None:
        merges = views.metric.merges
        wanted["metric.proximity"] = views.metric.proximity, (count, count)
        wanted["metric.merges"] = merges, (count - 1, 4)
    if views.representations is not None:
        wanted["representations"] = (
            views.representations,
            (int(views.known_or_all.sum()), np.shape(views.representations)[-1]),
        )
    for field, (value, shape) in wanted.items():
        if value is not None and np.shape(value) != shape:
            raise UserError(f"{name}: views.{field} is {_shape(np.asarray(value))}; its shape must be {list(shape)}")


def _shape(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"


_MOST_DRAWN = 1000  # rounds whose cohorts are drawn to see who takes part; in a longer run more clients may
_INSTRUCTIONS = {"float32": "", "bfloat16": "avx512_bf16"}  # by precision, a flag in /proc/cpuinfo
_COPIES = INPUT_COPIES + SUMMED_COPIES  # of a model that a client trains: as it is received, and as it is sent


def who_takes_part(stages: Stages, protocol) -> np.ndarray:
    """Returns the IDs of the clients that train in a run, ascending; for very long runs most of them.

    Args:
      stages: Of the run.
      protocol: Its `run.Protocol`.
    """
    everyone = stages.client_ids
    found = np.zeros(len(everyone), bool)
    for number in range(1, min(protocol.rounds, _MOST_DRAWN) + 1):
        if found.all():
            break
        ids = stages.population(number).client_ids
        drawn = cohort.sample_cohort(ids, protocol.clients_per_round, protocol.seed, number, protocol.sampling)
        found[np.searchsorted(everyone, drawn)] = True
    return everyone[found]


def check_processor(training):
    """Raises UserError if this machine computes slower in the precision of a local training than in float32.

    Args:
      training: A `LocalTraining`, or None if it is not known.
    """
    precision = training.precision if isinstance(training, LocalTraining) else "float32"
    needed, flags = _INSTRUCTIONS[precision], pathlib.Path("/proc/cpuinfo")
    if needed and not (flags.is_file() and needed in flags.read_text()):
        raise UserError(
            f"this processor has no {precision} instructions ({needed}): a step would take longer than in float32; "
            'leave precision at "float32", or compute on workers that have them',
            key="precision",
        )


def check_before(method, clients: int, taking_part: int, out: pathlib.Path, budget: int):
    """Checks what is known of a run before anything is computed.

    Args:
      method: See `Method.kept_bytes`, `Method.trained_models` and `Method.pair_bytes`.
      clients: How many there are.
      taking_part: How many train in some round.
      out: Directory of the run; it need not exist.
      budget: Bytes that the clients of a round may take.

    Raises:
      UserError: If it cannot fit.
    """
    model: FlatModel = method.model
    if _COPIES * 4 * model.size > budget:
        needed, given = memory.shown(_COPIES * 4 * model.size), memory.shown(budget)
        raise UserError(
            f"memory is {given}; one client that trains {_parameters(model.size)} parameters takes {needed}"
        )
    paired = min(clients, method.pairs_of or clients)
    memory.check_room(paired**2 * method.pair_bytes, f"the distances of {paired:,} × {paired:,} clients")
    own = method.kept_bytes + _optimizer_bytes(method)
    wanted = taking_part * own
    there = sum(path.lstat().st_size for path in (out / CLIENT_STATES).glob("*.npz"))
    if wanted > (free := _disk_room(out) + there):
        each = _parameters(own / 4)
        raise UserError(
            f"{taking_part:,} clients × {each} parameters that each of them keeps need {memory.shown(wanted)} on the "
            f"disk of {short_path(out)}; {memory.shown(free)} are free"
        )


def _optimizer_bytes(method) -> int:
    """The bytes of the optimizer states of the models that a client trains; 0 if the method's training is not known."""
    training = getattr(method, "training", None)
    if not isinstance(training, LocalTraining):
        return 0
    return method.trained_models * sum(leaf.nbytes for leaf in kept_state(method.model, training) or ())


def check_models_fit(method, state, client_ids: np.ndarray):
    """Checks what is known when clients have been grouped, before the first round.

    Args:
      method: See `Method.models_held`.
      state: Its first one.
      client_ids: Who trains in some round.

    Raises:
      UserError: If it cannot fit.
    """
    held = method.models_held(state, client_ids)
    memory.check_room(
        4 * held * method.model.size,
        f"{counted(held, 'model')} × {_parameters(method.model.size)} parameters that the server holds",
    )


def _parameters(count: float) -> str:
    return f"{count / 1e6:.3g} M" if count >= 1e5 else f"{count:,.0f}"


def _disk_room(out: pathlib.Path) -> int:
    return shutil.disk_usage(nearest_existing(out)).free
