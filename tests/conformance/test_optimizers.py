"""Methods of every kind whose clients train by Adam and keep its state: what the suite checks of a method, where a kept
state could go wrong."""

import dataclasses

import numpy as np
import pytest

from tests.conformance import checks
from tests.conformance.conftest import configured, conforming
from tests.conformance.subject import DoesNotApply

pytestmark = pytest.mark.slow
TRAIN = {"optimizer": "adam", "optimizer_state": "kept", "learning_rate": 0.003, "momentum": 0.0}
# Two models a client, and joint clusters of two uploads; then others, which take their states from the same parts. The
# default suite looks at those of FedAvg, in test_optimizers of runs and of client_work.
KINDS = ["ditto", "stocfl", "fedavg", "ifca", "flt", "cfl", "fedsem", "solo", "lg_fedavg", "flis_dc"]
EXPORTED = {"ditto", "fedavg"}


@pytest.fixture(scope="module", params=KINDS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def subject(name, data_dir, clients, two_workers, tmp_path_factory):
    given = name, configured(name, train=TRAIN), data_dir, clients, two_workers, tmp_path_factory
    yield from conforming(*given, exports=name in EXPORTED)


@pytest.mark.parametrize(
    "check",
    [
        checks.check_resume,
        checks.check_states_do_not_change,
        checks.check_blocks,
        checks.check_two_workers,
        checks.check_newcomers,
        checks.check_forms,
        checks.check_traffic,
        checks.check_device_operations,
        checks.check_exported_files,
    ],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_a_kept_state_conforms(subject, name, check):
    with subject.running():
        try:
            check(subject)
        except DoesNotApply as reason:
            pytest.skip(str(reason))
    if check is checks.check_exported_files:
        assert "which the device keeps" in subject.exported.manifest["fields"]["clients"]["optimizer"]
        assert name != "ditto" or "personal_training" in subject.exported.manifest["computations"]


def test_a_kept_state_is_used(subject, name):
    """A second round from fresh optimizers is another one for those who were in the first, and only for them."""
    with subject.running():
        state = subject.first.state
        kept = state.optimizers
        assert kept is not None and len(kept["personal"] if name == "ditto" else kept) == len(subject.population)
        again, _ = subject.method.next(dataclasses.replace(state, optimizers=None), subject.cohorts[1])
        assert np.abs(subject.models(again) - subject.models(subject.second.state)).max() > 1e-4
