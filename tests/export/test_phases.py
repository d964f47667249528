"""What a manifest tells those who deploy, of made-up computations: what runs when, what values mean, what is hidden."""

import dataclasses
import re
import types

import numpy as np
import pytest
import tensorflow_federated as tff

import tffcl
import tffcl.algorithms as parts
from tests.short_runs import TRAINING
from tffcl.clients.cohort import Cohort, stream
from tffcl.export.phases import Releases, describe_fields, describe_phases, describe_privacy
from tffcl.export.writer import describe
from tffcl.models.autoencoder import build_autoencoder
from tffcl.rounds.privacy_releases import Release

OPEN, NOISED, SUMMED = (
    Release("a round", 0, 3, 9),
    Release("a round", 0.5, 3, 9),
    Release("a round", 0, 3, 9, hidden=True),
)
SIGNED = Release("the signatures", 0, 9, 9, once=True)
MODELS = tff.FederatedType(tff.to_type([("models", tff.TensorType(np.float32, [None, 3]))]), tff.SERVER)


@pytest.mark.parametrize(
    "found, hidden",
    [
        ([], False), ([SIGNED], False), ([NOISED], True), ([SUMMED], True), ([OPEN], False), ([NOISED, OPEN], False),
        ([SIGNED, NOISED], True),
    ],
)  # fmt: skip
def test_clients_are_hidden_where_all_that_rounds_release_is(found, hidden):
    releases = Releases()
    releases.spend(*found)
    assert releases.hide_clients is hidden


def test_what_is_released_is_told_with_its_noise_and_nothing_where_all_is_open():
    assert describe_privacy([OPEN, SIGNED], {"epsilon": 1.0}) == {}
    told = describe_privacy([NOISED, SIGNED, NOISED], None)
    assert told["spent_by_this_run"] == {} and told["releases"] == [
        {"what": "a round", "when": "every round", "noise_multiplier": 0.5, "secure_sums": False},
        {"what": "the signatures", "when": "once for each client", "noise_multiplier": 0, "secure_sums": False},
    ]
    assert {"noise_of_this_run", "ledger"} < told.keys()
    summed = describe_privacy([SUMMED, SIGNED], {"epsilon": 1.0})  # nothing of noise is said where there is none
    assert summed.keys() == {"releases", "spent_by_this_run"} and summed["spent_by_this_run"] == {"epsilon": 1.0}
    (both,) = describe_privacy([dataclasses.replace(NOISED, hidden=True)], None)["releases"]
    assert both["noise_multiplier"] == 0.5 and both["secure_sums"]


def computation(keeps=False, fields=("key", "mine")):
    """`(<models>@SERVER, {<key,mine>}@CLIENTS)`, which gives back what clients have, to them or to nobody."""
    clients = tff.FederatedType(tff.to_type([(name, np.int32) for name in fields]), tff.CLIENTS)

    @tff.federated_computation(MODELS, clients)
    def round_of(state, values):
        return (state, values) if keeps else (state, tff.federated_sum(values))

    return round_of


def test_fields_are_told_where_their_name_tells_what_they_are():
    told = describe_fields(
        {"training": computation(), "other": tff.federated_computation(lambda: tff.federated_value(1, tff.SERVER))}
    )
    assert told["server"] == {"models": "a row a model"} and list(told["clients"]) == ["key"]
    assert told["clients"]["key"].startswith("the row of the server's models that it trains")
    told = describe_fields({"training": computation(fields=("round",))})
    assert "learning rate changes and a client of FedSoft's knows when to weigh" in told["clients"]["round"]


def test_the_seeds_of_a_runs_clients_are_those_that_are_told():
    """A round that is driven from an export with them is the run's next one."""
    clients = tff.FederatedType(tff.to_type([("seed", tff.TensorType(np.int32, [2]))]), tff.CLIENTS)
    told = describe_fields({"training": tff.federated_computation(lambda server, values: server, MODELS, clients)})
    told = told["clients"]["seed"].split(", as ")[1]
    own, base = told.split("; in a run base is ")
    given = {"numpy": np, "seed": 3, "round": 7, "client_id": 5}
    found = eval(own, {**given, "base": eval(base, given)})
    np.testing.assert_array_equal(found, Cohort(None, None, (stream(3, "clients"), 7)).client_seed(5))


