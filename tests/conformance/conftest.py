import pytest

from tests.conformance._strategies import parameter_servers


@pytest.fixture(scope="module", autouse=True)
def _parameter_servers():
    """Have a cluster for each file, which ends with it."""
    with parameter_servers():
        yield
