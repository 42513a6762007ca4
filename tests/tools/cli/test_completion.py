"""`packproof --version`, and completion in bash, zsh and fish."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

import packproof
from packproof.cli import main
from packproof.models import CONVENTIONS
from tests.in_process import environment
from tests.sweeps import sweep

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


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """What bash completes the last of these words by, with the script that packproof gives it."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "packproof"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m packproof "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}

    def in_bash(script: str, *arguments: str) -> str:
        line = ["bash", "-c", script, *arguments]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.stdout

    completion = in_bash("_PACKPROOF_COMPLETE=source_bash packproof")

    def complete(*words: str) -> list[str]:
        script = (
            'eval "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _packproof_completion packproof; '
            'echo "${COMPREPLY[*]}"'
        )
        return in_bash(script, completion, "packproof", *words).split()

    return complete


@sweep(
    "words, expected",
    sample=[
        (["check", "--op", "=", "rope_"], ["rope_qk", "rope_hadamard"]),
        (["check", "fla", ":", "rop"], ["rope", "rope_qk"]),
        (["check", "my_kernels"], []),  # bash then shows files
    ],
    rest=[
        (["replay", "--sh"], ["--show"]),
        (["check", "--op", "rope_"], ["rope_qk", "rope_hadamard"]),
        (["check", "m", ":", "f", "--profile", ""], ["quick", "standard", "thorough"]),
        (["check", "torch", ":"], ["varlen_attn", "flex_attention", "jagged_sdpa", "compiled_rope", "compiled_conv1d"]),
    ],
)
def test_bash_completes_commands_and_values(
    bash: Callable[..., list[str]], words: list[str], expected: list[str]
) -> None:
    assert bash(*words) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("check --device ", ["cpu", "cuda"]),
        ("check --dtype bf16,f", ["bf16,fp64", "bf16,fp32", "bf16,fp16"]),
        ("check --property pa", ["packing", "partition"]),
        ("check --sanitizer r", ["racecheck"]),
        ("peers flash_q", ["flash_qla:gated_delta_rule"]),
        ("bench --against refe", ["reference"]),
        ("bench stack --device cu", ["cuda"]),
        ("diff m:f --op ss", ["ssd", "ssd_update", "ssd_verify"]),
        ("model --mode tr", ["train"]),
        ("model --convention ", list(CONVENTIONS)),
        ("model --convention flex,seq_", ["flex,seq_idx", "flex,seq_lens"]),
        ("museum run --profile q", ["quick"]),
    ],
)
def test_values_of_options_are_completed(line: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert completions(line, capsys) == expected


def completions(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    words = {"COMP_WORDS": f"packproof {line}", "COMP_CWORD": str(line.count(" ") + 1)}
    with environment(**words, _PACKPROOF_COMPLETE="complete_bash"), pytest.raises(SystemExit):
        main.run([])
    return capsys.readouterr().out.split()


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
    assert completions(line, capsys) == expected


def test_both_are_named_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(option in out for option in ("--version", "--install-completion", "--show-completion"))
