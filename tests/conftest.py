"""For all tests."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from tests.boxes import close_boxes

# Hypothesis' own profile for CI: the same examples in every run, and no clock over them.
settings.load_profile("ci")
# Nor does it pick values out of the modules that happen to be loaded: which they are depends on the tests run
# before. There is no public switch; where this one is gone, the tests say so here.
assert callable(providers._get_local_constants)
NO_CONSTANTS = providers.Constants()
providers._get_local_constants = lambda: NO_CONSTANTS

# A shell starts what it runs in the background with Ctrl-C ignored, and so would the programs under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = (
    "e2e/test_quickstart.py",  # makes the run that others wait for
    "e2e/test_docs_fleet.py",
    "fleet/test_docker_killed.py",
    "fleet/test_fleet_survives.py",
    "fleet/test_node_docker.py",
    "recipes/test_mine_real.py",
    "agent/test_harness_real.py",
    "e2e/",
)
"""Where tests begin that take long, in the order to begin them: no worker ends long after the others. The
rest of `e2e` comes last of these, so that the run is there when its users come."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        file = item.nodeid.removeprefix("tests/")
        return next((at for at, start in enumerate(LONGEST) if file.startswith(start)), len(LONGEST))

    items.sort(key=place)


@pytest.fixture(scope="module", autouse=True)
def _boxes_end_with_the_file() -> Iterator[None]:
    yield
    close_boxes()
