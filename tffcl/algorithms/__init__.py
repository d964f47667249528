"""The methods, composed of signatures, client work, aggregators and clustering; choices of parts are in `presets`.

tffcl.algorithms.build_pacfl(model, training, tffcl.algorithms.PACFLParameters(num_clusters=4))

Every builder takes `model`, what is trained, and `training`, the hyper-parameters of local training; where it takes
`aggregation`, that is as of `build_fedavg`.
"""

from tffcl.public_names import lazily

# Of each file: its builders or its parameters, the contract of methods, and what methods of one's own are made of.
_SHOWN = {
    "cfl": ("build_cfl",),
    "choosing_method": ("Choosing",),
    "clove": ("build_clove",),
    "clustered_training": ("EngineMethod", "build_clustered_training"),
    "composed": ("build_composed",),
    "ditto": ("build_ditto",),
    "fedavg": ("build_fedavg", "build_fedprox"),
    "fednova": ("build_fednova",),
    "fedsem": ("build_fedsem",),
    "flis_dc": ("build_flis_dc",),
    "flt": ("build_flt",),
    "flux": ("build_flux",),
    "ifca": ("build_ifca",),
    "lg_fedavg": ("build_lg_fedavg",),
    "method": ("CentreMap", "ClusteredState", "Exports", "Method", "MetricView", "Moves", "Views"),
    "one_shot": ("OneShotClustering", "build_one_shot"),
    "parameters": (
        "CFLParameters", "CLoVEParameters", "ComposedParameters", "FLISDCParameters", "FLISHCParameters",
        "FLTParameters", "FLUXParameters", "FedClustParameters", "FedSEMParameters", "IFCAParameters",
        "PACFLParameters", "PCAKMHCParameters", "StoCFLParameters",
    ),
    "per_fedavg": ("build_per_fedavg",),
    "presets": ("build_fedclust", "build_flis_hc", "build_pacfl", "build_pca_km_hc"),
    "related_training": ("build_related_training",),
    "scaffold": ("build_scaffold",),
    "solo": ("build_solo",),
    "stocfl": ("build_stocfl",),
    "training_parameters": (
        "DittoParameters", "FedNovaParameters", "FedProxParameters", "LGFedAvgParameters", "PerFedAvgParameters",
        "ScaffoldParameters",
    ),
}  # fmt: skip

_PLACES = {name: f"{__name__}.{module}" for module, names in _SHOWN.items() for name in names}

__getattr__, __dir__, __all__ = lazily(__name__, _PLACES)
