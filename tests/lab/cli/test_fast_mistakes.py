"""A user's mistake is told before TensorFlow, which takes seconds to import, and light commands do without it."""

import json
import subprocess
import sys

import pytest

from tests.lab.reporting.conftest import write_run
from tffcl.lab.cli.main import main

RUN = ["run", "demo_digits", "--algorithm", "pacfl"]
SWEEP = ["sweep", "demo_digits", "--algorithm", "pacfl", "--over", "threshold=150,210"]
MISTAKES = [
    (["rnu"], "unknown command 'rnu'; did you mean 'run'"),
    (["list", "task"], "unknown kind 'task'; did you mean 'tasks'"),
    (["run", "demo_digits"], "the following arguments are required: --algorithm"),
    (["run", "demo_digits", "--algorithm", "PACFL"], "unknown algorithm 'PACFL'; did you mean 'pacfl'"),
    (["compare", "demo_digits", "--algorithms", "Fedavg , solo"], "unknown algorithm 'Fedavg'; did you mean 'fedavg'"),
    (["run", "demo_digits", "--algorithm", "pacfl,fedavg"], "tffcl compare --algorithms pacfl,fedavg runs several"),
    (["show", "demo_digit"], "unknown task 'demo_digit'; did you mean 'demo_digits'"),
    (["run", "Demo_Digits ", "--algorithm", "pacfl"], "did you mean 'demo_digits'"),
    (["run", "demo_digits.toml", "--algorithm", "pacfl"], "no task file demo_digits.toml; did you mean demo_digits,"),
    (["run", "nowhere/my.toml", "--algorithm", "pacfl"], "there is no task file nowhere/my.toml"),
    (["study", "x/flt_table_1.toml"], "there is no study file x/flt_table_1.toml; did you mean flt_table_1,"),
    (["show", "demo_digits", "--set", "partition.clients=3000"], "3000 clients and only 1347 training examples"),
    (["report", "nowhere"], "nowhere is not a directory"),
    ([*RUN, "--set", "pacfl.num_clusters=3"], "unknown section 'pacfl'; did you mean algorithms.pacfl.num_clusters?"),
    ([*RUN, "--set", "trains.rounds=3"], "did you mean 'train'"),
    ([*RUN, "--set", "train.rounds=3", "train.momentum=0.5"], "has a --set of its own"),
    ([*RUN, "--set", "algorithms.pacfl=3"], "[algorithms.pacfl] is 3; it must be a table"),
    ([*RUN, "--set", "train.rounds=3", "--set", "train.rounds.x=1"], "rounds has a value already"),
    ([*RUN, "--set", "rounds"], "is not SECTION.KEY=VALUE"),
    ([*RUN, "--rounds", "0"], "on the command line: train.rounds is 0"),
    ([*RUN, "--seed", "-1"], "seed is -1"),
    ([*RUN, "--set", "partition.name=rotatd"], "did you mean 'rotated'"),
    (
        ["run", "demo_digits", "--algorithm", "fedavg", "--set", "algorithms.fedavg.num_clusters=2"],
        "no parameters of its own",
    ),
    (["compare", "demo_digits", "--seeds", "0,x"], "--seeds '0,x' must be whole numbers"),
    ([*RUN, "--set", "model.hiden=3"], "did you mean 'hidden'"),
    ([*RUN, "--set", "model.hidden=x"], "model.hidden is 'x'; it must be a whole number from 1"),
    (["run", "texts_next_character", "--algorithm", "ifca", "--set", "model.unit=3"], "did you mean 'units'"),
    ([*RUN, "--set", "model.initialization=glorrot"], "did you mean 'glorot'"),
    ([*RUN, "--format", "pgn"], "did you mean 'png'"),
    (["study", "privacy_accuracy", "--set", "algorithms.pacfl=3"], "[algorithms.pacfl] is 3; it must be a table"),
    (["study", "demo_digits", "--set", "train.roundz=3"], "did you mean 'rounds'"),
    (["study", "demo_digits", "--set", "model.hidden=x"], "model.hidden is 'x'"),
    *(
        ([*command, option, ""], f"argument {option}: it is empty, as of a variable that is not set")
        for command, options in ((RUN, ("--workers", "--out", "--data-dir")), (SWEEP, ("--select", "--and", "--seeds")))
        for option in options
    ),
    (["report", ""], "argument OUT: it is empty"),
    (["study", "demo_digits", "--only", "nosuch"], "nosuch"),
    (["run", "nosuch", "--algorithm", "pacfl"], "unknown task 'nosuch' (the nearest of"),
    (["run", "demo_digits", "--algorithm", "nosuch"], "unknown algorithm 'nosuch'"),
    ([*RUN, "--set", "train.roundz=3"], "did you mean 'rounds'"),
    ([*RUN, "--set", "train.rounds=x"], "on the command line: train.rounds is 'x'; it must be a whole number from 1"),
    ([*RUN, "--set", "train.learning_rate=nan"], "train.learning_rate is nan"),
    ([*RUN, "--set", "train.early_stopping.metric=ari"], "[train.early_stopping] needs 'patience'"),
    ([*RUN, "--set", "train.early_stopping=3"], "it must be a table or EarlyStopping of metric, patience, min_delta"),
    ([*RUN, "--set", "train.optimizer=adm"], "unknown train.optimizer 'adm'; did you mean 'adam'?"),
    ([*RUN, "--set", "train.optimizer=adam"], "train.momentum is 0.5; it must be 0 with the optimizer adam"),
    (
        [*RUN, "--set", "train.learning_rate_decay.cosin=3"],
        "unknown key in [train.learning_rate_decay] 'cosin'; did you mean 'cosine'?",
    ),
    (
        ["run", "demo_digits", "--algorithm", "scaffold", "--set", "train.optimizer_state=kept"],
        "scaffold takes control variates from steps of SGD: optimizer_state must be reset",
    ),
    ([*RUN, "--set", "partition.clints=3"], "did you mean 'clients'"),
    ([*RUN, "--set", "dataset.name=mnits"], "did you mean 'mnist'"),
    ([*RUN, "--set", "model.name=mpl"], "unknown model 'mpl'; did you mean 'mlp'"),
    ([*RUN, "--set", "algorithms.pacfl.num_vector=3"], "did you mean 'num_vectors'"),
    ([*RUN, "--set", "algorithms.pacfl.metric=x"], "smallest_angle"),
    ([*RUN, "--set", "threshold=-3"], "algorithms.pacfl.threshold is -3; it must be a number from 0 or gap, self"),
    (
        [*RUN, "--set", "threshold=slf"],
        "unknown algorithms.pacfl.threshold 'slf'; did you mean 'self'? (allowed: gap, self; or a number from 0)",
    ),
    (["run", "demo_digits", "--algorithm", "stocfl", "--set", "form=x"], "(allowed: displacement, gradient)"),
    ([*RUN, "--set", "thrshold=3"], "did you mean 'threshold'"),
    ([*RUN, "--set", "signature_noise_multiplier=-1"], "signature_noise_multiplier is -1; it must be a number from 0"),
    (
        ["run", "demo_digits", "--algorithm", "stocfl", "--set", "signature_clip=0"],
        "signature_clip is 0; it must be a number above 0",
    ),
    (
        ["run", "demo_digits", "--algorithm", "fednova", "--set", "aggregation.name=dp"],
        "numbers of steps beside the updates",
    ),
    (["run", "demo_digits", "--algorithm", "cfl", "--set", "aggregation.name=dp"], "cfl takes no [aggregation]"),
    (["newcomers", "no-such-directory"], "is not a directory"),
    (["export", "no-such-directory", "--to", "x"], "is not a directory"),
    (["export", "--check", "no-such-directory"], "holds no export"),
    ([*RUN, "--seeds", "0,1"], "tffcl compare runs several seeds"),
    ([*RUN, "--resume", "--overwrite"], "not allowed with argument"),
    (
        [*RUN, "--rounds", "2", "--set", "drift.clients=4", "--set", "drift.round=5"],
        "drift.round is 5, and the run has 2: data would",
    ),
    (
        [*RUN, "--set", "newcomers.clients=4", "--set", "newcomers.round=50"],
        "newcomers.round is 50, and the run has 30: nobody",
    ),
    *(
        ([*command, "--worker-timeout", "5"], "--worker-timeout needs --workers")
        for command in (RUN, SWEEP, ["compare", "demo_digits"], ["study", "demo_digits"])
    ),
    *(([*command, "--workers", "here"], "worker 'here' is not HOST:PORT") for command in (RUN, SWEEP)),
    *(
        (["study", "demo_digits", "--table-only", *given], f"--table-only runs nothing: leave out {given[0]}")
        for given in (["--set", "train.momentum=0"], ["--keep-checkpoints"], ["--shards", "0"])
    ),
    (["init", "a\nb.toml"], "it has characters that cannot be written in one"),
    (["compare", "demo_digits", "--algorithms", "nosuch"], "unknown algorithm 'nosuch'"),
    (["compare", "demo_digits", "--algorithms", "pacfl, pacfl"], "--algorithms names pacfl twice; give each once"),
    (["compare", "demo_digits", "--seeds", "0,0"], "--seeds names 0 twice; give each once"),
    (["study", "demo_digits", "--seeds", "0,1,0"], "--seeds names 0 twice; give each once"),
    (["sweep", "demo_digits", "--algorithm", "pacfl", "--over", "threshhold=3,4"], "did you mean 'threshold'"),
    ([*SWEEP, "--seeds", "0,0"], "--seeds names 0 twice; give each once"),
    ([*SWEEP, "--over", "momentum=0,0.5"], "--over is given twice; a second setting is --and"),
    ([*SWEEP, "--select", "local"], "--select 'local' must be cluster or global"),
    ([*SWEEP, "--select", "cluster"], "--select needs validation examples"),
    ([*SWEEP, "--select", "cluster", "--halving", "1"], "--halving 1 must be 2 or more"),
    ([*SWEEP, "--select", "cluster", "--samples", "1"], "--samples 1 must be 2 or more"),
]
_ALONE = """
import contextlib, io, json, sys
from tffcl.lab.cli.main import main
for command in ("--help", "list", "list tasks", "doctor", "run --help"):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main(command.split())
    assert "tffcl" in said.getvalue() or "pacfl" in said.getvalue(), command
    loaded = {"tensorflow", "tensorflow_federated", "sklearn", "matplotlib"} & set(sys.modules)
    assert not loaded, (command, loaded)

found = []
for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code
    found.append([code, said.getvalue(), "tensorflow" in sys.modules])
print(json.dumps(found))

said = io.StringIO()
with contextlib.redirect_stdout(said):
    main("show demo_digits --seed 2 --set partition.clients=8".split())
assert "demo_digits, seed 2: digits/rotated" in said.getvalue(), said.getvalue()
assert "8 clients, 4 true groups of 2" in said.getvalue(), said.getvalue()

# So do the figures of runs, which touch no pyplot either.
from tffcl.lab.reporting import batch_index, comparison_table, figures, report
runs = batch_index.find_runs("run")
figures.accuracy_figure(runs)._repr_png_(), figures.labels_figure(runs[0])
assert not {"tensorflow", "tensorflow_federated", "matplotlib.pyplot"} & set(sys.modules)

# What the registry points to for the keys of a name is imported without TensorFlow.
from tffcl.lab.cli import listing
for kind in listing.kinds():
    for name, row in listing.rows(kind).items():
        row.parameter_class()
        if kind in ("models", "datasets", "partitions"):
            row.builder()
        assert "tensorflow" not in sys.modules, (kind, name)
"""


