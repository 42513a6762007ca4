"""`pytest tests/benchmarks --benchmark-only`; these files are collected only when named."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("tests/benchmarks needs pytest-benchmark: pip install -e '.[bench]'")
