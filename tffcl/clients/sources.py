"""Populations of a user's own data: arrays by client, tf.data, or TFF's ClientData."""

import inspect
import itertools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tffcl.clients import arrays, tables
from tffcl.clients.client_examples import ClientExamples, LazyExamples, columns_of, few_of, inputs_of, mapped, too_many
from tffcl.display import counted
from tffcl.errors import UserError, unknown

if TYPE_CHECKING:  # it imports this module
    from tffcl.clients.population import Population

_LONG = 3.0  # seconds, after which a progress bar is shown
_MOST_NAMED = 12  # columns that a message lists
_MOST_COUNTED = 1000  # classes; of more, the clients' counts are not kept for reports


def from_arrays(
    examples: Mapping[str | int, tuple],
    test: Mapping[str | int, tuple] | None = None,
    *,
    lazy: bool = False,
    known: "Population | None" = None,
    label_names: Sequence[str] | None = None,
) -> dict:
    """Returns the fields of `Population.from_arrays`; see there for the arguments.

    Text IDs become numbers: known clients keep theirs, and those of other clients follow.
    """
    if not isinstance(examples, Mapping):
        frame = ": Population.from_frame(frame, client=..., label=...) takes tables"
        hint = frame if hasattr(examples, "groupby") else ', {"clinic": (x, y), ...}'
        raise UserError(f"examples is of {type(examples).__name__}; it must be a mapping of client IDs to (x, y){hint}")
    if not examples:
        raise UserError("there are no clients; give a mapping of client IDs to (x, y) with 1 or more")
    if test is not None and not isinstance(test, Mapping):
        raise UserError(
            f"test is of {type(test).__name__}; it must be a mapping of client IDs to (x, y), as examples are"
        )
    shown, ids = numbered(examples, known)
    unknown_tests = set(test or {}) - set(examples)
    if unknown_tests:
        raise UserError(f"client {min(unknown_tests, key=str)} has test examples, but no training examples")
    names = dict(zip(ids.tolist(), shown))

    def read(held: Mapping, kind: str) -> Mapping[int, ClientExamples]:
        return _read_by_name(names, set(held), lambda client: checked(client, held[client], kind), kind, lazy)

    train, tests = read(examples, "training"), read(test or {}, "test")
    return fields(shown, train, tests, known=known, label_names=label_names)


def _read_by_name(names: Mapping, there: set, read: Callable, kind: str, lazy: bool) -> Mapping[int, ClientExamples]:
    """Maps the number of each client in `there` to what `read` returns for its name; read now, or lazily."""
    numbers = [number for number, name in names.items() if name in there]

    def of(number: int) -> ClientExamples:
        try:
            return read(names[number])
        except (UserError, KeyError):  # a KeyError says that there is no such client
            raise
        except Exception as error:  # a user's mapping may raise anything; an OSError would pass for the run's own
            told = f"{type(error).__name__}: {error}"
            raise UserError(f"the {kind} examples of client {names[number]} cannot be read: {told}") from error

    if not lazy or not numbers:
        with _bar(numbers, kind) as bar:  # or an error of `read` that is kept would keep the bar open
            return {number: of(number) for number in bar}
    # Validation examples are chosen by row, so rows must have the same order each time.
    once, again = of(numbers[0]), of(numbers[0])
    if not all(map(np.array_equal, *([*tf.nest.flatten(each.x), each.y] for each in (once, again)))):
        raise UserError(
            f"the {kind} examples of client {names[numbers[0]]} are others, or in another order, each time that they "
            "are read; leave shuffle() out, LocalTraining shuffles, or lazy=True"
        )
    return LazyExamples(numbers, of)


