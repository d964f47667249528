"""Asks clients for a value that they compute from their examples: signatures, choices among models."""

import collections
import time
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import by_client, collect
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.client_state import bytes_of
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import current, on_devices
from tffcl.errors import Diverged
from tffcl.rounds import privacy_releases, shards
from tffcl.rounds.blocks import INPUT_COPIES, MESSAGE_ROOM
from tffcl.rounds.traffic import Transfer
from tffcl.signatures.signature import OWN_NOISE, OWN_SEED, Signature, own_noise, without_noise_seed
from tffcl.trace_cache import built_once

# Clients that are asked at a time. This bounds the data in flight; fixed numbers keep the runtime's executors few.
_CLIENTS, _FEW_CLIENTS = 50, 10
_SHARDED_CLIENTS = 256  # at a time if they have few examples and are in shards, see `rounds.shards`
_MANY_CLIENTS = 1000  # from so many on, shards are worth another trace
_LONG = 2.0  # seconds; if a few clients take longer, the others are asked a few at a time, too, to show progress


def build_asking(context_type: tff.Type, examples_type: tff.SequenceType, compute: Callable) -> tff.Computation:
    """Builds the federated computation that collects a value from every client.

    It has the form of a round, so that it can be exported as one; the context is returned unchanged.

    Args:
      context_type: C, what the server broadcasts; fields `signature.OWN_SEED` and `OWN_NOISE` become each client's own.
      examples_type: E*, the type of a client's examples, a sequence; or, in simulations, a struct of tensors.
      compute: `(context, examples) -> value` in TensorFlow, or a `tff.Computation`.

    Returns:
      `(<C@SERVER, {<examples=E*,client_id=int32>}@CLIENTS> ->
        <C@SERVER, <client_id=int32[?],value=V[?,...]>@SERVER>)`.
    """
    fields = collections.OrderedDict(examples=examples_type, client_id=np.int32)
    client_type = tff.to_type(fields)

    @tff.tensorflow.computation(context_type, client_type)
    def answer(context, client):
        context = _with_own_seed(context, client["client_id"])
        return collections.OrderedDict(client_id=client["client_id"], value=compute(context, client["examples"]))

    @tff.tensorflow.computation(context_type)
    def keep(context):
        return tf.nest.map_structure(tf.identity, context)

    @tff.federated_computation(tff.FederatedType(context_type, tff.SERVER), tff.FederatedType(client_type, tff.CLIENTS))
    def ask(context, clients):
        answered = tff.federated_map(answer, (tff.federated_broadcast(context), clients))
        return tff.federated_map(keep, context), collect(answered["client_id"], answered["value"])

    return ask


def _with_own_seed(context, client_id):
    """The context with the client's own seeds; with a common seed all clients would shuffle, and draw noise, alike."""
    if not isinstance(context, Mapping):
        return context
    own = {
        name: tf.random.experimental.stateless_fold_in(context[name], client_id)
        for name in (OWN_SEED, OWN_NOISE)
        if name in context
    }
    return collections.OrderedDict({**context, **own})


