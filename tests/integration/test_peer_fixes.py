"""What a report says of a fix is what was tried."""

from pathlib import Path

import pytest

from tests.integration.peer_fixes import FIXES, Fix, apply

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: f"{fix.report}-{fix.file}")
def test_the_report_has_each_line_of_the_fix(fix: Fix) -> None:
    text = (ROOT / f"docs/peers/{fix.report}.md").read_text()
    old, new = (part.splitlines() for part in (fix.old, fix.new))
    for sign, lines, others in (("-", old, new), ("+", new, old)):
        for line in lines:
            assert not line.strip() or line in others or f"{sign}{line}\n" in text, line
    assert f"`{fix.file}" in text


def test_a_fix_for_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("a\na\n")
    with pytest.raises(ValueError, match=r"kernel\.py: expected one of 'a', found 2"):
        apply(Fix("report", "kernel.py", "a", "b"), tmp_path)
    apply(Fix("report", "kernel.py", "a\na", "b"), tmp_path)
    assert (tmp_path / "kernel.py").read_text() == "b\n"
