"""The one composer of federated rounds: client work, an aggregation process for each upload, a server step.

A round is `(state@SERVER, clients@CLIENTS) -> (state@SERVER, output@SERVER[, kept@CLIENTS])`:

1. the server broadcasts its values, and every client receives its part of them (`Server.receive`);
2. every client computes (`ClientWork.compute`); an upload that is not finite is silenced;
3. each named upload goes through its own aggregation process; reports, if the server receives them, are collected with
   the client IDs;
4. the server step makes the next values from the results.
"""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from google.protobuf.message import DecodeError

from tffcl.aggregators.clustered_mean import ClusteredMeanFactory
from tffcl.aggregators.collect import CollectFactory, collect, fields_of, first_value, plain_containers, specs_of
from tffcl.aggregators.contract import traits
from tffcl.aggregators.secure_mean import simulated
from tffcl.aggregators.soft_mean import SoftMeanFactory
from tffcl.client_work.client_work import KEPT, LOCAL_TEST, OPTIMIZER, ClientWork, sequence_type, stacked_type
from tffcl.errors import UserError
from tffcl.models.graph_function import is_ours
from tffcl.rounds.privacy_releases import check_hidden
from tffcl.rounds.traffic import Transfer
from tffcl.trace_cache import built_once

Weighted = tff.aggregators.WeightedAggregationFactory


def by_examples(report) -> tf.Tensor:
    """The weight of a client in means: its number of training examples, as in FedAvg."""
    return tf.cast(report["examples"], tf.float32)


def uniform(report) -> tf.Tensor:
    """The weight of a client in means: the same for each client."""
    return tf.ones_like(report["examples"], tf.float32)


WEIGHTINGS = {"examples": by_examples, "uniform": uniform}  # by their names in task files


