"""`packproof bench`: subcommands, each with its own options; `kernels` is the default."""

import pytest

from packproof.cli import main

OPTIONS = {
    "kernels": "op against layout lengths lengths-file tokens sizes inputs options dtype device threads json compare "
    "sweep plot seed",
    "packing": "lengths-file tokens seed",
    "stack": "model modes steps packs tokens device json seed",
    "ranks": "ranks simulated cases seconds tokens op json",
    "fp8": "tokens seed",
}


def printed(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main.run(["bench", *line.split()]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", OPTIONS)
def test_the_help_of_each_has_its_options_alone(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(f"{name} --help", capsys)
    assert text.startswith(f"Usage: packproof bench {name} ")
    lines = [line.split() for line in text.partition("Options:")[2].splitlines()]
    options = [words[0] for words in lines if words and words[0].startswith("-")]
    assert options == [*(f"--{option}" for option in OPTIONS[name].split()), "-h,"]


def test_the_help_of_the_bench_has_the_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    commands = printed("--help", capsys).partition("Commands:")[2]
    assert [line.split()[0] for line in commands.splitlines() if line] == [*OPTIONS]


@pytest.mark.parametrize("line", ["kernels", "--op rope", "my_kernels:conv", "--json stack", "--seed=1 m.py:f fp8"])
def test_without_a_subcommand_kernels_are_timed(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(f"{line} --help", capsys).startswith("Usage: packproof bench kernels ")


@pytest.mark.parametrize("line", ["fp8 --tokens 64", "--tokens 64 fp8", "--tokens=64 fp8", "--seed 0 fp8 --tokens 64"])
def test_a_subcommand_may_follow_its_options(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(line, capsys).startswith("e4m3 q, k and v in blocks of 128 tokens; 64 tokens")
