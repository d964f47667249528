"""Task files with damage, and whether what was read of one is what it says."""

import dataclasses
import random
import tomllib

from tests.fuzz import command
from tests.fuzz.command import Case

_DATA = """[dataset]
name = "digits"
subset = 900
[partition]
name = "{partition}"
clients = 4
[model]
name = "mlp"
hidden = 8
"""
_PROTOCOL = """[train]
rounds = 2
learning_rate = 0.5
momentum = 0.5
[evaluation]
every = 1
[checkpoint]
keep = 1
"""
TASKS = {
    "fedavg": 'description = "Digits"\n' + _DATA.format(partition="iid") + _PROTOCOL + "[algorithms.fedavg]\n",
    "pacfl": _DATA.format(partition="rotated")
    + _PROTOCOL
    + '[newcomers]\nclients = 1\n[algorithms.pacfl]\nnum_vectors = 3\nmetric = "trace"\nthreshold = '
    "100.5\nrounds = 3\n",
    "stocfl": _DATA.format(partition="iid")
    + _PROTOCOL
    + "[drift]\nclients = 2\nround = 2\n[algorithms.stocfl]\nthreshold = 0.5\nproximal_weight = 0.05\n",
    "mine": _DATA.format(partition="iid")
    + _PROTOCOL
    + '[aggregation]\nname = "robust"\nrule = "median"\n[attack]\nkind = "sign_flip"\nshare = 0.25\n'
    + '[algorithms.mine]\nmethod = "composed"\nsignature = "label_histogram"\nmetric = "cosine"\nnum_clusters = 2\n'
    + 'training = {name = "proximal", proximal_weight = 0.1}\n',
}
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
    "0.5",
    "3",
    "2147483647",
    '"fedavg"',
    '"\\u0000"',
    "0x7fffffff",
    "1_000",
    "{name = 1}",
]
_LINES = [
    "=",
    "[",
    "]]",
    "[[train]]",
    "a b = 1",
    "\0",
    "[dataset]",
    "[nosuch]",
    "[train.rounds]",
    "\ufeff",
    "rounds.a = 1",
    "[]",
]
_SETTINGS = ("train", "evaluation", "checkpoint", "newcomers", "drift", "privacy", "attack")
_PLAIN = ("dataset", "partition", "model", "aggregation")


def damaged(rng: random.Random) -> tuple[str, str, bytes]:
    """Returns the method of a task, a kind of damage, and the task with it."""
    label = rng.choice(list(TASKS))
    lines = TASKS[label].splitlines()
    kind = rng.choice(["value", "key", "line", "bits", "bits", "cut", "type", "comment", "lost", "twice", "case"])
    row = rng.choice([row for row, line in enumerate(lines) if "=" in line])
    key, _, value = lines[row].partition(" = ")
    if kind == "value":
        lines[row] = f"{key} = {rng.choice(VALUES)}"
    elif kind == "key":
        lines[row] = f"{key}{rng.choice('xyz_')} = {value}"
    elif kind == "line":
        lines.insert(row, rng.choice([*_LINES, f"{key} = 1"]))
    elif kind == "comment":
        lines[row] += f"  # {rng.randrange(10**9)}"
    elif kind == "type":
        lines[row] = f"{key} = {'[' * rng.randint(1, 60)}{value}{']' * rng.randint(0, 60)}"
    elif kind == "lost":
        del lines[rng.randrange(len(lines))]
    elif kind == "twice":
        lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    elif kind == "case":
        lines[row] = rng.choice([lines[row].upper(), lines[row].replace("=", "= =", 1), lines[row].replace('"', "'")])
    text = "\n".join(lines).encode() + b"\n"
    if kind == "bits":
        flipped = bytearray(text)
        for _ in range(rng.choice([1, 1, 3])):
            flipped[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
        text = bytes(flipped)
    elif kind == "cut":
        text = text[: rng.randrange(1, len(text))]
    return label, kind, text


def same(read, said) -> bool:
    """Whether a value is what TOML says: no other number, and no truth for a number."""
    if isinstance(said, (list, tuple)):
        return isinstance(read, (list, tuple)) and len(read) == len(said) and all(map(same, read, said))
    if isinstance(said, dict):
        return isinstance(read, dict) and read.keys() == said.keys() and all(same(read[key], said[key]) for key in said)
    return read == said and isinstance(read, bool) == isinstance(said, bool)


def is_as_written(config, label: str, text: bytes) -> bool:
    """Whether a configuration has all that a task file says, read by Python's TOML alone, and defaults for all else."""
    said = tomllib.loads(text.decode())
    own = said.get("algorithms", {}).get(label, {})
    protocol = {field.name for field in dataclasses.fields(config.train)}
    said["train"] = said.get("train", {}) | {key: value for key, value in own.items() if key in protocol}
    for name in _PLAIN:
        if not same(dict(getattr(config, name)), said.get(name, {})):
            return False
    for name in _SETTINGS:
        settings = getattr(config, name)
        for field in dataclasses.fields(settings):
            if not same(getattr(settings, field.name), said.get(name, {}).get(field.name, field.default)):
                return False
        if set(said.get(name, {})) - {field.name for field in dataclasses.fields(settings)}:
            return False
    method = {key: value for key, value in own.items() if key not in {*protocol, "method", "builder"}}
    fields = {} if config.method is None else {field.name: field.default for field in dataclasses.fields(config.method)}
    if set(method) - set(fields):
        return False
    if not all(same(getattr(config.method, key), method.get(key, default)) for key, default in fields.items()):
        return False
    names = (config.description, config.source, config.base or label)
    return names == (said.get("description", ""), said.get("source", ""), own.get("method", label))


def cases(directory, monkeypatch, count: int, seed: int):
    """Yields what came of damaged task files."""
    rng, whole = random.Random(seed), {}
    path = directory / "own.toml"
    for label, text in TASKS.items():
        path.write_text(text)
        found = command.run(monkeypatch, "run", str(path), "--algorithm", label)
        assert found.kind == "accepted", found  # else all damage would be refused for another reason
        whole[label] = found.value.as_dict()
    for number in range(count):
        label, kind, text = damaged(rng)
        path.write_bytes(text)
        found, reason = command.run(monkeypatch, "run", str(path), "--algorithm", label, "--out", f"out{number}"), ""
        if found.kind == "accepted":
            if found.value.as_dict() == whole[label]:
                reason = "same"
            elif is_as_written(found.value, label, text):
                reason = "as written"
        yield Case("task files", f"{kind}: {text!r}", found, reason)