@dataclasses.dataclass(frozen=True, eq=False)
class Server:
    """The server's half of a round.

    Attributes:
      values: The TFF types of the values that it broadcasts, by name; unknown dimensions may differ between rounds.
      receive: `(values, client) -> received` in TensorFlow, the part of the values that a client receives, by name.
      step: `(state, results, measurements) -> state` in TensorFlow: makes the next values, broadcast and private ones,
        by name, from the aggregators' results and measurements by upload name. None leaves the values as they are and
        hands the results out, for a coordinator that decides in Python.
      once: Names in `received` of values that never change, so that a device receives them once instead of every round.
      private: The TFF types, by name, of what the server keeps and does not broadcast (the state of its optimizer).
      by_row: Values of which a client needs only one row, with the client's field that names the row. `receive` uses
        this field for nothing else, so that a part of the cohort can be sent only the rows that it needs.
      handed_out: Uploads whose results are handed out beside the next state, if there is a step (without a step all
        are). They are not silenced: such an upload itself decides how a client counts whose training is not finite.
    """

    values: Mapping[str, tff.Type] = dataclasses.field(default_factory=dict)
    receive: Callable = lambda values, client: collections.OrderedDict()
    step: Callable | None = None
    once: tuple[str, ...] = ()
    private: Mapping[str, tff.Type] = dataclasses.field(default_factory=dict)
    handed_out: tuple[str, ...] = ()
    by_row: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Round:
    """A composed round; each of its forms is built once, when it is first needed.

    Attributes:
      work: The client's half.
      uploads: The aggregation factory of each upload, by name.
      server: The server's half.
      weighting: `(report) -> float32`, a client's weight in weighted aggregations.
      reports: Whether the server receives the clients' reports.
    """

    def __init__(
        self,
        work: ClientWork,
        uploads: Mapping[str, tff.aggregators.AggregationFactory],
        server: Server,
        weighting: Callable,
        reports: bool = True,
    ):
        self.work, self.uploads, self.server, self.weighting = work, dict(uploads), server, weighting
        self.reports = reports

    @functools.cached_property
    def simulated(self) -> tff.Computation:
        """The round as simulations run it, whose clients may bring test examples and hand out what they keep.

        Their examples come as stacked tensors, since a sequence costs the runtime some 20 ms of a core for each client.
        """
        return self._build_next(self.simulated_update, kept=True, aggregations=self.simulated_aggregations)

    @functools.cached_property
    def simulated_of_nobody(self) -> tff.Computation:
        """The same for a round without clients, where TFF cannot hand out what clients keep."""
        if not self.work.keeps:
            return self.simulated
        return self._build_next(self.simulated_update, kept=False, aggregations=self.simulated_aggregations)

    @functools.cached_property
    def simulated_aggregations(self) -> Mapping[str, tff.Computation]:
        """The `next` of each aggregation process as a simulation runs it, by upload name.

        Raises:
          UserError: If an upload is sent in the open beside secure sums.
        """
        found = {name: simulated(process.next) for name, process in self.aggregators.items()}
        check_hidden(self.uploads, [name for name in found if found[name] is not self.aggregators[name].next])
        return found

    def has_secure_sums(self, name: str) -> bool:
        """Whether an upload goes into secure sums; a collected upload does not."""
        return name in self.aggregators and self.simulated_aggregations[name] is not self.aggregators[name].next

    @functools.cached_property
    def members_needed(self) -> int:
        """The number of members that a cluster needs in the round for all uploads to count, see `FactoryTraits`."""
        needed = [1]
        for name in self.aggregators:
            said = traits(self.uploads[name]).members_needed
            needed.append(said or (2 if self.has_secure_sums(name) else 1))
        return max(needed)

    @functools.cached_property
    def simulated_update(self) -> tff.Computation:
        """The client's part like `client_update`, but with test examples, and with examples as stacked tensors."""
        return self._client_update(simulated=True)

    @functools.cached_property
    def deployed(self) -> tff.Computation:
        """The round as devices run it: without local test, and with what a client keeps staying on the device."""
        return self._build_next(self.client_update, kept=False)

    @functools.cached_property
    def as_promised(self) -> "Round":
        """The round as it is deployed: its aggregations have nothing that only simulations have
        (`FactoryTraits.deployed`), and if uploads are hidden there are no clients' reports, which would reveal them.
        """
        uploads = {name: traits(factory).deployed() for name, factory in self.uploads.items()}
        hidden = any(
            traits(factory).hides_uploads
            or isinstance(factory, (ClusteredMeanFactory, SoftMeanFactory))
            and not factory.is_plain
            and self.has_secure_sums(name)
            for name, factory in uploads.items()
        )
        if not hidden and all(uploads[name] is factory for name, factory in self.uploads.items()):
            return self
        return Round(self.work, uploads, self.server, self.weighting, reports=self.reports and not hidden)

    @functools.cached_property
    def deployed_with_kept(self) -> tff.Computation | None:
        """The deployed round with what clients keep as a value at CLIENTS; None where they keep nothing."""
        return self._build_next(self.client_update, kept=True) if self.work.keeps else None

    def process(self, initial: Mapping) -> tff.templates.IterativeProcess:
        """Returns the round as `tff.templates.IterativeProcess`, from initial values as in `build_initialize`."""
        return tff.templates.IterativeProcess(self.build_initialize(initial), self.deployed, next_is_multi_arg=True)

    def build_initialize(self, initial: Mapping, aggregators: Mapping | None = None) -> tff.Computation:
        """Builds `( -> state@SERVER)`.

        Args:
          initial: The server's first values, broadcast and private, by name.
          aggregators: First states of aggregation processes, by upload name, that differ from the processes' own.
        """
        types = {**self.server.values, **self.server.private}
        self.client_update  # a deployment begins here, and needs no form for simulations (see `_result_type`)

        @tff.tensorflow.computation
        def first_values():
            # Values that are placeholders have a type that lets later rounds have more rows.
            return collections.OrderedDict((name, first_value(initial[name], kind)) for name, kind in types.items())

        @tff.federated_computation
        def initialize():
            fields = collections.OrderedDict()
            if types:
                first = tff.federated_eval(first_values, tff.SERVER)
                fields.update((name, first[name]) for name in types)
            return _zip({**fields, "aggregators": self._initial_aggregators(aggregators)})

        return initialize

    @functools.cached_property
    def aggregators(self) -> Mapping[str, tff.templates.AggregationProcess]:
        """The aggregation process of each upload that is not only collected, by name."""
        result = self._result_type
        made = {}
        for name, factory in self.uploads.items():
            if isinstance(factory, CollectFactory):
                continue  # its rows travel with the reports, whose client IDs order them
            kinds = (result["uploads"][name],) + ((result["weight"],) if isinstance(factory, Weighted) else ())
            with _within_messages():
                made[name] = _create(factory, *kinds)
        return made

    @functools.cached_property
    def initial_aggregators(self):
        """The first states of the aggregation processes, as Python values."""

        @tff.federated_computation
        def initialize():
            return self._initial_aggregators()

        return plain_containers(initialize())

    @functools.cached_property
    def transfer(self) -> Transfer:
        """What a client receives and sends in the round; nothing if it uploads nothing and works for itself."""
        if not self.uploads:
            return Transfer()
        result = self._result_type
        weighted = [traits(factory) for factory in self.uploads.values() if isinstance(factory, Weighted)]
        weights = [result["weight"] for factory in weighted if factory.sends_weight]
        each = tff.StructType([(name, kind) for name, kind in fields_of(result["report"]) if name not in LOCAL_TEST])
        reports = [result["client_id"], each] if self.reports else []
        uploads = [traits(factory).uploaded_type(result["uploads"][name]) for name, factory in self.uploads.items()]
        sent = tff.StructType([*uploads, *weights, *reports])
        received = [(name, kind) for name, kind in fields_of(self._received_type) if name not in self.server.once]
        return Transfer(tff.StructType(received), sent)

    @property
    def once(self) -> Transfer:
        """What a client receives once, before its first round."""
        return Transfer(
            tff.StructType([(n, kind) for n, kind in fields_of(self._received_type) if n in self.server.once])
        )

    @functools.cached_property
    def client_update(self) -> tff.Computation:
        """The client's part: `(<values, client> -> <uploads, weight, client_id, report[, kept]>)`, no local test."""
        return self._client_update(simulated=False)

    @property
    def _result_type(self) -> tff.StructType:
        """The result of the client's part. Both forms have the same but for `LOCAL_TEST`, so only one is traced."""
        update = vars(self).get("client_update")  # set if the form for devices was asked for
        return (self.simulated_update if update is None else update).type_signature.result

    @property
    def _received_type(self) -> tff.Type:
        return _received_type(self.server.receive, self._values_type, self._client_type(simulated=False))

    @property
    def _values_type(self) -> tff.StructType:
        return tff.to_type(collections.OrderedDict(self.server.values))

    def _client_type(self, *, simulated: bool) -> tff.StructType:
        examples = sequence_type(self.work.example_spec)
        fields = collections.OrderedDict(examples=examples)
        if simulated:
            fields["test_examples"] = examples
        fields.update(client_id=np.int32, seed=tff.TensorType(np.int32, [2]), **self.work.fields)
        fields.update(self.work.keeps)
        if simulated:
            for name, kind in fields.items():
                fields[name] = stacked_type(kind) if isinstance(kind, tff.SequenceType) else kind
        return tff.to_type(fields)

    def _client_update(self, *, simulated: bool) -> tff.Computation:
        named = tuple(name for name, factory in self.uploads.items() if traits(factory).takes_client_ids)
        how = self.server.receive, self.weighting, self.server.handed_out, named
        return _build_client_update(self.work, self._values_type, self._client_type(simulated=simulated), *how)

    def _initial_aggregators(self, given: Mapping | None = None):
        def begin(name, process):
            if name not in (given or {}):
                return process.initialize()
            kind = process.initialize.type_signature.result.member
            return tff.federated_eval(tff.tensorflow.computation(lambda: first_value(given[name], kind)), tff.SERVER)

        return _zip({name: begin(name, process) for name, process in self.aggregators.items()})

    def _build_next(self, client_update: tff.Computation, *, kept: bool, aggregations=None) -> tff.Computation:
        aggregations = aggregations or {name: process.next for name, process in self.aggregators.items()}
        values_type, client_type = client_update.type_signature.parameter
        names = tuple(self.server.values)
        state_type = collections.OrderedDict({**self.server.values, **self.server.private})
        state_type["aggregators"] = collections.OrderedDict(
            (name, process.initialize.type_signature.result.member) for name, process in self.aggregators.items()
        )
        step = self._step

        def next_fn(state, clients):
            # Server to clients, and the clients' computation.
            values = _zip({name: state[name] for name in names})
            updated = tff.federated_map(client_update, (tff.federated_broadcast(values), clients))
            # Aggregation.
            outputs = {
                name: self.aggregate(name, aggregate, state["aggregators"][name], updated)
                for name, aggregate in aggregations.items()
            }
            handed_out = {"reports": self._collect(updated)} if self.reports else {}
            if outputs:
                handed_out["measurements"] = _zip({name: output.measurements for name, output in outputs.items()})
            results = _zip({name: output.result for name, output in outputs.items()})
            # The server's computation.
            held = {name: state[name] for name in state_type if name != "aggregators"}
            if step is None and outputs:
                handed_out["results"] = results
            if step is not None:
                if self.server.handed_out:
                    handed_out["results"] = _zip({name: outputs[name].result for name in self.server.handed_out})
                moved = tff.federated_map(step, (_zip(held), results, handed_out["measurements"]))
                held = {name: moved[name] for name in held}
            aggregators = _zip({name: output.state for name, output in outputs.items()})
            result = _zip({**held, "aggregators": aggregators}), _zip(handed_out)
            if kept and self.work.keeps:
                result += (_zip({name: updated[name] for name in ("client_id", *self.work.keeps)}),)
            return result

        placed = tff.FederatedType(state_type, tff.SERVER), tff.FederatedType(client_type, tff.CLIENTS)
        with _within_messages():
            return tff.federated_computation(next_fn, *placed)

    def aggregate(self, name: str, aggregate: tff.Computation, state, updated):
        """Calls the aggregation of an upload inside a federated computation."""
        weight = (updated["weight"],) if isinstance(self.uploads[name], Weighted) else ()
        return aggregate(state, updated["uploads"][name], *weight)

    def _collect(self, updated):
        rows = [name for name in self.uploads if name not in self.aggregators]
        if not rows:
            return collect(updated["client_id"], updated["report"])
        collected = {name: updated["uploads"][name] for name in rows}
        return collect(updated["client_id"], _zip({"report": updated["report"], **collected}))

    @functools.cached_property
    def _step(self) -> tff.Computation | None:
        if self.server.step is None:
            return None
        held = collections.OrderedDict({**self.server.values, **self.server.private})
        outputs = {name: process.next.type_signature.result for name, process in self.aggregators.items()}
        results = [(name, output.result.member) for name, output in outputs.items()]
        measurements = [(name, output.measurements.member) for name, output in outputs.items()]
        # A user's own function may read values that have changed since it was traced.
        build = _build_step if is_ours(self.server.step) else _build_step.__wrapped__
        return build(self.server.step, tff.to_type(held), tff.StructType(results), tff.StructType(measurements))