def test_light_commands_mistakes_keys_and_figures_need_no_tensorflow(tmp_path):
    """`tffcl show` writes below runs."""
    write_run(tmp_path / "run")
    arguments = json.dumps([each for each, _ in MISTAKES])
    done = subprocess.run([sys.executable, "-c", _ALONE, arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for (asked, message), (code, said, heavy) in zip(MISTAKES, json.loads(done.stdout), strict=True):
        assert (code, heavy, said.count("\n")) == (2, False, 1), (asked, said)
        assert said.startswith("tffcl: ") and message in said, (asked, said)
    written = sorted(path.name for path in (tmp_path / "runs" / "demo_digits" / "show").iterdir())
    assert written == ["labels.png", "samples.png", "sizes.png"]


def test_an_unknown_task_names_five(capsys):
    assert main(["run", "nosuch", "--algorithm", "pacfl"]) == 2
    said = capsys.readouterr().err
    assert said.count(", ") == 4 and len(said) < 300


@pytest.mark.parametrize("command", [["study", "pacfl_table2"], SWEEP])
def test_studies_and_sweeps_take_workers_and_memory(command):
    from tffcl.lab.cli.main import build_parser

    found = build_parser().parse_args([*command, "--workers", "h:1", "--memory", "2GB"])
    assert (found.workers, found.memory) == ("h:1", "2GB")


@pytest.mark.parametrize("select", [[], ["--select", "cluster", "--set", "dataset.validation=0.1"]])
def test_a_sweep_asks_the_workers_that_it_is_given(tmp_path, capsys, select):
    assert main([*SWEEP, *select, "--out", str(tmp_path / "out"), "--workers", "127.0.0.1:1"]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err
