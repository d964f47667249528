"""Task files and --set: damaged ones that were once accepted or ended in a traceback; many more in
`test_by_chance.py`.
"""

import pytest

from tests.fuzz import command

TASK = """[dataset]
name = "digits"
[partition]
name = "iid"
clients = 4
[model]
name = "mlp"
hidden = 8
[train]
rounds = 2
[algorithms.fedavg]
"""
DAMAGED = {
    "a date": TASK.replace("clients = 4", "clients = 2020-01-01"),
    "a date as path": TASK.replace('"digits"', '"npz"\npath = 2020-01-01'),
    "10^400": TASK.replace("rounds = 2", f"rounds = 1{'0' * 400}"),
    "5,000 digits": TASK.replace("clients = 4", f"clients = 1{'0' * 5000}"),
    "2^63 clients": TASK.replace("clients = 4", f"clients = {2**63}"),
    "10^30 clients": TASK.replace("clients = 4", f"clients = {10**30}"),
    "2^63 units": TASK.replace("hidden = 8", f"hidden = {2**63}"),
    "10^30 units": TASK.replace("hidden = 8", f"hidden = {10**30}"),
    "deep lists": f"{TASK}x = {'[' * 3000}{']' * 3000}",
    "deep tables": f"{TASK}[algorithms.fedavg{'.a' * 900}]\nx = 1\n",
    "extends itself": 'extends = "own.toml"\n',
    "extends itself by another way": 'extends = "./own.toml"\n',
    "extends itself around the directory": 'extends = "../task/own.toml"\n',
    "extends a name too long": f'extends = "{"a" * 5000}.toml"\n',
    "extends NUL": 'extends = "a\\u0000.toml"\n',
    "a method that is a list": f"{TASK}method = [1]\n",
    "a rate of NaN": TASK.replace("rounds = 2", "learning_rate = nan"),
    "a rate of infinity": TASK.replace("rounds = 2", "weight_decay = inf"),
    "a negative rate": TASK.replace("rounds = 2", "learning_rate = -1"),
    "true as rounds": TASK.replace("rounds = 2", "rounds = true"),
    "no UTF-8": b"\xff\xfe\x00",
}
SET = [
    "train.rounds=3\nmomentum=9",
    "train.rounds=3\n[train]",
    f"train.rounds=1{'0' * 5000}",
    f"train.rounds=1{'0' * 400}",
    f"train.rounds={'[' * 3000}",
    "train.learning_rate=nan",
    "train.learning_rate=1e400",
    "train.rounds=1\0",
    "train.participation=2020-01-01",
]


def write(directory, contents) -> str:
    (directory / "own.toml").write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    return str(directory / "own.toml")


def test_the_whole_task_is_accepted(directory, monkeypatch):
    """Else all damage would be refused for another reason."""
    found = command.run(monkeypatch, "run", write(directory, TASK), "--algorithm", "fedavg")
    assert found.kind == "accepted", found.said


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_task_is_told_in_a_line(directory, monkeypatch, name):
    found = command.run(monkeypatch, "run", write(directory, DAMAGED[name]), "--algorithm", "fedavg")
    assert found.kind == "told", found.said


def test_a_chain_of_2000_tasks_is_told_in_a_line(directory, monkeypatch):
    for number in range(2000):
        (directory / f"{number}.toml").write_text(f'extends = "{number + 1}.toml"\n')
    (directory / "2000.toml").write_text(TASK)
    found = command.run(monkeypatch, "run", str(directory / "0.toml"), "--algorithm", "fedavg")
    assert found.kind == "told" and "extends more than 20 tasks" in found.said


@pytest.mark.parametrize("pair", SET, ids=lambda pair: repr(pair[:30]))
def test_a_damaged_set_is_told_in_a_line(directory, monkeypatch, pair):
    found = command.run(monkeypatch, "run", "demo_digits", "--algorithm", "pacfl", "--set", pair)
    assert found.kind == "told", found.said


@pytest.mark.parametrize("more", [("--seed", "true"), ("--seed", str(2**64)), ("--workers", f"a:1{'0' * 5000}")])
def test_damaged_options_are_told_in_a_line(directory, monkeypatch, more):
    found = command.run(monkeypatch, "run", "demo_digits", "--algorithm", "pacfl", *more)
    assert found.kind == "told", found.said