def fields(
    shown: Sequence,
    train: Mapping[int, ClientExamples],
    test: Mapping[int, ClientExamples],
    validation: Mapping[int, ClientExamples] | None = None,
    *,
    known: "Population | None" = None,
    label_names: Sequence[str] | None = None,
) -> dict:
    """Returns the fields of a population whose clients' examples are read and checked one client at a time.

    If too many clients have lazy examples, only a few are read now, and the others are checked when they are read.

    Args:
      shown: The IDs of the clients of `train` as users write them, in its order.
      train: Maps the number of a client to its training examples, as `checked` returns them.
      test: The same for test examples, perhaps not of all clients.
      validation: The same for validation examples; None for none.
      known: As in `Population.from_arrays`.
      label_names: As there.

    Raises:
      UserError: If the clients' examples are not alike, or a label is none of the names.
    """
    name_of, first = dict(zip(train, shown, strict=True)), train[next(iter(train))]
    if known is not None:
        if label_names and tuple(label_names) != known.label_names:
            raise UserError("label_names are those of the known clients; leave them out")
        numbers = ClientExamples(first.x, arrays.coded_labels(first.y[:0], "a client", None), None, first.columns)
        theirs = known.train_examples.held[int(known.client_ids[0])]
        _check_alike(numbers, theirs, "the clients' {what} are", "those of the known clients")

    def check(number: int, each: ClientExamples, kind: str = ""):
        _check_alike(each, first, f"the {kind}{{what}} of client {name_of[number]} are", f"those of client {shown[0]}")

    none = ClientExamples(tf.nest.map_structure(lambda leaf: leaf[:0], first.x), first.y[:0])
    test, validation = _of_all(train, test, none), validation and _of_all(train, validation, none)
    few = too_many(train) and (first.y.dtype.kind != "U" or known is not None or bool(label_names))
    counted: dict[str, dict[int, tuple]] = {}
    for kind, examples in (("training", train), ("test", test), ("validation", validation or {})):
        counted[kind] = {}
        for number in few_of(list(examples)) if few and examples else _bar(examples, kind):
            each = examples[number]
            check(number, each, "test " if kind == "test" else "")
            values = each.y[:0] if each.y.dtype.kind == "f" else each.y
            counted[kind][number] = len(each), *np.unique(values, return_counts=True)
    seen = [values for clients in counted.values() for _, values, _ in clients.values()]
    if isinstance(label_names, (str, set, frozenset)) or len(set(label_names or ())) < len(label_names or ()):
        raise UserError(f"label_names is {label_names!r:.80}; it must be a list of different names, by class")
    names = tuple(label_names or ()) or (arrays.names_of_labels(seen) if known is None else known.label_names)
    if known is not None:
        arrays.check_label_names(seen, names)
    for clients in counted.values():
        for number, (_, values, _) in clients.items():
            arrays.coded_labels(values, f"client {name_of[number]}", names)
    code = _coder(names)

    def code_read(number: int, each: ClientExamples) -> ClientExamples:
        check(number, each)
        y = arrays.coded_labels(each.y, f"client {name_of[number]}", names)
        return ClientExamples(each.x, y, columns=each.columns)

    def code_trained(number: int, each: ClientExamples) -> ClientExamples:
        if not len(each):
            raise UserError(f"client {name_of[number]} has no training examples; every client needs at least 1")
        return code_read(number, each)

    return dict(
        client_ids=np.array(list(train), np.int32),
        train_examples=mapped(train, code_trained if few else code),
        test_examples=mapped(test, code_read if few else code),
        validation_examples=None if validation is None else mapped(validation, code_read if few else code),
        sizes=None if few else np.array([size for size, _, _ in counted["training"].values()], np.int32),
        label_counts=None if few else label_counts(counted["training"].values(), names),
        label_names=names,
        names=np.array(shown) if isinstance(shown[0], str) else None,
    )


def _of_all(train, examples, none: ClientExamples) -> Mapping[int, ClientExamples]:
    """Returns the examples of every client; `none` for clients that have none."""

    def of(number: int) -> ClientExamples:
        found = examples.get(number)
        return found if found is not None and len(found) else none

    return {number: of(number) for number in train} if isinstance(examples, dict) else LazyExamples(train, of)


def _coder(names) -> Callable[[int, ClientExamples], ClientExamples]:
    """Returns a function that replaces labels by numbers; clients that shared a pool share one afterwards, too."""
    pools: dict[int, tuple] = {}

    def code(number: int, examples: ClientExamples) -> ClientExamples:
        x, y = examples.pool
        if examples.rows is None or id(y) not in pools:
            coded = arrays.coded_labels(y, "a client", names)
            for leaf in tf.nest.flatten([x, coded]):
                leaf.flags.writeable = False  # or a user who changes these would change a run
            if examples.rows is None:
                return ClientExamples(x, coded, None, examples.columns)
            pools[id(y)] = y, coded  # `y` is kept, so that no other array gets its `id`
        return ClientExamples(x, pools[id(y)][1], examples.rows, examples.columns)

    return code


