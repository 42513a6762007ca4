"""`packproof model` judges apart from the module: whatever that does to its own process, no pass comes of it."""

import os
import sys
import time
from pathlib import Path

import pytest

from packproof.cli.main import run
from packproof.harness.process import zygote_client
from packproof.models import module_request, run_module_check
from packproof.models.apart import ModuleProcess, ModuleSource
from tests.tools.models.models import WIDTH

DOORS = "tests.tools.models.doors"
OPTIONS = ("--inputs", str(WIDTH), "--profile", "quick", "--convention", "cu_seqlens", "--timeout", "20")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ExitsInConstruction", "no module can be made: its process exited with code 0 instead of returning"),
        ("HangsInConstruction --timeout 1", "no module can be made: its process gave no answer within 1 s"),
        pytest.param(
            "CrashesInConstruction",
            "no module can be made: its process was killed by SIGSEGV (Segmentation fault)",
            marks=pytest.mark.proof,
        ),
    ],
)
def test_a_construction_that_does_not_return_is_a_wrong_call(
    capfd: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    target, *more = name.split()
    assert run(["model", f"{DOORS}:{target}", *OPTIONS, *more]) == 2
    assert capfd.readouterr() == ("", f"packproof: {DOORS}:{target}: {words}\n")


def test_an_import_that_ends_its_process_is_a_wrong_call(
    working_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (working_folder / "ends.py").write_text(f"import os\nassert os.getpid() != {os.getpid()}\nos._exit(0)\n")
    assert run(["model", "ends.py:Model"]) == 2
    assert "no module can be made: its process exited with code 0 instead of returning" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ExitsInForward", "the module did not return: its process exited with code 0 instead of returning"),
        pytest.param(
            "ExitsInBackward",
            "the module did not return: its process exited with code 0 instead of returning",
            marks=pytest.mark.proof,
        ),
        ("KilledInForward", "the module did not return: its process was killed by SIGKILL (Killed)"),
        pytest.param(
            "SendsGarbage",
            "the module did not return: its process wrote into packproof's channel",
            marks=pytest.mark.proof,
        ),
        ("patches_verdicts", "FAILED  isolation"),
        pytest.param("patches_laws", "FAILED  isolation", marks=pytest.mark.proof),
        ("patches_torch", "FAILED  isolation"),
        ("exits_at_the_end", "FAILED  isolation"),
    ],
)
def test_a_module_that_ends_or_patches_its_process_fails(
    capfd: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert run(["model", f"{DOORS}:{name}", *OPTIONS]) == 1
    assert words in capfd.readouterr().out


def test_the_judge_imports_nothing_of_the_module(working_folder: Path) -> None:
    (working_folder / "its_own.py").write_text(
        f"from {DOORS} import Right\nimport packproof\n"
        "ENDS = packproof.Convention('ends', 'all ends', lambda pack: {'cu_seqlens': pack.offsets.int()})\n"
    )
    sys.modules.pop("its_own", None)
    command = ["model", "its_own.py:Right", "--inputs", str(WIDTH), "--profile", "quick"]
    assert run([*command, "--convention", "its_own.py:ENDS"]) == 0
    assert not any("its_own" in name for name in sys.modules)


@pytest.mark.proof
@pytest.mark.usefixtures("no_walls")
def test_the_processes_of_a_setting_are_forked_from_one_that_has_built_the_module(working_folder: Path) -> None:
    (working_folder / "slow.py").write_text(
        f"import time\nfrom {DOORS} import Right\n"
        "def slow():\n    time.sleep(2)\n    open('built', 'a').write('.')\n    return Right()\n"
    )
    start = time.monotonic()
    run(["model", "slow.py:slow", "--inputs", str(WIDTH), "--profile", "quick", "--mode", "eval,train"])
    assert Path("built").read_text() == "."
    assert time.monotonic() - start > 2


@pytest.mark.proof
@pytest.mark.usefixtures("no_walls")
def test_where_the_import_starts_cuda_each_process_builds_the_module(working_folder: Path) -> None:
    """No fork of a process in which CUDA was started can use it."""
    (working_folder / "starts_cuda.py").write_text(
        f"import torch\nfrom {DOORS} import Leaky\n"
        "torch.cuda.is_initialized = lambda: True\n"
        "def leaky():\n    open('built', 'a').write('.')\n    return Leaky()\n"
    )
    command = ["model", "starts_cuda.py:leaky", "--inputs", str(WIDTH), "--profile", "quick"]
    assert run([*command, "--convention", "cu_seqlens"]) == 1
    assert len(Path("built").read_text()) > 1


def test_verdicts_are_those_of_a_module_in_this_process() -> None:
    settings = {"convention": ["cu_seqlens"], "inputs": WIDTH, "profile": "quick", "records": False}
    source = ModuleSource(f"{DOORS}:Leaky", ("cu_seqlens",))
    with ModuleProcess(source, device="cpu", seconds=60) as process:
        *_, apart = run_module_check(module_request(process, **settings))  # type: ignore[arg-type]
    import torch  # noqa: PLC0415

    from tests.tools.models.doors import Leaky  # noqa: PLC0415

    torch.manual_seed(0)
    *_, here = run_module_check(module_request(Leaky(), **settings))  # type: ignore[arg-type]
    failures = [[verdict.failure for verdict in end.verdicts] for end in (apart, here)]  # type: ignore[union-attr]
    assert failures[0] == failures[1]
    assert any(failures[0])


@pytest.mark.parametrize(("options", "code"), [((), 2), (("--no-isolate",), 0)])
def test_without_walls_a_module_may_write_files(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], code: int
) -> None:
    monkeypatch.setattr(zygote_client, "_isolation", "usual")
    (working_folder / "writes.py").write_text(
        f"from {DOORS} import Right\ndef writes():\n    open('made', 'w').write('.')\n    return Right()\n"
    )
    command = ["model", "writes.py:writes", "--inputs", str(WIDTH), "--convention", "cu_seqlens", "--profile", "quick"]
    assert run([*command, *options]) == code
    assert Path("made").exists() is (code == 0)
