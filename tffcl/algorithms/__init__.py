"""The methods, composed of signatures, client work, aggregators and clustering; `presets` holds choices of parts.

tffcl.algorithms.build_pacfl(model, training, tffcl.algorithms.PACFLParameters(num_clusters=4))

Every builder takes `model`, the model to train, and `training`, the hyper-parameters of local training. An argument
`aggregation` is as in `build_fedavg`.
"""

from tffcl.public_names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
