"""The report of a run or a comparison, made again from its files."""

import pathlib

from tffcl.errors import UserError
from tffcl.reporting import files, gallery, html, tables


def write_report(path: str | pathlib.Path) -> pathlib.Path:
    """Writes `figures/*.png` and `report.html` of a run, and for a comparison `table.csv`, too.

    What was there under these names is replaced; the same files give the same report.

    Args:
      path: The output directory of a run or a comparison.

    Returns:
      Where the page is.

    Raises:
      UserError: If a file of a run is missing or damaged, or the directory cannot be written to.
    """
    path = pathlib.Path(path)
    runs = files.find_runs(path)
    alone = files.is_run(path)
    pictures = gallery.run_pictures(runs[0]) if alone else gallery.comparison_pictures(runs)
    page = html.render(runs, pictures, path)
    try:
        (path / "figures").mkdir(exist_ok=True)
        for picture in pictures:
            (path / "figures" / f"{picture.name}.png").write_bytes(picture.png)
        if not alone:
            (path / "table.csv").write_text(tables.to_csv(tables.comparison_rows(runs)), encoding="utf-8")
        (path / "report.html").write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{error.filename or path} cannot be written: {error.strerror}") from error
    return path / "report.html"
