"""The page of the public names is what the docstrings say today."""

from tffcl.lab import api_page


def test_the_page_is_current():
    assert api_page.render() == api_page.PAGE.read_text(encoding="utf-8"), "run python -m tffcl.lab.api_page"