@contextlib.contextmanager
def _within_messages():
    """Raises UserError if computations are nested deeper than protobuf messages, in which TFF holds them, can be."""
    try:
        yield
    except DecodeError:
        raise UserError(
            "this aggregation is nested deeper than TFF's messages can be, as tff.learning.ddp_secure_aggregator is in "
            "TFF's own rounds, too; tffcl.aggregation('dp', secure=True) has noise and secure sums"
        ) from None


@built_once
def _create(factory: tff.aggregators.AggregationFactory, *kinds: tff.Type) -> tff.templates.AggregationProcess:
    return factory.create(*kinds)


@built_once
def _received_type(receive: Callable, values_type: tff.StructType, client_type: tff.StructType) -> tff.Type:
    """The part of the server's values that a client receives, see `Server.receive`."""

    @tff.tensorflow.computation(values_type, client_type)
    def received(values, client):
        return receive(values, client)

    return received.type_signature.result


@built_once
def _build_step(step: Callable, *kinds: tff.StructType) -> tff.Computation:
    """Builds `Server.step` for state, results and measurements of these types; it is the same wherever it runs."""
    held, *_ = kinds

    @tff.tensorflow.computation(*kinds)
    def moved(state, results, measurements):
        found = step(state, results, measurements)
        return collections.OrderedDict((name, _of_type(found[name], kind)) for name, kind in fields_of(held))

    return moved


