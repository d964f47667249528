"""What StoCFL's Table 1 owes to a global model that is trained through the sampled clients one after the other.

    uv run python tests/benchmarks/sequential_global_model.py [--clients 1200] [--rounds 20] [--data-dir DIR]

Rotated MNIST as in the paper: clients of four rotations, a tenth of them a round, five full-batch steps of 0.1 on an
MLP with 2,048 hidden units. Every client trains its group's model, pulled towards the global one by λ = 0.05, and the
global model itself. "parallel": the global model starts from the broadcast on every client (Eq. 3). "sequential": it
starts from what the client before made of it, and the models on the way are averaged, as in the authors' trainers.
Groups are given, nothing is clustered. TensorFlow alone, without tffcl; accuracies are on a tenth of the test images.
"""

import argparse
import os

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

ROTATIONS, EPOCHS, RATE, PULL = 4, 5, 0.1, 0.05


def images_and_labels(split: str, data_dir: str | None):
    """MNIST as float32 [n, 28, 28] from 0 to 1, and int64 [n]."""
    data = tfds.load("mnist", split=split, batch_size=-1, data_dir=data_dir)
    return data["image"].numpy()[..., 0].astype(np.float32) / 255.0, data["label"].numpy()


def initial_weights(rng, hidden: int) -> list[tf.Tensor]:
    """Uniform within 1/sqrt(fan in), as PyTorch draws linear layers."""

    def draw(shape, fan_in):
        return tf.constant(rng.uniform(-1, 1, shape) / np.sqrt(fan_in), tf.float32)

    return [draw([784, hidden], 784), draw([hidden], 784), draw([hidden, 10], hidden), draw([10], hidden)]


def logits(weights, x):
    """The answers float32 [n, 10] to x [n, 784]."""
    first, first_bias, second, second_bias = weights
    return tf.nn.relu(x @ first + first_bias) @ second + second_bias


@tf.function(reduce_retracing=True)
def train(weights, centre, pull, x, y):
    """EPOCHS full-batch steps from `weights`, pulled towards `centre`."""
    for _ in range(EPOCHS):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(weights, x)))
        slopes = tape.gradient(loss, weights)
        weights = [w - RATE * (s + pull * (w - c)) for w, s, c in zip(weights, slopes, centre)]
    return weights


def mean(models) -> list[tf.Tensor]:
    """The unweighted mean of models."""
    return [tf.add_n(list(parts)) / len(parts) for parts in zip(*models)]


def one_round(global_model, models, cohort, clients, *, sequential: bool):
    """The global model and the groups' models after a round of `cohort`."""
    made, global_made, current = [[] for _ in models], [], global_model
    for client in cohort:
        group, x, y = clients[client]
        made[group].append(train(models[group], global_model, PULL, x, y))
        trained = train(current if sequential else global_model, global_model, 0.0, x, y)
        global_made.append(trained)
        current = trained
    return mean(global_made), [mean(own) if own else was for own, was in zip(made, models)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--data-dir", default=os.environ.get("TFFCL_DATA_DIR"))
    options = parser.parse_args()

    x, y = images_and_labels("train", options.data_dir)
    test_x, test_y = (part[::10] for part in images_and_labels("test", options.data_dir))
    rng = np.random.default_rng(0)
    clients = []
    for group in range(ROTATIONS):
        turned = np.rot90(x, group, axes=(1, 2)).reshape(len(x), 784)
        for chosen in np.array_split(rng.permutation(len(x)), options.clients // ROTATIONS):
            clients.append((group, tf.constant(turned[chosen]), tf.constant(y[chosen])))
    tests = [tf.constant(np.rot90(test_x, group, axes=(1, 2)).reshape(-1, 784).copy()) for group in range(ROTATIONS)]

    def accuracy(models):
        right = [np.mean(np.argmax(logits(model, images), axis=1) == test_y) for model, images in zip(models, tests)]
        return 100 * np.mean(right)

    start = initial_weights(rng, options.hidden)
    cohorts = [rng.choice(len(clients), len(clients) // 10, replace=False) for _ in range(options.rounds)]
    print("round  parallel: groups  global   sequential: groups  global")
    states = {name: (start, [start] * ROTATIONS) for name in ("parallel", "sequential")}
    for number, cohort in enumerate(cohorts, 1):
        shown = []
        for name, state in states.items():
            states[name] = global_model, models = one_round(*state, cohort, clients, sequential=name == "sequential")
            shown += [accuracy(models), accuracy([global_model] * ROTATIONS)]
        print("{:5}  {:16.2f}  {:6.2f}   {:18.2f}  {:6.2f}".format(number, *shown), flush=True)


if __name__ == "__main__":
    main()
