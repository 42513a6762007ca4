"""The documentation runs: its files are written to a folder, its commands run there and print what the page says."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/new_op.md")
FILE = re.compile(r"`(\w+\.py)`[^\n]*:\n\n```python\n(.*?)```", re.S)
PYTHON = re.compile(r"```python\n(.*?)```", re.S)
TABLE = re.compile(r"(<!-- packproof table (\S+) -->.*?<!-- end of table -->)", re.S)
OUTPUT = re.compile(r"```text\n(.*?)```", re.S)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command line in a folder, with this checkout importable."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "packproof", "check", *arguments, "--device", "cpu", "--profile", "quick")


def write_files(page: str, folder: Path) -> dict[str, str]:
    files = dict(FILE.findall((ROOT / page).read_text()))
    for name, source in files.items():
        (folder / name).write_text(source)
    return files


def failure_block(output: str) -> str:
    """The report of the first failure, with its figures blotted out: they depend on the machine."""
    start = re.search(r"^.* · FAILED .*$", output, re.M)
    assert start, output
    block = output[start.start() :].partition("\n\n")[0].rstrip()
    return re.sub(r"(?<![\w\[])-?\d[\d.]*(e[+-]?\d+)?(?= x |\)|,|;)|(?<=-)[0-9a-f]{8}(?=\.json)", "#", block)


@pytest.mark.parametrize(
    "page",
    [
        *PAGES,
        "docs/bench.md",
        "docs/museum.md",
        "docs/reports.md",
        "docs/mutate.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
    ],
)
def test_examples_are_python_and_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for source in PYTHON.findall(text):
        ast.parse(source)
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / link).exists(), link


def test_the_readme_shows_what_was_measured() -> None:
    """Its table is what `packproof table` makes of the committed file; where there is the file, there is the table."""
    path = "docs/bench-h200.json"
    shown = TABLE.findall((ROOT / "README.md").read_text())
    assert [named for _, named in shown] == [path] * (ROOT / path).exists()
    for text, named in shown:
        done = run(ROOT, "-m", "packproof", "table", named)
        assert text == done.stdout.rstrip("\n"), f"replace it by what `packproof table {named}` prints"


def test_the_convicted_kernel_of_the_readme(tmp_path: Path) -> None:
    write_files("README.md", tmp_path)
    [printed] = OUTPUT.findall((ROOT / "README.md").read_text())
    done = check(tmp_path, "leaky.py:conv", "--op", "causal_conv1d", "--dtype", "fp32", "--property", "packing")
    assert done.returncode == 1, done.stderr
    assert failure_block(done.stdout) == failure_block(printed)
    assert "lengths [1, 1]" in printed


def test_the_debugging_example_of_the_readme(tmp_path: Path) -> None:
    [source] = [code for code in PYTHON.findall((ROOT / "README.md").read_text()) if "selective_scan_step" in code]
    shown = "print(layout.cu_seqlens().tolist(), layout.seq_idx().tolist(), tuple(states.shape), tuple(y_0.shape))"
    done = run(tmp_path, "-c", f"{source}\n{shown}")
    assert done.stdout == "[0, 3, 3, 8] [0, 0, 0, 2, 2, 2, 2, 2, -1, -1] (3, 4, 2) (4,)\n", done.stderr


def test_where_the_kernel_of_the_readme_first_diverges(tmp_path: Path) -> None:
    write_files("README.md", tmp_path)
    check(tmp_path, "leaky.py:conv", "--op", "causal_conv1d", "--dtype", "fp32", "--property", "packing")
    [file] = (tmp_path / ".packproof").iterdir()
    [source] = [code for code in PYTHON.findall((ROOT / "README.md").read_text()) if "packproof.diff(" in code]
    done = run(tmp_path, "-c", re.sub(r"[\w-]+\.json", file.name, source) + "\nprint(found.divergences[0].token)")
    assert done.stdout.startswith("lengths [3, 0, 5], float32, d=3 w=4, seed 0\ny: sequence 2, token 0,"), done.stderr
    assert done.stdout.endswith("\n0\n")


def test_a_new_op_in_thirty_lines(tmp_path: Path) -> None:
    """The declared op's kernel passes every property, and a leak is convicted as the page says."""
    files = write_files("docs/new_op.md", tmp_path)
    code = [line for line in files["ema.py"].splitlines() if line.strip()]
    assert len(code) <= 32
    good = check(tmp_path, "my_ema.py:ema", "--op", "ema.py:EMA")
    assert good.returncode == 0, good.stdout
    (tmp_path / "my_ema.py").write_text(files["my_ema.py"].replace("inside & goes_on", "inside"))
    bad = check(tmp_path, "my_ema.py:ema", "--op", "ema.py:EMA", "--dtype", "fp32", "--property", "packing")
    assert bad.returncode == 1, bad.stdout
    [printed] = OUTPUT.findall((ROOT / "docs/new_op.md").read_text())
    assert failure_block(bad.stdout) == failure_block(printed)