@built_once
def _build_client_update(
    work: ClientWork,
    values_type: tff.StructType,
    client_type: tff.StructType,
    receive: Callable,
    weighting: Callable,
    handed_out: tuple[str, ...],
    named: tuple[str, ...],
) -> tff.Computation:
    """Builds the client's part of a round, which does not depend on how uploads are aggregated.

    Args:
      receive: Of the `Server`, as `handed_out`.
      named: The uploads that travel with the client's ID.
    """

    @tff.tensorflow.computation(values_type, client_type)
    def client_update(values, client):
        result = work.compute(receive(values, client), client)
        finite = result.report["finite"]
        state = result.report.pop(OPTIMIZER, None)

        def silenced(leaf):
            leaf = tf.convert_to_tensor(leaf)
            return tf.where(finite, leaf, tf.zeros_like(leaf)) if leaf.dtype.is_floating else leaf

        uploads = collections.OrderedDict(result.uploads)
        for name in uploads:
            if name not in handed_out:
                uploads[name] = tf.nest.map_structure(silenced, uploads[name])
        for name in named:
            uploads[name] = collections.OrderedDict(client_id=client["client_id"], upload=uploads[name])
        output = collections.OrderedDict(
            uploads=uploads,
            weight=tf.where(finite, weighting(result.report), 0.0),
            client_id=client["client_id"],
            report=result.report,
        )
        if work.kept is not None:
            output[KEPT] = result.kept
        if state is not None:
            output[OPTIMIZER] = tf.nest.map_structure(
                lambda new, old: tf.where(finite, new, old), state, client[OPTIMIZER]
            )
        return output

    return client_update


