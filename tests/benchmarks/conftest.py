"""`pytest tests/benchmarks --benchmark-only`; these files are not collected unless they are asked for."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("tests/benchmarks needs pytest-benchmark: pip install -e '.[bench]'")
