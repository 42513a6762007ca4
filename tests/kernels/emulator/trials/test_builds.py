"""What g++ made is kept, and is made again where something that it depends on is another."""

from pathlib import Path

import pytest

from tests.kernels.emulator import compile as emulator
from tests.kernels.emulator.trials.running import on_a_cpu

pytestmark = on_a_cpu


def test_another_text_option_or_header_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, ...]] = []
    compile_one = emulator._compile

    def record(*arguments: str) -> None:
        compiled.append(arguments)
        compile_one(*arguments)

    def built(text: str, *options: str) -> bytes:
        return emulator._built("trial", ".o", text, *options, "-c", "-x", "c++", "-").read_bytes()

    monkeypatch.setattr(emulator, "_BUILD", tmp_path / "builds")
    monkeypatch.setattr(emulator, "_compile", record)
    assert built("int f() { return 1; }") == built("int f() { return 1; }")
    assert len(compiled) == 1
    assert len({built("int f() { return 1; }"), built("int f() { return 2; }")}) == len(compiled) == 2
    built("int f() { return 1; }", "-O1")
    monkeypatch.setattr(emulator, "_surroundings", lambda: "another header")
    built("int f() { return 1; }")
    assert len(compiled) == 4


def test_a_source_that_does_not_compile_leaves_no_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "_BUILD", tmp_path)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="error: "):
            emulator._built("trial", ".o", "int f( {", "-c", "-x", "c++", "-")
