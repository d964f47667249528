"""The accuracies of an evaluation, and what rounds.csv has of them."""

from collections.abc import Mapping

import numpy as np

from tffcl.algorithms.method import Method
from tffcl.runs import method_checks, summary
from tffcl.runs.metrics import METRICS
from tffcl.runs.population_changes import Stage
from tffcl.runs.run import Totals


def measure(method: Method, stage: Stage, state, *, place_unseen: bool) -> tuple[object, dict]:
    """Takes the accuracies of a state.

    Args:
      method: The method.
      stage: Clients and their test examples.
      state: What the method knows.
      place_unseen: Whether clients that the method has not met are placed before, without training; the state stays.

    Returns:
      The state, in which clients that choose have chosen, and `cluster float [N]`, `global float | None`,
      `untrained float [N]` (of the initial model), and with validation examples `validation`, of the same two on these.
    """
    state = method.choose(state, stage.population)
    asked = method.place(state, stage.population) if place_unseen else state
    ids = stage.population.client_ids
    models, rows = method.models_for(asked, ids)
    method_checks.check_models(method.name, models, rows, len(ids), method.model.size)
    everyones = method.views(asked).global_model
    if everyones is None and len(np.unique(rows)) == 1:
        everyones = models[rows[0]]

    def of(evaluator) -> dict:
        shared = None if everyones is None else evaluator.global_accuracy(everyones)
        return {"cluster": evaluator.cluster_accuracy(models, rows), "global": shared}

    found = of(stage.evaluator) | {"untrained": stage.untrained}
    return state, found if stage.validator is None else found | {"validation": of(stage.validator)}


def names(stage: Stage) -> tuple[str, ...]:
    """The columns of rounds.csv that an evaluation fills."""
    kinds = {"accuracy", "validation"} if stage.validator else {"accuracy"}
    return tuple(each.column for each in METRICS if each.column and kinds.intersection(each.source[:1]))


def row(accuracy: Mapping, totals: Totals) -> dict:
    """The cells of a round with an evaluation."""
    local = totals.local_accuracies
    known = np.isfinite(local)
    cells = {
        "cluster_accuracy": summary.spread(accuracy["cluster"])["mean"],
        "local_accuracy": float(local[known].mean()) if known.any() else None,
        "local_share": totals.share_trained,
        "global_accuracy": accuracy["global"],
        "cluster_accuracy_participants": summary.spread(accuracy["cluster"][totals.rounds_trained > 0])["mean"],
        "local_accuracy_all": summary.spread(summary.local_of_all(accuracy, totals))["mean"],
    }
    if "validation" in accuracy:
        found = accuracy["validation"]
        cells["validation_cluster_accuracy"] = summary.spread(found["cluster"])["mean"]
        cells["validation_global_accuracy"] = found["global"]
    return cells
