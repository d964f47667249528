"""The methods, composed of signatures, client work, aggregators and clustering; choices of parts are in `presets`.

tffcl.algorithms.build_pacfl(model, training, tffcl.algorithms.PACFLParameters(num_clusters=4))

Every builder takes `model`, what is trained, and `training`, the hyper-parameters of local training; where it takes
`aggregation`, that is as of `build_fedavg`.
"""

from tffcl.public_names import lazily
from tffcl.registry import ALGORITHMS

# Of each file: the contract of methods, and what methods of one's own are made of.
_SHOWN = {
    "choosing_method": ("Choosing",),
    "clustered_training": ("EngineMethod", "build_clustered_training"),
    "grouping_in_time": ("build_one_shot",),
    "method": ("CentreMap", "ClusteredState", "Exports", "Method", "MetricView", "Moves", "Views"),
    "one_shot": ("OneShotClustering",),
    "parameters": ("WhenParameters",),
    "related_training": ("build_related_training",),
}

_PLACES = {name: f"{__name__}.{module}" for module, names in _SHOWN.items() for name in names}
# The builder of each method of the registry, and the class of its keys.
_PLACES |= {
    name: module
    for row in ALGORITHMS.values()
    for module, _, name in (place.partition(":") for place in (row.place, row.parameters))
    if name
}

__getattr__, __dir__, __all__ = lazily(__name__, _PLACES)
