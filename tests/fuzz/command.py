"""Runs `tffcl` in this process up to where data would be read, and says what came of it."""

import collections
import contextlib
import dataclasses
import io
import signal
import traceback

from tffcl.cli import main

SECONDS = 20  # after which a command counts as timed out


class Reached(SystemExit):
    """The configuration was accepted; nothing is run here."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a command: "told" (one line, exit code 2), "accepted", "traceback", "untold" or "timeout", and the words."""

    kind: str
    said: str


class _TimedOut(BaseException):
    pass


def _alarm(*_):
    raise _TimedOut


def run(monkeypatch, *arguments: str) -> Outcome:
    """Runs a command; what would load data or train counts as accepted."""
    from tffcl.experiments import run as runs

    def stop(*args, **kwargs):
        raise Reached(0)

    monkeypatch.setattr(runs.prepare, "load_data", stop)
    return outcome(lambda: main(list(arguments)))


def outcome(call) -> Outcome:
    """Calls what returns an exit code; says what came of it."""
    said, before = io.StringIO(), signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = call()
    except Reached:
        return Outcome("accepted", "")
    except SystemExit as stop:
        code = stop.code
    except _TimedOut:
        return Outcome("timeout", "")
    except Exception:
        return Outcome("traceback", traceback.format_exc()[-1500:])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    words = said.getvalue()
    if code == 0:
        return Outcome("accepted", words)
    return Outcome("told" if code == 2 and words.count("\n") == 1 and len(words) < 1500 else "untold", words[:1500])


def counts(outcomes) -> str:
    """Says how many of each kind there were."""
    found = collections.Counter(each.kind for each in outcomes)
    names = {"traceback": "tracebacks", "untold": "untold refusals", "timeout": "time-outs", "accepted": "acceptances"}
    return ", ".join(f"{found[kind]} {name}" for kind, name in names.items()) + f" of {sum(found.values())}"
