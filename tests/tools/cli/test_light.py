"""What runs no kernel starts at once: it imports neither torch nor anything else that takes long."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.base.law_names import LAWS
from packproof.base.signatures import SIGNATURES
from packproof.cli import main
from packproof.harness.check.request import PROFILES
from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS
from packproof.harness.report.replay_files.replay_file import describe_replay, read_replay
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS

HEAVY = ("torch", "triton", "hypothesis", "numpy", "matplotlib", "safetensors")
BENCHES = ("bench kernels", "bench packing", "bench stack", "bench ranks", "bench fp8")
COMMANDS = (
    *("check", "grade", "grades", "peers", "replay", "diff", "bench", *BENCHES, "table"),
    *("proof", "mutate", "list", "museum", "museum run"),
)
WRONG_CALLS = (
    "judge",
    "check --seed x",
    "check m:f --profile fast",
    "check m:f --device gpu",
    "check m:f --dtype fp23",
    "check m:f --property packin",
    "check m:f --domain k=3",
    "peers --profile fast",
    "replay no/such/file.json",
    "diff m:f",
    "diff m:f --lengths 3,x",
    "diff m:f --lengths 3 --dtype fp23",
    "diff m:f --lengths 3 --device gpu",
    "diff m:f --lengths 3 --options silu",
    "bench --tokens many",
    "bench stack --model mamba",
    "bench stack --op rope",
    "bench packing --packs 3",
    "bench ranks --ranks 2 --simulated 2",
    "bench stak",
    "table",
    "proof nowhere",
    "grades list.jsonl --cores none",
    "grades list.jsonl --device gpu",
    "mutate --jobs none",
    "list everything",
    "museum run --seed x",
)
FILE = {
    "packproof": "0.1",
    "version": 1,
    "target": "my_kernels:scan\x1b[2J",
    "op": "selective_scan",
    "promises": {"grid": "sequence", "chunk": 64},
    "gradients": True,
    "property": "packing",
    "dtype": "bfloat16",
    "device": "cpu",
    "domain": ["n in (16, 32)"],
    "case": {
        "lengths": [16, 0, 1],
        "dtype": "bfloat16",
        "sizes": [["d", 4], ["n", 16]],
        "present": ["D"],
        "options": [["delta_softplus", True]],
        "slack": 2,
        "seed": 7,
    },
    "message": ["sequence 2, token 0: got 1, alone 2"],
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "replay.json"
    path.write_text(json.dumps(FILE))
    return str(path)


def heavy_imports(*lines: list[str], folder: Path | None = None) -> dict[str, tuple[int, list[str]]]:
    """The exit code of each command line, and what it imported of all that takes long, in one process of their own.

    folder: where the process runs and what it imports first.
    """
    code = (
        "import json, sys\nfrom packproof.cli.main import run\n"
        f"found = [(run(line), [name for name in {HEAVY!r} if name in sys.modules]) for line in {lines!r}]\n"
        "print('\\n' + json.dumps(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {" ".join(line): (code, names) for line, (code, names) in zip(lines, found, strict=True)}


def light(code: int, *lines: str) -> dict[str, tuple[int, list[str]]]:
    return {line: (code, []) for line in lines}


def test_help_imports_nothing_heavy() -> None:
    lines = ["--help", *(f"{command} --help" for command in COMMANDS)]
    assert heavy_imports(*map(str.split, lines)) == light(0, *lines)


def test_list_and_the_version_import_nothing_heavy() -> None:
    assert heavy_imports(["list"], ["--version"]) == light(0, "list", "--version")


def test_showing_a_replay_file_imports_nothing_heavy(file: str) -> None:
    assert heavy_imports(["replay", file, "--show"]) == light(0, f"replay {file} --show")


def test_a_wrong_call_imports_nothing_heavy() -> None:
    assert heavy_imports(*map(str.split, WRONG_CALLS)) == light(2, *WRONG_CALLS)


def test_an_import_of_torch_is_seen(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()  # in place of the real one, which takes long
    line = "check no_such_module:f --device cpu"
    assert heavy_imports(line.split(), folder=tmp_path)[line][1] == ["torch"]


def test_what_is_listed_without_torch_is_what_there_is() -> None:
    assert {name: (op.inputs, op.outputs) for name, op in OPS.items()} == {
        name: (signature.inputs, signature.outputs) for name, signature in SIGNATURES.items()
    }
    assert [(name, law.law) for name, law in PROPERTIES.items()] == list(LAWS.items())
    assert {own.op for own in BUILTIN_KERNELS.values()} <= OPS.keys()
    assert set(PROFILES) == {"quick", "standard", "thorough"}


def test_a_replay_file_in_words(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["replay", file, "--show"]) == 0
    out = capsys.readouterr().out
    assert out == (
        f"{file}\n"
        "  kernel     my_kernels:scan\\x1b[2J\n"
        "  op         selective_scan\n"
        f"  property   packing: {LAWS['packing']}\n"
        "  dtype      bfloat16\n"
        "  device     cpu\n"
        "  layout     lengths [16, 0, 1], 17 tokens, slack 2\n"
        "  sizes      d=4, n=16\n"
        "  inputs     D\n"
        "  options    delta_softplus=True\n"
        "  offsets    int32\n"
        "  values     normal: values of a normal distribution, time steps from 0.05 to 1\n"
        "  seed       7\n"
        "  gradients  judged\n"
        "  promises   grid=sequence, chunk=64\n"
        "  domain     n in (16, 32)\n"
        "  found      sequence 2, token 0: got 1, alone 2\n"
        "  versions   packproof 0.1, file 1\n"
    )


@pytest.mark.parametrize("value", [7, {"a": []}, None, "text", [1, {"b": 2}]])
def test_what_a_replay_does_not_need_may_be_anything(tmp_path: Path, value: object) -> None:
    path = tmp_path / "replay.json"
    path.write_text(json.dumps({**FILE, "message": value, "domain": value, "packproof": value}))
    assert describe_replay(read_replay(path))["seed"] == "7"


def test_a_damaged_replay_file_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    path.write_text(json.dumps({**FILE, "property": "packin"}))
    with pytest.raises(UsageError, match="did you mean packing"):
        read_replay(path)
