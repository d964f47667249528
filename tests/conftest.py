"""Fixtures: real data and the real TFF runtime."""

import functools
import gc
import importlib
import os
import pathlib
import re
import signal
import sys
import typing

import tffcl  # noqa: F401 - first: gRPC reads what it sets when TFF is imported

# The suite has a process for each core and more: threads of scikit-learn and NumPy would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where Python is told to keep no compiled modules, each process would compile this package, and pytest the tests, anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Traced graphs are many objects that live long; with Python's thresholds an eighth of the time goes into looking
# through them.
gc.set_threshold(200_000, 10, 10)
# TensorFlow asks many thousand times whether something is of a protocol, whose names Python 3.11 finds each time.
typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)

# TFF ends the worker of its test context by SIGINT and waits; started in the background of a script, we and our
# children would ignore it, and wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
from xdist.scheduler import LoadFileScheduling

from tests import digits as digits_data
from tests import memory

# Files that one process runs: umap-learn compiles for half a minute in each process that maps.
MAPPING = (
    "conformance/test_conformance.py",
    "runs/test_changes_in_a_run.py",
    "runs/test_flt_runs.py",
    "algorithms/test_flt.py",
    "algorithms/test_dynamic_clustering.py",
    "clustering/test_client_relatedness.py",
    "clustering/test_projection.py",
)
# Those that take longest come first, so that no process begins one of them when the other is about to end; before them
# those of whole data sets, which take a gigabyte for a moment, while a process holds little else.
LONGEST = (
    *MAPPING,
    "test_notebooks.py",
    "lab/batches/test_small_tasks.py",
    "runs/test_kill.py",
    "models/test_model_kinds.py",
    "runtime/test_workers_under_load.py",
    "walks/test_walks.py",
    "algorithms/test_rr_cluster.py",
    "fuzz/test_by_chance.py",
    "runtime/test_remote_workers.py",
    "lab/datasets/test_datasets_real.py",
    "lab/datasets/test_datasets_federated.py",
    "lab/batches/test_study.py",
    "lab/reporting/test_report.py",
    "export/test_export.py",
    "aggregators/test_inside_clusters.py",
    "export/test_export_results.py",
    "runs/test_own_data.py",
    "runs/test_run.py",
    "lab/tasks/test_own_methods.py",
    "models/test_own_statistics.py",
    "algorithms/test_soft_methods.py",
    "learning/test_clustered_fed_avg.py",
    "models/test_objectives.py",
    "lab/cli/test_fast_mistakes.py",
    "rounds/test_server_optimizer.py",
    "lab/batches/test_league.py",
    "models/test_keras_function.py",
    "client_work/test_optimizers.py",
    "runs/test_privacy.py",
)


