"""`tffcl list KIND NAME` says what a task may set, in words for who writes task files."""

import re

import pytest

from tffcl.lab.cli import explain
from tffcl.registry import rows

# A constant of a module, a module's own names, and functions of ours.
CODE = re.compile(
    r"`[\w.]*[A-Z]{3}[A-Z_]*`|`(catalog|registry|hierarchical|stochastic|local_tests|flat|core)\b[^`]*`|`\w+_tests`"
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


def test_names_become_words():
    assert "One of these, on 1 - similarity." in " ".join(explain.explain("algorithms", "flis_hc"))
    assert "A name of `tffcl list signatures`" in " ".join(explain.explain("algorithms", "composed"))
    assert 'a "share" that no other client gets' in " ".join(explain.explain("partitions", "iid"))
