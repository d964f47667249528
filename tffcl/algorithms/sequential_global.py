"""A global model that goes through the clients of a round one after the other, as in the trainers of StoCFL's authors.

The paper's Eq. 3 and Alg. 1 let every client start from the broadcast global model. In the authors' code a client starts from what
the client before has made of it, so that the model takes as many times more steps a round as there are clients; the mean of
all models on the way is the next global model. That is no federated round: clients wait for each other.
"""

import dataclasses

import numpy as np

from tffcl.algorithms.clustered_training import build_clustered_round
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.cohort import Cohort
from tffcl.models.flat import FlatModel
from tffcl.rounds.simulation import run_round
from tffcl.rounds.traffic import Traffic

GLOBAL_ORDERS = {
    "parallel": "every client starts from the broadcast global model (Eq. 3)",
    "sequential": "a client starts from what the client before made of it; the models on the way are averaged (the authors' code)",
}


@dataclasses.dataclass(frozen=True, eq=False)
class SequentialGlobal:
    """Trains a global model through the clients of a round.

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
          The plain mean of the models that the clients made, `float32 [P]`, and what was sent.
        """
        composed, current = build_clustered_round(self.model, self.training), global_model
        total, traffic = np.zeros(global_model.shape, np.float64), Traffic()
        for _, one in dataclasses.replace(cohort, local_test=None).parts(1):
            values = {"models": current[np.newaxis]}
            result = run_round(composed, one, values, composed.initial_aggregators, key=np.zeros(1, np.int32))
            current = result.values["models"][0]
            total, traffic = total + current, traffic + result.traffic
        return (total / len(cohort.client_ids)).astype(np.float32), traffic
