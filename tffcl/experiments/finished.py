"""A trained run, loaded again from its directory: its data, its models, and what they answer."""

import dataclasses
import functools
import pathlib

import numpy as np

from tffcl import runtime
from tffcl.algorithms.contracts import Algorithm, State
from tffcl.client_work.local_evaluation import build_predict
from tffcl.datasets.core import FederatedDataset
from tffcl.errors import UserError
from tffcl.experiments import prepare
from tffcl.experiments.config import RunConfig, load_run_config
from tffcl.experiments.stages import Stages
from tffcl.models.flat import FlatModel
from tffcl.runner.checkpoints import Checkpoints


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run at its newest checkpoint.

    Attributes:
      config: What was run.
      round_number: The round after which the checkpoint was saved.
      federated: Who holds what in that round.
      model: The architecture.
      algorithm: The method.
      state: What the method knows after that round.
    """

    config: RunConfig
    round_number: int
    federated: FederatedDataset
    model: FlatModel
    algorithm: Algorithm
    state: State

    def cluster_of(self, client: int) -> int:
        """Returns the client's cluster; UserError if it did not take part."""
        return int(self.state.clusters([client])[0])

    def model_of(self, client: int) -> np.ndarray:
        """Returns the model that a client uses, `float32 [P]`; UserError if it did not take part."""
        models, keys = self.algorithm.assign(self.state, [client])
        return models[keys[0]]

    def predict(self, client: int, images: np.ndarray) -> np.ndarray:
        """Returns what a client's model answers on images.

        Args:
          client: Whose model.
          images: `uint8 [n, height, width, channels]`.

        Returns:
          Labels `int32 [n]`.

        Raises:
          UserError: If the client did not take part, or the images' type or shape is not the data's.
        """
        images, shape = np.asarray(images), self.model.input_shape
        if images.dtype != np.uint8 or images.shape[1:] != tuple(shape):
            wanted = f"uint8 of shape [n, {', '.join(map(str, shape))}]"
            raise UserError(f"images are {images.dtype} of shape {list(images.shape)}; they must be {wanted}")
        return self._predict(self.model_of(client), images).numpy()

    @functools.cached_property
    def _predict(self):
        return build_predict(self.model)


def load_run(out: str | pathlib.Path, *, data_dir: str | None = None) -> TrainedRun:
    """Loads a run with its data and the state of its newest checkpoint.

    Args:
      out: The directory of one run.
      data_dir: Where data sets are; default as in `datasets`.

    Raises:
      UserError: If `out` holds no run, or one without a checkpoint.
    """
    out = pathlib.Path(out)
    config = load_run_config(out)
    checkpoints, newest = _newest(out, config)
    federated = prepare.load_data(config, data_dir)
    model = prepare.build_model(config, federated)
    algorithm = prepare.build_algorithm(config, model, federated, data_dir)
    runtime.use_local_worker()
    state, _ = checkpoints.load(newest, algorithm)
    stage = Stages(config, federated, model).at(newest)
    if algorithm.choose:  # a checkpoint between evaluations holds older choices
        state = algorithm.choose(state, stage.population)
    return TrainedRun(config, newest, stage.federated, model, algorithm, state)


def _newest(out: pathlib.Path, config: RunConfig) -> tuple[Checkpoints, int]:
    directory = out / "checkpoints"
    # Asking for the newest would make the directory.
    checkpoints = Checkpoints(directory, config.checkpoint.keep) if directory.is_dir() else None
    newest = checkpoints.latest() if checkpoints else None
    if newest is None:
        raise UserError(f"{out} has no checkpoint; tffcl run with --resume and this --out makes one")
    return checkpoints, newest
