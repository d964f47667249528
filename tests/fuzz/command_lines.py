"""Values of --set, and command lines with an option that is wrong."""

import dataclasses
import math
import random
import tomllib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import command
from tests.fuzz.command import Case
from tests.fuzz.task_files import VALUES, same

_SECTIONS = {
    "train": ("rounds", "momentum", "learning_rate", "clients_per_round", "participation", "sampling", "batch_size"),
    "partition": ("clients", "rotations", "reuse", "test"),
    "dataset": ("name", "subset", "validation", "server_examples", "normalization"),
    "model": ("name", "hidden", "initialization"),
    "evaluation": ("every", "place_unseen"),
    "checkpoint": ("every", "keep"),
    "newcomers": ("clients", "share", "round"),
    "drift": ("clients", "round"),
    "privacy": ("epsilon", "delta"),
    "attack": ("kind", "share", "strength"),
    "aggregation": ("name", "clip", "rule"),
}
_METHODS = ("pacfl", "flt", "stocfl", "ifca", "composed", "flis_dc", "scaffold", "fedavg")


def _texts():
    """What TOML has, what it nearly has, and any text."""
    plain = st.one_of(st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=12))
    return st.one_of(
        st.sampled_from(VALUES),
        st.recursive(plain, lambda inner: st.lists(inner, max_size=3), max_leaves=4).map(_toml),
        st.text(max_size=20),
        st.integers(-3, 12).map(str),
        st.floats(0, 1).map(repr),
    )


def _toml(value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)


def _is_as_written(config, key: str, text: str) -> bool:
    """Whether a configuration has the value that --set gives, or the default where it takes the key away; of a table
    what it gives, as its other keys have their defaults."""
    section, _, name = key.rpartition(".")
    table = config.method if section.startswith("algorithms.") else getattr(config, section)
    read = table.get(name) if isinstance(table, dict) else getattr(table, name)
    if not text.strip():
        default = (
            None
            if isinstance(table, dict)
            else {field.name: field.default for field in dataclasses.fields(table)}[name]
        )
        return same(read, default)
    try:
        said = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        said = text
    read = dataclasses.asdict(read) if dataclasses.is_dataclass(read) else read
    if isinstance(said, dict) and isinstance(read, dict):
        return all(name in read and same(read[name], value) for name, value in said.items())
    return same(read, said) and not (isinstance(said, float) and not math.isfinite(said))


def settings_cases(monkeypatch, count: int):
    """Returns what came of values of --set that Hypothesis draws."""
    from tffcl.lab.tasks.method_settings import find_method

    keys = [(method, f"{section}.{key}") for section, own in _SECTIONS.items() for key in own for method in _METHODS]
    for method in _METHODS:
        parameters = find_method(method, {}).parameter_class
        keys += 4 * [
            (method, f"algorithms.{method}.{each.name}")
            for each in (dataclasses.fields(parameters) if parameters else ())
        ]
    found = []

    @settings(
        max_examples=count, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.sampled_from(keys), _texts())
    def draw(where, text):
        method, key = where
        pair = f"{key}={text}"
        ended = command.run(monkeypatch, "run", "demo_digits", "--algorithm", method, "--set", pair, "--out", "out")
        reason = "as written" if ended.kind == "accepted" and _is_as_written(ended.value, key, text) else ""
        found.append(Case("values of --set", f"{method} {pair!r}", ended, reason))

    draw()
    return found


