"""docs/adapters.md runs: its kernels pass as they are declared, and declarations are valid."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from packproof import adapters
from packproof.adapters.adapter import Adapter
from packproof.adapters.function_name import FunctionName
from packproof.properties.declarations.declaration import describe_kernel
from tests.adapters.conventions import CONVENTIONS
from tests.adapters.test_conventions import report
from tests.in_process import imports_of, python_in
from tests.sweeps import sweep
from tests.test_docs import PYTHON, ROOT, check, write_files

PAGE = "docs/adapters.md"
LAWS = "reference,strides"  # those of one call: what a convention does wrong shows in each call
ROWS = re.findall(
    r"^\| ([^|]+) \| `((?:tokens|metadata|positional|axes|converted|domain)=.*)` \|$", (ROOT / PAGE).read_text(), re.M
)


@sweep("file", ["padded.py", "in_place.py", "paged.py"], ["heads_first.py", "varlen.py", "thd.py"])
def test_every_convention_of_the_page_passes(file: str, tmp_path: Path) -> None:
    source = write_files(PAGE, tmp_path)[file]
    [name] = re.findall(r"^(\w+) = adapt\(", source, re.M)
    done = check(tmp_path, f"{file}:{name}", "--property", LAWS, "--dtype", "fp32")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["base2.py:attend", "by_position.py:adapted"])
def test_other_axes_values_and_positions_pass(name: str, tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    assert report(adapter_of(tmp_path, name), tmp_path) == ""


def test_the_suggestion_on_the_page_is_what_a_wrong_declaration_prints(tmp_path: Path) -> None:
    source = write_files(PAGE, tmp_path)["base2.py"]
    (tmp_path / "base2.py").write_text(source.replace('    axes={"states": "s v k"},\n', ""))
    [shown] = re.findall(r"```\n(passes with .*)\n```", (ROOT / PAGE).read_text())
    assert shown in report(adapter_of(tmp_path, "base2.py:attend"), tmp_path)


def adapter_of(folder: Path, name: str) -> Adapter:
    with imports_of(folder):  # else modules called as those of the page are there for later tests
        found = FunctionName.parse(f"{folder}/{name}").load()
    assert isinstance(found, Adapter)
    return found


def fits(adapter: Adapter, declared: dict[str, Any]) -> bool:
    """Whether an adapter is declared so, and perhaps with more."""
    if "domain" in declared:
        return declared["domain"] in describe_kernel(adapter)["declared"]["domain"]
    [(name, value)] = declared.items()
    found = getattr(adapter, name)
    return bool(found.items() >= value.items()) if isinstance(value, dict) else bool(found == value)


@pytest.mark.parametrize(("words", "declaration"), ROWS)
def test_every_line_of_the_table_is_a_convention_under_test(words: str, declaration: str) -> None:
    """Its correct kernel passes and an incorrect one is named in test_conventions."""
    declared = eval(f"dict({declaration})", {**{n: getattr(adapters, n) for n in adapters.__all__}, "torch": torch})
    assert any(fits(convention.correct, declared) for convention in CONVENTIONS.values()), words


def test_the_table_has_every_convention() -> None:
    assert len(ROWS) >= 17


def test_the_declarations_of_the_page_are_valid(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)  # one file imports another one
    for source in PYTHON.findall((ROOT / PAGE).read_text()):
        python_in(tmp_path, source)
