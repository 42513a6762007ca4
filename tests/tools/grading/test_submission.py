"""The digest of a submission follows from its files, and the seed from the digest and a secret."""

import hashlib
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.grading.submission import FixedSubmission, drawn_secret


def test_a_file_has_the_digest_of_its_bytes(working_folder: Path) -> None:
    (working_folder / "k.py").write_text("raise SystemExit\n")  # nothing is imported
    submission = FixedSubmission.read("k.py:f")
    assert submission.digest == hashlib.sha256(b"raise SystemExit\n").hexdigest()
    assert submission.is_unchanged
    (working_folder / "k.py").write_text("raise SystemExit(1)\n")
    assert not submission.is_unchanged
    assert FixedSubmission.read("k.py:f").digest != submission.digest


def test_a_package_has_the_digest_of_its_sources(working_folder: Path) -> None:
    package = working_folder / "kernels_of_someone"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit\n")
    (package / "conv.cu").write_text("one")
    (package / "notes.txt").write_text("one")
    submission = FixedSubmission.read("kernels_of_someone:f")
    (package / "notes.txt").write_text("two")
    assert submission.is_unchanged
    (package / "conv.cu").rename(package / "other.cu")
    assert not submission.is_unchanged


def test_a_module_without_sources_is_refused(working_folder: Path) -> None:
    (working_folder / "bare").mkdir()
    with pytest.raises(UsageError, match="submission: 'bare:f' has no source"):
        FixedSubmission.read("bare:f")


def test_the_seed_needs_the_secret_and_the_digest() -> None:
    one, other = (FixedSubmission("k.py:f", "k.py:f", Path(), (), digest) for digest in ("1", "2"))
    seeds = {one.seed("a", "c"), one.seed("b", "c"), one.seed("a", "d"), other.seed("a", "c")}
    assert len(seeds) == 4
    assert one.seed("a", "c") in seeds
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert len({drawn_secret() for _ in range(8)}) == 8
