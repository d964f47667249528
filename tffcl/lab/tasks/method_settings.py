"""Finds the method of a table [algorithms.LABEL]: in the registry, in an installed package, or in the user's code."""

import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable, Mapping

from tffcl.aggregators.parameters import RobustParameters
from tffcl.client_work.local_training import LocalTraining
from tffcl.errors import UserError, no_server_data, unknown
from tffcl.lab.tasks.settings import TRAIN_KEYS
from tffcl.references import load_reference, references_in
from tffcl.registry import ALGORITHMS, ANY, Row, given, made_by, parameters_of, registered, rows
from tffcl.validation import Parameters, types_of

# Why a method takes no [aggregation].
_NO_MEAN = "its server needs each client's upload, or has an aggregation of its own"
_NO_PARAMETER = (
    "its builder has no parameter 'aggregation'; with `aggregation=None` among its parameters it is given the "
    "factory, e.g. for build_clustered_training(model, training, aggregation=aggregation)"
)
KEYS = ("method", "builder")  # keys of [algorithms.LABEL] beside the method's own


@dataclasses.dataclass(frozen=True)
class MethodSource:
    """Where a method comes from.

    Attributes:
      label: The name of its table, which names it in comparisons.
      base: A name in the registry, or "module:function".
      directory: Where modules of builders are searched first; "" for nowhere.
    """

    label: str
    base: str
    directory: str = ""

    @property
    def _row(self) -> Row | None:
        """Its row in the registry; None for a user's own builder."""
        return ALGORITHMS.get(self.base)

    @property
    def builder(self) -> Callable:
        """`(model, training, [parameters,] *, ...) -> method`."""
        return self._row.builder() if self._row else self._own_builder[0]

    @property
    def parameter_class(self) -> type[Parameters] | None:
        """The class of the method's own parameters; None if it has none."""
        return self._row.parameter_class() if self._row else self._own_builder[1]

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of what else the builder takes beside model, training and parameters, see `registry.given`."""
        return (*self._row.takes, *self._row.needs) if self._row else self._own_builder[2]

    @property
    def clustering_builder(self) -> Callable | None:
        """The builder of the method's clustering before training; None for a method without one."""
        return self._row.clustering_builder() if self._row else None

    @property
    def _own_builder(self):
        return _described(load_reference(self.base, self.directory, f"algorithms.{self.label}.builder"), self.base)

    def build(self, model, training, parameters: Parameters | None, given: Mapping, aggregation=None):
        """Builds the method.

        Args:
          model: The model to train.
          training: Hyper-parameters of local training.
          parameters: The method's own parameters.
          given: The values of `needs`.
          aggregation: A factory that aggregates the updates; None for the method's own mean.

        Raises:
          UserError: If the method allows no aggregation but its own.
        """
        if aggregation is not None:
            if "aggregation" not in inspect.signature(self.builder).parameters:
                raise self._takes_none()
            given = {**given, "aggregation": aggregation}
        build = functools.partial(made_by, "algorithms", self.base, self.builder, None, model, training)
        if parameters is None:
            return build(**given)
        if isinstance(parameters, _Spread):
            own = {field.name: getattr(parameters, field.name) for field in dataclasses.fields(parameters)}
            return build(**own, **given)
        return build(parameters, **given)

    def parameters_from(self, values: Mapping) -> Parameters | None:
        """Makes the method's own parameters from its table's keys, None if it has none; UserError for a wrong key."""
        return parameters_of(self.parameter_class, values, f"algorithms.{self.label}")

    def check(self, contents: Mapping):
        """Raises UserError if names already show that the method cannot use a task's data, aggregation or attack.

        Args:
          contents: The tables of the task.
        """
        if self._row and "server_images" in self._row.needs and not contents["dataset"].get("server_examples"):
            raise no_server_data(self.label)
        self._check_aggregation(contents)
        self._check_attack(contents.get("attack", {}))

    def _rows(self, contents: Mapping) -> list[Row]:
        """Registry rows of the method, and of the local training and the grouping that its table names."""
        found, table = [self._row], contents.get("algorithms", {}).get(self.label, {})
        for key in ("training", "grouping") if self._row else ("training",):
            name = table.get(key)
            name = name.get("name") if isinstance(name, Mapping) else name
            found += [rows(f"{key}s").get(name)] if isinstance(name, str) else []
        return [row for row in found if row is not None]

    def check_training(self, contents: Mapping, training: LocalTraining):
        """Raises UserError if the method is valid only for clients that train by SGD, and these do not."""
        for row in self._rows(contents):
            if row.sgd:
                training.require_sgd(self.label, *row.sgd)

    def _check_aggregation(self, contents: Mapping):
        aggregation = contents.get("aggregation", {})
        name = aggregation.get("name")
        if not aggregation or name == "mean":
            return
        named = name if name != "robust" else aggregation.get("rule", RobustParameters.rule)
        for row in self._rows(contents):
            if ANY in row.refuses:
                raise self._takes_none()
            if named in row.refuses:
                raise UserError(
                    f"{self.label} with [aggregation] {named}: {row.refuses[named]}", table="aggregation", key="name"
                )

    def _check_attack(self, attack: Mapping):
        """Raises UserError if clients should imitate a group's signature, but the method uses no signatures."""
        imitates = attack.get("imitates") is not None or attack.get("kind") == "imitation"
        if attack.get("share") and imitates and self._row and not self._row.clustering:
            raise UserError(
                f"{self.label} asks clients for no signature, so that nobody can imitate one; methods that do are "
                f"{', '.join(name for name, entry in ALGORITHMS.items() if entry.clustering)}",
                table="attack",
                key="imitates" if "imitates" in attack else "kind",
            )

    def _takes_none(self) -> UserError:
        why = self._row.refuses.get(ANY, _NO_MEAN) if self._row else _NO_PARAMETER
        return UserError(f"{self.label} takes no [aggregation] and no [attack] on uploads: {why}", table="aggregation")


