"""A stranger's method, signature and labels in a task file, through everything that our own go through."""

import inspect
import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import tffcl
import tffcl.parts
from tests.lab.tasks.own.my_training import build_fedsam
from tests.runs.stopped_runs import rounds_written
from tests.runs.test_run import wait_for
from tffcl import algorithms
from tffcl.errors import UserError
from tffcl.lab.batches import newcomers, sweep
from tffcl.lab.batches.run import run
from tffcl.lab.cli.main import main
from tffcl.lab.reporting.batch_index import find_runs
from tffcl.lab.tasks import resolve
from tffcl.models.classifiers import build_mlp

OWN = pathlib.Path(__file__).parent / "own"
LABELS = ["mine", "pacfl", "pacfl_eq3", "by_labels"]


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """The stranger's files in a directory of his own."""
    place = tmp_path_factory.mktemp("own")
    for path in OWN.glob("*.*"):
        shutil.copy(path, place)
    return place / "mine.toml"


@pytest.fixture(scope="module")
def compared(task):
    out = task.parent / "out"
    assert main(["compare", str(task), "--algorithms", ",".join(LABELS), "--out", str(out)]) == 0
    return out


def summary_of(out, label):
    return json.loads((out / label / "seed-0" / "summary.json").read_text())


def test_labels_stand_in_one_table(compared):
    runs = find_runs(compared)
    assert sorted(each.method for each in runs) == sorted(LABELS)
    assert [summary_of(compared, label)["clusters"]["count"] for label in LABELS if label != "pacfl"] == [3, 4, 3]
    page = (compared / "report.html").read_text()
    assert all(label in page for label in LABELS)


# `test_composed` has such tables always, and those of training that are wrong
@pytest.mark.slow
def test_a_composed_method_by_tables_runs(task, tmp_path):
    assert run(resolve.resolve(task, "held"), tmp_path, show_progress=False).summary["clusters"]["count"] == 4


def test_the_same_method_under_two_labels_differs_by_its_keys_alone(compared, task):
    plain, trace = (resolve.load_run_config(compared / label / "seed-0") for label in ("pacfl", "pacfl_eq3"))
    assert (plain.method.metric, trace.method.metric) == ("angle_sum", "trace")
    assert plain.method_source.base == trace.method_source.base == "pacfl"