def numbered(examples: Iterable, known: "Population | None") -> tuple[list, np.ndarray]:
    """Returns the clients in the order of their numbers, and the numbers, ascending."""
    texts, wholes = (
        all(isinstance(each, kind) and not isinstance(each, bool) for each in examples)
        for kind in (str, (int, np.integer))
    )
    if not texts and not wholes:
        kinds = ", ".join(sorted({type(each).__name__ for each in examples}))
        floats = all(isinstance(each, float) for each in examples)
        hint = "; pandas makes floats of whole numbers where one is missing: .dropna().astype(int)" if floats else ""
        raise UserError(f"client IDs are of {kinds}; they must be all text or all whole numbers{hint}")
    if known is not None and texts != (known.names is not None):
        kinds = ["whole numbers", "text"]
        raise UserError(
            f"client IDs are {kinds[texts]}, those of the known clients are {kinds[not texts]}; they must be alike"
        )
    if any("\0" in str(each) for each in examples):
        raise UserError("a client ID holds a NUL character, which no file can; give it another name")
    if wholes:
        ids = np.array(sorted(map(int, examples)))
        if ids[0] < 0 or ids[-1] >= 2**31:
            raise UserError(f"client ID {ids[0] if ids[0] < 0 else ids[-1]} is not from 0 to 2147483647; use text")
        return ids.tolist(), ids
    numbers = {} if known is None else dict(zip(known.names.tolist(), known.client_ids.tolist()))
    arrays.check_apart({*numbers, *examples}, "client IDs")
    following = itertools.count(1 + max(numbers.values(), default=-1))
    pairs = sorted((numbers[name] if name in numbers else next(following), str(name)) for name in sorted(examples))
    return [name for _, name in pairs], np.array([number for number, _ in pairs])


def _check_alike(given: ClientExamples, like: ClientExamples, subject: str, others: str):
    """Raises UserError if examples or labels are of another type or shape than others."""
    inputs, known = inputs_of(given.x), inputs_of(like.x)
    if inputs.keys() != known.keys():
        mine, its = (", ".join(each) or "one array" for each in (inputs, known))
        raise UserError(f"{subject.format(what='inputs')} {mine}, {others} {its}; all must be alike")
    pairs = [(f"examples{f' of input {name}' if name else ''}", inputs[name], known[name]) for name in inputs]
    for what, one, other in (*pairs, ("labels", given.y, like.y)):
        is_like = _kind_of(one) == _kind_of(other) if what == "labels" else one.dtype == other.dtype
        if not is_like or one.shape[1:] != other.shape[1:]:
            mine, its = (
                f"{'text' if each.dtype.kind == 'U' else each.dtype} {list(each.shape[1:])}" for each in (one, other)
            )
            raise UserError(f"{subject.format(what=what)} {mine}, {others} {its}; all must be alike")
    check_columns(given.columns, like.columns, subject.format(what="columns"), others)


def check_columns(given: Mapping[str, tuple], like: Mapping[str, tuple], subject: str, others: str):
    """Raises UserError if two frames differ in their columns or in the order of these; see `ClientExamples.columns`.
    Arrays are not checked, since their columns have no names."""
    for part in given.keys() & like.keys():
        if given[part] != like[part]:
            mine, its = (", ".join(each[part][:_MOST_NAMED]) for each in (given, like))
            cure = f": frame[{list(like[part])}]" if len(like[part]) <= _MOST_NAMED else ""
            raise UserError(f"{subject} {mine}, {others} {its}; all must be alike, in one order{cure}")


def _kind_of(y: np.ndarray) -> str:
    """Returns the kind of labels, which must be equal for all clients; whole numbers of any width are one kind."""
    return "i" if y.dtype.kind == "u" else y.dtype.kind


def from_client_data(
    train,
    test=None,
    *,
    clients: Iterable[str] | None = None,
    lazy: bool = False,
    known: "Population | None" = None,
    label_names: Sequence[str] | None = None,
) -> dict:
    """Returns the fields of `Population.from_client_data`; see there for the arguments."""
    for name, given in (("train", train), ("test", test)):
        if given is not None and not hasattr(given, "create_tf_dataset_for_client"):
            raise UserError(f"{name} is of {type(given).__name__}; it must be a tff.simulation.datasets.ClientData")
    there = set(train.client_ids)
    wanted = list(train.client_ids if clients is None else clients)
    if isinstance(clients, str) or len(set(wanted)) < len(wanted):
        raise UserError(f"clients is {clients!r:.80}; it must be a list of different clients")
    for each in wanted:
        if each not in there:
            raise unknown("client", each, there)
    if not wanted:
        raise UserError("there are no clients; give data of 1 or more")
    shown, ids = numbered(wanted, known)
    names = dict(zip(ids.tolist(), shown))

    def read(data, kind: str) -> Mapping[int, ClientExamples]:
        def of_client(name: str) -> ClientExamples:
            return checked(name, data.create_tf_dataset_for_client(name), kind)

        there = set() if data is None else set(data.client_ids)
        return _read_by_name(names, there, of_client, kind, lazy)

    return fields(shown, read(train, "training"), read(test, "test"), known=known, label_names=label_names)