def test_values_of_the_server_are_told_and_that_who_has_left_is_counted():
    names = "members", "control_sums", "optimizer", "images"
    server = tff.FederatedType(tff.to_type([(name, np.float32) for name in names]), tff.SERVER)
    clients = tff.FederatedType(tff.to_type([("key", np.int32)]), tff.CLIENTS)
    computation = tff.federated_computation(lambda values, client: values, server, clients)
    members, sums, *others = (describe_fields({"training": computation})["server"][name] for name in names)
    assert others[0].startswith("the state of the server's optimizer") and others[1].endswith("they never change")
    assert "also those who have left it" in members
    assert "of all of this run who are counted in members" in sums and sums.endswith("begins with those of initial")


def flt(model, **how):
    autoencoder = build_autoencoder((8, 8, 1), latent=2)
    return parts.build_flt(model, TRAINING, parts.FLTParameters(**how), encoder=(autoencoder, autoencoder.initial))


@pytest.mark.slow
@pytest.mark.parametrize(
    "build, told",
    [
        (
            lambda model: flt(model, change_flags=3, period=4),
            "anew when more than 3 .* multiple of 4 .* before the first.* sign when they join: .* nearer than `gamma`",
        ),
        (lambda model: flt(model, clusters="disjoint"), r"nearest \(Python, tffcl.clustering.taskonomy\)$"),
        (
            lambda model: parts.build_composed(model, TRAINING, parts.ComposedParameters(grouping="soft", threshold=4)),
            "sign when they join: .*temperature is a tenth of the mean distance .* new one, whose model it uses alone",
        ),
        (lambda model: parts.build_fedgwc(model, TRAINING), "splits a cluster whose `interactions` .* have settled"),
        (
            lambda model: parts.build_cfl(model, TRAINING),
            "absent members go by their last differences, .* not exported.* a newcomer goes down the splits",
        ),
        (
            lambda model: parts.build_flux(model, TRAINING),
            "once for each newcomer, .* newcomers have signed: .* divided by `spans` .* descriptors that need labels",
        ),
        (
            lambda model: parts.build_stocfl(model, TRAINING, parts.StoCFLParameters(linkage="centroid")),
            "before every round, .* cosine is above 0.5 merge .*linkage centroid and the representation members.*"
            "the mean one, by how many members have trained each .*; "
            "newcomers to a run .* a new one, which starts from the nearest one's model",
        ),
        (
            lambda model: parts.build_stocfl(model, TRAINING, parts.StoCFLParameters(global_order="sequential")),
            "leaves global_model as it is: a run trains it in a chain",
        ),
        (
            lambda model: parts.build_r_dpcfl(model, TRAINING),
            "once, before the first round, .*for how many more `soft_rounds` they are drawn; a newcomer chooses",
        ),
        (
            lambda model: parts.build_rr_cluster(
                model, TRAINING, parts.RRClusterParameters(start="warm_up", rebalance_by="counts")
            ),
            "up to round 5 .* in random equal groups; .* by the counts of the rounds before",
        ),
        (
            lambda model: parts.build_rr_cluster(
                model, TRAINING, parts.RRClusterParameters(choose_by="validation_loss")
            ),
            "of its clients, whose `examples` are here the `choice_examples` of training; the coordinator moves some",
        ),
        (
            lambda model: parts.build_ifca(
                model, TRAINING, parts.IFCAParameters(start="warm_up"), aggregation=tffcl.aggregation("dp")
            ),
            r"\(`forced`\), drawn for it alone",
        ),
        (
            lambda model: parts.build_fedclust(model, TRAINING, parts.FedClustParameters(when=1, regroup_every=3)),
            "after 1 round of one model, newcomers .*; again where .* row 0, which every cluster then starts from;"
            ".* one that goes on from none starts from the mean",
        ),
        (
            lambda model: parts.build_fedclust(model, TRAINING, parts.FedClustParameters(when="as_they_join")),
            "before its first round of training; `met.client_ids` of clustering/state.npz have.* sign when they join",
        ),
        (
            lambda model: parts.build_fedgroup(model, TRAINING, parts.FedGroupParameters(regroup_every=3)),
            "the mean of each group's pre-trained models, .*; where the clients are grouped again",
        ),
    ],
)
def test_what_the_coordinator_does_is_told_where_rounds_alone_do_not_go_on_as_the_run(model, build, told):
    exports = build(model).exports()
    said = [exports.when.get(phase, "") for phase in ("signature", "choices", "training")]
    said += [exports.clustering.get("when", ""), exports.clustering.get("newcomers", "")]
    assert re.search(told, " ".join(said))


