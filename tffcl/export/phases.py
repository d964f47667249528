"""The part of a manifest for a deployment: what runs when, what the values of a round mean, and what the server
learns."""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence

import tensorflow_federated as tff

from tffcl.algorithms.method import Exports, Method
from tffcl.export import deployment_forms
from tffcl.rounds.privacy_releases import Release

SUMMED = "training_summed"
TRAININGS = {"training", "training_with_kept"}  # forms of a training round; the script runs the first that exists
_KEPT = "what clients keep, which stays on the devices; the computation hands it out at CLIENTS"
# What the values of a round mean, by name, for those who have to supply them.
_OF_CLIENTS = {
    "examples": "the client's training examples one by one, not in batches",
    "choice_examples": "those that the client chooses a model on",
    "client_id": "a number that no other client of the round has; what it reports comes under it",
    "seed": "decides the order of its examples and all else that is random in its training; others in each round and "
    "for each client, as (numpy.random.SeedSequence([base, round, client_id]).generate_state(2) >> 1).astype('int32'); "
    f"in a run base is numpy.random.SeedSequence([seed, {zlib.crc32(b'clients')}]).generate_state(1)[0] >> 1",
    "key": "the row of the server's models that it trains, or what its upload is grouped by",
    "row": "the row of the server's models that it receives",
    "forced": "the row of the server's models that it must take, -1: it chooses itself",
    "moves": "the row of the server's models that it trains in the place of each that it may choose",
    "round": "the number of the round, from 1, by which its learning rate changes and a client of FedSoft's knows when "
    "to weigh the clusters anew",
    "epochs": "its own number of passes over its examples",
    "batch_size": "its own number of examples a step, 0 is all",
    "changed": "1 if its data have changed since it told about them, else 0",
    "kept": "what it has kept of its last round, which the device keeps; in its first one what those of the clients in "
    "check/ keep",
    "optimizer": "its own part of the model, if it has one, and the state of its optimizer, if that is kept, after its "
    "last round, which the device keeps; in its first one those of the clients in check/",
}
_OF_SERVER = {
    "models": "a row a model",
    "global_model": "the model of all clients, which is row 0 of models, too",
    "members": "how many clients each cluster has, those that do not take part in the round too: here of this run, "
    "also those who have left it, whom its own next round would leave out; who deploys to others puts their numbers in",
    "control_sums": "the sums of the control variates of each cluster's clients, here of all of this run who are "
    "counted in members, which they keep (`kept`); who deploys to others begins with those of initial",
    "labels": "for each model the sums of how many examples of each label clients have last told, here those of this "
    "run, which they keep; who deploys to others begins with those of initial",
    "images": "what the clients' models answer, so that they can be compared; they never change",
    "optimizer": "the state of the server's optimizer, a row a model, which is not broadcast",
    "aggregators": "states of the aggregations, from round to round",
}


@dataclasses.dataclass
class Releases:
    """A ledger (see `rounds.privacy_releases`) that only notes what a round releases to the server.

    Attributes:
      found: All releases.
    """

    found: list[Release] = dataclasses.field(default_factory=list)

    def spend(self, *releases: Release):
        """Notes releases."""
        self.found += releases

    @property
    def hide_clients(self) -> bool:
        """Whether noise or secure sums hide what single clients upload in a round."""
        rounds = [each for each in self.found if not each.once]
        return bool(rounds) and all(each.noise_multiplier or each.hidden for each in rounds)


