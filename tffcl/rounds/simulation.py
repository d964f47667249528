"""Runs a composed round on a cohort: from NumPy values to NumPy values."""

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.aggregators.collect import by_client, plain_containers
from tffcl.client_work.client_work import KEPT, OPTIMIZER
from tffcl.clients.client_examples import inputs_of
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clients.simulation_context import on_devices
from tffcl.errors import Diverged
from tffcl.rounds import blocks, privacy_releases
from tffcl.rounds.composer import Round
from tffcl.rounds.traffic import RoundMetrics, Traffic


@dataclasses.dataclass(frozen=True, eq=False)
class RoundResult:
    """The results of a round; rows of clients are in the order of the cohort.

    Attributes:
      values: The server's next values by name, broadcast and private ones.
      aggregators: The aggregation processes' next states, by upload name.
      reports: The clients' reports, a structure of arrays `[m, ...]`.
      collected: The rows of uploads that are only collected, by name.
      results: The aggregators' results by name, where the coordinator takes the server step.
      measurements: The aggregators' measurements by name.
      kept: What clients keep after the round; None where they keep nothing.
      optimizers: The optimizer states that clients keep; None where they keep none.
      traffic: All bytes of the round.
    """

    values: Mapping[str, np.ndarray]
    aggregators: object
    reports: Mapping[str, np.ndarray]
    collected: Mapping[str, np.ndarray]
    results: Mapping
    measurements: Mapping
    kept: KeptStates | None
    optimizers: KeptStates | None
    traffic: Traffic

    def metrics(self, cohort: Cohort, clusters: np.ndarray, **more) -> RoundMetrics:
        """Makes the round's metrics.

        Args:
          cohort: The clients that took part.
          clusters: `int [m]`, the cluster whose model each client trained.
          **more: Further fields of `RoundMetrics`.
        """
        reports = self.reports
        return RoundMetrics(
            client_ids=np.asarray(cohort.client_ids, np.int32), clusters=np.asarray(clusters, np.int32),
            examples=reports["examples"], losses=reports["loss"], test_correct=reports["test_correct"],
            test_examples=reports["test_examples"], traffic=self.traffic,
            changed=reports["changed"].astype(bool) if "changed" in reports else None,
            test_outputs=reports.get("test_outputs"), **more,
        )  # fmt: skip


def run_round(
    composed: Round,
    cohort: Cohort,
    values: Mapping[str, np.ndarray] | None = None,
    aggregators: object = (),
    kept: KeptStates | None = None,
    brought: Sequence | None = None,
    optimizers: KeptStates | None = None,
    **fields: Sequence,
) -> RoundResult:
    """Runs a round, in blocks of clients where the whole cohort would take more than the memory budget (see
    `rounds.blocks`).

    Args:
      cohort: The clients that take part.
      values: The server's values by name, broadcast and private ones.
      aggregators: States of the aggregation processes.
      kept: What clients have kept, where the client work keeps something.
      brought: What each client of the cohort brings to the round; default what it has kept.
      optimizers: The optimizer states that clients have kept; None where no client has one yet.
      **fields: The client work's fields: by name a value for each client, in the cohort's order.

    Raises:
      UserError: If a client's trained model is not finite, or what the server's optimizer makes of them, a privacy
        budget does not allow the round, or a single client takes more than the memory budget.
    """
    values = dict(values or {})
    fields |= composed.work.values(cohort)
    if OPTIMIZER in composed.work.keeps:
        optimizers = KeptStates(composed.work.optimizer) if optimizers is None else optimizers
        fields[OPTIMIZER] = optimizers.of(cohort.client_ids)
    if kept is not None:
        fields[KEPT] = kept.of(cohort.client_ids) if brought is None else brought
    held = {KEPT: kept, OPTIMIZER: optimizers}
    with on_devices():
        chosen = blocks.plan(composed, cohort, values)
        summed = all(map(composed.has_secure_sums, composed.uploads))
        privacy_releases.release_round(composed.uploads, cohort, summed=summed)
        if chosen.blocks is None:
            outcome = _run_whole(composed, cohort, values, aggregators, fields, held)
        else:
            keep = functools.partial(_keep, held, composed.work.keeps)
            outcome = blocks.run_in_blocks(composed, chosen, cohort, values, aggregators, fields, keep)
    rows = dict(outcome.rows)
    reports = rows.pop("report")
    check_finite(reports, cohort)
    stepped = outcome.values.get("models", ()) if "optimizer" in composed.server.private else ()
    if not all(np.isfinite(leaf).all() for leaf in tf.nest.flatten(stepped)):
        raise Diverged(
            f"the clients' models of round {cohort.seed[1]} are finite, and what the server's optimizer made of them "
            "is not; a lower learning rate of it helps"
        )
    models = next((len(value) for value in values.values() if np.ndim(value) == 2), None)
    transfer = composed.transfer
    traffic = Traffic(transfer.down_bytes(models), transfer.up_bytes()) * len(cohort.client_ids)
    return RoundResult(
        outcome.values, outcome.aggregators, reports, rows, outcome.results, outcome.measurements, held[KEPT],
        held[OPTIMIZER], traffic,
    )  # fmt: skip


def _keep(held: dict[str, KeptStates | None], names: Sequence[str], client_ids, reports):
    """Replaces what clients keep by what they have handed out."""
    by_id = {int(each["client_id"]): each for each in reports}
    for name in names:
        held[name] = held[name].updated(client_ids, [by_id[int(client)][name] for client in client_ids])


def _run_whole(composed: Round, cohort: Cohort, values, aggregators, fields, held: dict):
    state = collections.OrderedDict({**values, "aggregators": aggregators})
    names = [*composed.work.fields, *composed.work.keeps]
    inputs = cohort.inputs(**{name: fields[name] for name in names})  # in the order of the client's type
    if inputs:
        state, outcome, *handed_out = composed.simulated(state, inputs)
    else:  # without clients there is nothing to share among workers
        with tff.framework.get_context_stack().install(next(iter(runtime.lanes()))):
            state, outcome, *handed_out = composed.simulated_of_nobody(state, inputs)
    rows = by_client(outcome["reports"], cohort.client_ids)
    rows = rows if "report" in rows else {"report": rows}
    for each in handed_out:
        _keep(held, composed.work.keeps, cohort.client_ids, each)
    values = {name: plain_containers(state[name]) for name in values}
    aggregators = plain_containers(state["aggregators"])
    return blocks.RoundOutput(values, aggregators, rows, outcome.get("results", {}), outcome.get("measurements", {}))


def check_finite(reports: Mapping[str, np.ndarray], cohort: Cohort):
    """Raises Diverged if a client's trained model is not finite; the reports' rows are in the order of the cohort."""
    if not np.all(reports["finite"]):
        bad = np.flatnonzero(~reports["finite"])[0]
        with on_devices():  # only for the message
            held = cohort.population.train(cohort.client_ids[bad])
        largest = max(np.abs(each.astype(float)).max() for each in inputs_of(held.x).values())
        told = f"features where the model does not (the largest is {largest:g})"
        if held.y.dtype.kind == "f":
            told += f", or its labels (the largest is {np.abs(held.y).max():g})"
        raise Diverged(
            f"client {cohort.population.name_of(cohort.client_ids[bad])} trained a model that is not finite "
            f"(loss {reports['loss'][bad]:g}) in round {cohort.seed[1]}; a lower learning_rate or momentum helps, "
            f"or scaling its {told}"
        )
