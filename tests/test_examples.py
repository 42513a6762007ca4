"""The examples run: each script on its own, and its notebook's cells in their order, which are the script's."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from packproof import refs
from packproof.adapters.peers.registry import PEERS, peers_of
from packproof.harness.check.expected import ExpectedFailures
from tests.in_process import pytest_in, python_in

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(ROOT.glob("examples/*.py"))


def cells(script: Path) -> list[tuple[str, str]]:
    """Kind and text of the cells, which are separated by lines that begin with `# %%`."""
    parts = re.split(r"^# %%(.*)\n", script.read_text(), flags=re.M)[1:]
    found = []
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        markdown = "markdown" in title
        lines = re.sub(r"^# ?", "", text, flags=re.M) if markdown else text
        found.append(("markdown" if markdown else "code", lines.strip()))
    return found


def notebook_cells(script: Path) -> list[tuple[str, str]]:
    notebook = json.loads(script.with_suffix(".ipynb").read_text())
    return [(cell["cell_type"], "".join(cell["source"]).strip()) for cell in notebook["cells"]]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_has_the_cells_of_its_script(script: Path) -> None:
    name = script.relative_to(ROOT)
    assert notebook_cells(script) == cells(script), f"run `jupytext --to ipynb {name}`"


def code_of_lost_exp() -> list[str]:
    """The notebook's cells in order, which are those of the script."""
    return [text for kind, text in notebook_cells(ROOT / "examples/lost_exp.py") if kind == "code"]


@pytest.mark.proof
def test_the_lost_exponential_is_found_and_repaired(tmp_path: Path) -> None:
    """Of the repaired kernel one pack is tried here, in which the bug showed; the check of it is a proof."""
    *before, last = code_of_lost_exp()
    fix, check = last.split("verdicts = ")
    assert check.startswith("packproof.check(")
    on_a_pack = 'packproof.gradcheck(ssd, inputs, cu_seqlens=pack, op="ssd")'
    shows = f"try:\n    {on_a_pack}\nexcept AssertionError:\n    print('the gradients of a pack: incorrect')"
    printed = python_in(tmp_path, "\n".join([*before, shows, fix, on_a_pack])).stdout
    assert "FAILED  packing (gradient of B)" in printed
    assert "lengths [1, 16]" in printed
    assert printed.endswith("the gradients of a pack: incorrect\n")


@pytest.mark.proof
def test_the_repaired_exponential_passes_the_check(tmp_path: Path) -> None:
    printed = python_in(tmp_path, "\n".join(code_of_lost_exp())).stdout
    assert re.search(r"^packing: passed, \d+ examples$", printed, re.M)


def test_the_suite_for_a_training_repository_passes(tmp_path: Path) -> None:
    for name in ("transformer.py", "test_packing.py"):
        (tmp_path / name).write_text((ROOT / "examples/training" / name).read_text())
    done = pytest_in(tmp_path, "-q")
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout


CONFORMANCE = sorted(ROOT.glob("examples/conformance/test_*.py"))


@pytest.mark.parametrize("suite", CONFORMANCE, ids=lambda suite: suite.stem)
def test_a_conformance_suite_has_every_kernel_of_its_package(suite: Path) -> None:
    """Those that take packs; what is known to be wrong is of one of them, with a report that exists."""
    package = suite.stem.removeprefix("test_")
    targets = re.findall(r'\("(\w+:\w+)", expected_failures=KNOWN', suite.read_text())
    assert sorted(targets) == sorted(name for name in peers_of(package) if PEERS[name].packed)
    on_gpu = set(re.findall(r'gpu\n@pytest\.mark\.packproof\("(\w+:\w+)"', suite.read_text()))
    assert {name for name in targets if PEERS[name].cpu != "all"} == on_gpu
    for entry in ExpectedFailures.from_file(str(suite.with_name(f"{package}.toml"))).entries:
        assert entry.target in targets
        assert (ROOT / entry.reason.rpartition(": ")[2]).is_file(), entry.reason


def test_a_conformance_suite_is_skipped_where_its_package_is_missing(tmp_path: Path) -> None:
    (tmp_path / "test_conformance.py").write_text(
        (ROOT / "examples/conformance/test_mamba_ssm.py").read_text().replace('"mamba_ssm"', '"no_such_package"')
    )
    done = pytest_in(tmp_path, "-q", "-rs")
    assert "mamba-ssm is not installed" in done.stdout
    assert "1 skipped" in done.stdout


def test_the_example_of_policy_losses_is_the_policy_loss_of_the_references() -> None:
    example = runpy.run_path(str(ROOT / "examples/losses/policy_losses.py"))
    generator = torch.Generator().manual_seed(3)
    logits, old, ref = (torch.randn(7, *n, generator=generator, dtype=torch.float64) for n in ((5,), (), ()))
    labels, mask = torch.tensor([0, 4, 2, 2, 1, 3, 0]), torch.tensor([1, 1, 0, 1, 1, 0, 1])
    of_responses = {"advantages": torch.tensor([1.5, -2.0], dtype=torch.float64), "cu_seqlens": torch.tensor([0, 3, 7])}
    others: dict[str, Any] = {"ref_logprobs": ref, "old_logprobs": old, "mask": mask, **of_responses}
    losses = example["policy_losses"](logits, labels, beta=0.04, **others)
    logprobs = refs.token_logprobs(logits, labels, cu_seqlens=of_responses["cu_seqlens"])
    torch.testing.assert_close(losses.sum() / mask.sum(), refs.policy_loss(logprobs, beta=0.04, **others))