GIVEN, CHOSEN = "; the coordinator gives every client its key", "among the models, or weighs them, itself"
FORCED = "; the coordinator gives every client the row that it must take (`forced`), or lets it choose"


@pytest.mark.parametrize(
    "needed, choose, fields, decides",
    [
        (1, False, ["key"], GIVEN), (2, True, ["key"], GIVEN), (1, True, ["forced"], FORCED),
        (1, True, ["forced", "key"], FORCED), (2, True, ["kept"], CHOSEN), (1, False, ["weights"], "every round"),
    ],
)  # fmt: skip
def test_phases_come_in_their_order_and_say_what_a_round_needs(needed, choose, fields, decides):
    """A method of one's own may ask clients for their choices before a round that takes their keys."""
    method = types.SimpleNamespace(clients_choose=choose)
    exports = types.SimpleNamespace(
        clustering={"unit": "degrees"}, when={"choices": "every fifth round", "training": "first one model"},
        members_needed=lambda: needed,
    )  # fmt: skip
    computations = {"signature": computation(), "choices": computation(), "own": computation(keeps=True)}
    phases = describe_phases(method, exports, {**computations, "training": computation(fields=fields)})
    assert [each["phase"] for each in phases] == ["signature", "clustering", "choices", "own", "training"]
    assert phases[0]["when"] == "once for every client, before its first round of training"
    assert phases[1]["unit"] == "degrees" and phases[2]["when"] == "every fifth round"
    assert phases[3]["when"] == "every round, before training" and "stays on the devices" in phases[3]["gives"]
    training = phases[-1]
    assert training["when"].endswith(decides)
    assert training["note"] == "first one model" and ("asks" in training) == (needed == 2)
    exports.when = {"signature": "after two rounds"}
    assert [each["when"] for each in describe_phases(method, exports, computations)][0] == "after two rounds"
    exports.clustering = exports.when = {}
    (kept,) = describe_phases(method, exports, {"training_with_kept": computation(keeps=True)})
    assert kept["computation"] == "training_with_kept" and "stays on the devices" in kept["gives"]
    both = {"training": computation(fields=["kept"]), "training_with_kept": computation(keeps=True)}
    (found,) = describe_phases(method, exports, both)
    assert found["computation"] == "training" and found["kept"].startswith("training_with_kept, the same round, gives")
    assert "kept" not in training


def test_a_terminal_is_told_which_forms_there_are_and_what_devices_lack():
    forms = {"map_reduce": {"directory": "d"}, "distribute_aggregate": {"impossible": "no"}}
    lacking = {"not_in_tflite_select_ops": ["Svd"]}
    manifest = {
        "algorithm": "pacfl", "task": "mine", "rounds": 3, "files": {"run_one_round.py": {}},
        "computations": {
            "initialize": {"file": "i.pb"},
            "training": {"file": "t.pb", "forms": forms, "device_operations": lacking},
        },
        "model": {"models": 2, "parameters": 5},
    }  # fmt: skip
    assert describe(manifest, "to", more=" --trust-builders").splitlines() == [
        "to: pacfl on mine after round 3, 1 file",
        "  i.pb",
        "  t.pb; forms: map_reduce",
        "    operations of clients that TFLite's select ops lack: Svd",
        "  saved_model: 2 models of 5 parameters",
        "prove that they run: tffcl export --check to --trust-builders",
        "a round with TFF alone: python to/run_one_round.py",
    ]