def describe_phases(method: Method, exports: Exports, computations: Mapping[str, tff.Computation]) -> list[dict]:
    """Describes what runs when."""
    phases = []
    if "signature" in computations:
        phases.append({
            "phase": "signature",
            "when": exports.when.get("signature", "once for every client, before its first round of training"),
            "computation": "signature",
            "server_value": "signature_context",
            "gives": "a signature a client; what a run keeps of them is in clustering/state.npz",
        })  # fmt: skip
    if exports.clustering or "signature" in computations:
        phases.append({
            "phase": "clustering",
            "when": "on the coordinator, when all signatures are there (Python, tffcl.clustering)",
            **{key: str(value) for key, value in exports.clustering.items()},
            "gives": "a cluster a client; this run's are in clustering/assignments.csv, if it was written, and what "
                     "else is kept of them, as a threshold and a tree where there are some, in clustering/state.npz",
        })  # fmt: skip
    for name, computation in computations.items():
        if deployment_forms.hands_out_kept(computation) and name not in TRAININGS:
            phases.append({"phase": name, "when": "every round, before training", "computation": name, "gives": _KEPT})
        elif name in exports.when and name not in {"signature", *TRAININGS}:
            phases.append({"phase": name, "when": exports.when[name], "computation": name})
    note = {"note": exports.when["training"]} if "training" in exports.when else {}
    if "training" in computations:
        phases.append({
            "phase": "training",
            "when": "; ".join(["every round", *_who_decides(method, computations)]),
            **note,
            "computation": "training",
            "server_value": "initial at first, trained to go on from this run",
        })  # fmt: skip
        if (needed := exports.members_needed()) > 1:
            phases[-1]["asks"] = (
                f"no clients of a cluster of which fewer than {needed} take part: their sums would hide nobody "
                "(min_cluster_size)"
            )
        if "training_with_kept" in computations:
            phases[-1]["kept"] = f"training_with_kept, the same round, gives {_KEPT}"
    elif "training_with_kept" in computations:
        phases.append({"phase": "training", "when": "every round", "computation": "training_with_kept", "gives": _KEPT})
    return phases


def _who_decides(method: Method, computations: Mapping[str, tff.Computation]) -> list[str]:
    """Says who decides on a client's model in a round, as far as its fields and the computations show it."""
    given = tff.structure.name_list(computations["training"].type_signature.parameter[1].member)
    if "key" in given and ("forced" not in given or not method.clients_choose):
        return ["the coordinator gives every client its key"]  # also if the client was asked for it before the round
    if "forced" in given and "choices" in computations:
        return ["the coordinator gives every client the row that it must take (`forced`), or lets it choose"]
    return ["every client chooses among the models, or weighs them, itself"] if method.clients_choose else []


def describe_fields(computations: Mapping[str, tff.Computation]) -> dict[str, dict[str, str]]:
    """Returns what the clients' and the server's values in rounds mean, by name, for all known names."""
    found: dict[str, dict[str, str]] = {"server": {}, "clients": {}}
    for computation in computations.values():
        parameter = computation.type_signature.parameter
        for part in parameter if isinstance(parameter, tff.StructType) else []:
            if isinstance(part, tff.FederatedType) and isinstance(part.member, tff.StructType):
                where, known = ("server", _OF_SERVER) if part.placement is tff.SERVER else ("clients", _OF_CLIENTS)
                found[where] |= {name: known[name] for name in tff.structure.name_list(part.member) if name in known}
    return found


def describe_privacy(found: Sequence[Release], spent: Mapping | None) -> dict:
    """Returns what the computations release with noise or in secure sums, and what this run has spent; empty if
    everything is released in the open.

    Args:
      found: The releases of one round and of some newcomers.
      spent: The entry `privacy` of the run's summary.json, up to the exported round; None if nothing had noise.
    """
    if not any(each.noise_multiplier or each.hidden for each in found):
        return {}
    releases = {}
    for each in found:
        often = "once for each client" if each.once else "every round"
        releases[each.what, often] = {
            "what": each.what, "when": often, "noise_multiplier": each.noise_multiplier, "secure_sums": each.hidden,
        }  # fmt: skip
    told = {"releases": list(releases.values()), "spent_by_this_run": dict(spent or {})}
    if not any(each.noise_multiplier for each in found):  # secure sums alone spend nothing, and have no noise to remove
        return told
    return {
        **told,
        "noise_of_this_run": "follows from its seed in config.toml, but for tffcl.train with an aggregation that has "
                             "none: who has this export can take it away from the models and signatures of the run, "
                             "which was a simulation; what is deployed draws anew",
        "ledger": "no computation counts what it releases: who deploys adds every round and every signature to what "
                  "the same clients have spent, with their way of drawing cohorts (dp-accounting, as tffcl's own "
                  "ledger)",
    }  # fmt: skip
