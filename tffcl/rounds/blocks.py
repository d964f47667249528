"""A round whose clients compute in blocks, so that its memory is bounded, whatever the size of the cohort.

The round is cut at its aggregations: every block of clients returns the partial sums of the aggregation processes and
the rows that are collected; then the partial sums are merged, the processes finish, and the server makes its step. The
numbers are those of the whole round up to the order of sums. The parts are made from the composed round's types, so
that the round of any method can be cut, also that of a user's own method.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.aggregators.collect import by_client, collect, plain_containers
from tffcl.aggregators.contract import traits
from tffcl.clients.client_state import bytes_of
from tffcl.clients.cohort import Cohort
from tffcl.clients.simulation_context import current
from tffcl.errors import UserError, one_line
from tffcl.rounds import shards
from tffcl.rounds.composer import Round
from tffcl.rounds.server import Replacing
from tffcl.rounds.traffic import type_bytes
from tffcl.runtime import MESSAGE_BYTES, memory
from tffcl.trace_cache import built_once

# How many copies of a client's values there are while a block computes, in this process and in the worker's. Of an
# input there are four or, in a shard, five here (arrays, the message, its bytes, what gRPC sends) and three there. They
# are measured, see tests/benchmarks/memory.py and relatedness.py.
INPUT_COPIES, SUMMED_COPIES, _COLLECTED_COPIES = 8, 4, 11
MESSAGE_ROOM = 0.9 * MESSAGE_BYTES

_MANY_CLIENTS = 100  # from so many clients of few examples on, shards are used
_compiled = built_once(functools.partial(tf.function, autograph=False, reduce_retracing=True))


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a cohort is cut.

    Attributes:
      blocks: The number of blocks; None runs the round as it is, in one piece.
      in_flight: How many blocks compute at a time.
      shards: The number of shards for the clients of a block, see `rounds.shards`; 0 for none.
    """

    blocks: int | None = None
    in_flight: int = 1
    shards: int = 0


