"""The methods, composed of signatures, client work, aggregators and clustering; choices of parts are in `presets`.

tffcl.algorithms.build_pacfl(model, training, tffcl.algorithms.PACFLParameters(num_clusters=4))

Every builder takes `model`, what is trained, and `training`, the hyper-parameters of local training; where it takes
`aggregation`, that is as of `build_fedavg`.
"""

from tffcl.public_names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
