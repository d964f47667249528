"""Encoders that clients go on fine-tuning each time they are related anew (FLT Alg. 2 lines 3 to 9, Alg. 3 line 25).

"Clients will be asked to run E epochs of SGD from their latest state on their most recent dataset": what a client has made of
the encoder stays with it between formations, and never counts as traffic.
"""

import collections
import dataclasses
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import CollectFactory
from tffcl.client_work.client_work import ClientResult, ClientWork, stack
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.autoencoder import FlatAutoencoder
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.simulation import run_round
from tffcl.signatures.embedding import CentreNoise, Centres, FineTuning, build_embed


def build_refining_round(
    autoencoder: FlatAutoencoder, example_spec, centres: Centres, fine_tuning: FineTuning, noise: CentreNoise = CentreNoise()
) -> Round:
    """Builds the round in which clients fine-tune the encoder that they keep, and send the centres of their codes.

    Args:
      autoencoder: The architecture; a client keeps its parameters, `float32[P]`.
      example_spec: Structure of one example.
      centres: How many a client makes.
      fine_tuning: How; 0 epochs leave the kept encoder as it is.
      noise: Of private centres.

    Returns:
      A round without server values, that collects `centres=<centres=float32[k,e],mask=bool[k]>`.
    """
    embed = build_embed(autoencoder, centres, fine_tuning, noise)

    def compute(received, client):
        del received
        local = stack(client["examples"])
        own = None if noise.seed is None else tf.random.experimental.stateless_fold_in(client["seed"], noise.seed % 2**31)
        found, tuned = embed(client["kept"], local, client["seed"], own)
        # An encoder that diverged shows in centres that are not there.
        report = collections.OrderedDict(examples=tf.shape(local["y"])[0], loss=tf.constant(0.0), finite=tf.constant(True))
        return ClientResult({"centres": found}, report, tuned)

    work = ClientWork(example_spec, compute, kept=tff.TensorType(np.float32, [autoencoder.size]))
    return compose(work, {"centres": CollectFactory(noise.noise_multiplier, noise.seed)}, Server())


@dataclasses.dataclass(frozen=True, eq=False)
class RefinedEncoders:
    """Signs with encoders that clients keep.

    Attributes:
      autoencoder: The architecture.
      example_spec: Structure of one example.
      centres: How many a client makes.
      fine_tuning: How; its epochs are replaced.
      seed: Decides the order of examples and where k-means starts, with the round and the client.
      noise: Of private centres.
    """

    autoencoder: FlatAutoencoder
    example_spec: object
    centres: Centres
    fine_tuning: FineTuning
    seed: int
    noise: CentreNoise = CentreNoise()

    def sign(self, population: Population, encoders: KeptStates, epochs: int, round_number: int):
        """Lets clients fine-tune and encode.

        Args:
          population: Who.
          encoders: What they have kept.
          epochs: Of fine-tuning.
          round_number: After which round; 0 before the first.

        Returns:
          `centres float32 [N, k, e]` and `mask bool [N, k]` by name, and the encoders that the clients have now.
        """
        if population.signed_as:
            raise UserError(
                "clients that go on fine-tuning their encoders train on what they hold: here they can imitate nobody"
            )
        cohort = Cohort(population, population.client_ids, (self.seed, round_number))
        result = run_round(_refining(self, epochs), cohort, kept=encoders)
        return result.collected["centres"], result.kept


@functools.lru_cache(maxsize=4)  # the modes of one method
def _refining(encoders: RefinedEncoders, epochs: int) -> Round:
    fine_tuning = dataclasses.replace(encoders.fine_tuning, epochs=epochs)
    how = encoders.centres, fine_tuning, encoders.noise
    return build_refining_round(encoders.autoencoder, encoders.example_spec, *how)
