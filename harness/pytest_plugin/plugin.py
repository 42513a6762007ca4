"""Forwards the plugin's path before harness/pytest: `-p packproof.harness.pytest_plugin.plugin`."""

import sys

from packproof.harness.pytest import plugin

sys.modules[__name__] = plugin
