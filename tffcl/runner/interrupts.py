"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a destructor, a callback of the garbage collector
or a callback from C++ it is printed or dropped, and the program goes on as if nobody had asked.
"""

import contextlib
import signal
import sys
import threading

from tffcl.errors import UserError


class Interrupted(UserError):
    """The user stopped the run; what there is has been saved."""


class Interrupts:
    """Whether Ctrl-C has been pressed.

    Attributes:
      asked: True from the first SIGINT on.
    """

    def __init__(self):
        self.asked = False

    def check(self):
        """Raises KeyboardInterrupt if it was raised before and got lost."""
        if self.asked:
            raise KeyboardInterrupt

    def handle(self, number, frame):
        """A signal handler: remembers, then raises KeyboardInterrupt as Python's own does."""
        self.asked = True
        signal.default_int_handler(number, frame)


@contextlib.contextmanager
def watch_for_interrupts():
    """Yields an `Interrupts` that knows of each Ctrl-C inside the block.

    One that Python loses in a destructor is not printed with a traceback: it is remembered, and not lost. It stays unasked
    where Python has not its own handler (a background job that ignores SIGINT, a program with a handler of its own) and
    outside the main thread, where no handler can be set.
    """
    interrupts = Interrupts()
    own = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not own:
        yield interrupts
        return
    before = sys.unraisablehook
    signal.signal(signal.SIGINT, interrupts.handle)
    sys.unraisablehook = lambda lost: None if issubclass(lost.exc_type, KeyboardInterrupt) else before(lost)
    try:
        yield interrupts
    finally:
        sys.unraisablehook = before
        signal.signal(signal.SIGINT, signal.default_int_handler)
