"""`packproof diff`: its exit codes, and what it passes on."""

from pathlib import Path

import pytest

from packproof.cli import main

KERNELS = """
from packproof import refs


def correct(x, weight, bias=None, *, cu_seqlens, activation=None):
    return refs.causal_conv1d(x, weight, bias, activation=activation, cu_seqlens=cu_seqlens)


def leaky(x, weight, bias=None, *, cu_seqlens, activation=None):
    return correct(x, weight, bias, activation=activation, cu_seqlens=cu_seqlens[[0, -1]])


def raises(x, weight, *, cu_seqlens):
    return x[100:][0]


def declines(x, weight, *, cu_seqlens):
    if len(x) % 16:
        raise ValueError("the number of tokens must be a multiple of 16")
    return correct(x, weight, cu_seqlens=cu_seqlens)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "kernels.py").write_text(KERNELS)
    return f"{tmp_path / 'kernels.py'}"


def diff(file: str, kernel: str, *more: str, lengths: str = "3,0,5") -> int:
    line = ["diff", f"{file}:{kernel}", "--op", "causal_conv1d", "--lengths", lengths, "--device", "cpu", *more]
    return main.run(line)


def test_a_correct_kernel_ends_with_0(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(file, "correct") == 0
    out = capsys.readouterr().out
    assert out == "lengths [3, 0, 5], fp32, d=3 w=4, seed 0\nevery output and gradient lies within its budget\n"


def test_an_incorrect_one_ends_with_1_and_the_rows(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    setting = (
        "--dtype",
        "bf16",
        "--inputs",
        "bias",
        "--options",
        "activation=silu",
        "--sizes",
        "d=5,w=3",
        "--slack",
        "2",
    )
    assert diff(file, "leaky", *setting, "--seed", "2") == 1
    out = capsys.readouterr().out
    assert out.startswith(
        "lengths [3, 0, 5], bf16, slack 2, d=5 w=3, with bias, activation=silu, seed 2\ny: sequence 2"
    )
    assert "2 of 10 rows are wrong: rows 3 to 4 (sequence 2, tokens 0 to 1)" in out


def test_one_tensor_alone(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(file, "leaky", "--tensor", "dx") == 1
    assert capsys.readouterr().out.count("wrong:") == 1
    assert diff(file, "leaky", "--tensor", "dx,y", "--reference", f"{file}:correct") == 1
    assert capsys.readouterr().out.count("wrong:") == 2
    assert diff(file, "leaky", "--reference", f"{file}:leaky") == 0


def test_one_that_raises_ends_with_1(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(file, "raises") == 1
    assert "kernels.py:raises: IndexError" in capsys.readouterr().err


def test_one_that_declines_is_inconclusive(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(file, "declines") == 4
    assert "inconclusive: ValueError: the number of tokens must be a multiple of 16" in capsys.readouterr().err
    assert diff(file, "declines", lengths="16,0,16") == 0


def test_a_value_may_be_a_tuple(capsys: pytest.CaptureFixture[str]) -> None:
    line = "diff packproof.refs:attention --op attention --lengths 4,2 --device cpu --options"
    assert main.run([*line.split(), "causal=True, window_size=(2, 0); softmax_scale=0.5"]) == 0
    assert "causal=True, window_size=(2, 0), softmax_scale=0.5" in capsys.readouterr().out
