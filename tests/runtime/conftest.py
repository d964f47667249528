"""What tests of workers share."""

import os
import signal

import pytest

from tests.runtime.processes import Processes


@pytest.fixture
def processes(worker):
    made = Processes()
    yield made
    for each in made.started:
        if each.alive():
            os.kill(each.pid, signal.SIGCONT)
        each.stop()
    worker.use_local_worker()
