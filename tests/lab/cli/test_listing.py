"""`tffcl list KIND NAME` says what a task may set, in words for who writes task files."""

import re

import pytest

from tffcl.lab.cli import explain
from tffcl.registry import rows

# A constant of a module, a module's own names, and functions of ours.
CODE = re.compile(
    r"`[\w.]*[A-Z]{3}[A-Z_]*`|`(catalog|registry|hierarchical|stochastic|local_tests|flat|core|choices)\b[^`]*`|`\w+_tests`"
)
KINDS = ["algorithms", "partitions", "models", "signatures", "trainings", "aggregations"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_name_of_the_code_is_told(kind):
    told = [line for name in rows(kind) for line in explain.explain(kind, name)]
    assert len(told) > 5
    assert not [line for line in told if CODE.search(line)]


def test_what_a_data_set_takes():
    told = explain.explain("datasets", "digits")
    assert any("`tffcl list datasets`" in line for line in told) and not any(CODE.search(line) for line in told)


def test_keys_have_their_meanings():
    """What stands in the docstrings of a class and of the classes that it derives from, and in those of functions."""
    hierarchical = " ".join(explain.explain("algorithms", "flis_hc"))
    assert "on 1 - similarity." in hierarchical and "Whether clients answer with probabilities" in hierarchical
    assert "A name from `tffcl list signatures`" in " ".join(explain.explain("algorithms", "composed"))
    assert 'a "share" of these' in " ".join(explain.explain("partitions", "iid"))