def test_the_strangers_method_groups_by_labels(compared, task):
    trained = tffcl.load_run(compared / "mine" / "seed-0", trust_builders=True)
    shares, clusters = trained.state.shares, trained.state.assignment
    distances = ((shares[:, np.newaxis] - trained.state.centres[np.newaxis]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(clusters, distances.argmin(axis=1))


# test_run kills one of ours; that the state of this method is restored whole is held in the conformance suite
@pytest.mark.slow
def test_killed_it_is_resumed_as_if_it_had_never_stopped(compared, task, tmp_path):
    again = tmp_path / "again"
    command = [sys.executable, "-m", "tffcl", "run", str(task), "--algorithm", "mine", "--out", str(again)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: rounds_written(again) >= 3, process)
    process.kill()
    process.wait()
    assert not (again / "summary.json").exists()
    resumed = run(resolve.resolve(task, "mine"), again, resume=True, show_progress=False).summary
    expected = summary_of(compared, "mine")
    for key in ("accuracy", "clusters", "traffic"):
        assert resumed[key] == expected[key]


def test_newcomers_join_it(compared):
    found = newcomers.join_newcomers(compared / "mine" / "seed-0", show_progress=False, trust_builders=True)
    assert found["newcomers"] == 2 and sum(found["clusters"]["joined"].values()) == 2


@pytest.mark.slow
def test_its_keys_can_be_swept_over(task, tmp_path):
    source = resolve.find_source(task, "mine")
    planned = sweep.plan(
        task, "mine", [sweep.parse_axis("num_clusters=2,3", source)], overrides={"train": {"rounds": 1}}
    )
    summaries = sweep.run_plan(planned, tmp_path / "sweep", show_progress=False)
    assert [each["clusters"]["count"] for each in summaries] == [2, 3]


def test_a_threshold_on_the_command_line_replaces_the_files_count(task):
    source = resolve.find_source(task, "pacfl_eq3")
    swept = sweep.plan(task, "pacfl_eq3", [sweep.parse_axis("threshold=5,20", source)])
    assert [(point.runs[0].method.threshold, point.runs[0].method.num_clusters) for point in swept.points] == [
        (5, None),
        (20, None),
    ]


def test_an_empty_value_unsets_a_key(task):
    overrides = resolve.parse_overrides(["algorithms.pacfl_eq3.num_clusters="])
    assert resolve.resolve(task, "pacfl_eq3", overrides=overrides).method.num_clusters is None
    assert resolve.resolve(task, "pacfl_eq3").method.num_clusters == 4


def test_a_signature_of_ones_own_is_measured(task, tmp_path, capsys):
    arguments = ["similarity", str(task), "--signature", "my_signature:build_histogram", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    with np.load(tmp_path / "out" / "proximity.npz") as found:
        proximity = found["proximity"]
    assert proximity.shape == (12, 12) and proximity.max() > 0
    told = capsys.readouterr().out
    assert "12 clients of mine, euclidean" in told
    assert any(verdict in told for verdict in ("nothing differs:", " groups: ", "clients differ, but not in groups:"))


def own_task(directory, text, **files):
    for name, contents in files.items():
        (directory / f"{name}.py").write_text(contents)
    path = directory / "task.toml"
    path.write_text(f'extends = "demo_digits"\n\n[train]\nrounds = 1\n\n[algorithms.own]\n{text}\n')
    return path


BAD_BUILDERS = {
    'builder = "nowhere_to_be_found:build"': "neither a file nowhere_to_be_found.py beside the task file nor on "
    "Python's path",
    'builder = "bad_one:build_it"': "unknown function in bad_one 'build_it'; did you mean 'build_ti'",
    'builder = "bad_one"': 'it must be "module:function"',
    'builder = "bad_two:build"': "cannot be imported: ZeroDivisionError: division by zero (bad_two.py:1)",
    'builder = "random:build"': "names the module random, but Python has one of that name itself; call random.py "
    "something else",
    'builder = "umap:build"': "names the module umap, but one of that name is installed; call umap.py something else",
    'builder = "bad_four:build"': "cannot be imported: No module named 'bad_seven'; PYTHONPATH=",
    'builder = "bad.five:build"': "cannot be imported: No module named 'bad'; PYTHONPATH=",
    'builder = "bad.six:build"': "neither a file bad/six.py beside the task file nor on Python's path",
    'builder = "bad_one:takes_one"': "it must take (model, training, ...)",
    'builder = "bad_one:build_ti"\nrat = 3': "unknown key in [algorithms.own] 'rat'; did you mean 'rate'?",
    'builder = "bad_one:build_ti"\nrate = "much"': "algorithms.own.rate is 'much'; it must be a number",
    'builder = "bad_one:build_ti"\nmethod = "pacfl"': "has method and builder; give one of the two",
    'builder = "bad_one:build_rounds"\nrounds = 2': "has a parameter 'rounds', which as a key means something else",
    'builder = "bad_one:build_check"': "has a parameter 'check', which as a key means something else",
    'builder = "bad_three:build"': "cannot be imported: SystemExit: 3 (bad_three.py:3)",
    'builder = "builtins:dict"': "whose parameters cannot be read",
    'method = "pacfll"': "unknown method 'pacfll'; did you mean 'pacfl'?",
    'method = "composed"\nsignature = '
    '"subspac"': "unknown algorithms.own.signature 'subspac'; did you mean 'subspace'?",
    'method = "composed"\nmetric = "trase"': "did you mean 'trace'?",
    'method = "composed"\ntraining = "sgdd"': "did you mean 'sgd'?",
}
BAD_ONE = """
def build_ti(model, training, *, rate: float = 0.1):
    return 3

def takes_one(model):
    pass

def build_rounds(model, training, *, rounds=3):
    pass

def build_check(model, training, *, check=3):
    pass

def build_failing(model, training, *, rate: "Rate" = 0.1, of: list[int] = []):
    raise ValueError("no\\nrate")

def build_unread(model, training):
    import json
    json.loads("no JSON")
"""


@pytest.mark.parametrize("text", BAD_BUILDERS)
def test_bad_builders_get_one_line(text, tmp_path):
    (tmp_path / "bad").mkdir()
    files = {"bad_two": "1 / 0\n", "bad_three": "import sys\n\nsys.exit(3)\n", "bad_four": "import bad_seven\n"}
    files |= {"bad/five": "from . import six\n", **dict.fromkeys(("bad_one", "bad_seven", "random", "umap"), BAD_ONE)}
    path = own_task(tmp_path, text, **files)
    with pytest.raises(UserError) as told:
        resolve.resolve(path, "own")
    assert BAD_BUILDERS[text] in str(told.value) and "\n" not in str(told.value)


def test_a_builder_that_fails_is_told_in_one_line(tmp_path):
    """Its types are known to type checkers only, and one of its defaults is a list."""
    path = own_task(tmp_path, 'builder = "bad_one:build_failing"\nof = [3]', bad_one=BAD_ONE)
    with pytest.raises(
        UserError, match=r"^algorithm bad_one:build_failing failed: ValueError: no rate \(bad_one.py:15\)$"
    ):
        run(resolve.resolve(path, "own"), tmp_path / "out", show_progress=False)


def test_what_fails_elsewhere_is_told_by_the_users_line(tmp_path):
    path = own_task(tmp_path, 'builder = "bad_one:build_unread"', bad_one=BAD_ONE)
    with pytest.raises(UserError, match=r"build_unread failed: JSONDecodeError: .* \(bad_one.py:19\)$"):
        run(resolve.resolve(path, "own"), tmp_path / "out", show_progress=False)


def test_what_is_no_method_is_told_before_anything_runs(tmp_path):
    path = own_task(tmp_path, 'builder = "bad_one:build_ti"', bad_one=BAD_ONE)
    with pytest.raises(UserError, match="int is no method: its class does not derive from tffcl.algorithms.Method"):
        run(resolve.resolve(path, "own"), tmp_path / "out", show_progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "given, message",
    [
        ("counts", r"signature histogram gives float32\[\?\]; every dimension must be known"),
        ('tf.constant("a")', "signature histogram gives str; it must be of numbers"),
        ("tf.ensure_shape(counts / 0.0, [10])", "client 0 has a signature that is not finite; its training"),
    ],
)
def test_a_signature_that_is_no_vector_of_numbers_is_told(tmp_path, given, message):
    text = (OWN / "my_signature.py").read_text().replace("tf.ensure_shape(counts, [10])", given)
    path = own_task(tmp_path, 'method = "composed"\nsignature = "odd_one:build_histogram"', odd_one=text)
    with pytest.raises(UserError, match=message):
        run(resolve.resolve(path, "own"), tmp_path / "out", show_progress=False)


PAGE = pathlib.Path(tffcl.__file__).parent / "docs" / "own_parts.md"


@pytest.mark.slow
@pytest.mark.parametrize("radius, exported", [(0.0, False), (0.5, True)])
def test_local_training_of_ones_own_is_fedavg_where_it_does_the_same(digit_clients, radius, exported, tmp_path):
    """Steps on all examples; with a radius they go to where all around is low, too. And it is exported."""
    clients, training = digit_clients([30, 20, 25]), tffcl.LocalTraining(epochs=3, batch_size=0, learning_rate=0.1)
    model = build_mlp((8, 8, 1), 10, hidden=8)
    how = {"rounds": 2, "clients_per_round": 2, "show_progress": False}
    own, plain = build_fedsam(model, training, radius=radius), algorithms.build_fedavg(model, training)
    own, plain = (tffcl.train(each, clients, out=tmp_path / each.name, **how) for each in (own, plain))
    apart = np.abs(own.trained.state.models - plain.trained.state.models).max()
    assert (apart < 1e-6) if radius == 0 else (1e-4 < apart)
    assert np.isfinite(own.rounds["train_loss"]).all()
    assert np.isfinite(own.clients["local_accuracy"]).any()
    assert not exported or "training" in tffcl.export_result(own, tmp_path / "to")["computations"]


def test_an_extension_needs_no_deep_path():
    for path in (PAGE, *sorted(OWN.glob("*.py"))):
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"\btffcl\.([a-z_]+)\.\w+", text) + re.findall(r"from tffcl\.(\S+) import", text)
        assert set(named) <= {"parts", "algorithms", "learning"}, path
    for package, name in re.findall(r"\btffcl\.(parts|algorithms|learning)\.(\w+)", PAGE.read_text(encoding="utf-8")):
        assert hasattr(getattr(tffcl, package), name), name


def test_a_method_takes_less_than_400_lines_of_reading():
    read = [PAGE.read_text(encoding="utf-8"), (OWN / "my_methods.py").read_text(encoding="utf-8")]
    read += [
        inspect.getsource(each) for each in (algorithms.Method, algorithms.ClusteredState, algorithms.EngineMethod)
    ]
    assert sum(len(text.splitlines()) for text in read) < 400