class Scheduling(LoadFileScheduling):
    """A file's tests go to one process, for what they share; so do those of the files of `MAPPING`."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "mapping" if file.removeprefix("tests/") in MAPPING else file


def pytest_configure(config):
    """For each operation that oneDNN might compute, TensorFlow looks through all its kernels, in each graph of each
    number of clients: without it a worker has one ready in a fifth of the time. `-m slow` has it, as users do."""
    if config.getoption("markexpr") == "not slow":
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    places = {str(here / file): place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(str(item.path), len(places)))
    gc.freeze()  # the modules that are there by now stay


@pytest.fixture(scope="module", autouse=True)
def memory_given_back():
    """A process runs a quarter of the files, and would keep the rounds of all of them."""
    yield
    memory.give_back()


# A picture of one grey point, and the tests that look at the pictures of reports.
BLANK = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b5500"
    "00000a49444154789c636800000082008177cd72b60000000049454e44ae426082"
)
NOT_LOOKING = (
    "damaged_runs|metrics_shown|targets|splits_figure|files|formats|report.py::test_a_directory_that_cannot_be_written"
)
LOOKING = re.compile(rf"tests/lab/(reporting/test_(?!{NOT_LOOKING})|batches/test_sweep\.py::test_the_report)")
_looking = [True]


def pytest_runtest_setup(item):
    _looking[:] = [bool(LOOKING.match(item.nodeid)) or item.config.getoption("markexpr") != "not slow"]


@pytest.fixture(scope="session", autouse=True)
def pictures_where_they_are_looked_at():
    """Every run draws its report: the figures are made in all tests, and turned into points, for most of a second,
    where a test looks.
    """
    from tffcl.lab.reporting import report_figures

    draw, panels = report_figures.to_png, report_figures.panels_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_figures, "to_png", lambda figure: draw(figure) if _looking[0] else BLANK)
        patch.setattr(report_figures, "panels_of", lambda name, figure: panels(name, figure) if _looking[0] else [])
        yield


def compiles_as_users_do(request) -> bool:
    """Commands that tests start in processes of their own do; of the suite's processes those of the conformance suite
    do under `-m slow`."""
    return request.config.getoption("markexpr") != "not slow" and request.path.name == "test_conformance.py"


@pytest.fixture(scope="module", autouse=True)
def graphs_as_traced(request):
    """TFF's compiler lets TensorFlow rewrite each graph before it is sent to a worker, for a fifth of the suite's time.

    No result depends on it but of Keras models, whose inputs are placeholders inside functions that the rewriting takes
    away. It is left out of the others, as TFF does with a graph that cannot be rewritten."""
    if compiles_as_users_do(request):
        yield
        return
    from tensorflow_federated.python.core.environments.tensorflow_backend import graph_optimizations

    rewrite = graph_optimizations.optimize_graph_spec

    def rewrite_some(graph, config):
        functions = graph.graph_def.library.function
        keras = any(node.op == "Placeholder" for function in functions for node in function.node_def)
        return rewrite(graph, config) if keras else graph

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_optimizations, "optimize_graph_spec", rewrite_some)
        yield


@pytest.fixture(scope="module", autouse=True)
def operations_without_history(request):
    """TensorFlow keeps with every operation of a graph the Python lines that made it, for a twentieth of the suite's
    time, as stacks are deep below pytest. Here all operations have the same lines."""
    if compiles_as_users_do(request):
        yield
        return
    from tensorflow.python.util import tf_stack

    lines = tf_stack.extract_stack()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf_stack, "extract_stack", lambda stacklevel=1: lines)
        yield


@pytest.fixture(scope="session", autouse=True)
def neighbors_uncompiled(request):
    """umap-learn imports pynndescent, which compiles for half a minute where nothing is cached, to find neighbours
    among thousands of points; the suite maps few, and `-m slow` compiles as users do."""
    if request.config.getoption("markexpr") != "not slow":
        yield
        return
    from tffcl.clustering import projection

    load = projection.load_umap

    @functools.cache
    def load_umap():
        import numba

        numba.config.DISABLE_JIT = 1
        importlib.import_module("pynndescent")
        numba.config.DISABLE_JIT = 0
        return load()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projection, "load_umap", load_umap)
        yield


@pytest.fixture(scope="session", autouse=True)
def types_read_once():
    """TFF reads the type of each part of a computation from its message again and again, for a third of the time that
    compiling takes. Types do not change: in the suite each message is read once."""
    from tensorflow_federated.python.core.impl.types import type_serialization

    read, known = type_serialization.deserialize_type, {}

    def read_once(message):
        key = message.SerializeToString()
        if key not in known:
            known[key] = read(message)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type_serialization, "deserialize_type", read_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def worker(request):
    """One TFF worker for all tests that run computations.

    It computes one client at a time, as the suite has a process for each core: for two it would make each graph twice.
    Commands in processes of their own, and `-m slow`, have as many as there are cores."""
    from tffcl import runtime
    from tffcl.runtime import local_worker

    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("markexpr") == "not slow":
            patch.setattr(local_worker, "WorkerSettings", functools.partial(runtime.WorkerSettings, cores=1))
        yield runtime


@pytest.fixture
def tff_worker(worker):
    """TFF's default context is our worker, also after a test that set another."""
    return worker.use_local_worker()


@pytest.fixture
def through_map_reduce(worker):
    """Runs a round rebuilt from its MapReduceForm: `(computation, state, cohort's inputs) -> result`."""
    import tensorflow_federated as tff

    def run(computation, state, inputs):
        form = tff.backends.mapreduce.get_map_reduce_form_for_computation(computation)
        rebuilt = tff.backends.mapreduce.get_computation_for_map_reduce_form(form)
        tff.backends.test.set_sync_test_cpp_execution_context()
        try:
            return rebuilt(state, inputs)
        finally:
            worker.use_local_worker()

    return run


@pytest.fixture
def without_forms(monkeypatch):
    """Exports have no deployment forms of rounds, which take as long as all the rest, where a test does not look at
    them."""
    from tffcl.export import deployment_forms

    monkeypatch.setattr(deployment_forms, "PARTS", {})


@pytest.fixture(scope="session")
def digits():
    """scikit-learn's handwritten digits: `(x uint8 [1797, 8, 8, 1], y int32 [1797])`."""
    return digits_data.load()


@pytest.fixture(scope="session")
def digit_clients(digits):
    """Builds a population of digits: `(sizes, turns=None) -> Population`, consecutive examples, sizes as given."""

    from tffcl.clients.population import Population

    def build(sizes, turns=None):
        x, y = digits
        turns = turns or [0] * len(sizes)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        train, test = {}, {}
        for client, (start, size) in enumerate(zip(starts, sizes)):
            images = np.rot90(x, turns[client], axes=(1, 2))
            train[client], test[client] = (
                (images[rows], y[rows])
                for rows in (slice(start, start + size), slice(1797 - 50 - client, 1797 - client))
            )
        return Population.from_arrays(train, test)

    return build


@pytest.fixture(scope="session")
def model():
    """The small perceptron that most tests train, so that its rounds are traced once; a module may have its own."""
    from tffcl.models.classifiers import build_mlp

    return build_mlp((8, 8, 1), 10, hidden=16, normalization=(0.3, 0.4), seed=3)


@pytest.fixture(scope="session")
def population(digit_clients):
    """The five clients of most tests, of unequal sizes; a module may have its own."""
    return digit_clients([31, 40, 25, 50, 12])
