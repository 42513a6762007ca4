"""Whether a target exists, from sources alone: nothing of what they say is run."""

from pathlib import Path

import pytest

from packproof.harness.process.naming.source_names import missing_target_reason

SOURCE = """
raise SystemExit("imported")
from elsewhere import scan as other

if True:
    def conv(x): ...
    class Layer: ...
    rope = conv
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "package/inner.py").write_text("def conv(x): ...")
    (tmp_path / "stars.py").write_text("from elsewhere import *")
    (tmp_path / "lazy.py").write_text("def __getattr__(name): ...")
    (tmp_path / "broken.py").write_text("def (")


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
