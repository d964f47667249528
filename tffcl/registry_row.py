"""What a name of the registry stands for. Imports nothing heavy."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from tffcl.references import load_reference
from tffcl.validation import Parameters

ANY = "any"  # a key of `Row.refuses`


@dataclasses.dataclass(frozen=True)
class Row:
    """What a name stands for.

    Attributes:
      summary: What it is, one line.
      place: What builds it, "module:function"; "" where nothing does, as for the plain mean.
      parameters: The class of its keys in a task file, "module:class"; "" where its keys are the builder's keyword-only
        parameters, or it has none.
      takes: What its builder is given of a run, by name, where the run has it.
      needs: The same of what it cannot do without.
      clustering: What builds a method's grouping before training, "module:function"; "" for methods without.
      sgd: Why its clients must train by SGD, and keys of local training that it cannot have; empty where any optimizer
        will do. See `LocalTraining.require_sgd`.
      refuses: Aggregations that a method or a training cannot have, with the reason; `ANY` stands for all but the mean.
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
        """Imports what builds it."""
        return load_reference(self.place, where=self.foreign) if self.foreign else _object(self.place)

    def clustering_builder(self) -> Callable | None:
        """Imports what builds its grouping before training; None for methods without."""
        return _object(self.clustering) if self.clustering else None

    def parameter_class(self) -> type[Parameters] | None:
        """Imports the class of its keys; None if it has none."""
        return _object(self.parameters) if self.parameters else None


def _object(place: str) -> Any:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)
