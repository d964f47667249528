"""Sharpness-aware steps on all of a client's examples (FedSAM): local training of one's own in one file."""

import numpy as np
import tensorflow as tf

from tffcl.algorithms import ClusteredState, EngineMethod, build_engine
from tffcl.parts import build_update_work, compose, keyed_factory, keyed_server


class OneModel(EngineMethod):
    """All clients are in one cluster."""

    def initialize(self, population):
        return ClusteredState(**self.engine.start(population, np.zeros(len(population), np.int32)))


def build_steps(model, training, radius: float):
    """Builds `(vector float32[P], x, y, seed, centre) -> (trained float32[P], loss float32)`, in TensorFlow."""

    def gradient(vector, x, y, seed):
        with tf.GradientTape() as tape:
            tape.watch(vector)
            loss, _ = model.training_loss(model.unravel(vector), model.preprocess(x), y, seed)
        return tape.gradient(loss, vector), loss

    def steps(vector, x, y, seed, centre):
        del centre  # of a proximal term, where there is one
        for _ in range(training.epochs):
            uphill, loss = gradient(vector, x, y, seed)
            sharpest = vector + radius * tf.math.divide_no_nan(uphill, tf.norm(uphill))
            vector -= training.learning_rate * gradient(sharpest, x, y, seed)[0]
        return vector, loss

    return steps


def build_fedsam(model, training, *, radius: float = 0.05, aggregation=None):
    """Builds the method.

    Args:
      radius: How far around a model its loss is to be small.
    """
    work = build_update_work(model, training, local_sgd=build_steps(model, training, radius))

    def build_round(factory):
        return compose(work, {"update": keyed_factory(factory)}, keyed_server(model.size))

    return OneModel("fedsam", build_engine(model, build_round, aggregation))
