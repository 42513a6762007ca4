"""The examples of public docstrings: which names have one, and what became of them."""

import doctest
import io
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def public(*packages: ModuleType) -> dict[str, Any]:
    """The functions and classes that the packages export, by name."""
    found = {f"{package.__name__}.{name}": getattr(package, name) for package in packages for name in dir(package)}
    return {name: value for name, value in found.items() if callable(value)}


def examples(name: str, value: Any) -> list[doctest.DocTest]:
    """Of a function, or of a class with its public methods and properties; they import what they use."""
    tests = doctest.DocTestFinder(exclude_empty=False).find(value, name, module=False, globs={})
    return [test for test in tests if not any(part.startswith("_") for part in test.name.split("."))]


def without_one(name: str, value: Any) -> list[str]:
    """The name, and those of its methods and properties, whose docstring shows no example; outside refs the name alone.

    What users write themselves has an example for each of its parts; objects that they are given have one.
    """
    found = [test.name for test in examples(name, value) if not test.examples]
    return found if value.__module__.startswith("packproof.refs.") else [one for one in found if one == name]


def wrong_ones(name: str, value: Any) -> Iterator[str]:
    """What each example that does not hold printed instead."""
    for test in examples(name, value):
        told = io.StringIO()
        if doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=told.write).failed:
            yield told.getvalue()