class _Spread(Parameters):
    """Base of parameters that a builder takes as separate arguments, not as one object."""


@functools.cache
def _described(builder: Callable, reference: str) -> tuple[Callable, type[Parameters] | None, tuple[str, ...]]:
    """A user's builder, the class of its parameters (made from its signature), and names of what else it takes."""
    parameters = list(inspect.signature(builder).parameters.values())
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 or any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
        raise UserError(
            f"{reference} takes {inspect.signature(builder)}; it must take (model, training, ...), each key by its name"
        )
    hints = types_of(builder)
    own = [each for each in parameters if each not in positional[:2] and each.name not in given("algorithms")]
    needs = tuple(each.name for each in parameters if each.name in given("algorithms"))
    classes = [hints.get(each.name) for each in own]
    if len(own) == 1 and isinstance(classes[0], type) and issubclass(classes[0], Parameters):
        return builder, classes[0], needs
    taken = {*KEYS, *TRAIN_KEYS, *dir(Parameters)}
    for each in own:
        if each.name in taken:
            raise UserError(
                f"{reference} has a parameter {each.name!r}, which as a key means something else: a method's table "
                "may have keys of [train], and its own need other names"
            )
    fields = []
    for each in own:
        default = {} if each.default is each.empty else {"default_factory": lambda own=each: own.default}
        fields.append((each.name, hints.get(each.name, object), dataclasses.field(**default)))
    fields.sort(key=lambda field: field[2].default_factory is not dataclasses.MISSING)
    made = dataclasses.make_dataclass("OwnParameters", fields, bases=(_Spread,), frozen=True)
    made.__doc__ = builder.__doc__
    return builder, made if fields else None, needs


def find_method(label: str, table: Mapping, directory: str = "", kind: str = "algorithm") -> MethodSource:
    """Finds the method of a table [algorithms.LABEL].

    Args:
      label: The label of the table.
      table: The table. Its `method` is a name, by default the label; or its `builder` is "module:function".
      directory: The directory of the task file.
      kind: The kind of name that the label is, for the message about an unknown one.

    Raises:
      UserError: If `method` and `builder` are both given, or the name is unknown.
    """
    where = f"algorithms.{label}"
    references = references_in(table)
    for reference in references:  # later calls find it by its module's name
        load_reference(reference, directory, where)
    directory = str(pathlib.Path(directory).resolve()) if references and directory else ""
    if "builder" in table and "method" in table:
        raise UserError(f"{where} has method and builder; give one of the two", table=where, key="builder")
    if "builder" in table:
        return MethodSource(
            label, load_reference(table["builder"], directory, f"{where}.builder") and table["builder"], directory
        )
    name = table.get("method", label)
    if not isinstance(name, str):
        raise UserError(f"{where}.method is {name!r}; it must be one name", table=where, key="method")
    if name in ALGORITHMS:
        return MethodSource(label, name, directory)
    if name in registered("algorithms"):
        return MethodSource(label, registered("algorithms")[name], directory)
    kind, table_name, key = ("method", where, "method") if "method" in table else (kind, "algorithms", label)
    listed = "algorithms" if kind == "algorithm" else ""
    raise unknown(kind, name, rows("algorithms"), listed=listed, table=table_name, key=key)
