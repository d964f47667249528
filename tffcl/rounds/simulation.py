"""Runs a composed round on a cohort: from NumPy values to NumPy values."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tffcl.aggregators.collect import by_client
from tffcl.clients.cohort import Cohort
from tffcl.errors import Diverged, UserError
from tffcl.rounds.composer import Round, plain_containers
from tffcl.rounds.traffic import RoundMetrics, Traffic
from tffcl.runtime import MESSAGE_BYTES

_KEPT_BYTES_AT_A_TIME = 2**29  # of what clients keep that is on its way to the runtime


@dataclasses.dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round gave; rows of clients are in the order of the cohort.

    Attributes:
      values: The server's next values by name, broadcast and private ones.
      aggregators: The aggregation processes' next states, by upload name.
      reports: The clients' reports, a structure of arrays `[m, ...]`.
      collected: The rows of uploads that are just collected, by name.
      results: The aggregators' results by name, where the server step is the coordinator's.
      measurements: The aggregators' measurements by name.
      kept: What each client keeps, `[m]`; empty where they keep nothing.
      traffic: All bytes of the round.
    """

    values: Mapping[str, np.ndarray]
    aggregators: object
    reports: Mapping[str, np.ndarray]
    collected: Mapping[str, np.ndarray]
    results: Mapping
    measurements: Mapping
    kept: Sequence
    traffic: Traffic

    def metrics(self, cohort: Cohort, clusters: np.ndarray, **more) -> RoundMetrics:
        """Makes the round's metrics.

        Args:
          cohort: Who took part.
          clusters: `int [m]`, whose model each client trained.
          **more: Further fields of `RoundMetrics`.
        """
        reports = self.reports
        return RoundMetrics(
            client_ids=np.asarray(cohort.client_ids, np.int32),
            clusters=np.asarray(clusters, np.int32),
            examples=reports["examples"],
            losses=reports["loss"],
            test_correct=reports["test_correct"],
            test_examples=reports["test_examples"],
            traffic=self.traffic,
            changed=reports["changed"].astype(bool) if "changed" in reports else None,
            **more,
        )


def run_round(
    composed: Round,
    cohort: Cohort,
    values: Mapping[str, np.ndarray] | None = None,
    aggregators: object = (),
    kept: Sequence | None = None,
    **fields: Sequence,
) -> RoundResult:
    """Runs a round.

    Args:
      composed: The round.
      cohort: Who takes part.
      values: The server's values by name, broadcast and private ones.
      aggregators: States of the aggregation processes.
      kept: What each client of the cohort has kept, where the client work keeps something.
      **fields: The client work's fields: name to a value for each client, in the cohort's order.

    Raises:
      UserError: If a client's trained model is not finite, or the values are too large for one message to the runtime.
    """
    values = dict(values or {})
    size = sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(values))
    if size > MESSAGE_BYTES:
        raise UserError(
            f"the models of round {cohort.seed[1]} take {size:,} bytes; one message to the runtime has room for 2 GB"
        )
    if kept is not None:
        fields["kept"] = kept
    if composed.uploads or kept is None:
        return _run(composed, cohort, values, aggregators, fields)
    # Clients that upload nothing do not need each other: a large cohort runs in parts.
    each = max(1, sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(kept[0])))
    parts = [
        _run(composed, few, values, aggregators, {name: given[part] for name, given in fields.items()})
        for part, few in cohort.parts(max(1, _KEPT_BYTES_AT_A_TIME // each))
    ]
    reports = tf.nest.map_structure(lambda *rows: np.concatenate(rows), *(part.reports for part in parts))
    return dataclasses.replace(parts[0], reports=reports, kept=[value for part in parts for value in part.kept])


def _run(composed: Round, cohort: Cohort, values, aggregators, fields) -> RoundResult:
    state = collections.OrderedDict({**values, "aggregators": aggregators})
    names = [*composed.work.fields, *(["kept"] if composed.work.kept is not None else [])]
    inputs = cohort.inputs(stacked=True, **{name: fields[name] for name in names})  # in the order of the client's type
    state, told, *held = composed.simulated(state, inputs)
    rows = by_client(told["reports"], cohort.client_ids)
    reports, collected = (rows.pop("report"), rows) if "report" in rows else (rows, {})
    _check_finite(reports, cohort)
    kept = []
    if held:
        by_id = {int(each["client_id"]): each["kept"] for each in held[0]}
        kept = [by_id[int(client)] for client in cohort.client_ids]
    models = next((len(value) for value in values.values() if np.ndim(value) == 2), None)
    clients, transfer = len(cohort.client_ids), composed.transfer
    traffic = Traffic(transfer.down_bytes(models), transfer.up_bytes()) * clients
    return RoundResult(
        {name: state[name] for name in values}, plain_containers(state["aggregators"]), reports, collected, told.get("results", {}),
        told.get("measurements", {}), kept, traffic,
    )  # fmt: skip


def _check_finite(reports, cohort: Cohort):
    """Raises Diverged if a client's trained model is not finite."""
    if not np.all(reports["finite"]):
        bad = np.flatnonzero(~reports["finite"])[0]
        raise Diverged(
            f"client {cohort.population.name_of(cohort.client_ids[bad])} trained a model that is not finite (loss {reports['loss'][bad]:g}) in round "
            f"{cohort.seed[1]}; a lower learning_rate or momentum helps, or its data hold NaN"
        )
