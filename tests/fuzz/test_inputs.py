"""Task files and --set: damaged ones that were once accepted or ended in a traceback, and many more from a seeded generator."""

import random

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
# What the generator's damage may leave right, and why.
ALLOWED = {
    "comment": "TOML means the same",
    "cut": "what is cut off may be keys that have a default, as hidden",
    "bits": "a flipped bit may give another right value, as 4 clients become 5, or another text for description",
}


@pytest.fixture
def directory(tmp_path, monkeypatch):
    place = tmp_path / "task"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


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


VALUES = [
    "-1",
    "0",
    "nan",
    "-inf",
    "true",
    '""',
    "[]",
    "{}",
    "1e400",
    str(2**31),
    str(10**30),
    "2020-01-01",
    "'''a\nb'''",
    "07:32:00",
    "\0",
    "[[1]]",
]
KEYS = ["name", "clients", "hidden", "rounds"]


def damaged(rng: random.Random) -> tuple[str, bytes]:
    """Returns a kind of damage and a task that has it."""
    lines, kind = TASK.splitlines(), rng.choice(["value", "key", "line", "bits", "cut", "type", "comment"])
    rows = [row for row, line in enumerate(lines) if "=" in line]
    row = rng.choice(rows)
    key, _, value = lines[row].partition(" = ")
    if kind == "value":
        lines[row] = f"{key} = {rng.choice(VALUES)}"
    elif kind == "key":
        lines[row] = f"{key}{rng.choice('xyz_')} = {value}"
    elif kind == "line":
        lines.insert(row, rng.choice(["=", "[", "]]", "[[train]]", "a b = 1", f"{key} = 1", "\0", "[dataset]"]))
    elif kind == "comment":
        lines[row] += f"  # {rng.randrange(10**9)}"
    elif kind == "type":
        lines[row] = f"{key} = {'[' * rng.randint(1, 60)}{value}"
    text = "\n".join(lines).encode() + b"\n"
    if kind == "bits":
        place = rng.randrange(len(text))
        text = text[:place] + bytes([text[place] ^ 1 << rng.randrange(8)]) + text[place + 1 :]
    elif kind == "cut":
        text = text[: rng.randrange(1, text.rindex(b"[train]") - 2)]
    return kind, text


def fuzz(directory, monkeypatch, cases: int, seed: int):
    rng, outcomes = random.Random(seed), []
    for number in range(cases):
        kind, text = damaged(rng)
        found = command.run(monkeypatch, "run", write(directory, text), "--algorithm", "fedavg", "--out", f"out{number}")
        outcomes.append(found)
        silent = found.kind == "accepted" and kind not in ALLOWED
        assert found.kind in ("told", "accepted") and not silent, (number, kind, text, found)
    print(command.counts(outcomes))


@pytest.mark.parametrize("algorithm", ["pacfl", "flt", "stocfl", "ifca"])
def test_set_by_chance_ends_in_a_line_or_a_right_value(directory, monkeypatch, algorithm):
    from tffcl.experiments.declared import declared
    from tffcl.experiments.methods import find_method

    rng, own = random.Random(0), declared(find_method(algorithm, {})).parameter_class.__dataclass_fields__
    keys = ["train.rounds", "train.momentum", "partition.clients", "dataset.subset", "model.hidden", "evaluation.every"]
    keys += [f"algorithms.{algorithm}.{key}" for key in own]
    for _ in range(40):
        pair = f"{rng.choice(keys)}={rng.choice(VALUES)}"
        found = command.run(monkeypatch, "run", "demo_digits", "--algorithm", algorithm, "--set", pair, "--out", "out")
        assert found.kind in ("told", "accepted"), (pair, found)
        wrong = any(each in pair for each in ("nan", "inf", "1e400", "2020", "07:32", str(10**30), str(2**31), "\n", "\0"))
        assert found.kind == "told" or not wrong, (pair, found)


def test_damaged_tasks_by_chance(directory, monkeypatch):
    fuzz(directory, monkeypatch, 300, seed=0)


@pytest.mark.slow
def test_5000_damaged_tasks(directory, monkeypatch):
    fuzz(directory, monkeypatch, 5000, seed=1)
