"""`packproof explain`: an op as data, a failure as a script without packproof, and the skill file."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packproof.base.signatures import SIGNATURES
from packproof.cli import main
from packproof.cli.main import app
from packproof.debug.op_record import op_record
from packproof.properties.ops import OPS
from tests.base.hub_kernels import SOURCE as LEAKY
from tests.in_process import imports_of
from tests.sweeps import sweep

FEW = ("--dtype", "fp32", "--profile", "quick", "--device", "cpu")
SKILL = Path(main.__file__).with_name("SKILL.md")


def explained(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main.run(["explain", *arguments]) == code
    printed = capsys.readouterr()
    return printed.out if code == 0 else printed.err


def test_an_op_is_explained_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(explained(capsys, "ssd", "--json"))
    assert record["inputs"]["B"] == {
        "shapes": [["t", "g", "n"]],
        "role": "token",
        "optional": False,
        "dtype": "tokens",
        "values": "normal",
        "gradient": True,
    }
    assert record["inputs"]["D"]["shapes"] == [["h"], ["h", "p"]]
    assert record["inputs"]["A"]["dtype"] == "fp32"
    assert record["outputs"]["final_states"]["option"] == "return_final_states"
    assert record["options"]["dt_softplus"] == {"values": [False, True], "default": False}
    assert record["conditions"] == ["h % g == 0"]
    assert record["reference"] == "packproof.refs.ssd:ssd"
    assert record["documentation"].startswith("SSD of packed sequences")
    assert ">>>" not in record["documentation"]
    assert [0, 5, 0, 0, 7, 0] in record["layouts"]
    assert "carry" in record["properties"]
    assert "pool" in record["without"]
    assert "packproof.kernels.ssd:ssd" in record["kernels"].values()
    assert "mamba_ssm:ssd" in record["peers"]


def test_its_budget_is_that_of_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    """rope in bf16 rounds its result once, and its sums of two terms in fp32: little more than half a unit."""
    ulp = json.loads(explained(capsys, "rope", "--json"))["budget"]["ulp"]
    assert 0.3 < ulp["bf16"]["y"] < 1
    assert ulp["fp32"]["y"] > 1
    assert {"y", "gradient of x"} <= set(ulp["fp16"])


@sweep("name", [*SIGNATURES][::4], [*SIGNATURES])
def test_every_op_is_explained(name: str) -> None:
    record = op_record(OPS[name])
    text = json.dumps(record, allow_nan=False)
    assert json.loads(text)["inputs"].keys() == OPS[name].inputs.keys()
    for results in record["budget"]["ulp"].values():  # slots of a pool that no request has are copied: 0
        assert any(budget > 0 for budget in results.values())
        assert all(budget >= 0 for budget in results.values())


def test_it_is_printed_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(capsys, "attention")
    assert re.search(r"^    k +\(u, hk, k\), token, dtype of tokens$", out, re.M)
    assert re.search(r"^    causal +\[False, True\], default False$", out, re.M)


def test_an_op_of_the_user_is_explained_too(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (working_folder / "mine.py").write_text(
        "import packproof\n\ndef tripled(x, *, cu_seqlens):\n    '''Three times x.'''\n    return 3 * x\n\n"
        "OP = packproof.Op(name='tripled', reference=tripled, inputs={'x': 't d'}, outputs={'y': 't d'},"
        " sizes=({'d': 3},))\n"
    )
    record = json.loads(explained(capsys, "mine.py:OP", "--json"))
    assert record["documentation"] == "Three times x."
    assert record["axes"]["d"] == "tried at 3"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "name one op (`packproof list` shows them), a file with --replay, or --skill alone"),
        (["rope", "--skill"], "name one op"),
        (["--skill", "--json"], "--json prints the record of an op"),
        (["rop"], "no op is called 'rop'; did you mean rope?"),
        (["--replay", "none.json"], "none.json"),
    ],
)
def test_a_wrong_call_is_answered(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in explained(capsys, *arguments, code=2)


def failing_script(folder: Path, source: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The script of the first failure of kernel.py:conv."""
    (folder / "kernel.py").write_text(source)
    assert main.run(["check", "kernel.py:conv", "--op", "causal_conv1d", *FEW, "-x", *options]) == 1
    [file] = (folder / ".packproof").iterdir()
    capsys.readouterr()
    return explained(capsys, "--replay", str(file))