# Options and values that are wrong; a command that takes one is wrong itself.
_WRONG = {
    "--seed": ["-1", "x", "1.5", "nan", str(2**64), "", "true", "\0"],
    "--seeds": ["x", "", "0,,1", "0 1", "-1", "0,0", "1.5"],
    "--rounds": ["0", "-3", "x", "1.5", "", str(2**40), "nan"],
    "--algorithm": ["nosuch", "", "pacfl,fedavg", "\0", "a" * 5000],
    "--algorithms": ["nosuch", "pacfl,,fedavg", "pacfl,pacfl", "\0"],
    "--set": ["rounds", "=", "train.=1", ".a=1", "a.b.c.d=1", "train=1", "nosuch.key=1", "train.rounds.a=1", "x\n=1"],
    "--memory": ["lots", "0", "-1GB", "1e3", "nan", "", "9" * 30],
    "--shards": ["x", "-1", "1.5", "nan", ""],
    "--workers": ["host", "host:0", "host:99999", ":1", "a:1,a:1", "a:1,", "a:x", " "],
    "--worker-timeout": ["0", "-1", "nan", "x", ""],
    "--over": ["rounds", "nosuch=1", "threshold=", "threshold=x", "=1,2", "threshold=nan", "threshold=-1,-2"],
    "--target": ["local", "nosuch=3", "local=x", "local=nan", "local=1000", "=", "local=-1"],
    "--only": ["nosuch", "\0", "a/b/c/d"],
    "--samples": ["x", "1.5"],
    "--halving": ["x", "1.5"],
    "--port": ["0", "-1", "65536", "x", ""],
    "--max-concurrent": ["0", "-1", "x"],
    "--vectors": ["0", "-1", "x", "1.5"],
    "--format": ["nosuch", "csv,nosuch", "csv md"],
    "--signature": ["nosuch", "", "a:b:c", "nosuch:nosuch"],
    "--nosuch": ["1"],
}
_RUN = {
    "--algorithm": "pacfl",
    "--seed": "1",
    "--rounds": "3",
    "--set": "train.momentum=0.1",
    "--memory": "4GB",
    "--format": "csv",
}
_RUN |= {"--workers": "127.0.0.1:9", "--worker-timeout": "1"}
_COMMANDS = {
    ("run", "demo_digits"): _RUN,
    ("compare", "demo_digits"): {
        **_RUN,
        "--algorithm": None,
        "--seed": None,
        "--algorithms": "pacfl,fedavg",
        "--seeds": "0,1",
        "--target": "local=75",
    },
    ("sweep", "demo_digits"): {
        "--algorithm": "pacfl",
        "--over": "threshold=1,2",
        "--seeds": "0",
        "--set": "train.momentum=0.1",
    },
    ("study", "demo_digits"): {
        "--only": "*",
        "--seeds": "0",
        "--rounds": "2",
        "--set": "train.momentum=0.1",
        "--memory": "1GB",
    },
    ("show", "demo_digits"): {"--seed": "1", "--set": "partition.clients=8"},
    ("similarity", "demo_digits"): {"--seed": "1", "--signature": "subspace"},
    ("worker",): {"--port": "0", "--max-concurrent": "0"},
    ("report", "nosuch"): {"--format": "csv"},
}
_NEEDED = {
    "run": ("--algorithm",),
    "sweep": ("--algorithm", "--over"),
    "worker": ("--port",),
    "compare": (),
    "study": (),
}
_COMMANDS[("newcomers", "nosuch")] = _COMMANDS[("export", "nosuch")] = _COMMANDS[("list",)] = {}
_COMMANDS = {words: {key: value for key, value in own.items() if value} for words, own in _COMMANDS.items()}


def _wrong_line(rng: random.Random) -> list[str]:
    """A command line with one thing wrong, or more."""
    words = rng.choice(list(_COMMANDS))
    options, words = dict(_COMMANDS[words]), list(words)
    left = {key for key in options if rng.random() < 0.5 and key not in _NEEDED.get(words[0], ())}
    options = {
        key: value for key, value in options.items() if key not in left and key not in ("--workers", "--worker-timeout")
    }
    kind = rng.choice(["value", "value", "value", "unknown", "name", "lost", "no value"])
    able = [key for key in _WRONG if key in _COMMANDS[tuple(words)]]
    if kind == "value" and able:
        key = rng.choice(able)
        options[key] = rng.choice(_WRONG[key])
        if key == "--worker-timeout":
            options["--workers"] = "127.0.0.1:9"
    elif kind == "name" and len(words) > 1:
        words[1] = rng.choice(["nosuch", "", "../x", "x" * 4000, "a\0b", "nosuch.toml", "/", "/proc/1/mem"])
    elif kind == "lost" and _NEEDED.get(words[0]):
        options.pop(rng.choice(_NEEDED[words[0]]), None)
    elif kind == "no value" and able:
        return [*words, *(part for pair in options.items() for part in pair), rng.choice(able)]
    else:
        words[rng.randrange(len(words))] += rng.choice("xyz-")
        options["--nosuch"] = "1"
    return [*words, *(part for pair in options.items() for part in pair)]


def line_cases(monkeypatch, count: int, seed: int):
    """Yields what came of command lines with something wrong in them."""
    from tffcl.lab.batches import show, study

    def stop(*args, **kwargs):
        raise command.Reached(None)

    monkeypatch.setattr(study, "run_study", stop)
    monkeypatch.setattr(show, "load_federated", stop)
    rng = random.Random(seed)
    for _ in range(count):
        line = _wrong_line(rng)
        yield Case("command lines", f"{line}"[:300], command.run(monkeypatch, *line))
