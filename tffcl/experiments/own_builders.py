"""The tables that a builder of the user's own may stand behind: their keys, and where the builders are looked for."""

import pathlib
from collections.abc import Mapping

from tffcl.experiments.catalog import AGGREGATIONS, GIVEN_TO_MODELS, MODELS, find_aggregation, find_model
from tffcl.references import load_reference, references_in
from tffcl.validation import check_options, from_table


def check_model_keys(model: Mapping, *, keys: bool):
    """Checks [model]: its name, and with `keys` also its keys, which imports TensorFlow; UserError for what is not allowed."""
    if model.get("name") not in MODELS or keys:  # a name of ours is known without importing TensorFlow
        name, build, options = find_model(model)
        check_options(f"model {name}", build, options, given=GIVEN_TO_MODELS, also=("name",))


def check_aggregation_keys(table: Mapping):
    """Checks [aggregation]; UserError for what is not allowed."""
    if table and table != {"name": "mean"}:  # which needs no import
        name, build, options = find_aggregation(table)
        if name in AGGREGATIONS:
            from_table(AGGREGATIONS[name].parameter_class(), options, "aggregation")
        else:
            check_options(f"aggregation {name}", build, options, also=("name",))


def load_own_data(contents: Mapping, directory: str) -> str:
    """Imports the builders of data and model; returns where they, or the method's, are looked for, "" where there are none."""
    found = ""
    for section in ("dataset", "partition", "model", "aggregation"):
        for reference in references_in(contents.get(section, {})):
            load_reference(reference, directory, f"{section}.builder")
            found = str(pathlib.Path(directory).resolve())
    return found
