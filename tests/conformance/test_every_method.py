"""One suite for every method of the catalog: a method that is added there is covered."""

import pytest

from tests.conformance import checks
from tests.conformance.subject import DoesNotApply

# What the clients' graphs of a method are known to have that device runtimes lack, by computation.
LACKING = {"pca_km_hc": {"signature": ["SelfAdjointEigV2"]}}


@pytest.mark.parametrize("check", [*checks.CHECKS, *checks.OWN_CHECKS], ids=lambda check: check.__name__.removeprefix("check_"))
def test_every_method(subject, name, check):
    more = {"lacking": LACKING[name]} if check is checks.check_device_operations and name in LACKING else {}
    with subject.running():
        try:
            check(subject, **more)
        except DoesNotApply as reason:
            pytest.skip(str(reason))
