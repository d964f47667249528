"""One suite for every method of the catalog, so that one which is added is covered; and for a method of a stranger."""

import functools
import pathlib

import pytest

from tests.conformance import checks, strangers
from tests.conformance.conftest import configured
from tests.conformance.subject import DoesNotApply, Subject
from tffcl.experiments import prepare
from tffcl.experiments.catalog import ALGORITHMS
from tffcl.references import load_reference

OWN = pathlib.Path(__file__).parents[1] / "experiments" / "own"
# What the clients' graphs of a method are known to have that device runtimes lack, by computation.
LACKING = {"pca_km_hc": {"signature": ["SelfAdjointEigV2"]}}
# Methods that fill all clusters with any cohort, so that none is ever missed.
ANEW = {"clove"}
# Methods whose server is known to do with sums, and such as are known to need each client's upload.
SUMMED, NOT_SUMMED = (
    {
        "fedavg",
        "fedprox",
        "flis_hc",
        "ifca",
        "pca_km_hc",
        "pacfl",
        "ditto",
        "lg_fedavg",
        "per_fedavg",
        "fednova",
        "fedclust",
        "clove",
        "flux",
        "composed",
    },
    {"flis_dc", "stocfl", "solo", "fedsem", "cfl", "flt", "scaffold"},
)


@pytest.mark.parametrize("check", [*checks.CHECKS, *checks.OWN_CHECKS], ids=lambda check: check.__name__.removeprefix("check_"))
def test_every_method(subject, name, check):
    more = {"lacking": LACKING[name]} if check is checks.check_device_operations and name in LACKING else {}
    with subject.running():
        try:
            check(subject, **more)
        except DoesNotApply as reason:
            assert str(reason) != checks.ALL_ANEW or name in ANEW
            pytest.skip(str(reason))


def test_sums_take_the_place_of_keyed_means(subject, name):
    with subject.running():
        made = "training_summed" in subject.exported.manifest["computations"]
    assert {*SUMMED, *NOT_SUMMED} == {*ALGORITHMS} and made == (name in SUMMED)


@pytest.fixture(scope="module")
def built_by(data_dir):
    """`(class) -> a builder of a stranger's method`, with the task's model."""
    settings = configured("fedavg")
    model = prepare.build_model(settings, prepare.load_data(settings, data_dir))
    return lambda method: functools.partial(method, model, prepare.local_training(settings.train))


def test_a_strangers_method_conforms(built_by, clients, two_workers):
    assert checks.check_method_conforms(built_by(strangers.ByParity), *clients, two_workers=two_workers) == []


def test_a_method_in_a_file_beside_a_task_conforms(built_by, clients, two_workers):
    built = built_by(functools.partial(load_reference("my_methods:build_mine", OWN), num_clusters=2))
    assert checks.check_method_conforms(built, *clients, two_workers=two_workers) == []


@pytest.mark.parametrize(
    "mistaken, check",
    [
        (strangers.ChangesTheState, checks.check_states_do_not_change),
        (strangers.Remembers, checks.check_resume),
        (strangers.MovesMissedClusters, checks.check_missed_clusters),
        (strangers.CountsTooMuch, checks.check_traffic),
        (strangers.NewcomersReset, checks.check_newcomers),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_a_mistake_is_found(built_by, clients, formed_once, mistaken, check):
    subject = Subject(built_by(mistaken), *clients)
    with subject.running(), pytest.raises(AssertionError):
        check(subject)
    subject.close()
