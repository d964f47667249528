"""Every method of the catalog as a subject of the checks, built from a task as a run builds it."""

import contextlib
import functools
import pathlib

import pytest

import tffcl
from tests import memory
from tests.conformance import checks
from tests.conformance.subject import Exported, Subject
from tests.runtime.processes import pair_of_workers
from tffcl.clients import cohort
from tffcl.export import deployment_forms
from tffcl.lab.tasks import build as prepare
from tffcl.lab.tasks import resolve
from tffcl.lab.tasks.exports import check_export, export_run
from tffcl.lab.tasks.populations import build_population
from tffcl.registry import ALGORITHMS

# A method of each kind, of which the suite checks all but what follows; of the others it checks `OF_ALL`, and the rest
# with `-m slow`.
KINDS = {"fedavg", "pacfl", "flis_dc", "ifca", "flt", "stocfl", "fedem", "scaffold", "ditto"}
OF_ALL = {checks.check_contract, checks.check_resume, checks.check_missed_clusters}
# Whose clients are asked for something beside rounds, in another way each, or for nothing.
ASKING = {"fedavg", "pacfl", "flis_dc", "ifca", "stocfl", "fedem"}
# Whose rounds are held against the exported ones from the first on: PACFL's are those of a composition, and FLIS has a
# coordinator as FLT has.
FROM_THE_FIRST = KINDS - {"pacfl", "flis_dc"}
# The method whose rounds two workers share in the suite: of two uploads and of kept values.
TWO_WORKERS = {"scaffold"}
# The same of rounds whose clients compute in blocks: of two uploads. Those of FLT's mixes are in test_related_training.
IN_BLOCKS = {"scaffold"}
# What is checked of the exports of a module's `EXPORTED`.
OF_EXPORTS = {checks.check_forms, checks.check_traffic, checks.check_exported_files, checks.check_device_operations}
TASK = pathlib.Path(__file__).parent / "digits.toml"

# What suits few clients, for every method that has such a parameter.
SMALL = {"warm_up_rounds": 1, "num_clusters": 2, "num_neighbors": 3, "projection": 256}
# What would else begin after the rounds of the suite.
EARLY = {"flhc": {"when": 1}}
# What the parameters say of things that a builder needs; server images are in the task, a seed is the run's.
NEEDED = {"encoder": {"encoder": "digits", "encoder_epochs": 1, "encoder_examples": 200, "fine_tune_epochs": 1}}


def small_parameters(name: str) -> dict:
    """The method's own keys in a task of few clients."""
    entry = ALGORITHMS[name]
    kind = entry.parameter_class() if entry.parameters else None
    fields = kind.__dataclass_fields__.keys() - kind.only_with.keys() if kind else ()
    values = {key: value for key, value in SMALL.items() if key in fields}
    for need in entry.takes:
        values |= NEEDED.get(need, {})
    return values | EARLY.get(name, {})


def configured(name: str, **overrides) -> resolve.RunConfig:
    return resolve.resolve(TASK, name, overrides={"algorithms": {name: small_parameters(name)}, **overrides})


def pytest_collection_modifyitems(items):
    few = {
        checks.check_two_workers: TWO_WORKERS, checks.check_blocks: IN_BLOCKS, checks.check_whole_traffic: ASKING,
        checks.check_rounds_from_the_first_values: FROM_THE_FIRST,
    }  # fmt: skip
    for item in items:
        given = item.callspec.params if "subject" in getattr(item, "fixturenames", ()) else {}
        check, name = given.get("check"), given.get("name")
        checked = item.module.EXPORTED if check in OF_EXPORTS else few.get(check, KINDS)
        if check and check not in OF_ALL and name not in checked:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """Where the encoder is kept: one pre-training serves all."""
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def two_workers(worker):
    """A context manager in which two workers compute; the pair is the same for all methods."""
    with pair_of_workers() as processes:

        @contextlib.contextmanager
        def both():
            try:
                yield processes.use(processes.started).workers
            finally:
                worker.use_local_worker()

        yield both
        worker.use_local_worker()


@pytest.fixture(scope="module", params=ALGORITHMS)
def name(request):
    """Of a method; all that is done with one method is done together."""
    return request.param


@pytest.fixture(scope="module")
def formed_once():
    """The deployment forms of a computation that several methods have are made once."""
    make, made = deployment_forms.build_form, {}

    def once(kind, computation):
        if (kind, computation) not in made:
            try:
                made[kind, computation] = make(kind, computation)
            except Exception as error:
                made[kind, computation] = error
        if isinstance(made[kind, computation], Exception):
            raise made[kind, computation]
        return made[kind, computation]

    deployment_forms.build_form = once
    yield
    deployment_forms.build_form = make


@pytest.fixture(scope="module")
def clients(data_dir):
    """Those who take part, and newcomers; the task's data are the same for every method."""
    settings = configured(next(iter(ALGORITHMS)))
    federated = prepare.load_data(settings, data_dir)
    parts = cohort.hold_out(federated.num_clients, settings.newcomers.clients, settings.seed)
    return tuple(build_population(federated, part) for part in parts)


@pytest.fixture(scope="module")
def subject(name, data_dir, clients, two_workers, formed_once, tmp_path_factory):
    yield from conforming(name, configured(name), data_dir, clients, two_workers, tmp_path_factory)


def conforming(name, settings, data_dir, clients, two_workers, tmp_path_factory, *, exports=True):
    """Yields what is checked of a method; without exports, its computations are looked at in memory."""
    federated = prepare.load_data(settings, data_dir)
    model = prepare.build_model(settings, federated)

    def export():
        out, to = (tmp_path_factory.mktemp(name) / each for each in ("out", "to"))
        tffcl.run(settings, out, data_dir=data_dir, show_progress=False)
        contents = export_run(out, to, data_dir=data_dir)
        return Exported(to, contents, check_export(to, data_dir=data_dir))

    build = functools.partial(prepare.build_method, settings, model, federated, data_dir)
    made = Subject(build, *clients, two_workers=two_workers, export=export if exports else None)
    yield made
    made.close()
    memory.give_back()