def run_without_packproof(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run it where an import of packproof fails."""
    (folder / "hidden").mkdir(exist_ok=True)
    (folder / "hidden/packproof.py").write_text("raise ImportError('packproof is not needed')")
    (folder / "failing.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(folder / "hidden")}
    command = [sys.executable, str(folder / "failing.py")]
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)


def run_here(folder: Path, script: str) -> bool:
    """Run it in this process, which has torch: whether it ends with an error."""
    with imports_of(folder), pytest.raises(SystemExit) as end:
        exec(compile(script, "failing.py", "exec"), {"__name__": "__main__"})
    return bool(end.value.code)


def test_a_leak_is_one_call_without_packproof(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = failing_script(working_folder, LEAKY, capsys, "--property", "packing")
    done = run_without_packproof(working_folder, script)
    assert done.returncode == 1, done.stderr
    assert re.match(r"y\[1, \d\] is \S+, expected \S+ within \S+$", done.stdout.strip())
    (working_folder / "kernel.py").write_text(REPAIRED)
    assert not run_here(working_folder, script)


REPAIRED = """
import torch
from torch.nn import functional

def conv(x, weight, bias=None, *, cu_seqlens, activation=None):
    parts = []
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):
        rows = functional.pad(x[start:end].T[None], (weight.shape[1] - 1, 0))
        parts.append(functional.conv1d(rows, weight[:, None], bias, groups=len(weight))[0].T)
    y = torch.cat(parts)
    return functional.silu(y) if activation == "silu" else y
"""

ALONE = """
import torch
from packproof import refs

def conv(x, weight, bias=None, *, cu_seqlens, activation=None):
    y = refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)
    return y * 2 if len(cu_seqlens) == 2 and len(y) > 1 else y
"""
CRASHES = """
import os

def conv(x, weight, bias=None, *, cu_seqlens, activation=None):
    os.abort()
"""
DETERMINISTIC = """
import time
import packproof

@packproof.kernel(op="causal_conv1d", promises=packproof.Promises(deterministic=True))
def conv"""
POISONED = """
import torch
from packproof import refs

def conv(x, weight, bias=None, *, cu_seqlens, activation=None):
    y = refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)
    return y + 0 * x[: int(cu_seqlens[-1])].sum()
"""


def test_a_gradient_is_one_call_too(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ALONE.replace("y * 2 if len(cu_seqlens) == 2 and len(y) > 1 else y", "y.detach() + (y - y.detach()) * 2")
    script = failing_script(working_folder, wrong, capsys, "--property", "reference")
    assert "_grad,) = torch.autograd.grad([y]" in script
    assert ".requires_grad_()" in script
    assert run_here(working_folder, script)
    assert "_grad[" in capsys.readouterr().out


def test_a_sequence_alone_is_the_call_where_that_is_wrong(
    working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = failing_script(working_folder, ALONE, capsys, "--property", "packing")
    assert re.match(r'"""causal_conv1d, packing: kernel.py:conv, sequence \d alone\.', script)


