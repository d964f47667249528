"""Rounds of FedJAX's FedAvg or HypCluster (K = 2) over all clients. Run by `small_clients.py` and `rounds.py` with
`--fedjax-python`.

    PYTHON fedjax_round.py CLIENTS.npz PROCESSES EPOCHS BATCH_SIZE LEARNING_RATE MOMENTUM ROUNDS MODEL [METHOD]

PYTHON needs `fedjax` with a JAX that still has `jax.tree_map`: `fedjax==0.0.17 jax==0.4.30 jaxlib==0.4.30
dm-haiku==0.0.12 flax==0.8.2 optax==0.2.1 chex==0.1.86 orbax-checkpoint==0.5.9 "numpy<2" "scipy<1.13"`. Clients train by
its own backend, `jit`, whose operations XLA shares out over the cores. With `pmap` and a device for each of two cores a
round of 500 small clients took 2.8 s of FedAvg in place of 3.3, HypCluster's 5.5 in place of 5.4, and those of 50
larger ones 4.4 and 4.9 in place of 4.1 and 4.5.
"""

import time

import fedjax
import haiku
import jax
import jax.numpy as jnp
from peer_script import load_clients, parse_arguments, print_rounds

CLUSTERS = 2


def forward(name):
    """The networks of `classifiers.build_lenet5` and `build_mlp`, as functions of a batch."""

    def lenet5(batch):
        x = batch["x"]
        for channels in (6, 16):
            x = jax.nn.relu(haiku.Conv2D(channels, 5, padding="VALID")(x))
            x = haiku.max_pool(x, (2, 2, 1), (2, 2, 1), "VALID")
        return haiku.nets.MLP([120, 84, 10])(haiku.Flatten()(x))

    def mlp(batch):
        return haiku.nets.MLP([200, 10])(haiku.Flatten()(batch["x"]))

    return {"lenet5": lenet5, "mlp": mlp}[name]


def build(options, sample, most):
    """Returns the algorithm and its first state."""

    def loss(batch, scores):
        return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores)

    model = fedjax.create_model_from_haiku(haiku.transform(forward(options.model)), sample, loss)
    local = fedjax.optimizers.sgd(options.learning_rate, options.momentum)
    server = fedjax.optimizers.sgd(1.0)
    batches = fedjax.ShuffleRepeatBatchHParams(options.batch_size, options.epochs, seed=0)
    if options.method == "fedavg":
        algorithm = fedjax.algorithms.fed_avg.federated_averaging(fedjax.model_grad(model), local, server, batches)
        return algorithm, algorithm.init(model.init(jax.random.PRNGKey(0)))
    per_example = fedjax.model_per_example_loss(model)
    # No batch is larger than a client: it would be padded.
    asked = fedjax.PaddedBatchHParams(min(250, most))
    algorithm = fedjax.algorithms.hyp_cluster.hyp_cluster(per_example, local, server, asked, batches)
    return algorithm, algorithm.init([model.init(key) for key in jax.random.split(jax.random.PRNGKey(0), CLUSTERS)])


def main():
    options = parse_arguments(__doc__.splitlines()[0])
    arrays = load_clients(options.clients)
    keys = jax.random.split(jax.random.PRNGKey(1), len(arrays))
    clients = [
        (client, fedjax.ClientDataset({"x": x, "y": y}), key) for client, ((x, y), key) in enumerate(zip(arrays, keys))
    ]
    sample = {"x": jnp.asarray(arrays[0][0][:1]), "y": jnp.asarray(arrays[0][1][:1])}
    algorithm, state = build(options, sample, max(len(y) for _, y in arrays))
    rounds = []
    for _ in range(1 + options.rounds):
        start, cpu = time.perf_counter(), time.process_time()
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(jax.tree_util.tree_leaves(state))
        rounds.append((time.perf_counter() - start, time.process_time() - cpu))
    print_rounds(rounds[1:])


if __name__ == "__main__":
    main()