def from_table(table: tables.Table, known: "Population | None" = None) -> dict:
    """Returns the fields of the population of a table or of folders, whose clients share one pool of examples."""
    shown, ids = numbered(table.parts["training"], known)
    if known is not None and table.rules is None:
        _check_pictures(table.x.shape[1:], known.example_spec["x"])
    y = arrays.checked_labels(table.y, "the labels")

    def of(kind: str) -> dict[int, ClientExamples]:
        rows = zip(ids.tolist(), (table.parts[kind][client] for client in shown), strict=True)
        return {number: ClientExamples(table.x, y, own) for number, own in rows if kind == "training" or len(own)}

    train, test, validation = of("training"), of("test"), of("validation")
    found = fields(
        shown, train, test, validation or None, known=known, label_names=None if known else table.label_names
    )
    groups = table.groups and np.array([table.groups[client] for client in shown], np.int32)
    # Nothing was measured on newcomers alone.
    measured = known is None or not set(shown).isdisjoint(known.shown_ids.tolist())
    noise = table.rules.measured_noise if table.rules and measured else None
    called = table.rules.groups if groups is not None else None
    return {
        **found, "groups": groups, "group_names": called, "note": table.note, "table": table.rules,
        "measured_noise": noise,
    }  # fmt: skip


def _check_pictures(shape: tuple[int, ...], like):
    """Raises UserError if newcomers' pictures `[height, width, channels]` differ in size or channels from those of the
    known clients, whose spec is `like`; the message says which arguments make them alike."""
    wanted = like.shape.as_list() if isinstance(like, tf.TensorSpec) else []
    if len(wanted) != 3 or wanted[2] not in (1, 3) or tuple(wanted) == shape:
        return
    cures = [f"image_size={wanted[:2]}"] * (shape[:2] != tuple(wanted[:2]))
    cures += [f"channels={wanted[2]}"] * (shape[2] != wanted[2])
    raise UserError(
        f"the clients' pictures are {list(shape)}, those of the known clients {wanted}; all must be alike: "
        f"{', '.join(cures)} makes them so"
    )


def _bar(client_ids: Iterable, kind: str) -> tqdm:
    """Returns a progress bar, which is shown if the reading takes long."""
    return tqdm(client_ids, f"{kind} examples of clients", unit="client", delay=_LONG, leave=False)


def _arrays_of(examples: tf.data.Dataset, client) -> tuple:
    """Returns all examples of a data set. Its elements are batches if the first dimension of x and y is unknown."""
    spec = examples.element_spec
    pair = isinstance(spec, (tuple, list)) and len(spec) == 2
    if not pair and not (isinstance(spec, Mapping) and set(spec) == {"x", "y"}):
        names = list(spec) if isinstance(spec, Mapping) else spec
        raise UserError(
            f'examples are {names}; they must be (x, y) or {{"x": ..., "y": ...}}: '
            "client_data.preprocess(...) puts them in this form"
        )
    if all(
        isinstance(each, tf.TensorSpec) and each.shape.rank and each.shape[0] is None for each in tf.nest.flatten(spec)
    ):
        examples = examples.unbatch()
        spec = examples.element_spec
    x, y = spec if pair else (spec["x"], spec["y"])
    if not all(isinstance(each, tf.TensorSpec) and each.shape.is_fully_defined() for each in tf.nest.flatten([x, y])):
        raise UserError(
            f"the examples of client {client} are x: {x}, y: {y}; both must be tensors of fixed shape, or batches of "
            "these"
        )
    if examples.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise UserError(
            f"the examples of client {client} never end; leave out repeat(), LocalTraining(epochs=...) repeats them"
        )
    whole = _read_whole(examples)
    return tuple(whole if pair else (whole["x"], whole["y"]))


