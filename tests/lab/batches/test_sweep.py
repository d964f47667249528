"""A method over the values of a setting: what is planned, what is refused, and whole sweeps of digits."""

import json
import pathlib
import shutil

import pytest

import tffcl
from tests.lab.cli.test_cli import fails
from tests.runs.finished_runs import rows_of
from tffcl.errors import UserError
from tffcl.lab.batches import batch, sweep
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import resolve, task_file

SHORT = [*"--rounds 2 --set evaluation.every=2 --set train.clients_per_round=8".split()]
OVERRIDES = {"train": {"rounds": 2, "clients_per_round": 8}, "evaluation": {"every": 2}}
TWO = ["sweep", "demo_digits", "--algorithm", "pacfl", "--over", "threshold=1000,210", "--and", "local_epochs=1,5"]


def summary_of(place):
    return json.loads((place / "summary.json").read_text())


@pytest.fixture(scope="module")
def two_keys(tmp_path_factory):
    """Thresholds of PACFL, and local epochs; its tests leave it as it is."""
    out = tmp_path_factory.mktemp("sweep") / "two"
    assert main([*TWO, *SHORT, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory):
    """Numbers of clusters, which the demo's task gives a threshold instead of."""
    place = tmp_path_factory.mktemp("sweep")
    text = (task_file.task_directory() / "demo_digits.toml").read_text()
    assert "threshold = 210.0\n" in text
    (place / "own.toml").write_text(text.replace("threshold = 210.0\n", ""))
    command = ["sweep", str(place / "own.toml"), "--algorithm", "pacfl", "--over", "num_clusters=1,4", "--seeds", "0,1"]
    assert main([*command, *SHORT, "--out", str(place / "out")]) == 0
    return place / "out"


@pytest.mark.parametrize(
    ("text", "key", "values", "label"),
    [
        ("threshold=100,210.5", "algorithms.pacfl.threshold", (100, 210.5), "threshold"),
        ("local_epochs = 1, 2", "train.local_epochs", (1, 2), "local epochs"),
        ("train.local_epochs=1,2", "train.local_epochs", (1, 2), "local epochs"),
        ("metric=smallest_angle,trace", "algorithms.pacfl.metric", ("smallest_angle", "trace"), "metric"),
        ("partition.clients=20,40", "partition.clients", (20, 40), "partition clients"),
        ("model.sizes=[1, 2],[3]", "model.sizes", ([1, 2], [3]), "model sizes"),
        ('dataset.path="a,b","c"', "dataset.path", ("a,b", "c"), "dataset path"),
        (
            'model.sizes=small,{name="a", size=[1, 2]}',
            "model.sizes",
            ("small", {"name": "a", "size": [1, 2]}),
            "model sizes",
        ),
        ("per_class=true,false", "algorithms.pacfl.per_class", (True, False), "per class"),
    ],
)
def test_an_axis_is_read(text, key, values, label):
    axis = sweep.parse_axis(text, "pacfl")
    assert (axis.key, axis.values, axis.label) == (key, values, label)


def test_the_plan_has_all_combinations_and_seeds():
    axes = [sweep.parse_axis(each, "pacfl") for each in ("threshold=100.0,210", "local_epochs=1,2,5")]
    planned = sweep.plan("demo_digits", "pacfl", axes, seeds=[0, 3], overrides=OVERRIDES)
    assert [point.values for point in planned.points] == [(t, e) for t in (100, 210) for e in (1, 2, 5)]
    assert planned.points[1].directory.as_posix() == "threshold-100/local_epochs-2"
    for point in planned.points:
        assert [each.seed for each in point.runs] == [0, 3]
        for each in point.runs:
            assert (each.method.threshold, each.train.local_epochs) == point.values
            assert each.train.rounds == 2


def test_a_cut_replaces_the_files_other_one():
    """The task's threshold does not stand beside the numbers of clusters."""
    planned = sweep.plan("demo_digits", "pacfl", [sweep.parse_axis("num_clusters=1,4", "pacfl")])
    methods = [each.method for point in planned.points for each in point.runs]
    assert [(each.threshold, each.num_clusters) for each in methods] == [(None, 1), (None, 4)]


def test_directories_are_safe():
    axes = [sweep.Axis("algorithms.flt.encoder", ("../a b/c", "d" * 300))]
    planned = sweep.plan("demo_digits", "flt", axes)
    first, second = (point.directory.as_posix() for point in planned.points)
    assert first == "encoder-.._a_b_c"
    assert len(second) < 100
    with pytest.raises(UserError, match="would go into one directory, encoder-a_b"):
        sweep.plan("demo_digits", "flt", [sweep.Axis("algorithms.flt.encoder", ("a b", "a/b"))])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--over", "treshold=1,2"],
            "unknown parameter of pacfl or key of [train] 'treshold'; did you mean 'threshold'",
        ),
        (["--over", "trains.rounds=1,2"], "unknown section 'trains'; did you mean 'train'"),
        (["--over", "train.local_epoch=1,2"], "did you mean 'local_epochs'"),
        (["--over", "threshold=210"], "--over algorithms.pacfl.threshold has 1 value; a sweep needs two or more"),
        (
            ["--over", "learning_rate=0.01..0.1"],
            "--over train.learning_rate: a range, 0.01..0.1, stands alone and needs --samples N and --select cluster "
            "or global",
        ),
        (["--over", "learning_rate=1e-3..1,2"], "a range, 1e-3..1, stands alone"),
        (["--over", "PACFL.threshold=1,2"], "unknown section 'PACFL'; did you mean algorithms.pacfl.threshold?"),
        (["--over", "pacfl.threshold=1,2"], "did you mean algorithms.pacfl.threshold?"),
        (["--over", "threshold=1,2,1.0"], "--over algorithms.pacfl.threshold names 1.0 twice"),
        (["--over", "threshold=1,,2"], "has an empty value"),
        (["--over", "threshold=1,2,"], "has an empty value"),
        (["--over", "threshold"], "--over 'threshold' is not KEY=VALUE,VALUE"),
        (["--over", "threshold="], "is not KEY=VALUE,VALUE"),
        (["--over", "threshold=1,2", "--and", "local_epochs"], "--and 'local_epochs' is not KEY=VALUE,VALUE"),
        (["--over", "threshold=1,2", "--and", "local_epochs=3"], "--and train.local_epochs has 1 value"),
        (["--over", "rounds=1,2", "--and", "train.rounds=3,4"], "--over and --and name the same key train.rounds"),
        (["--over", "rounds=1,2", "--rounds", "3"], "train.rounds is swept over and set to 3, too"),
        (["--over", "local_epochs=1,many"], "train.local_epochs is 'many'; it must be a whole number from 1"),
        (["--over", "local_epochs=1,0"], "train.local_epochs is 0; it must be a whole number from 1"),
        (
            ["--over", "num_clusters=1,4", "--set", "algorithms.pacfl.threshold=210"],
            "give threshold or num_clusters, not both",
        ),
        (["--over", "algorithms.solo.rounds=1,2"], "are the same run of pacfl"),
        (["--over", "threshold=1,2", "--seeds", "0,x"], "--seeds '0,x' must be whole numbers"),
        (["--over", "threshold=1,2", "--seeds", "0,0"], "--seeds names 0 twice"),
        (["--over", "threshold=1,2", "--algorithm", "pacf"], "unknown algorithm 'pacf'; did you mean 'pacfl'"),
        (["--over", "num_clusters=4,50"], "num_clusters is 50; it must be from 1 to the number of clients, 40"),
        (["--over", "clients_per_round=9,41"], "clients_per_round is 41, but there are only 40 clients"),
        ([], "the following arguments are required: --over"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_one_line_says_what_is_wrong_before_anything_runs(capsys, tmp_path, arguments, message):
    out = tmp_path / "out"
    assert message in fails(capsys, "sweep", "demo_digits", "--algorithm", "pacfl", "--out", str(out), *arguments)
    assert not out.exists()


def test_a_point_is_the_run_that_it_says(two_keys, tmp_path):
    overrides = {**OVERRIDES, "algorithms": {"pacfl": {"threshold": 1000, "local_epochs": 5}}}
    alone = tffcl.run(
        resolve.resolve("demo_digits", "pacfl", overrides=overrides), tmp_path, show_progress=False
    ).summary
    found = summary_of(two_keys / "threshold-1000" / "local_epochs-5" / "seed-0")
    assert {**found, "seconds": 0} == {**alone, "seconds": 0}


def test_the_table_of_two_keys(two_keys):
    rows = rows_of(two_keys / "sweep.csv")
    values = [(row["algorithms.pacfl.threshold"], row["train.local_epochs"]) for row in rows]
    assert values == [("1000", "1"), ("1000", "5"), ("210", "1"), ("210", "5")]
    for row, (threshold, epochs) in zip(rows, values, strict=True):
        found = summary_of(two_keys / f"threshold-{threshold}" / f"local_epochs-{epochs}" / "seed-0")
        assert row["seeds"] == "1"
        assert float(row["cluster_accuracy_percent"]) == pytest.approx(100 * found["accuracy"]["cluster"]["mean"])
        assert float(row["local_accuracy_percent"]) == pytest.approx(100 * found["accuracy"]["local"]["mean"])
        assert float(row["clusters"]) == found["clusters"]["count"] == (1 if threshold == "1000" else 4)
        assert float(row["ari"]) == pytest.approx(found["clusters"]["ari"])
        assert bool(row["global_accuracy_percent"]) == (threshold == "1000")
        assert row["cluster_accuracy_percent_std"] == row["clustering_error"] == row["clustering_error_std"] == ""


@pytest.mark.slow
def test_the_table_of_two_seeds(two_seeds):
    rows = rows_of(two_seeds / "sweep.csv")
    assert [(row["algorithms.pacfl.num_clusters"], row["clusters"], row["seeds"]) for row in rows] == [
        ("1", "1", "2"),
        ("4", "4", "2"),
    ]
    for row in rows:
        place = two_seeds / f"num_clusters-{row['clusters']}"
        one, two = (100 * summary_of(place / f"seed-{n}")["accuracy"]["cluster"]["mean"] for n in (0, 1))
        assert float(row["cluster_accuracy_percent"]) == pytest.approx((one + two) / 2)
        assert float(row["cluster_accuracy_percent_std"]) == pytest.approx(abs(one - two) / 2**0.5)


@pytest.mark.slow
def test_the_report_is_made_again_from_the_files(two_keys, capsys):
    page, picture = two_keys / "report.html", two_keys / "figures" / "sweep.png"
    assert main(["report", str(two_keys)]) == 0
    before = page.read_bytes(), picture.read_bytes()
    assert len(before[1]) > 10_000
    page.unlink()
    assert main(["report", str(two_keys)]) == 0
    assert (page.read_bytes(), picture.read_bytes()) == before
    assert "threshold, local epochs  seeds" in capsys.readouterr().out
    noted = json.loads((two_keys / "batch.json").read_text())
    assert noted["labels"] == ["threshold", "local epochs"]
    assert noted["points"][2] == {"values": [210, 1], "directory": "threshold-210/local_epochs-1"}


def test_resume_keeps_what_is_finished(two_keys, capsys):
    place = two_keys / "threshold-210" / "local_epochs-1" / "seed-0"
    before = (place / "summary.json").stat().st_mtime_ns
    for options in ([], ["--resume"]):
        assert main([*TWO, *SHORT, "--out", str(two_keys), *options]) == 0
        captured = capsys.readouterr()
        nothing = "nothing to do: all 4 runs are there; --overwrite runs them anew"
        assert captured.err == f"{nothing}\nmaking the page of 4 runs\n"
        assert "threshold, local epochs  seeds" in captured.out
    assert (place / "summary.json").stat().st_mtime_ns == before
    message = fails(capsys, *TWO, *SHORT, "--set", "train.momentum=0.25", "--out", str(two_keys), "--resume")
    assert "holds another run: its train.momentum is 0.5, not 0.25" in message


@pytest.mark.slow
def test_a_value_is_added_to_those_that_are_there(two_seeds, tmp_path, capsys):
    out = shutil.copytree(two_seeds, tmp_path / "out")
    command = [
        "sweep",
        str(two_seeds.parent / "own.toml"),
        *"--algorithm pacfl --over num_clusters=1,4,2".split(),
        *SHORT,
    ]
    assert main([*command, "--seeds", "0,1", "--out", str(out)]) == 0
    assert "6 runs, 2 to do" in capsys.readouterr().err
    assert [row["algorithms.pacfl.num_clusters"] for row in rows_of(out / "sweep.csv")] == ["1", "4", "2"]


@pytest.mark.slow
def test_seeds_and_values_of_earlier_calls_stay_in_the_table(two_keys, tmp_path, capsys):
    out = shutil.copytree(two_keys, tmp_path / "out")
    command = [
        *"sweep demo_digits --algorithm pacfl --over threshold=210,300 --seeds 1".split(),
        *SHORT,
        "--out",
        str(out),
    ]
    epochs = ["--and", "local_epochs=1,2"]
    assert "its train.momentum is 0.5, not 0.25" in fails(capsys, *command, *epochs, "--set", "train.momentum=0.25")
    message = (
        "has a sweep of pacfl over algorithms.pacfl.threshold and train.local_epochs, task demo_digits; give another"
    )
    assert message in fails(capsys, *command)
    assert not (out / "threshold-300").exists()
    assert main([*command, *epochs]) == 0
    rows = rows_of(out / "sweep.csv")
    assert [[*row.values()][:3] for row in rows] == [
        ["210", "1", "2"], ["210", "2", "1"], ["300", "1", "1"], ["300", "2", "1"], ["1000", "1", "1"],
        ["1000", "5", "1"], ["210", "5", "1"],
    ]  # fmt: skip
    places = [out / "threshold-210" / "local_epochs-1" / f"seed-{seed}" for seed in (0, 1)]
    values = [100 * summary_of(place)["accuracy"]["cluster"]["mean"] for place in places]
    assert float(rows[0]["cluster_accuracy_percent"]) == pytest.approx(sum(values) / 2)


def test_a_last_place_that_is_taken_is_found_first(two_keys, tmp_path):
    out = shutil.copytree(two_keys, tmp_path / "out")
    settings = resolve.resolve("demo_digits", "solo", overrides=OVERRIDES)
    taken = pathlib.PurePath("threshold-210", "local_epochs-1", "seed-0")
    jobs = [batch.Job(settings, place, "a run") for place in (pathlib.PurePath("free"), taken)]
    for resume in (False, True):
        with pytest.raises(UserError, match="its algorithm is 'pacfl', not 'solo'"):
            batch.Batch("sweep", out, batch.Options(resume=resume)).check(jobs)
    assert not (out / "free").exists()