def plan(composed: Round, cohort: Cohort, values: Mapping) -> Plan:
    """Cuts a cohort by the memory budget (see `clients.simulation_context`), into at least one block for each worker.

    If the clients of a block are many and small, they are put into shards.

    Args:
      composed: The round.
      cohort: Who takes part.
      values: The server's values by name.

    Raises:
      UserError: If a single client needs more than the budget, or more than fits into a message; or if the server holds
        the uploads of all clients, and these do not fit into the free memory.
    """
    if not len(cohort.client_ids):
        return Plan()  # a private round, whose noise hides that nobody was drawn
    _check_rows(composed, len(cohort.client_ids))
    clients, lanes = len(cohort.client_ids), len(runtime.lanes())
    shared, each, most = _bytes(composed, cohort, values)
    if shared + each > MESSAGE_ROOM:
        raise UserError(
            f"the models of round {cohort.seed[1]} take {shared + each:,} bytes; "
            "one message to the runtime has room for 2 GB"
        )
    budget, parts = current().memory_bytes, runtime.worker_count()
    if (
        parts == 1
        and shared + clients * each <= min(budget / INPUT_COPIES, MESSAGE_ROOM)
        and clients * most + shared <= budget
    ):
        sharded = _shards(composed, cohort, 1)
        if not sharded:
            return Plan()
        current().on_plan(f"{clients} clients of a round compute in {sharded} shards of {-(-clients // sharded)}")
        return Plan(1, 1, sharded)
    if shared * INPUT_COPIES + most > budget:
        needed, given = memory.shown(shared * INPUT_COPIES + most), memory.shown(budget)
        raise UserError(
            f"memory is {given}; one client of a round takes about {needed} of it, with the models that are sent to it"
        )
    in_flight = lanes
    while in_flight > 1 and (shared * INPUT_COPIES + most) * in_flight > budget:
        in_flight -= 1
    room = budget / in_flight - shared * INPUT_COPIES
    size = max(1, int(min(room / most, (MESSAGE_ROOM - shared) / each)))
    blocks = min(clients, max(-(-clients // size), parts))
    sharded = _shards(composed, cohort, blocks)
    current().on_plan(
        f"{clients} clients of a round compute in {blocks} blocks of {-(-clients // blocks)}, "
        f"{in_flight} blocks at a time, within {memory.shown(budget)} of memory"
        + (f"; each block in {sharded} shards" if sharded else "")
    )
    return Plan(blocks, in_flight, sharded)


def _shards(composed: Round, cohort: Cohort, blocks: int) -> int:
    """The number of shards into which the clients of each block are put."""
    wanted = shards.wanted(len(cohort.client_ids), lambda: cohort.sizes, _MANY_CLIENTS) // blocks
    if current().shards:
        wanted = max(wanted, 1)
    if not wanted:
        return 0
    try:
        block_form(composed).sharded_block
    except (TypeError, UserError) as error:
        current().on_plan(f"the clients of a round are not put into shards: {one_line(error)}")
        return 0
    return wanted


def _check_rows(composed: Round, clients: int):
    """Raises UserError if the uploads that the server holds of every client do not fit into this process."""
    uploaded = composed.simulated_update.type_signature.result["uploads"]
    held = clients * sum(type_bytes(uploaded[name]) for name in composed.uploads if name not in composed.aggregators)
    if held > (free := memory.free_bytes()):
        raise UserError(
            f"the uploads of {clients} clients take {memory.shown(held)} together, "
            f"which this method's server holds at once; {memory.shown(free)} are free: fewer clients_per_round would do"
        )


def _bytes(composed: Round, cohort: Cohort, values: Mapping) -> tuple[float, float, float]:
    """The bytes that every block is sent, that a client adds to a message at most, and that a client needs in all."""
    by_row = composed.server.by_row
    shared = sum(
        bytes_of(value) for name, value in values.items() if name in composed.server.values and name not in by_row
    )
    rows = max((len(value) for value in values.values() if np.ndim(value) == 2), default=1)
    spec = composed.work.example_spec
    example = sum(int(np.prod(leaf.shape)) * leaf.dtype.size for leaf in tf.nest.flatten(spec))
    population = cohort.population
    held = float(np.mean(cohort.sizes)) * example
    if cohort.local_test is not None:
        held += float(np.mean(population.evaluated.test_sizes)) * example
    result = composed.simulated_update.type_signature.result
    uploads = type_bytes(result["uploads"], rows)
    kept = sum(type_bytes(kind, rows) for kind in composed.work.keeps.values())
    received = composed.transfer.down_bytes(rows) if composed.uploads else 0
    rows_sent = sum(bytes_of(values[name][0]) for name in by_row)
    # For sums by key, the slot of a client's key is copied when the client is added.
    summed = [name for name in composed.aggregators if traits(composed.uploads[name]).by_parts is None]
    sums = sum(type_bytes(result["uploads"][name], rows) for name in summed)
    outputs = SUMMED_COPIES * (sums + kept) + _COLLECTED_COPIES * (uploads - sums)
    most = INPUT_COPIES * (held + kept + rows_sent) + outputs + received + sums * rows / 8
    return shared, max(held + kept + rows_sent, uploads + kept), most


class BlockForm:
    """A composed round, cut into the parts that blocks need; each is built once, when it is first needed."""

    def __init__(self, composed: Round):
        self._round = composed

    @functools.cached_property
    def in_parts(self) -> tuple[str, ...]:
        """Uploads that the coordinator aggregates part by part, see `FactoryTraits.by_parts`."""
        return tuple(name for name in self._round.aggregators if traits(self._round.uploads[name]).by_parts is not None)

    @functools.cached_property
    def merged(self) -> tuple[str, ...]:
        """Uploads whose partial sums are merged."""
        return tuple(name for name in self._round.aggregators if name not in self.in_parts)

    @functools.cached_property
    def sums(self) -> tff.backends.mapreduce.MapReduceForm | None:
        """The aggregation processes together, cut before and after their sums; None if there is nothing to sum.

        Raises:
          UserError: If an aggregation needs the result of another one, since no part of the cohort can then go first.
        """
        if not self.merged:
            return None
        result = self._round.simulated_update.type_signature.result
        uploaded = tff.to_type(collections.OrderedDict(uploads=result["uploads"], weight=result["weight"]))

        @tff.federated_computation(
            tff.FederatedType(self._states_type, tff.SERVER), tff.FederatedType(uploaded, tff.CLIENTS)
        )
        def aggregate(states, updated):
            moved, outputs = collections.OrderedDict(), collections.OrderedDict()
            for name in self.merged:
                output = self._round.aggregate(name, self._round.simulated_aggregations[name], states[name], updated)
                parts = collections.OrderedDict(result=output.result, measurements=output.measurements)
                moved[name], outputs[name] = output.state, tff.federated_zip(parts)
            return tff.federated_zip(moved), tff.federated_zip(outputs)

        try:
            form = tff.backends.mapreduce.get_map_reduce_form_for_computation(aggregate, shards.AS_IT_IS)
            if shards.draws(form.prepare):
                raise ValueError("its server draws numbers that every part, and the end, would draw anew")
            return form
        except (TypeError, ValueError) as error:
            raise UserError(
                f"this aggregation can't be taken in parts ({one_line(error)}), as clients of several workers, or too "
                "many for memory, are; one worker, fewer clients_per_round or more memory would do"
            ) from None

    @property
    def _states_type(self) -> tff.Type:
        processes = self._round.aggregators
        return tff.to_type(
            collections.OrderedDict(
                (name, processes[name].initialize.type_signature.result.member) for name in self.merged
            )
        )

    @property
    def _server_type(self) -> tff.Type:
        values_type, _ = self._round.simulated_update.type_signature.parameter
        return tff.to_type(collections.OrderedDict(values=values_type, states=self._states_type))

    def _rows(self, updated) -> collections.OrderedDict:
        """The part of a client's results, or of their type, that is returned unchanged."""
        names = [name for name in self._round.uploads if name not in self.merged]
        rows = collections.OrderedDict(report=updated["report"], weight=updated["weight"])
        rows.update((name, updated["uploads"][name]) for name in names)
        return rows

    def rows_of_shards(self, updated) -> collections.OrderedDict:
        """The part of a client's results, or of their type, that shards return, with what the client keeps."""
        kept = collections.OrderedDict((name, updated[name]) for name in self._round.work.keeps)
        value = collections.OrderedDict(handed_out=self._rows(updated), kept=kept)
        return collections.OrderedDict(client_id=updated["client_id"], value=value)

    @functools.cached_property
    def row_of_shards(self) -> tff.Type:
        """The type of `rows_of_shards`."""
        return tff.to_type(self.rows_of_shards(self._round.simulated_update.type_signature.result))

    @functools.cached_property
    def block(self) -> tff.Computation:
        """`(<values, states>@SERVER, clients@CLIENTS) -> <rows@SERVER[, partial@SERVER][, kept@CLIENTS]>`."""
        composed, sums = self._round, self.sums
        _, client_type = composed.simulated_update.type_signature.parameter

        @tff.federated_computation(
            tff.FederatedType(self._server_type, tff.SERVER), tff.FederatedType(client_type, tff.CLIENTS)
        )
        def block(server, clients):
            updated = tff.federated_map(composed.simulated_update, (tff.federated_broadcast(server["values"]), clients))
            rows = collect(updated["client_id"], tff.federated_zip(self._rows(updated)))
            outputs = collections.OrderedDict(rows=rows)
            if sums is not None:
                prepared = tff.federated_broadcast(tff.federated_map(sums.prepare, server["states"]))
                uploaded = collections.OrderedDict(uploads=updated["uploads"], weight=updated["weight"])
                given = tff.federated_map(sums.work, (tff.federated_zip(uploaded), prepared))[0]
                outputs["partial"] = _summed(sums, given, sums.accumulate)
            if composed.work.keeps:
                kept = collections.OrderedDict((name, updated[name]) for name in ("client_id", *composed.work.keeps))
                outputs["kept"] = tff.federated_zip(kept)
            return outputs

        return block

    @functools.cached_property
    def sharded_block(self) -> tff.Computation:
        """`(<values, states>@SERVER, shards@CLIENTS) -> <rows@CLIENTS[, partial@SERVER]>`, for clients in shards;
        `shards.joined` turns the rows that it returns into those of clients.

        Raises:
          TypeError: If something in it has no place in shards.
          UserError: As `sums`.
        """
        sums = self.sums
        update = shards.build_update(self._round.simulated_update, self.rows_of_shards, sums)

        @tff.federated_computation(
            tff.FederatedType(self._server_type, tff.SERVER),
            tff.FederatedType(update.type_signature.parameter[2], tff.CLIENTS),
        )
        def sharded_block(server, given):
            prepared = tff.federated_value((), tff.SERVER)
            if sums is not None:
                prepared = tff.federated_map(sums.prepare, server["states"])
            values, prepared = tff.federated_broadcast(server["values"]), tff.federated_broadcast(prepared)
            computed = tff.federated_map(update, (values, prepared, given))
            outputs = collections.OrderedDict(rows=computed["rows"])
            if sums is not None:
                outputs["partial"] = _summed(sums, computed["totals"], sums.merge)
            return outputs

        return sharded_block

    @functools.cached_property
    def merge(self) -> Callable:
        """`(partial, partial) -> partial`."""
        return shards.in_process(self.sums.merge)

    @functools.cached_property
    def finish(self) -> Callable:
        """`(states, partial) -> (states, <result, measurements> by upload)`, what follows the sums."""
        report, update = shards.in_process(self.sums.report), shards.in_process(self.sums.update)
        # The empty tuples stand for three kinds of secure sums, which a simulation does not have.
        return lambda states, partial: update(states, (report(partial), (), (), ()))

    @functools.cached_property
    def step(self) -> Callable | None:
        """The server's step, which runs in this process, so that its values need not be sent in a message."""
        step = self._round.server.step
        if step is None or isinstance(step, Replacing):
            return step
        return _compiled(step)  # as in the uncut round

    def inputs(self, cohort: Cohort, values: Mapping, states, fields: Mapping[str, Sequence]) -> tuple:
        """Returns the arguments of `block` for a block of clients."""
        by_row, values, fields = self._round.server.by_row, dict(values), dict(fields)
        for name, field in by_row.items():
            used, places = np.unique(fields[field], return_inverse=True)
            values[name], fields[field] = values[name][used], places.astype(np.int32)
        names = [*self._round.work.fields, *self._round.work.keeps]
        server = collections.OrderedDict(
            values=collections.OrderedDict((name, values[name]) for name in self._round.server.values),
            states=collections.OrderedDict((name, states[name]) for name in self.merged),
        )
        return server, cohort.inputs(**{name: fields[name] for name in names})


def _summed(sums: tff.backends.mapreduce.MapReduceForm, values, add: tff.Computation):
    """The partial sums of values at clients, before `report`."""

    @tff.federated_computation(sums.merge.type_signature.result)
    def as_they_are(totals):
        return totals

    return tff.federated_aggregate(values, sums.zero(), add, sums.merge, as_they_are)


@dataclasses.dataclass(frozen=True)
class RoundOutput:
    """The output of a round, in the form that the composed round returns.

    Attributes:
      values: The server's next values by name.
      aggregators: The aggregation processes' next states.
      rows: The collected rows in the order of the cohort: `report`, and uploads by name.
      results: The aggregators' results by name, if the round hands them out.
      measurements: The aggregators' measurements by name.
    """

    values: Mapping
    aggregators: Mapping
    rows: Mapping
    results: Mapping
    measurements: Mapping


@built_once
def block_form(composed: Round) -> BlockForm:
    """Returns the parts of a round, the same for the same round."""
    return BlockForm(composed)


def run_in_blocks(
    composed: Round,
    chosen: Plan,
    cohort: Cohort,
    values: Mapping,
    states,
    fields: Mapping[str, Sequence],
    keep: Callable[[np.ndarray, Sequence], None],
) -> RoundOutput:
    """Runs a round in blocks.

    Args:
      composed: The round.
      chosen: From `plan`.
      cohort: Who takes part.
      values: The server's values by name, broadcast and private ones.
      states: States of the aggregation processes, by upload name.
      fields: The values of the client work's fields and of what it `keeps`, for each client of the cohort.
      keep: Called once for each block, with client IDs and what these clients hand out of what they keep.
    """
    form = block_form(composed)
    _, client_type = composed.simulated_update.type_signature.parameter
    order = np.argsort(-cohort.sizes, kind="stable")  # largest first, so that blocks take the same time
    places = [order[block :: chosen.blocks] for block in range(chosen.blocks)]
    cohorts = [cohort.chosen(where) for where in places]

    def argument(where, few):
        own = {name: [given[i] for i in where] for name, given in fields.items()}
        server, clients = form.inputs(few, values, states, own)
        return server, shards.pack(clients, client_type, chosen.shards) if chosen.shards else clients

    mixings = {name: traits(composed.uploads[name]).by_parts(states[name]) for name in form.in_parts}
    together, partial, done = None, None, 0
    computation = form.sharded_block if chosen.shards else form.block
    arguments = map(argument, places, cohorts)
    for where, few, out in zip(places, cohorts, in_lanes(computation, arguments, chosen.in_flight)):
        if chosen.shards:
            out = {**out, **_of_shards(form, out["rows"])}
        handed_out = by_client(out["rows"], few.client_ids)
        for name, mixing in mixings.items():
            mixing.add(handed_out.pop(name), handed_out["weight"])
        together = _with_rows(together, handed_out, where, len(order))
        if form.sums is not None:
            partial = out["partial"] if partial is None else form.merge(partial, out["partial"])
        if "kept" in out:
            keep(few.client_ids, out["kept"])
        done += len(few.client_ids)
        current().on_progress(done, len(cohort.client_ids))
    together.pop("weight")
    return _finish(form, composed, partial, mixings, values, states, together)


def _of_shards(form: BlockForm, rows: Sequence) -> dict:
    """What the shards of a block return, in the form that a block without shards returns."""
    rows = shards.joined(rows, form.row_of_shards)
    ids, kept = rows["client_id"], rows["value"]["kept"]
    handed_out = {"rows": {"client_id": ids, "value": rows["value"]["handed_out"]}}
    if kept:
        # These are copies, because a view of one row would keep all rows in memory.
        own = [tf.nest.map_structure(lambda leaf: leaf[place].copy(), kept) for place in range(len(ids))]
        handed_out["kept"] = [{"client_id": client, **each} for client, each in zip(ids, own)]
    return handed_out


def _with_rows(together, handed_out, where: np.ndarray, clients: int):
    """Puts a block's rows where they belong among the cohort's.

    Joining the rows of all blocks and ordering them at the end would make two more copies of what may be gigabytes."""
    if together is None:
        together = tf.nest.map_structure(lambda leaf: np.empty((clients, *leaf.shape[1:]), leaf.dtype), handed_out)

    def put(whole, leaf):
        whole[where] = leaf
        return whole

    return tf.nest.map_structure(put, together, handed_out)


def _finish(
    form: BlockForm, composed: Round, partial, mixings: Mapping, values: Mapping, states, rows: Mapping
) -> RoundOutput:
    """Does what follows the sums: the ends of the aggregation processes, then the server's step."""
    outputs = {
        name: dict(zip(("state", "result", "measurements"), mixing.finish())) for name, mixing in mixings.items()
    }
    if form.sums is not None:
        before = collections.OrderedDict((name, states[name]) for name in form.merged)
        moved, found = form.finish(before, partial)
        outputs.update((name, {**found[name], "state": moved[name]}) for name in form.merged)
    outputs = {name: outputs[name] for name in composed.aggregators}
    results, measurements, aggregators = (
        collections.OrderedDict((name, output[part]) for name, output in outputs.items())
        for part in ("result", "measurements", "state")
    )
    handed_out = {name: results[name] for name in (composed.server.handed_out if composed.server.step else results)}
    if form.step is not None:
        moved = form.step(dict(values), results, measurements)
        values = {name: plain_containers(tf.nest.map_structure(np.asarray, moved[name])) for name in values}
    return RoundOutput(values, plain_containers(aggregators), rows, handed_out, measurements)


def in_lanes(computation: tff.Computation, arguments: Iterator[tuple], in_flight: int) -> Iterator:
    """Calls a computation with each of the arguments, several at a time; yields the results in order."""
    lanes = queue.SimpleQueue()
    for lane in itertools.islice(runtime.lanes(), in_flight):
        lanes.put(lane)

    def call(argument):
        lane = lanes.get()
        try:
            with tff.framework.get_context_stack().install(lane):
                return computation(*argument)
        finally:
            lanes.put(lane)

    pending = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(in_flight, "tffcl-block") as pool:
        for argument in arguments:
            pending.append(pool.submit(call, argument))
            if len(pending) == in_flight:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
