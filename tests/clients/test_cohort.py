"""Seeds of a round's clients."""

import numpy as np
import pytest

from tffcl.clients.cohort import client_seeds


@pytest.mark.parametrize("seed", [(0, 1), (7, 300), (2**32 - 1, 2**33), (2**70 + 5, 9), (2**64, 2**31)])
def test_seeds_of_all_clients_at_once_are_those_of_numpys_sequences(seed):
    clients = np.array([0, 1, 2, 4799, 2**31 - 1], np.int32)
    words = [np.random.SeedSequence([*seed, int(client)]).generate_state(2) for client in clients]
    found = client_seeds(seed, clients)
    np.testing.assert_array_equal(found, np.array(words) >> 1)
    assert found.dtype == np.int32