def _read_whole(examples: tf.data.Dataset):
    """Returns all examples of a data set, which may be empty, as one structure of arrays `[n, ...]`."""
    nothing = tf.nest.map_structure(lambda leaf: tf.zeros([0, *leaf.shape], leaf.dtype), examples.element_spec)
    # Making an iterator would take five times as long as this does for a client's few examples.
    first = examples.batch(2**30).concatenate(tf.data.Dataset.from_tensors(nothing)).take(1).get_single_element()
    return tf.nest.map_structure(np.asarray, first)


def applied(function: Callable, each: ClientExamples, client: object, kind: str) -> ClientExamples:
    """Applies a user's function to a client's examples; raises UserError if it takes or returns something else."""
    try:
        inspect.signature(function).bind(each.x, each.y)
    except (TypeError, ValueError):  # a ValueError: its parameters are unknown, as for some functions of C
        if not callable(function) or isinstance(function, types.FunctionType):
            raise UserError("function must take examples and labels, as in clients.map(lambda x, y: (-x, y))") from None
    given = tf.nest.map_structure(np.copy, each.x), each.y.copy()  # copies, since it may change them
    return checked(client, function(*given), kind)


def checked(client, given, kind: str) -> ClientExamples:
    """Returns the examples of a client with labels of a type that `clients.arrays` knows.

    Args:
      client: The client's ID, for messages.
      given: `(x, y)`, x an array or a mapping of names to arrays; or a `tf.data.Dataset` of such pairs.
      kind: "training", "test" or "validation", for messages.

    Raises:
      UserError: If the examples are not numbers or not finite, or x and y have unequal lengths.
    """
    what = f"the {kind} examples of client {client}"
    if isinstance(given, Mapping) and set(given) == {"x", "y"}:  # as in a ClientData
        given = given["x"], given["y"]
    try:
        x, y = _arrays_of(given, client) if isinstance(given, tf.data.Dataset) else given
    except (TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{what} are {type(given).__name__}; they must be a pair (x, y)") from None
    if isinstance(given, Mapping):
        raise UserError(f"{what} are a mapping of {', '.join(map(str, given))}; they must be a pair (x, y)")
    columns = columns_of(x, y)
    if isinstance(x, Mapping):
        x = {str(name): _numbers(each, f"{what}, input {name},") for name, each in x.items()}
    else:
        x = _numbers(x, what)
    y = arrays.checked_labels(y, f"the labels of client {client}")
    for leaf in tf.nest.flatten(x):
        if len(leaf) != len(y):
            raise UserError(
                f"client {client} has {kind} examples {leaf.dtype} {list(leaf.shape)} and {counted(len(y), 'label')}; "
                "they do not fit"
            )
    return ClientExamples(x, y, columns=columns)


def _numbers(given, what: str) -> np.ndarray:
    """Returns the examples of one input; floats of more than 32 bits become float32."""
    x = arrays.numbers_of(given, what)
    arrays.check_finite(x, what, given)
    if x.dtype.kind == "f" and x.dtype.itemsize > 4:
        for place, column in enumerate(x.T if x.ndim == 2 else [x]):
            if one := arrays.one_in_float32(column):
                where = f" in column {getattr(given, 'columns', range(x.shape[1]))[place]}" if x.ndim == 2 else ""
                raise UserError(
                    f"{what} hold {one[0]:.0f} and {one[1]:.0f}{where}, which are one number in float32, as examples "
                    f"are: subtract a number, x - {column.min():.0f}, or scale them"
                )
        x = x.astype(np.float32)
    # A population must not change when the user's array does, of which `given` may be a read-only view.
    shared = np.may_share_memory(x, np.asarray(given)) and _can_change(x)
    return np.array(x, order="C") if shared else np.ascontiguousarray(x)


def _can_change(x) -> bool:
    """Whether somebody may write into an array, or into one that it is a view of."""
    return isinstance(x, np.ndarray) and (x.flags.writeable or _can_change(x.base))


def label_counts(clients: Iterable[tuple], names) -> np.ndarray | None:
    """Returns each client's number of examples by class, `int64 [N, C]`; None for numbers and for too many classes."""
    found = [(arrays.coded_labels(values, "a client", names), counts) for _, values, counts in clients]
    classes = max([len(names or ()), *(1 + int(values.max(initial=-1)) for values, _ in found)])
    if not 0 < classes <= _MOST_COUNTED:
        return None
    result = np.zeros([len(found), classes], np.int64)
    for row, (values, counts) in zip(result, found, strict=True):
        row[values.astype(int)] = counts
    return result
