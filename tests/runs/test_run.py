"""Whole runs on digits: files, seeds, resuming, interruptions."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tffcl
from tests.runs.finished_runs import rows_of, without_times
from tests.runs.stopped_runs import rounds_written
from tffcl import runtime
from tffcl.clients.cohort import is_evaluation, needs_local_test, sample_cohort
from tffcl.errors import UserError
from tffcl.lab.batches import compare
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import build, resolve
from tffcl.lab.tasks.populations import build_population
from tffcl.runs.evaluator import Evaluator

SHORT = {"train": {"rounds": 6}, "evaluation": {"every": 2}, "checkpoint": {"every": 2}}


def resolved(algorithm="pacfl", seed=0, **more):
    return resolve.resolve("demo_digits", algorithm, seed=seed, overrides={**SHORT, **more})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    return out, tffcl.run(resolved(), out, show_progress=False).summary


def test_the_files_of_a_run(finished):
    out, summary = finished
    names = {"config.toml", "rounds.csv", "clients.csv", "summary.json", "clustering.npz", "checkpoints", "tensorboard"}
    assert names <= {path.name for path in out.iterdir()}
    assert json.loads((out / "summary.json").read_text()) == summary
    rounds = rows_of(out / "rounds.csv")
    assert [int(row["round"]) for row in rounds] == [1, 2, 3, 4, 5, 6]
    assert [bool(row["cluster_accuracy"]) for row in rounds] == [False, True] * 3
    assert float(rounds[-1]["cluster_accuracy"]) == pytest.approx(summary["accuracy"]["cluster"]["mean"])
    traffic = summary["traffic"]
    assert sum(int(row["up_bytes"]) for row in rounds) + traffic["signature_bytes"] == traffic["up_bytes"]
    assert sum(int(row["down_bytes"]) for row in rounds) == traffic["down_bytes"] > 0


def test_the_summary_is_what_the_clients_say(finished):
    out, summary = finished
    rows = rows_of(out / "clients.csv")
    cluster = np.array([float(row["cluster_accuracy"]) for row in rows])
    accuracy = summary["accuracy"]
    assert accuracy["cluster"]["mean"] == pytest.approx(cluster.mean(), abs=1e-6)
    assert accuracy["cluster"]["variance"] == pytest.approx(cluster.var(), abs=1e-6)
    assert accuracy["cluster"]["worst_decile"] == pytest.approx(np.sort(cluster)[:4].mean(), abs=1e-6)
    local = [float(row["local_accuracy"]) for row in rows if row["local_accuracy"]]
    assert accuracy["local"]["mean"] == pytest.approx(np.mean(local), abs=1e-6)
    assert accuracy["local"]["share"] == len(local) / 40
    assert accuracy["global"]["mean"] is None
    of_groups = {"count": 4, "sizes": [10] * 4, "largest_cluster": 0.25, "ari": 1.0, "nmi": 1.0}
    assert {key: value for key, value in summary["clusters"].items() if key != "was"} == of_groups
    assert -1 <= summary["clusters"]["was"] <= 1
    assert sum(int(row["rounds_trained"]) for row in rows) == 6 * 20
    assert summary["traffic"]["signature_bytes"] == 40 * 5 * (64 * 4 + 1)


def test_the_same_seed_again_and_another(finished, tmp_path):
    out, first = finished
    again = tffcl.run(resolved(), tmp_path / "again", show_progress=False).summary
    assert without_times(again) == without_times(first)
    other = tffcl.run(resolved(seed=1), tmp_path / "other", show_progress=False, until=2)
    assert other is None and comparable_rows(tmp_path / "other") != comparable_rows(out)[:2]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """FedAvg and SOLO, on a worker with one core: `(directory, summaries, worker before, worker after)`; only read
    by tests.
    """
    out, before = tmp_path_factory.mktemp("compared"), runtime.use_local_worker(runtime.WorkerSettings(cores=1))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runtime, "LARGE_WORKER", 1)  # as after a run of large models
            summaries = compare.compare_runs([resolved("fedavg"), resolved("solo")], out, show_progress=False)
        return out, summaries, before, runtime.use_local_worker()
    finally:
        runtime.use_local_worker(runtime.WorkerSettings())


@pytest.mark.slow
def test_fedavg_has_a_global_model_and_solo_sends_nothing(compared):
    out, (fedavg, solo), *_ = compared
    assert 0 < fedavg["accuracy"]["global"]["mean"] <= 1
    assert fedavg["clusters"]["count"] == 1
    assert solo["traffic"] == {"down_bytes": 0, "up_bytes": 0, "signature_bytes": 0}
    assert (out / "solo" / "seed-0" / "summary.json").is_file()


def test_a_run_of_a_comparison_has_a_fresh_worker_after_one_that_has_grown(compared):
    """One for all would keep the memory of all."""
    *_, before, after = compared
    assert after.settings == before.settings and after.pid != before.pid and not alive(before.pid)


def started(target):
    """A long run in a process of its own."""
    command = f"-m tffcl run demo_digits --algorithm fedavg --rounds 500 --out {target}".split()
    return subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# `test_interrupts` has it without a process of its own, and `test_worker_door` a worker whose process ends.
@pytest.mark.slow
def test_who_asks_for_the_end_saves_and_leaves_no_worker(tmp_path):
    target = tmp_path / "stopped"
    process = started(target)
    wait_for(lambda: rounds_written(target) >= 2, process)
    workers = children(process.pid)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130 and [*(target / "checkpoints").glob("round_*.npz")]
    assert "--resume goes on" in errors
    assert "Traceback" not in errors
    assert workers and not any(alive(pid) for pid in workers)


def test_a_dead_worker_stops_the_run_and_nothing_is_lost(tmp_path, capsys):
    target, worker = tmp_path / "run", runtime.use_local_worker().pid

    def kill_later():
        wait_for(lambda: rounds_written(target) >= 3)
        os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill_later)
    killer.start()
    code = main(["run", "demo_digits", "--algorithm", "fedavg", "--rounds", "500", "--out", str(target)])
    killer.join()
    errors = capsys.readouterr().err
    assert code == 2
    assert "TFF's worker has ended in the middle of a computation" in errors and "Traceback" not in errors
    done = rounds_written(target)
    assert f"(rounds 1 to {done} are saved)" in errors
    assert (target / "checkpoints" / f"round_{done:06}.npz").is_file()


def test_what_is_refused_leaves_the_directory_free(tmp_path, capsys):
    """The same command, put right, needs no --overwrite."""
    command = ["run", "demo_digits", "--algorithm", "fedavg", "--out", str(tmp_path / "run"), "--rounds", "1"]
    assert main([*command, "--set", "train.clients_per_round=99"]) == 2
    assert "clients_per_round is 99" in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert main(command) == 0


def test_a_comparison_with_an_unfinished_run_is_reported_without_it(compared, tmp_path, capsys):
    shutil.copytree(compared[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "solo" / "seed-0" / "summary.json").unlink()
    assert main(["report", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "fedavg" in out and "solo" not in out
    assert f"not finished, and left out: {tmp_path / 'solo' / 'seed-0'}" in err
    (tmp_path / "fedavg" / "seed-0" / "summary.json").unlink()
    assert main(["report", str(tmp_path)]) == 2
    assert "no run in" in capsys.readouterr().err


def comparable_rows(out):
    return [without_times(row) for row in rows_of(out / "rounds.csv")]


def children(pid):
    direct = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                direct |= {int(child) for child in file.read().split()}
        except FileNotFoundError:  # the thread has ended since
            continue
    return [child for child in direct if "worker" in name_of(child)]


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read()
    except OSError:
        return ""


def alive(pid):
    return "worker" in name_of(pid)


def wait_for(condition, process=None):
    deadline = time.monotonic() + 300
    while not condition():
        assert process is None or process.poll() is None, "the process ended too early"
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def test_a_checkpoint_of_other_settings_is_refused(finished):
    out, _ = finished
    with pytest.raises(UserError, match="holds another run: its seed is 0, not 3"):
        tffcl.run(resolved(seed=3), out, resume=True, show_progress=False)
    with pytest.raises(UserError, match="its train.momentum is 0.5, not 0.25"):
        tffcl.run(resolved(train={"rounds": 6, "momentum": 0.25}), out, resume=True, show_progress=False)
    with pytest.raises(UserError, match="its algorithm is 'pacfl', not 'fedavg'"):
        tffcl.run(resolved("fedavg"), out, resume=True, show_progress=False)


def test_a_damaged_checkpoint_is_said(compared, tmp_path):
    shutil.copytree(compared[0] / "fedavg" / "seed-0", tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("*.npz"):
        file.write_bytes(b"no checkpoint")
    with pytest.raises(UserError, match="the checkpoint of round 6 cannot be read"):
        tffcl.run(resolved("fedavg"), tmp_path / "run", resume=True, show_progress=False)


def test_what_was_computed_is_saved_when_a_client_diverges(tmp_path):
    """Decay that triples the weights in every step overflows float32 after at most 80 steps, in round 2 to 5."""
    growing = {"rounds": 9, "learning_rate": 1.0, "weight_decay": 4.0, "momentum": 0.0}
    wild = resolved("fedavg", train=growing, checkpoint={"every": 100})
    with pytest.raises(
        UserError, match=r"client \d+ trained a model that is not finite .* \(rounds 1 to [1-4] are saved\)"
    ) as raised:
        tffcl.run(wild, tmp_path / "run", show_progress=False)
    done = int(str(raised.value).split("rounds 1 to ")[1][0])
    assert rounds_written(tmp_path / "run") == done
    with pytest.raises(UserError, match=f"in round {done + 1};"):
        tffcl.run(wild, tmp_path / "run", resume=True, show_progress=False)


def test_more_clients_a_round_than_there_are(tmp_path):
    with pytest.raises(UserError, match="^clients_per_round is 41, but there are only 40 clients"):
        tffcl.run(resolved(train={"clients_per_round": 41}), tmp_path / "run", show_progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("here", [False, True], ids=["on the worker", "in the process"])
def test_pooled_evaluation_is_every_client_on_its_own(tff_worker, monkeypatch, here):
    """The shared pool gives the accuracies of clients that evaluate their own copies with another implementation."""
    monkeypatch.setattr("tffcl.runtime.computes_here", lambda: here)
    monkeypatch.setattr("tffcl.runs.evaluator.FEW", 7)
    chosen = resolved()
    federated = build.load_data(chosen)
    model = build.build_model(chosen, federated)
    population = build_population(federated)
    models = np.stack([model.initial, build.build_model(resolved(seed=5), federated).initial])
    keys = np.arange(40) % 2
    evaluator = Evaluator(model, population)
    found = evaluator.cluster_accuracy(models, keys)
    for client in range(40):
        test = next(iter(population.test(client).dataset.batch(1000)))
        weights = (tuple(part.numpy() for part in model.unravel(models[keys[client]])), ())
        answers = model.functional.predict_on_batch(weights, test["x"], False).numpy().argmax(axis=1)
        assert found[client] == pytest.approx((answers == test["y"].numpy()).mean())
    everything = np.unique(np.concatenate(federated.test_indices))
    weights = (tuple(part.numpy() for part in model.unravel(models[0])), ())
    answers = model.functional.predict_on_batch(weights, federated.test.x[everything], False).numpy().argmax(axis=1)
    assert evaluator.global_accuracy(models[0]) == pytest.approx((answers == federated.test.y[everything]).mean())


class TestSampling:
    IDS = np.arange(10, 60)

    def test_uniform_without_replacement(self):
        drawn = [sample_cohort(self.IDS, 5, 0, number) for number in range(1, 2001)]
        assert all(len(set(cohort)) == 5 for cohort in drawn)
        counts = np.bincount(np.concatenate(drawn))[10:]
        assert counts.sum() == 10000 and np.abs(counts - 200).max() < 6 * np.sqrt(200 * 0.9)

    def test_seed_and_round_decide(self):
        first = sample_cohort(self.IDS, 5, 0, 1)
        np.testing.assert_array_equal(first, sample_cohort(self.IDS, 5, 0, 1))
        assert not np.array_equal(first, sample_cohort(self.IDS, 5, 0, 2))
        assert not np.array_equal(first, sample_cohort(self.IDS, 5, 1, 1))

    def test_local_tests_cover_everyones_last_training(self):
        """At each evaluation every client that has trained was tested in the last round it took part in."""
        rounds, every, last, tested = 23, 5, {}, {}
        for number in range(1, rounds + 1):
            cohort = sample_cohort(self.IDS, 12, 3, number)
            needed = needs_local_test(lambda _: self.IDS, 12, 3, number, rounds, every)
            last.update(dict.fromkeys(cohort.tolist(), number))
            tested.update(dict.fromkeys(cohort[needed].tolist(), number))
            if is_evaluation(number, rounds, every):
                assert tested == last
