"""What every method must hold to, whoever wrote it: each check takes a `subject.Subject`.

A check returns None; it raises AssertionError where the method does not conform, and DoesNotApply where it has not what
the check is about. `check_method_conforms` runs them all on a method of one's own.
"""

import contextlib
import io
import re
import runpy
import tempfile
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
import tensorflow_federated as tff

import tffcl
from tests.conformance.subject import SEED, DoesNotApply, Subject, assert_same
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.export import deployment_forms, phases
from tffcl.export.deployment_forms import missing_on_devices, operations_of
from tffcl.export.dry_run import difference, recorded
from tffcl.export.writer import first_value
from tffcl.rounds import blocks
from tffcl.rounds.composer import plain_containers
from tffcl.rounds.traffic import RoundMetrics, Traffic, type_bytes
from tffcl.runs import checkpoints, metrics
from tffcl.runs.checks import check_method, check_state


def check_contract(subject: Subject):
    """The object has what the contract says, and its states and metrics have the right shapes."""
    method, population = subject.method, subject.population
    check_method(method)
    named = set()
    for state in (subject.start, subject.first.state, subject.second.state):
        check_state(method, state, population.client_ids, method.model.size)
    for cohort, after in zip(subject.cohorts, (subject.first, subject.second)):
        metrics, ids = after.metrics, cohort.client_ids
        assert isinstance(metrics, RoundMetrics)
        np.testing.assert_array_equal(metrics.client_ids, ids)
        np.testing.assert_array_equal(metrics.examples, cohort.sizes)
        tests = [len(population.test(client)) for client in ids]
        np.testing.assert_array_equal(metrics.test_examples, tests)
        assert np.all(metrics.test_correct <= tests) and np.all(metrics.test_correct >= 0)
        assert (
            np.shape(metrics.clusters) == np.shape(metrics.losses) == np.shape(ids)
            and np.isfinite(metrics.losses).all()
        )
        assert metrics.relatedness is None or np.shape(metrics.relatedness) == (len(ids), len(ids))
        named.add(frozenset(metrics.scalars))
    assert len(named) == 1, "the scalars of a round must have the same names in every round"
    moved = np.abs(subject.models(subject.second.state) - subject.models(subject.start)).max()
    assert moved > 0.01, "two rounds have moved nobody's model"


def check_resume(subject: Subject):
    """A run that is saved in the middle and goes on in another process ends as one that was not interrupted."""
    file = io.BytesIO()
    arrays, _ = checkpoints.pack({"state": subject.first.state})
    np.savez(file, **arrays)
    file.seek(0)
    with np.load(file, allow_pickle=False) as saved:
        restored = checkpoints.unpack(saved, {"state": subject.method.state_class})["state"]
    assert type(restored) is type(subject.first.state)
    assert_same(subject.numbers(restored), subject.first.numbers)
    another = subject.build()  # an object that keeps something beside its state would go another way
    state, metrics = another.next(restored, subject.cohorts[1])
    assert_same(subject.numbers(state), subject.second.numbers)
    np.testing.assert_array_equal(metrics.losses, subject.second.metrics.losses)
    assert (metrics.traffic, metrics.signatures) == (subject.second.metrics.traffic, subject.second.metrics.signatures)


def check_states_do_not_change(subject: Subject):
    """Whatever is asked of a state, and whether a round comes to its end or fails, the state stays as it is
    and usable.
    """
    method, state, before = subject.method, subject.first.state, subject.first.numbers
    with _calls(limit=None) as calls:
        again, _ = method.next(state, subject.cohorts[1])
    assert_same(subject.numbers(again), subject.second.numbers)
    (
        method.views(state),
        method.models_for(state, subject.population.client_ids),
        method.choose(state, subject.population),
    )
    method.admit(state, subject.newcomers)
    assert_same(subject.numbers(state), before)
    assert len(calls), "a round of training is a computation of TFF"
    with pytest.raises(UserError, match="the worker is gone"), _calls(limit=len(calls) - 1):
        method.next(state, subject.cohorts[1])
    assert_same(subject.numbers(state), before)
    again, _ = method.next(state, subject.cohorts[1])
    assert_same(subject.numbers(again), subject.second.numbers)


