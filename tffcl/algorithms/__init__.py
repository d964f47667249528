"""The methods, one file each, composed of signatures, client work, aggregators and clustering.

tffcl.algorithms.build_pacfl(model, training, tffcl.algorithms.PACFLParameters(num_clusters=4))
"""

from tffcl.public_names import lazily

# Of each file: its builder and its parameters, the contract of methods, and what methods of one's own are made of.
_SHOWN = {
    "cfl": ("build_cfl", "CFLParameters"),
    "choosing_method": ("Choosing",),
    "clove": ("build_clove", "CLoVEParameters"),
    "clustered_training": ("EngineMethod", "build_clustered_training"),
    "composed": ("build_composed", "ComposedParameters"),
    "ditto": ("build_ditto", "DittoParameters"),
    "fedavg": ("build_fedavg",),
    "fedprox": ("build_fedprox", "FedProxParameters"),
    "fedclust": ("build_fedclust", "FedClustParameters"),
    "fednova": ("build_fednova", "FedNovaParameters"),
    "fedsem": ("build_fedsem", "FedSEMParameters"),
    "flis_dc": ("build_flis_dc", "FLISDCParameters"),
    "flis_hc": ("build_flis_hc", "FLISHCParameters"),
    "flt": ("build_flt", "FLTParameters"),
    "flux": ("build_flux", "FLUXParameters"),
    "ifca": ("build_ifca", "IFCAParameters"),
    "lg_fedavg": ("build_lg_fedavg", "LGFedAvgParameters"),
    "method": ("CentreMap", "ClusteredState", "Exports", "Method", "MetricView", "Moves", "Views"),
    "one_shot": ("OneShotClustering", "build_one_shot"),
    "pacfl": ("build_pacfl", "PACFLParameters"),
    "pca_km_hc": ("build_pca_km_hc", "PCAKMHCParameters"),
    "per_fedavg": ("build_per_fedavg", "PerFedAvgParameters"),
    "related_training": ("build_related_training",),
    "scaffold": ("build_scaffold", "ScaffoldParameters"),
    "solo": ("build_solo",),
    "stocfl": ("build_stocfl", "StoCFLParameters"),
}

_PLACES = {name: f"{__name__}.{module}" for module, names in _SHOWN.items() for name in names}

__getattr__, __dir__, __all__ = lazily(__name__, _PLACES)
