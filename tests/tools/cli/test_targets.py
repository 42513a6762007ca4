"""The names of kernels as new users write them, each in a folder with nothing but their own file."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from packproof.cli import main
from tests.base.hub_kernels import write_cached

KERNELS = """
import torch
from packproof import refs

def conv(x, weight, bias=None, *, cu_seqlens):
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens)

def _helper(x): ...

class Test:
    def conv(x, weight, *, cu_seqlens):
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
"""
FEW = ("--op", "causal_conv1d", "--dtype", "fp32", "--property", "packing", "--profile", "quick", "--device", "cpu")


@pytest.fixture
def folder(working_folder: Path) -> Path:
    (working_folder / "my_kernels.py").write_text(KERNELS)
    return working_folder


def command(folder: Path, *arguments: str, path: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """The installed command: unlike `python -m packproof`, it does not have the current folder on its path."""
    line = [sys.executable, "-P", "-m", "packproof", *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*path, *filter(None, sys.path)])}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("folder")
def test_a_module_of_the_current_folder_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", "my_kernels:conv", *FEW]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "causal_conv1d · my_kernels:conv · cpu" in out
    assert "comes before" not in out


def test_a_kernel_of_the_hub_is_checked_from_its_cache_and_replayed(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(working_folder / "cache"))
    snapshot = write_cached(working_folder / "cache")
    assert main.run(["check", "hub:owner/conv-kernel:conv", *FEW]) == 1
    out = capsys.readouterr().out
    assert f"hub:owner/conv-kernel:conv is that of {snapshot}/build/torch-universal" in out
    assert "causal_conv1d · hub:owner/conv-kernel:conv · FAILED  packing (y)" in out
    assert "y in sequence 1 contains sequence 0" in out
    replay = next((working_folder / ".packproof").iterdir())
    assert main.run(["replay", str(replay)]) == 1
    write_cached(working_folder / "cache", commit="f" * 40, reference="v2")
    assert main.run(["check", "hub:owner/conv-kernel@v3:conv", *FEW]) == 2
    assert "revision v3 of it is not in" in capsys.readouterr().err


@pytest.mark.proof
def test_so_is_one_that_hides_an_installed_module_and_the_report_says_so(folder: Path) -> None:
    (folder / "iniconfig.py").write_text(KERNELS)  # pytest's, which neither torch nor packproof imports
    done = command(folder, "check", "iniconfig:conv", *FEW)
    assert done.returncode == 0
    assert "iniconfig:conv: iniconfig of the current folder, which comes before the installed " in done.stdout


@pytest.mark.proof
def test_other_files_of_the_folder_hide_nothing_from_a_kernel_elsewhere(folder: Path, tmp_path_factory) -> None:
    (folder / "safetensors.py").write_text("raise SystemExit('imported')")
    (folder / "profile.py").write_text("raise SystemExit('imported')")
    installed = tmp_path_factory.mktemp("installed")
    (installed / "elsewhere.py").write_text(f"import cProfile  # it imports profile, as torch.compile does\n{KERNELS}")
    done = command(folder, "check", "elsewhere:conv", *FEW, path=[str(installed)])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("target", ["my_kernels.py::conv", "my_kernels.py::Test::conv"])
def test_a_target_as_pytest_writes_it(folder: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", target, *FEW]) == 0
    source, name = target.split("::", 1)
    assert f"causal_conv1d · {source}:{name.replace('::', '.')} · cpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_kernels.py", "target 'my_kernels.py': which function? In it there are: my_kernels.py:conv"),
        ("my_kernels", "target 'my_kernels': which function? In it there are: my_kernels:conv"),
        ("my_kernels:", "target 'my_kernels:': which function? In it there are: my_kernels:conv"),
        ("my_kernels.conv", "target 'my_kernels.conv'; did you mean my_kernels:conv?"),
        ("none.py", "target 'none.py': there is no file none.py in {folder}"),
        ("rope", "target 'rope' is an op; `packproof check --op rope` checks packproof's kernel of it"),
        ("flash_attn", "which kernel? With an adapter there are: flash_attn:rope, flash_attn:rope_qk,"),
        ("fla:conv", "No module named 'fla'; pip install flash-linear-attention"),
        ("fla.ops.gla:chunk_gla", "No module named 'fla'; pip install flash-linear-attention"),
        ("imports_fla.py:conv", "No module named 'fla' (imports_fla.py:1); pip install flash-linear-attention"),
        ("torch:conv", "torch has no conv; did you mean torch:compiled_conv1d? with an adapter there are: "),
        ("your_kernels:conv", "No module named 'your_kernels'; it is neither in {folder} nor installed"),
        ("select:conv", ": name the file, select.py:conv"),
        ("my_kernels:con", "my_kernels has no con; did you mean conv? in it there are: conv"),
    ],
)
def test_a_target_that_is_not_there_says_what_to_do(
    folder: Path, target: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "imports_fla.py").write_text("import fla")
    (folder / "select.py").write_text(KERNELS)  # also a module of Python, which is imported long before
    assert main.run(["check", target, *FEW]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message.format(folder=os.getcwd()) in err
    assert err.count("\n") == 1


OPLESS = """
def conv(x, weight, bias=None, *, cu_seqlens): ...
def silu(x, *, cu_seqlens): ...
def attend(q, k, v, cu_seqlens, max_seqlen): ...
def other(hidden, *, cu_seqlens): ...
def catches(x, weight, **kwargs): ...
def scan(u, delta, A, B, C, *, cu_seqlens): ...
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("conv", "which op is it? Its arguments fit causal_conv1d, grouped_mm: name one, or module:NAME"),
        ("catches", "which op is it? Its arguments fit causal_conv1d, grouped_mm: name one, or"),
        ("scan", "which op is it? Its arguments fit one: --op selective_scan, or module:NAME of an Op of your own"),
        ("silu", "which op is it? Its arguments fit hadamard, round_fp8, quantize_blocks: name one, or"),
        ("attend", "which op is it? Its arguments fit attention, linear_attention: name one, or"),
        ("other", "which op is it? Name one: causal_conv1d, selective_scan, ssd, rope, "),
    ],
)
def test_a_kernel_without_an_op_hears_which_its_arguments_fit(
    folder: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "opless.py").write_text(OPLESS)
    assert main.run(["check", f"opless:{name}", "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err


def test_a_quiet_check_prints_its_last_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", "my_kernels:conv", *FEW, "-q"]) == 0
    own_terms = "no initial_states, activation, return_final_states"
    assert capsys.readouterr().out.startswith(
        f"\nevery property held, on the kernel's own terms ({own_terms}): 1 passed; "
    )