def ask_all(
    asking: tff.Computation,
    context,
    population: Population,
    examples: Callable[[int], ClientExamples] | None = None,
    *,
    release: privacy_releases.Release | None = None,
):
    """Asks all clients of a population, as many at a time as the simulation's memory can hold examples of;
    `Simulation.on_progress` is told how many have answered.

    Args:
      asking: The computation, from `build_asking`.
      context: What the server broadcasts.
      population: The clients to ask.
      examples: Maps a client ID to the examples that it is asked about; default its training examples.
      release: The release that the privacy ledger counts; None for what no deployment asks, such as an evaluation.

    Returns:
      The value structure with NumPy rows `[N, ...]` in the order of the population's IDs.
    """
    if release is not None:
        current().release(release)
    examples, taken = examples or population.train, asking.type_signature.parameter[1].member
    form = "dataset" if isinstance(taken["examples"], tff.SequenceType) else "stacked"
    parts, done, everyone, at_a_time = [], 0, len(population.client_ids), _FEW_CLIENTS
    # A part has room for at least as much as the context takes, which is sent again with each part.
    shared = bytes_of(context)
    room = min(max(current().memory_bytes / INPUT_COPIES - shared, shared), MESSAGE_ROOM - shared)
    in_shards = 0
    if form == "stacked":
        in_shards = shards.wanted(everyone, lambda: population.sizes_of(population.client_ids), _MANY_CLIENTS)
    sharded, most = (_build_sharded(asking), _SHARDED_CLIENTS) if in_shards else (None, _CLIENTS)
    while done < everyone:
        begin, held, size = time.monotonic(), [], 0
        with on_devices():
            for client in population.client_ids[done : done + at_a_time].tolist():
                own = examples(client)
                size += own.nbytes
                if held and size > room:
                    break
                held.append(getattr(own, form))
        ids = population.client_ids[done : done + len(held)]
        clients = [collections.OrderedDict(examples=each, client_id=client) for each, client in zip(held, ids)]
        if sharded is None:
            answers = asking(context, clients)[1]
        else:
            count = -(-len(ids) * in_shards // everyone)
            answers = sharded(context, shards.pack(clients, taken, count))
        parts.append(by_client(answers, ids))
        done += len(ids)
        at_a_time = _FEW_CLIENTS if time.monotonic() - begin > _LONG else most
        if len(ids) < everyone:
            current().on_progress(done, everyone)
    return tf.nest.map_structure(lambda *rows: np.concatenate(rows), *parts)


@built_once
def _build_sharded(asking: tff.Computation) -> Callable | None:
    """Builds `(context, shards) -> answers`, which asks clients in shards; None if shards cannot hold what clients
    bring or answer."""
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(asking, shards.AS_IT_IS)
    context, clients = asking.type_signature.parameter

    @tff.tensorflow.computation(form.prepare.type_signature.result, clients.member)
    def answer(prepared, client):
        return form.work(client, prepared)[0][0]

    try:
        update = shards.build_update(answer, lambda answered: answered)
    except TypeError:
        return None

    @tff.federated_computation(context, tff.FederatedType(update.type_signature.parameter[2], tff.CLIENTS))
    def ask(context, given):
        prepared = tff.federated_broadcast(tff.federated_map(form.prepare, context))
        nothing = tff.federated_broadcast(tff.federated_value((), tff.SERVER))
        return tff.federated_map(update, (prepared, nothing, given))["rows"]

    return lambda context, given: shards.joined(ask(context, given), answer.type_signature.result)


def build_collection(signature: Signature) -> tff.Computation:
    """Builds the deployed computation that collects the signatures of a cohort, see `build_asking`."""
    deployed = signature.deployed
    return _build_collection(deployed.context_type, deployed.computation)


@built_once
def _build_collection(context_type: tff.Type, computation: tff.Computation) -> tff.Computation:
    return build_asking(context_type, computation.type_signature.parameter[1], computation)


def build_signing(signature: Signature) -> Callable[[Population], object]:
    """Builds `sign(population, again=0, model=None) -> value structure with NumPy rows [N, ...]` in the order of the
    population's IDs.

    `again` is the number of rounds after which clients sign that may have signed before; 0: they have not. For the
    privacy ledger, another signature of a client is another release, with other noise. `model float32 [P]` is the model
    with which they describe their data, where the signature depends on one; None: the initial model.
    """
    collection = build_stacked_collection(signature)

    def sign(population: Population, again: int = 0, model: np.ndarray | None = None):
        repeats = own_noise(signature.context) is not None
        release = privacy_releases.of_all(
            "the signatures", population, signature.noise_multiplier, once=not again, repeats=repeats
        )
        imitated = population.signed_as
        return ask_all(
            collection,
            signature.context_with(model, again),
            population,
            lambda client: population.train(imitated.get(client, client)),
            release=release,
        )

    return sign


def check_signatures(population: Population, signatures):
    """Raises Diverged with the name of a client whose signature is not finite; `signatures` are as `sign` gives
    them."""
    leaves = tf.nest.flatten(signatures)
    finite = [np.isfinite(each).all(axis=tuple(range(1, each.ndim))) for each in leaves]
    bad = np.flatnonzero(~np.all(finite, axis=0))
    if len(bad):
        raise Diverged(
            f"client {population.name_of(population.client_ids[bad[0]])} has a signature that is not finite; its "
            "training before it diverged, and a lower learning_rate helps, or its data hold NaN or numbers too large"
        )


def build_stacked_collection(signature: Signature) -> tff.Computation:
    """Builds the computation for simulations, whose clients bring tensors if the signature takes tensors."""
    compute = signature.computation if signature.stacked is None else signature.stacked()
    return _build_collection(signature.context_type, compute)


def signature_transfer(signature: Signature) -> Transfer:
    """Returns what a client receives for its signature (nothing if the context is a placeholder) and what it sends."""
    return Transfer(down=without_noise_seed(signature.context_type), up=signature.value_type)
