"""One thread: small convolutions on two threads wait for each other longer than they compute.  And a cache of the tests' own."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory):
    """What is decoded or downloaded goes where nobody keeps anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