def compose(
    client_work: ClientWork,
    uploads: Mapping[str, tff.aggregators.AggregationFactory],
    server: Server,
    *,
    weighting: Callable = by_examples,
    reports: bool = True,
) -> Round:
    """Composes a round.

    Args:
      client_work: What a client computes.
      uploads: Aggregates each of its uploads: a weighted or unweighted aggregation factory by name. The rows of a
        `CollectFactory` come back with the reports.
      server: What the server broadcasts and how it steps.
      weighting: `(report) -> float32`, a client's weight; `by_examples` or `uniform`. A client whose training is not
        finite always has weight 0.
      reports: Whether the server receives every client's report under its ID, as simulations need. If not, the server
        only learns what the aggregators of the uploads let through; such a round collects no rows either, and cannot be
        used with `run_round`.

    Raises:
      ValueError: If rows are to be collected without reports.
      UserError: If secure sums or noise hide some uploads from the server, and others would be sent in the open.
    """
    if not reports and any(isinstance(factory, CollectFactory) for factory in uploads.values()):
        raise ValueError("the rows of a CollectFactory travel with the reports; this round has none")
    check_hidden(uploads)
    if weighting is uniform:
        uploads = {name: traits(factory).with_equal_weights() for name, factory in uploads.items()}
    return Round(client_work, uploads, server, weighting, reports)


def _of_type(value, kind: tff.Type):
    return tf.nest.map_structure(lambda leaf, spec: tf.ensure_shape(leaf, spec.shape), value, specs_of(kind))


def _zip(fields: Mapping):
    """Zips federated values by name; without any, it returns an empty value at the server."""
    return tff.federated_zip(collections.OrderedDict(fields)) if fields else tff.federated_value((), tff.SERVER)
