"""The tables that a builder of the user's own may stand behind: their keys, and where the builders are looked for."""

import pathlib
from collections.abc import Mapping

from tffcl.errors import UserError
from tffcl.references import load_reference, references_in
from tffcl.registry import find_in_table, given, parameters_of
from tffcl.validation import check_options

_SECTIONS = ("dataset", "partition", "model", "aggregation")


def check_model(model: Mapping, *, foreign: bool):
    """Checks the keys of [model], of a builder that is not tffcl's own only if `foreign`; UserError for what is not allowed."""
    if foreign or "builder" not in model:
        name, row, options = find_in_table("models", model)
        if foreign or not row.foreign:
            check_options(f"model {name}", row.builder(), options, given=given("models"), also=("name",))


def check_aggregation_keys(table: Mapping):
    """Checks [aggregation]; UserError for what is not allowed."""
    if table:
        name, row, options = find_in_table("aggregations", table)
        if row.foreign:
            check_options(f"aggregation {name}", row.builder(), options, also=("name",))
        else:
            parameters_of(row, options, "aggregation")


def check_trusted(values: Mapping, file: pathlib.Path, own: Mapping):
    """Checks, before anything is imported, that a run's file names no function that its reader has not named or trusted.

    Args:
      values: Of a run's config.toml, which whoever made the run has written.
      file: It, for the message.
      own: Settings of the reader's own, whose functions of the same directory are trusted; or none.

    Raises:
      UserError: Naming the first such function.
    """
    known = _named_in(own) if own.get("directory", "") == values.get("directory", "") else []
    foreign = [each for each in _named_in(values) if each not in known]
    if foreign:
        raise UserError(
            f"{file} names {foreign[0]!r}, which would be imported and called, and whoever made that run may have written it; if you "
            "trust its code, say --trust-builders, in Python trust_builders=True"
        )


def _named_in(values: Mapping) -> list[str]:
    return references_in([values.get(each, "") for each in ("base", "method", *_SECTIONS)])


def load_own_data(contents: Mapping, directory: str) -> str:
    """Imports the builders of data and model; returns where they, or the method's, are looked for, "" where there are none."""
    found = ""
    for section in _SECTIONS:
        for reference in references_in(contents.get(section, {})):
            load_reference(reference, directory, f"{section}.builder")
            found = str(pathlib.Path(directory).resolve())
    return found
