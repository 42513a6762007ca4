"""Whether a target exists, from sources alone: nothing of what they say is run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.harness.process.naming import Location
from packproof.harness.process.naming.source_names import missing_target_reason
from tests.in_process import imports_of

SOURCE = """
raise SystemExit("imported")
from elsewhere import scan as other

if True:
    def conv(x): ...
    class Layer: ...
    rope = conv
"""


@pytest.fixture(autouse=True)
def here(working_folder: Path) -> Iterator[None]:
    (working_folder / "mine.py").write_text(SOURCE)
    (working_folder / "package").mkdir()
    (working_folder / "package/__init__.py").write_text("raise SystemExit('imported')")
    (working_folder / "package/inner.py").write_text("def conv(x): ...")
    (working_folder / "stars.py").write_text("from elsewhere import *")
    (working_folder / "lazy.py").write_text("def __getattr__(name): ...")
    (working_folder / "broken.py").write_text("def (")
    with imports_of(working_folder):
        yield


@pytest.mark.parametrize(
    "target",
    ["mine.py:conv", "mine:rope", "mine:other", "mine:Layer.forward", "package.inner:conv", "mamba_ssm:ssd"],
)
def test_what_a_source_defines_is_there(target: str) -> None:
    assert missing_target_reason(target) == ""


@pytest.mark.parametrize("target", ["stars:conv", "lazy:conv", "broken.py:conv"])
def test_what_only_a_run_could_tell_may_be_there(target: str) -> None:
    assert missing_target_reason(target) == ""


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("mine.py:scan", "target 'mine.py:scan': mine.py defines no scan"),
        ("mine:elsewhere", "target 'mine:elsewhere': mine defines no elsewhere"),
        ("no.py:conv", "target 'no.py:conv': there is no file no.py"),
        ("package.outer:conv", "target 'package.outer:conv': there is no module package.outer"),
        ("no.such:conv", "target 'no.such:conv': there is no module no.such"),
    ],
)
def test_what_is_not_there_is_named(target: str, why: str) -> None:
    assert missing_target_reason(target) == why


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "Layer",
            r"is a class, not a function; name an object of it: paste layer = Layer\(\.\.\.\), with its arguments",
        ),
        (
            "Layer.forward",
            r"is a method, not a function; name that of an object: paste forward = Layer\(\.\.\.\)\.forward",
        ),
        ("Function", r"is a class, not a function; name Function\.apply, or a function that calls it"),
        ("Other", r"is a class, not a function; name a function that calls it"),
        ("number", r"is of type int, not a function"),
    ],
)
def test_what_is_no_function_is_answered_by_what_to_name(name: str, advice: str) -> None:
    Path("objects.py").write_text(
        "import torch\nnumber = 1\nclass Other: ...\n"
        "class Layer(torch.nn.Module):\n    def forward(self, x): ...\n"
        "class Function(torch.autograd.Function): ...\n"
    )
    with pytest.raises(UsageError, match=advice):
        Location.parse(f"objects.py:{name}").load()
