"""A global model that goes through the clients of a round one after the other, as in the trainers of StoCFL's authors.

The paper's Eq. 3 and Alg. 1 let every client start from the broadcast global model. In the authors' code a client starts from
what the client before has made of it, so that the model takes as many times more steps a round as there are clients; the mean
of all models on the way is the next global model. That is no federated round: clients wait for each other.
"""

import collections
import dataclasses

import numpy as np
import tensorflow as tf

from tffcl.algorithms.clustered_training import build_clustered_round
from tffcl.client_work.local_sgd import ROUND, LocalTraining
from tffcl.client_work.training import build_train_and_report
from tffcl.clients.cohort import Cohort
from tffcl.kept_builds import built_once
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import session_function
from tffcl.rounds.simulation import check_finite
from tffcl.rounds.traffic import Traffic

GLOBAL_ORDERS = {
    "parallel": "every client starts from the broadcast global model (Eq. 3)",
    "sequential": "a client starts from what the client before made of it; the models on the way are averaged (the authors' code)",
}


@built_once
def _build_training_here(model: FlatModel, training: LocalTraining):
    """Builds `(vector float32[P], client) -> (vector float32[P], report)` on arrays, as a client of a simulated round trains."""
    examples = tf.nest.map_structure(lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), model.example_spec)
    client = collections.OrderedDict(examples=examples, seed=tf.TensorSpec([2], tf.int32))
    client.update((name, tf.TensorSpec([], dtype)) for name, dtype in training.fields().items())
    return session_function(build_train_and_report(model, training), tf.TensorSpec([model.size]), client)


@dataclasses.dataclass(frozen=True, eq=False)
class SequentialGlobal:
    """Trains a global model through the clients of a round, in this process: a chain has nothing that workers could do at the same time.

    Attributes:
      model: What is trained.
      training: Local hyper-parameters.
    """

    model: FlatModel
    training: LocalTraining

    def next(self, global_model: np.ndarray, cohort: Cohort) -> tuple[np.ndarray, Traffic]:
        """Lets the cohort's clients train the model in their order.

        Args:
          global_model: `float32 [P]`.
          cohort: Who; a client of it shuffles as in the round's other training.

        Returns:
          The plain mean of the models that the clients made, `float32 [P]`, and what was sent: to each client and back, the
          model as in a round of one cluster.

        Raises:
          Diverged: If a client's model is not finite.
        """
        train, current, total = _build_training_here(self.model, self.training), global_model, np.zeros(global_model.shape)
        known = {ROUND: cohort.seed[1]}
        for _, one in cohort.parts(1):
            client = int(one.client_ids[0])
            given = collections.OrderedDict(examples=cohort.population.stacked(client), seed=cohort.client_seed(client))
            current, report = train(current, {**given, **{name: known[name] for name in self.training.fields()}})
            check_finite({name: np.atleast_1d(value) for name, value in report.items()}, one)
            total += current
        transfer = build_clustered_round(self.model, self.training).transfer
        sent = Traffic(transfer.down_bytes(1), transfer.up_bytes()) * len(cohort.client_ids)
        return (total / len(cohort.client_ids)).astype(np.float32), sent