def test_an_error_is_the_end_of_the_call(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = failing_script(working_folder, CRASHES, capsys, "--property", "reference")
    assert script.splitlines()[-1].startswith("# it ends here: ")
    assert "SIGABRT" in script.splitlines()[-1]
    assert run_without_packproof(working_folder, script).returncode == -signal.SIGABRT


def test_nan_beside_a_sequence_is_a_call(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    declared = f"import packproof\n{POISONED}".replace(
        "def conv", '@packproof.kernel(op="causal_conv1d", promises=packproof.Promises(isolated=True))\ndef conv'
    )
    (working_folder / "kernel.py").write_text(declared)
    assert main.run(["check", "kernel.py:conv", *FEW, "-x", "--property", "isolation"]) == 1
    [file] = (working_folder / ".packproof").iterdir()
    capsys.readouterr()
    script = explained(capsys, "--replay", str(file))
    assert "NaN in all but sequence 0" in script
    assert 'nan, inf = float("nan"), float("inf")' in script


def test_what_no_single_call_shows_is_said(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    differs = ALONE.replace(
        "return y * 2 if len(cu_seqlens) == 2 and len(y) > 1 else y",
        "return y * (1 + time.perf_counter_ns() % 7 * 2**-23)",
    ).replace("def conv", DETERMINISTIC)
    (working_folder / "kernel.py").write_text(differs)
    line = ["check", "kernel.py:conv", *FEW, "-x", "--property", "determinism"]
    assert main.run(line) == 1
    [file] = (working_folder / ".packproof").iterdir()
    capsys.readouterr()
    err = explained(capsys, "--replay", str(file), code=2)
    assert "no single call is wrong: determinism compares several" in err


CHANNELS_FIRST = """
import torch

def conv(hidden, weight, bias=None, *, seq_idx, activation=None):
    y = leaky(hidden[0].T, weight, bias, activation=activation, cu_seqlens=torch.tensor([0, hidden.shape[2]]))
    return y.T[None]
"""
ADAPTED = """
from packproof.adapters import Batched, adapt, seq_idx

conv = adapt(
    "kernel.py:conv",
    op="causal_conv1d",
    tokens=Batched(axis=-1),
    metadata={"seq_idx": seq_idx},
    names={"x": "hidden"},
)
"""
OF_ITS_OWN = ADAPTED.replace("Batched(axis=-1)", "Mine(axis=-1)").replace(
    "conv = adapt(", "class Mine(Batched):\n    pass\n\nconv = adapt("
)


def adapted_failure(folder: Path, adapted: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The replay file of a leaking kernel with channels first, called by this adapter."""
    (folder / "kernel.py").write_text(f"{LEAKY.replace('def conv', 'def leaky')}\n{CHANNELS_FIRST}")
    (folder / "adapted.py").write_text(adapted)
    assert main.run(["check", "adapted.py:conv", *FEW, "-x", "--property", "packing"]) == 1
    [file] = (folder / ".packproof").iterdir()
    capsys.readouterr()
    return str(file)


def test_an_adapted_call_is_written_as_the_kernel_takes_it(
    working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = explained(capsys, "--replay", adapted_failure(working_folder, ADAPTED, capsys))
    assert "kernel_hidden = x.unsqueeze(0).movedim(1, 2)\n" in script
    assert "kernel_seq_idx = torch.tensor([[0, 1]], dtype=torch.int32)\n" in script
    assert "y = y.movedim(2, 1).squeeze(0)\n" in script
    done = run_without_packproof(working_folder, script)
    assert done.returncode == 1, done.stderr
    assert re.match(r"y\[1, \d\] is \S+, expected \S+ within \S+$", done.stdout.strip())


def test_a_convention_that_is_code_is_refused_with_the_way_out(
    working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = explained(capsys, "--replay", adapted_failure(working_folder, OF_ITS_OWN, capsys), code=2)
    assert "adapted.py:conv is an adapter of kernel.py:conv: tokens=Mine(axis=-1) moves more than rows" in err
    assert "`packproof replay` runs it" in err


def test_the_skill_is_printed_without_torch(working_folder: Path) -> None:
    look = (
        "import sys; from packproof.cli import main; main.run(['explain', '--skill']); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout == SKILL.read_text()


def test_the_skill_names_commands_and_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    commands: dict[str, Any] = {
        command.name or command.callback.__name__: command.callback
        for command in app.registered_commands
        if command.callback
    }
    lines = re.findall(r"packproof (check|explain|replay|diff|contract|list)([^`\n]*)", SKILL.read_text())
    assert len(lines) >= 7
    for command, rest in lines:
        assert command in commands
        assert main.run([command, "--help"]) == 0
        known = capsys.readouterr().out
        for flag in re.findall(r"(?<!\S)--?[a-z-]+", rest):
            assert flag in known, (command, flag)


def test_the_skill_names_fields_that_exist(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (working_folder / "kernel.py").write_text(LEAKY)
    line = ["check", "kernel.py:conv", "--op", "causal_conv1d", *FEW, "--property", "packing", "--json", "out.json"]
    assert main.run(line) == 1
    data = json.loads(Path("out.json").read_text())
    fields = {*data, *(name for result in data["results"] for name in result)}
    section = SKILL.read_text().partition("## JSON")[2].partition("## Reading")[0]
    values = {"passed", "failed", "inconclusive", "error", "skipped"}
    assert set(re.findall(r"`(\w+)`", section)) - values <= fields
