"""Ctrl-C that is not lost, and what else asks a process to end: SLURM, Kubernetes and `timeout` by SIGTERM, a closed
terminal by SIGHUP.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a destructor, a callback of the garbage
collector or a callback from C++ it is printed or dropped, and the program goes on as if nobody had asked.
"""

import contextlib
import signal
import sys
import threading

from tffcl.errors import RESUME, UserError

# What asks a process to end, and what Python does then by itself. Whatever else is set is another's wish: `nohup`
# ignores SIGHUP, a script's background ignores SIGINT, a program may have handlers of its own.
_ASKING = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}


class Interrupted(UserError):
    """The user stopped the run; what there is has been saved."""

    exit_code = 130  # as shells have it for a process that Ctrl-C has ended


def stopped(done: int) -> Interrupted:
    """Returns the error for a run that was asked to end when so many rounds were done and saved."""
    when = f"after round {done}" if done else "before the first round"
    return Interrupted(f"stopped {when}; {RESUME} goes on")


class Interrupts:
    """Whether the process has been asked to end.

    Attributes:
      asked: True from the first signal on.
    """

    def __init__(self):
        self.asked = False

    def check(self):
        """Raises KeyboardInterrupt if it was raised before and got lost."""
        if self.asked:
            raise KeyboardInterrupt

    def handle(self, number, frame):
        """A signal handler: remembers, then raises KeyboardInterrupt as Python's own does.

        A second Ctrl-C comes from an impatient user; `timeout` sends its signal twice, and must not break what is being
        saved.
        """
        if self.asked and number != signal.SIGINT:
            return
        self.asked = True
        signal.default_int_handler(number, frame)


@contextlib.contextmanager
def watch_for_interrupts():
    """Yields an `Interrupts` that knows of each Ctrl-C, SIGTERM and SIGHUP inside the block.

    One that Python loses in a destructor is not printed with a traceback: it is remembered, and not lost. A signal that
    is ignored or has a handler of the program's own keeps it, and outside the main thread no handler can be set.
    """
    interrupts = Interrupts()
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number, pythons in _ASKING.items() if main and signal.getsignal(number) is pythons]
    if not ours:
        yield interrupts
        return
    before = sys.unraisablehook
    for number in ours:
        signal.signal(number, interrupts.handle)
    sys.unraisablehook = lambda lost: None if issubclass(lost.exc_type, KeyboardInterrupt) else before(lost)
    try:
        yield interrupts
    finally:
        sys.unraisablehook = before
        for number in ours:
            signal.signal(number, _ASKING[number])
