"""A process that was forked from one that had used TensorFlow: it has none of its threads, and would wait for them for ever."""

import os
import sys

from tffcl.errors import UserError

_without_threads = False


def check_process():
    """Raises UserError if TensorFlow cannot compute in this process."""
    if _without_threads:
        raise UserError(
            "this process was forked from one in which TensorFlow has computed, whose threads it lacks; start processes by "
            'multiprocessing.get_context("spawn")'
        )


def _in_child():
    global _without_threads
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module and module.context_safe()
    _without_threads = _without_threads or (context is not None and context._context_handle is not None)


os.register_at_fork(after_in_child=_in_child)
