"""`packproof --version`, and completion in bash, zsh and fish."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import packproof
from packproof.cli import main
from tests.in_process import environment

# What a shell sets before it asks for completions of "packproof pe", as the scripts below tell it to.
ASKED = {
    "bash": {"COMP_WORDS": "packproof pe", "COMP_CWORD": "1"},
    "zsh": {"_TYPER_COMPLETE_ARGS": "packproof pe"},
    "fish": {"_TYPER_COMPLETE_ARGS": "packproof pe", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}
SCRIPTS = {
    "bash": "complete -o default -F _packproof_completion packproof",
    "zsh": "compdef _packproof_completion packproof",
    "fish": "complete --command packproof",
}


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"packproof {packproof.__version__}\n"


@pytest.mark.parametrize("shell", ASKED)
def test_each_shell_gets_its_script_and_its_completions(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with environment(**ASKED[shell], _PACKPROOF_COMPLETE=f"source_{shell}"), pytest.raises(SystemExit):
        main.run([])
    assert SCRIPTS[shell] in capsys.readouterr().out
    with environment(**ASKED[shell], _PACKPROOF_COMPLETE=f"complete_{shell}"), pytest.raises(SystemExit):
        main.run([])
    completions = capsys.readouterr().out
    assert "peers" in completions
    assert "check" not in completions


def test_bash_completes_the_command(tmp_path: Path) -> None:
    command = tmp_path / "packproof"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m packproof "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(_PACKPROOF_COMPLETE=source_bash packproof)"; COMP_WORDS=(packproof replay --sh); COMP_CWORD=2; '
        '_packproof_completion packproof; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "--show\n", done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bench ", ["kernels", "packing", "stack", "ranks", "fp8"]),
        ("bench st", ["stack"]),
        ("bench --op", ["--op", "--options"]),
        ("bench --op rope --la", ["--layout"]),
        ("bench stack --mo", ["--model", "--modes"]),
        ("bench --tokens 4 stack --mo", ["--model", "--modes"]),
    ],
)
def test_the_subcommands_of_the_bench_and_the_options_of_each_are_completed(
    line: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"COMP_WORDS": f"packproof {line}", "COMP_CWORD": str(line.count(" ") + 1)}
    with environment(**words, _PACKPROOF_COMPLETE="complete_bash"), pytest.raises(SystemExit):
        main.run([])
    assert capsys.readouterr().out.split() == expected


def test_both_are_named_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(option in out for option in ("--version", "--install-completion", "--show-completion"))
