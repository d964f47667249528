"""Further formats of tables and figures, by name. Imports nothing heavy: a wrong one is told before anything runs."""

from tffcl.errors import unknown

FORMATS = ("csv", "md", "latex", "png", "svg", "pdf")


def parse_formats(text: str) -> list[str]:
    """Turns "csv,md,latex,svg" into formats.

    Raises:
      UserError: If one is unknown.
    """
    formats = [each.strip() for each in text.split(",")] if text else []
    for each in formats:
        if each not in FORMATS:
            raise unknown("format", each, FORMATS)
    return formats
