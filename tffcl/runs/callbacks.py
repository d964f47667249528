"""Callbacks: objects that a run calls after each of its rounds. Imports no TensorFlow."""

from typing import TYPE_CHECKING

from tffcl.errors import UserError, tell

if TYPE_CHECKING:
    from tffcl.runs.run import Run


class Callback:
    """What is called before the first round of a run, after each round and at the end; this one does nothing.

    A resumed run begins in the middle: what a callback must know of the rounds before is kept in `run.callback_states`.

    Attributes:
      stops_between_evaluations: Whether it may end the run in a round without an evaluation. Then every client of a cohort tests
        its own model in every round, which takes time; False for a callback that never ends a run.
    """

    stops_between_evaluations = True

    def begin(self, run: "Run") -> str | None:
        """Is called once, with the state before the first round, or that of the checkpoint which the run goes on from.

        Args:
          run: What is known of the run, to be read and not to be changed.

        Returns:
          A reason why no round shall follow, or None.
        """

    def after_round(self, run: "Run") -> str | None:
        """Is called after each round, when its row is in rounds.csv.

        Returns:
          A reason why the run shall end with this round, or None.
        """

    def end(self, run: "Run") -> None:
        """Is called when no round follows, also where an error or Ctrl-C has ended the run."""


class CallbackFailed(UserError):
    """A user's callback has raised an error."""


class UsersCallback(Callback):
    """A user's callback, whose errors are told in one line."""

    def __init__(self, callback: Callback):
        self._callback = callback

    def begin(self, run: "Run") -> str | None:
        """See `Callback`; raises CallbackFailed for whatever the user's callback raises."""
        return self._call("begin", run)

    def after_round(self, run: "Run") -> str | None:
        """See `Callback`; raises CallbackFailed for whatever the user's callback raises."""
        return self._call("after_round", run)

    def end(self, run: "Run") -> None:
        """See `Callback`; the run is over, so that an error is told and ends nothing."""
        try:
            self._call("end", run)
        except CallbackFailed as error:
            tell(str(error))

    def _call(self, hook: str, run: "Run") -> str | None:
        name = f"the callback {type(self._callback).__name__}"
        try:
            reason = getattr(self._callback, hook)(run)
        except UserError as error:
            raise CallbackFailed(str(error)) from error
        except Exception as error:
            raise CallbackFailed(f"{name} failed in {hook}: {type(error).__name__}: {error}") from error
        if reason is not None and not isinstance(reason, str):
            raise CallbackFailed(f"{name} returned {reason!r:.100} from {hook}; it must be a reason to stop, in words, or None")
        return reason