@contextlib.contextmanager
def _calls(limit: int | None):
    """Counts the computations that are run, and lets the one after `limit` of them fail."""
    outer, calls = tff.framework.get_context_stack().current, []

    class Counting(tff.framework.SyncContext):
        def invoke(self, comp, arg=None):
            if limit is not None and len(calls) >= limit:
                raise UserError("the worker is gone")
            calls.append(comp)
            return outer.invoke(comp, arg)

    tff.framework.set_default_context(Counting())
    try:
        yield calls
    finally:
        tff.framework.set_default_context(outer)


def check_two_workers(subject: Subject):
    """Two workers give what one gives, up to rounding, in a round of a single client too."""
    if subject.two_workers is None:
        raise DoesNotApply("there are no two workers")
    alone = [each for each in (subject.first, subject.second, subject.third) if each is not None]
    with subject.two_workers() as workers:
        before = [each.received_bytes for each in workers]
        state, together = _rounds_anew(subject, len(alone))
        assert all(each.received_bytes > start + 1000 for each, start in zip(workers, before))
        if subject.third is None:
            with pytest.raises(UserError):
                subject.run(state, 3)
    _assert_close_rounds(subject, together, alone)


def check_blocks(subject: Subject):
    """Rounds whose clients compute in blocks are the same rounds, up to the order of sums; also those whose blocks'
    clients are put into shards, as the first one's here."""
    cut = []

    def in_pairs(composed, cohort, values):
        del composed, values
        cut.append(-(-len(cohort.client_ids) // 2))
        if len(cohort.client_ids) < len(subject.population):
            return blocks.Plan(blocks=cut[-1], in_flight=2)
        return blocks.Plan(blocks=2, in_flight=2, shards=3)

    with mock.patch.object(blocks, "plan", in_pairs):
        _, together = _rounds_anew(subject, 2)
    if not cut:
        raise DoesNotApply("its rounds are not composed")
    assert max(cut) > 2
    _assert_close_rounds(subject, together, [subject.first, subject.second])


def _rounds_anew(subject: Subject, rounds: int):
    """Runs the first rounds again; returns the last state and what came of each."""
    state, found = subject.method.initialize(subject.population), []
    for number in range(1, rounds + 1):
        found.append(subject.run(state, number))
        state = found[-1].state
    return state, found


def _assert_close_rounds(subject: Subject, ours: list, theirs: list):
    for ours, theirs in zip(ours, theirs):
        first, second = (subject.method.views(each.state).clusters for each in (ours, theirs))
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(subject.models(ours.state), subject.models(theirs.state), rtol=0, atol=3e-6)
        for field in ("client_ids", "losses", "test_correct"):
            one, other = (getattr(each.metrics, field) for each in (ours, theirs))
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=3e-6)


ALL_ANEW = "every cohort forms all clusters anew"


def check_missed_clusters(subject: Subject):
    """A cluster that nobody of a cohort belongs to keeps its model."""
    method, ids = subject.method, subject.population.client_ids
    if subject.first.metrics.relatedness is not None:
        raise DoesNotApply("every client has its own mix of the cohort's models")
    state = method.choose(subject.second.state, subject.population)
    if method.views(state).mixture is not None:
        raise DoesNotApply("every client takes part in all models")
    clusters = np.asarray(method.views(state).clusters)
    if len(np.unique(clusters)) == 1:
        raise DoesNotApply("there is one cluster")
    found, everywhere = 0, True
    for cluster in np.unique(clusters):
        with contextlib.suppress(UserError):  # of a method that needs more clients in a round
            after, metrics = method.next(state, subject.cohort(ids[clusters == cluster], 3))
            now = np.asarray(method.views(after).clusters)
            reached = np.union1d(metrics.clusters, now[clusters == cluster])
            everywhere &= set(reached) >= set(now)
            same = [other for other in np.unique(now) if np.array_equal(now == other, clusters == other)]
            missed = np.isin(now, np.setdiff1d(same, reached))
            np.testing.assert_array_equal(subject.models(after, ids[missed]), subject.models(state, ids[missed]))
            assert np.abs(subject.models(after) - subject.models(state)).max() > 1e-4
            found += missed.sum()
        if found:
            return
    if everywhere:
        raise DoesNotApply(ALL_ANEW)
    raise AssertionError(
        "no cluster was ever missed by a cohort: the clients of the check are too alike for this method"
    )


def check_forms(subject: Subject):
    """A computation that is rebuilt from its MapReduceForm gives the same; there is none only of what clients keep."""
    assert {"training", "training_with_kept"} & subject.computations.keys()
    for name, parts in subject.forms.items():
        computation = subject.computations[name]
        if isinstance(parts, str):
            assert deployment_forms.hands_out_kept(computation), f"{name} has no MapReduceForm: {parts}"
            continue
        if subject.exported:
            place = subject.exported.directory / "computations" / name / "map_reduce"
            assert any(line.startswith(f"{place}: as the whole computation") for line in subject.exported.lines)
            continue
        state, clients = subject.arguments[name]
        rebuilt = deployment_forms.run_map_reduce(parts, state, list(clients))
        apart = difference(computation(state, clients), rebuilt)
        assert apart.close, f"{name}: its MapReduceForm gives other numbers, by up to {apart.largest:.3g}"


# Methods whose coordinator makes the models of a round's results, so that the exported round's value is not the next
# round's.
COORDINATED = {"flis_dc", "fedsem", "cfl", "flt", "stocfl"}


def check_rounds_from_the_first_values(subject: Subject):
    """What is exported begins as a run does, and goes on as the library does where no coordinator steps in between."""
    method, exports = subject.method, subject.method.exports()
    try:
        begun = exports.server_values and exports.server_values(subject.start)
        computations = exports.computations(subject.start)
    except UserError:  # the first rounds are not yet the method's own
        computations, begun = exports.build(), None
    beside = computations.keys() - {"initialize", *phases.TRAININGS}
    assert beside <= {each.get("computation") for each in phases.describe_phases(method, exports, computations)}
    if "training" not in computations:
        raise DoesNotApply("its rounds have no value at the server")
    state = plain_containers(computations["initialize"]())
    assert begun is None or len(state["models"]) in (1, len(begun["models"]))
    for after in (subject.first, subject.second):
        given, clients = recorded(computations, after.calls)["training"]
        given = plain_containers(given)
        if after is subject.first:
            state = first_value(state, given)
            if method.name == "fedgroup":
                state["models"] = given["models"]  # which its coordinator makes of the signatures
        elif method.name in COORDINATED or len(given["models"]) != len(state["models"]):
            return  # a part of the models, or more of them since clients were grouped
        if method.name == "flt":
            given["aggregators"] = state["aggregators"]  # who of a cohort is related, which its coordinator puts in
        apart = difference(given, state)
        assert apart.close, f"the server's values differ by up to {apart.largest:.3g} from those that a run has then"
        state = plain_containers(deployment_forms.run(computations["training"], state, clients)[0])
    values = exports.server_values(subject.second.state)
    apart = difference(values, {name: state[name] for name in values})
    assert apart.close, f"after two rounds the server's values differ by up to {apart.largest:.3g}"


def check_traffic(subject: Subject):
    """A round's traffic is what the types of the exported round say; what clients keep never counts."""
    for cohort, after in zip(subject.cohorts, (subject.first, subject.second)):
        metrics, clients = after.metrics, len(cohort.client_ids)
        assert min(metrics.traffic.down, metrics.traffic.up, metrics.signatures.down, metrics.signatures.up) >= 0
        trained = Traffic(metrics.traffic.down - metrics.signatures.down, metrics.traffic.up - metrics.signatures.up)
        if "training" not in subject.computations:
            assert trained == Traffic()  # nothing is sent in a round that has no value for the server
            continue
        work = subject.forms["training"]["work"].type_signature
        assert trained.up == clients * type_bytes(work.result[0])
        before = subject.start if after is subject.first else subject.first.state
        down = trained.down / clients
        assert any(
            down in (each, each - subject.method.joining.down)
            for each in _broadcast(subject, work.parameter[1], before)
        )
    rounds = np.array(
        [[each.metrics.signatures.down, each.metrics.signatures.up] for each in (subject.first, subject.second)]
    )
    each = np.array([subject.method.joining.down, subject.method.joining.up])
    assert not (rounds % np.maximum(each, 1)).any(), "signatures are counted for whole clients"


def _broadcast(subject: Subject, broadcast: tff.Type, state) -> set[int]:
    """What one client may receive: of models by row its own, or all of them where it chooses; what never changes
    just once.
    """
    models = np.shape(subject.method.models_for(state, subject.population.client_ids)[0])[0]
    return {type_bytes(broadcast, models if subject.method.clients_choose else 1)}


def check_whole_traffic(subject: Subject):
    """What a run has sent is what its rounds have, with who joins in them, and what `initialize` asked clients for:
    nothing where it or `admit` asked nobody. Every column of the rounds stands in the table of metrics."""
    method, seen = subject.build(), []

    def noted(make):
        def making(*given):
            with _calls(limit=None) as calls:
                made = make(*given)
            asked = any("@CLIENTS" in str(call.type_signature.parameter) for call in calls)
            seen.append((given[0] if len(given) > 1 else None, made, asked))
            return made

        return making

    with mock.patch.multiple(method, initialize=noted(method.initialize), admit=noted(method.admit)):
        for begins in (1, 2):  # before the first round, and after it
            with tempfile.TemporaryDirectory() as out:
                run = tffcl.train(
                    method,
                    subject.population,
                    rounds=2,
                    clients_per_round=3,
                    later={begins: subject.everyone},
                    seed=SEED,
                    out=out,
                    overwrite=True,
                    show_progress=False,
                )
            charged = Traffic()
            for before, after, asked in seen:
                charge = method.joined_traffic(before, after)
                assert asked or not charge.up, "what nobody sends is counted"
                assert charge.up or not asked or method.clients_choose, "what clients send is not counted"
                charged += charge if before is None else Traffic()
            joined = method.joined_traffic(*seen[-1][:2])
            row = {which: int(run.rounds[f"{which}_bytes"][begins - 1]) for which in ("down", "up")}
            assert all(row[which] >= getattr(joined, which) for which in row)
            seen.clear()
            assert set(run.round_columns) <= {metrics.ROUND, *metrics.OF_ROUNDS}
            for which in ("down", "up"):
                rounds = int(run.rounds[f"{which}_bytes"].sum())
                assert run.summary["traffic"][f"{which}_bytes"] == rounds + getattr(charged, which)


def check_newcomers(subject: Subject):
    """Newcomers get a model, before the first round and later, and change nobody else's; then they take part
    as all do.
    """
    method, old, new = subject.method, subject.population.client_ids, subject.newcomers.client_ids
    everyone = subject.everyone.client_ids
    early = method.admit(subject.start, subject.newcomers)
    check_state(method, early, everyone, method.model.size)
    state = method.choose(subject.second.state, subject.population)
    joined = method.admit(state, subject.newcomers)
    check_state(method, joined, everyone, method.model.size)
    np.testing.assert_array_equal(subject.models(joined), subject.models(state))
    was, now = method.views(state), method.views(joined)
    np.testing.assert_array_equal(np.asarray(now.clusters)[np.isin(everyone, old)], was.clusters)
    for client in (new[0], old[0]):
        with pytest.raises(UserError) as refused:
            method.admit(joined, subject.everyone.restricted([client]))
        assert "\n" not in str(refused.value) and str(client) in str(refused.value)
    after, metrics = method.next(joined, subject.cohort([*old[:3], *new], 3, subject.everyone))
    check_state(method, after, everyone, method.model.size)
    assert np.isin(new, metrics.client_ids).all()


def check_built_once(subject: Subject):
    """The same method built twice is traced once."""
    assert subject.second and subject.computations
    traced = []

    def counted(trace):
        def tracing(*args, **kwargs):
            traced.append(args)
            return trace(*args, **kwargs)

        return tracing

    with (
        mock.patch.object(tff.tensorflow, "computation", counted(tff.tensorflow.computation)),
        mock.patch.object(tff, "federated_computation", counted(tff.federated_computation)),
    ):
        again = subject.build()
        again.next(again.initialize(subject.population), subject.cohorts[0])
        assert not traced, f"{len(traced)} computations were traced again"
        computations = again.exports().build()
    for name, computation in subject.computations.items():
        assert computations[name] is computation or name == "initialize"  # that one holds the initial weights


def check_device_operations(subject: Subject, lacking: dict[str, list[str]] | None = None):
    """Clients' graphs need nothing that device runtimes lack.

    Args:
      subject: The method.
      lacking: By computation, operations that are known to lack.
    """
    for name, parts in subject.forms.items():
        if not isinstance(parts, str):
            counts = operations_of(parts["work"])
            found = missing_on_devices(counts)
            assert found is None or found == (lacking or {}).get(name, []), name
            said = {"count": counts, "not_in_tflite_select_ops": found}
            assert not subject.exported or subject.exported.manifest["computations"][name]["device_operations"] == said


def check_exported_files(subject: Subject):
    """All files of an export run and give the library's numbers, and its script runs with what is in them."""
    if not subject.exported:
        raise DoesNotApply("nothing was exported")
    to, manifest, lines = subject.exported.directory, subject.exported.manifest, subject.exported.lines
    described = manifest["computations"]
    assert subject.computations.keys() <= described.keys()
    for name, about in described.items():
        file = to / about["file"]
        said = (
            ["as the library when it was exported", "as the library on clients of the task"]
            if "check" in about
            else ["runs"]
        )
        for each in said[:1] if name not in subject.computations else said:
            assert any(line.startswith(f"{file}: {each}") for line in lines), f"{name}: {each}"
        for form in about.get("forms", {}).values():
            assert ("directory" in form) != ("impossible" in form)
    assert any(line.startswith(f"{to}/saved_model: as the library") for line in lines)
    assert ("training_summed" in described) == (subject.method.exports().summed is not None)
    if "training_summed" in described:
        assert all("directory" in form for form in described["training_summed"]["forms"].values())
    assert {phase["computation"] for phase in manifest["phases"] if "computation" in phase} <= described.keys()
    assert manifest["phases"][-1]["phase"] == "training"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(to / "run_one_round.py"))["main"]()
    assert re.search(r"^(1 client|([2-9]|\d\d+) clients) (moved|kept)", said.getvalue(), re.M), said.getvalue()
    assert "private mean" not in said.getvalue(), "no export that is checked is of private rounds"


CHECKS = (
    check_contract,
    check_resume,
    check_states_do_not_change,
    check_two_workers,
    check_blocks,
    check_missed_clusters,
    check_forms,
    check_rounds_from_the_first_values,
    check_traffic,
    check_whole_traffic,
    check_newcomers,
)
# What only methods of the library itself must hold to.
OWN_CHECKS = (check_exported_files, check_built_once, check_device_operations)


def check_method_conforms(
    build: Callable, population: Population, newcomers: Population, two_workers=None
) -> list[str]:
    """Runs `CHECKS` on a method; arguments as in `Subject`.

    Returns:
      A line for each check that did not apply, and why.
    """
    subject, skipped = Subject(build, population, newcomers, two_workers=two_workers), []
    try:
        for check in CHECKS:
            with subject.running():
                try:
                    check(subject)
                except DoesNotApply as reason:
                    skipped.append(f"{check.__name__}: {reason}")
    finally:
        subject.close()
    return skipped
