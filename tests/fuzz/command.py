"""Runs `tffcl` in this process up to where it would train, and says what came of it."""

import collections
import contextlib
import dataclasses
import io
import signal
import traceback
from collections.abc import Iterable

from tffcl.errors import UserError
from tffcl.lab.cli.main import main

SECONDS = 30  # after which a command counts as timed out

# When an acceptance is right; every other one is silent.
ALLOWED = {
    "same": "what was read is what the undamaged input says: the damage lies in bytes that carry nothing",
    "as written": "a file without a checksum says another allowed value, and what was read is that value and no other",
    "untouched": "what is no file was not asked for, or a new file took its place; what a link leads to is as it was",
    "forged": "who forges a result is no accident; no control character nor tag of it reaches terminal or page",
    "left out": "a picture's own file, which may be deleted: the page is without this picture and else the same",
    "an earlier round": "nothing tells that a stopped run had a newer checkpoint than the one that is there, which "
    "was read whole",
}


class Reached(SystemExit):
    """The input was accepted; nothing is run here.

    Attributes:
      config: The configuration that would be run.
    """

    def __init__(self, config=None):
        super().__init__(0)
        self.config = config


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a command.

    Attributes:
      kind: "told" (one line, exit code 2), "accepted", "traceback", "untold" or "timeout".
      said: The words.
      value: What was read, if it was accepted.
    """

    kind: str
    said: str
    value: object = dataclasses.field(default=None, repr=False)


class _TimedOut(BaseException):
    pass


def _alarm(*_):
    raise _TimedOut


def stop_before_training(monkeypatch):
    """Lets commands end where a run would begin to train, or an encoder: data, model and method are there, if it has
    got so far.
    """
    from tffcl.lab.batches import run as runs
    from tffcl.lab.tasks import encoders

    load, asked = runs.build.load_data, []

    def note(config, *args, **kwargs):
        asked[:] = [config]
        return load(config, *args, **kwargs)

    def stop(*args, **kwargs):
        raise Reached(asked[0])

    monkeypatch.setattr(runs.build, "load_data", note)
    monkeypatch.setattr(runs, "train_by", stop)
    monkeypatch.setattr(encoders, "find_encoder", stop)


def run(monkeypatch, *arguments: str) -> Outcome:
    """Runs a command; what would train counts as accepted."""
    with monkeypatch.context() as patched:
        stop_before_training(patched)
        return outcome(lambda: main(list(arguments)))


def outcome(call, shown: io.StringIO | None = None) -> Outcome:
    """Calls what returns an exit code; says what came of it. What it prints goes into `shown`."""
    with _watched(shown) as (said, found):
        found.append(call())
    return _judged(said.getvalue(), found[0])


def reading(call) -> Outcome:
    """Calls what returns something that it has read, or raises UserError."""
    with _watched() as (said, found):
        found.append(_Read(call()))
    value = found[0]
    if isinstance(value, _Read):
        return Outcome("accepted", said.getvalue(), value.value)
    return _judged(said.getvalue(), value)


@dataclasses.dataclass(frozen=True)
class _Read:
    value: object


@contextlib.contextmanager
def _watched(shown: io.StringIO | None = None):
    """What the block says on standard error, and a list to put what it gives; an Outcome instead if it fails."""
    said, found, before = io.StringIO(), [], signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown or io.StringIO()):
            yield said, found
    except Reached as reached:
        found[:] = [Outcome("accepted", said.getvalue(), reached.config)]
    except SystemExit as stop:
        found[:] = [stop.code]
    except UserError as error:
        said.write(f"{error}\n")
        found[:] = [2]
    except _TimedOut:
        found[:] = [Outcome("timeout", "")]
    except Exception:
        found[:] = [Outcome("traceback", traceback.format_exc()[-1500:])]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _judged(words: str, found) -> Outcome:
    if isinstance(found, Outcome):
        return found
    if not found:
        return Outcome("accepted", words)
    told = found == 2 and words.count("\n") == 1 and len(words) < 1500
    return Outcome("told" if told else "untold", words[:1500])


@dataclasses.dataclass(frozen=True)
class Case:
    """An input that was damaged, and what came of it.

    Attributes:
      kind: Of input.
      damage: What was done to it, enough to do it again.
      outcome: What came of it.
      reason: Why an acceptance is right, a name in `ALLOWED`; "" for a silent one.
    """

    kind: str
    damage: str
    outcome: Outcome
    reason: str = ""

    @property
    def wrong(self) -> bool:
        if self.outcome.kind == "accepted":
            return self.reason not in ALLOWED
        return self.outcome.kind != "told"


def summary(cases: Iterable[Case]) -> str:
    """Says how many of each kind there were, and how they ended."""
    cases = list(cases)
    ends = collections.Counter(case.outcome.kind for case in cases)
    silent = sum(case.wrong for case in cases if case.outcome.kind == "accepted")
    lines = [
        f"{len(cases)} cases: {ends['traceback']} tracebacks, {silent} silent acceptances, {ends['timeout']} "
        "time-outs, "
        f"{ends['untold']} refusals of another form; {ends['told']} told in a line"
    ]
    for reason, words in ALLOWED.items():
        lines.append(f"  {sum(case.reason == reason for case in cases)} accepted as {reason!r}: {words}")
    for kind, count in collections.Counter(case.kind for case in cases).items():
        lines.append(f"  {count} of {kind}")
    return "\n".join(lines)


def assert_none_wrong(cases: Iterable[Case]):
    """Prints the counts; fails with the first wrong cases."""
    cases = list(cases)
    print(summary(cases))
    wrong = [case for case in cases if case.wrong]
    assert not wrong, f"{len(wrong)} of {len(cases)}: " + "\n".join(map(str, wrong[:40]))
