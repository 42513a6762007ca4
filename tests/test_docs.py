"""The documentation runs: its files are written to a folder, and its commands run there and print what it shows."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import packproof
from packproof.base.law_names import ON_REQUEST
from packproof.cli.main import app
from packproof.properties.laws.catalogue import PROPERTIES
from tests.in_process import Done, packproof_in, pytest_in, python_in

ROOT = Path(__file__).parent.parent
PAGES = (
    *(f"{page}.md" for page in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY")),
    *(f"docs/{page.name}" for page in ROOT.glob("docs/*.md")),
    *(f"docs/notes/{page.name}" for page in ROOT.glob("docs/notes/*.md")),
)
FILE = re.compile(r"`(\w+\.py)`[^\n]*:\n\n```python\n(.*?)```", re.S)
PYTHON = re.compile(r"```python\n(.*?)```", re.S)
TABLE = re.compile(r"(<!-- packproof table (\S+) -->.*?<!-- end of table -->)", re.S)
OUTPUT = re.compile(r"```text\n(.*?)```", re.S)
CI = "docs/ci.md"
LEAKY = "packproof check leaky.py:conv --op causal_conv1d --dtype fp32 --property packing"
BLOCK = re.compile(r"(?:`(\w+\.py)`[^`]*:\n\n)?```(python|console)\n(.*?)```", re.S)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command line in a folder, with this checkout importable."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def check(folder: Path, *arguments: str) -> Done:
    return packproof_in(folder, "check", *arguments, "--device", "cpu", "--profile", "quick")


def write_files(page: str, folder: Path) -> dict[str, str]:
    files = dict(FILE.findall((ROOT / page).read_text()))
    for name, source in files.items():
        (folder / name).write_text(source)
    return files


def failure_block(output: str) -> str:
    """The report of the first failure, with its figures masked."""
    start = re.search(r"^.* · FAILED .*$", output, re.M)
    assert start, output
    return blotted(output[start.start() :].partition("\n\n")[0].rstrip())


def blotted(block: str) -> str:
    """Errors and names of files as #: they depend on the machine."""
    return re.sub(r"(?<![\w\[])-?\d[\d.]*(e[+-]?\d+)?(?= x |\)|,|;)|(?<=-)[0-9a-f]{8}(?=\.json)", "#", block)


@pytest.mark.parametrize("page", PAGES)
def test_examples_are_python_and_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for source in PYTHON.findall(text):
        ast.parse(source)
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / link).exists(), link


def command_lines(page: str) -> list[str]:
    """The commands of a page: the blocks without a language, without the comments at the ends of lines."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    return [line.partition("  #")[0] for kind, block in blocks if not kind for line in block.splitlines()]


@pytest.mark.parametrize("page", PAGES)
def test_command_lines_are_ones_that_packproof_takes(page: str) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    for line in command_lines(page):
        tool, _, arguments = line.partition(" ")
        if tool == "make":
            assert arguments.split()[0] in targets, line
        if tool == "packproof" and arguments:
            parse(typer.main.get_command(app), shlex.split(arguments))


def parse(command: Any, arguments: list[str]) -> None:
    """Raises a usage error unless the command, or one of its subcommands, takes the arguments."""
    while hasattr(command, "commands"):
        if not arguments or arguments[0] not in command.commands:
            if not hasattr(command, "default"):
                break
            arguments = [command.default, *arguments]
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context("packproof", arguments)


@pytest.mark.parametrize(
    ("page", "path"),
    [
        ("docs/bench.md", "data/bench-h200.json"),
        ("docs/packs.md", "data/stack-h200.json"),
        ("docs/context_parallel.md", "data/ranks.json"),
    ],
)
def test_a_page_shows_what_was_measured(page: str, path: str) -> None:
    """Its table is what `packproof table` makes of the committed file; where there is the file, there is the table."""
    shown = TABLE.findall((ROOT / page).read_text())
    assert [named for _, named in shown] == [path] * (ROOT / path).exists()
    for text, named in shown:
        done = packproof_in(ROOT, "table", named)
        assert text == done.stdout.rstrip("\n"), f"replace it by what `packproof table {named}` prints"


def test_the_readme_is_short_and_leads_to_few_pages() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 112
    assert sum(line.count("](") for line in lines if not line.startswith("|")) <= 6


def test_each_page_is_once_in_the_index_and_a_note_on_a_page() -> None:
    """The site's menu is made of the index; there are at most 30 pages."""
    pages = sorted(page.name for page in ROOT.glob("docs/*.md") if page.name != "index.md")
    index = (ROOT / "docs/index.md").read_text()
    assert len(pages) <= 30
    assert sorted(re.findall(r"\((\w+\.md)\)", index)) == pages
    text = "".join((ROOT / page).read_text() for page in PAGES)
    assert [note.name for note in ROOT.glob("docs/notes/*.md") if f"(notes/{note.name}" not in text] == []


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """The folder with the README's files after its check, and what the check printed."""
    folder = tmp_path_factory.mktemp("leaky")
    write_files("README.md", folder)
    return folder, check(folder, *shlex.split(LEAKY)[2:])


def test_the_readme_shows_the_failure_of_its_kernel(leaky: tuple[Path, Done]) -> None:
    folder, done = leaky
    readme = (ROOT / "README.md").read_text()
    [printed] = OUTPUT.findall(readme)
    assert f"```\n{LEAKY}\n```" in readme
    assert done.returncode == 1, done.stderr
    assert failure_block(done.stdout) == failure_block(printed)
    assert "lengths [1, 1]" in printed
    [file] = (folder / ".packproof").iterdir()
    again = packproof_in(folder, "replay", str(file), "--map")
    assert again.returncode == 1, again.stderr
    [shown] = re.findall(r"```\n(what reaches y: .*?)```", readme, re.S)
    assert shown in again.stdout


def test_the_findings_of_the_readme_are_those_of_their_page() -> None:
    """Each row links a script, with the layout and the properties that docs/peers.md has for it. None that damages a
    run is left out but those that no property sees, and the page has every script."""

    def findings(text: str) -> dict[str, tuple[str, ...]]:
        rows = [line.strip("| ").split(" | ") for line in text.splitlines() if "peers/" in line]
        columns = {re.findall(r"peers/(\w+\.py)", " ".join(row))[0]: row for row in rows if len(row) > 2}
        cell = re.compile(r"\[[\d, ]*\]|`[a-zA-Z_ ()]+`(?:, `[a-z_]+`)*")
        return {script: tuple(sorted(filter(cell.fullmatch, row))) for script, row in columns.items()}

    damaging, _, ending = (ROOT / "docs/peers.md").read_text().partition("## What ends a training run")
    found, others = findings(damaging), findings(ending)
    assert findings((ROOT / "README.md").read_text()) == {script: cells for script, cells in found.items() if cells}
    assert {*found, *others} == {script.name for script in ROOT.glob("docs/peers/*.py")}
    for part, rows in ((damaging, found), (ending, others)):
        assert [len(row) for row in rows.values() if len(row) != 2] == [0] * part.count("| none: ")


def test_the_first_step_of_the_references(tmp_path: Path) -> None:
    page = (ROOT / "docs/debugging.md").read_text()
    [source] = [code for code in PYTHON.findall(page) if "selective_scan_step" in code]
    shown = "print(layout.cu_seqlens().tolist(), layout.seq_idx().tolist(), tuple(states.shape), tuple(y_0.shape))"
    done = python_in(tmp_path, f"{source}\n{shown}")
    assert done.stdout == "[0, 3, 3, 8] [0, 0, 0, 2, 2, 2, 2, 2, -1, -1] (3, 4, 2) (4,)\n", done.stderr


def test_the_intermediate_tensors_of_an_ssd(tmp_path: Path) -> None:
    page = (ROOT / "docs/debugging.md").read_text()
    [source] = [code for code in PYTHON.findall(page) if "ssd_intermediates" in code]
    done = python_in(tmp_path, f"{source}\nprint(parts.cu_chunks.tolist(), parts._fields)")
    assert done.stdout.startswith("[0, 2, 3, 5, 7, 8] ("), done.stderr
    fields = re.findall(r"^\| `(\w+)` \| \(", page, re.M)
    assert done.stdout.endswith(f"{tuple(fields)}\n")


def test_where_the_kernel_of_the_readme_first_diverges(leaky: tuple[Path, Done]) -> None:
    folder, _ = leaky
    [file] = (folder / ".packproof").iterdir()
    page = (ROOT / "docs/debugging.md").read_text()
    source, own = [code for code in PYTHON.findall(page) if "packproof.diff(" in code]
    done = python_in(folder, re.sub(r"[\w-]+\.json", file.name, source) + "\nprint(found.divergences[0].token)")
    assert done.stdout.startswith("lengths [3, 0, 5], fp32, d=3 w=4, seed 0\ny: sequence 2, token 0,"), done.stderr
    assert done.stdout.endswith("\n0\n")
    [shown] = re.findall(r"```\n(lengths \[3, 0, 5\].*?)```", page, re.S)
    assert blotted(done.stdout.removesuffix("0\n")) == blotted(shown)
    assert len(set(re.findall(r"causal_conv1d-packing-\w+\.json", page + (ROOT / "README.md").read_text()))) == 1
    done = python_in(folder, own)
    assert re.search(r"^gradient of x: .*\n  \d of 8 rows are wrong: rows", done.stdout, re.M), done.stderr
    lines = [line for line in command_lines("docs/debugging.md") if line.startswith("packproof diff ")]
    for line in (re.sub(r"[\w-]+\.json", file.name, line) for line in lines):
        done = packproof_in(folder, *shlex.split(line)[1:], "--device", "cpu")
        assert done.returncode == 1, done.stderr
        assert "rows are wrong" in done.stdout


def test_the_dot_product_test_of_the_page_on_debugging(tmp_path: Path) -> None:
    page = (ROOT / "docs/debugging.md").read_text()
    [source] = [code for code in PYTHON.findall(page) if "dot_product_test(" in code]
    python_in(tmp_path, source)


def test_the_restricted_kernel_of_the_page_on_checking(tmp_path: Path) -> None:
    write_files("docs/check.md", tmp_path)
    few = ["--dtype", "fp32", "--property", "packing,strides"]
    done = check(tmp_path, "mine.py:conv", "--op", "causal_conv1d", *few)
    assert done.returncode == 0, done.stdout
    [shown] = re.findall(r"(  limits found:\n.*?)\.\.\.", (ROOT / "docs/check.md").read_text(), re.S)
    calls = re.compile(r"refused \d+ calls?")  # of how many processes, depends on the cores
    assert calls.sub("", shown) in calls.sub("", done.stdout)


@pytest.mark.proof
def test_a_new_op_in_thirty_lines(tmp_path: Path) -> None:
    """The declared op's kernel passes every property, and a leak is reported as on the page."""
    files = write_files("docs/new_op.md", tmp_path)
    code = [line for line in files["ema.py"].splitlines() if line.strip()]
    assert len(code) <= 32
    good = check(tmp_path, "my_ema.py:ema", "--op", "ema.py:EMA", "--dtype", "fp32")
    assert good.returncode == 0, good.stdout
    (tmp_path / "my_ema.py").write_text(files["my_ema.py"].replace("inside & goes_on", "inside"))
    bad = check(tmp_path, "my_ema.py:ema", "--op", "ema.py:EMA", "--dtype", "fp32", "--property", "packing")
    assert bad.returncode == 1, bad.stdout
    [printed] = OUTPUT.findall((ROOT / "docs/new_op.md").read_text())
    assert failure_block(bad.stdout) == failure_block(printed)


def test_the_leaking_module_of_the_page_on_models(tmp_path: Path) -> None:
    write_files("docs/models.md", tmp_path)
    printed = next(text for text in OUTPUT.findall((ROOT / "docs/models.md").read_text()) if "Mixer" in text)
    line = "packproof model layers.py:Mixer --inputs 8 --convention cu_seqlens"
    assert f"```\n{line}\n```" in (ROOT / "docs/models.md").read_text()
    done = packproof_in(tmp_path, *line.split()[1:])
    assert done.returncode == 1, done.stderr
    assert failure_block(done.stdout) == failure_block(printed)


def test_the_tutorial_from_top_to_bottom(tmp_path: Path) -> None:
    """Its files are written and its commands run in order; `...` stands for what the page omits."""
    steps = BLOCK.findall((ROOT / "docs/tutorial.md").read_text())
    assert all(name for name, kind, _ in steps if kind == "python"), "a file without a name"
    for name, kind, text in steps:
        if kind == "python":
            (tmp_path / name).write_text(text)
            continue
        line, _, wanted = text.partition("\n")
        done = packproof_in(tmp_path, *shlex.split(line.removeprefix("$ packproof ")), "--device", "cpu")
        pattern = re.escape(plain(wanted)).replace(r"\.\.\.", "[^§]*")
        assert re.fullmatch(pattern, plain(done.stdout)), f"{line} printed\n{done.stdout}{done.stderr}"


def plain(output: str) -> str:
    """An output without times and figures, spaces at line ends and repeated spaces."""
    seconds = re.sub(r"\d[\d.]* s\b", "# s", output)
    return blotted(re.sub(r" *\n", "\n", re.sub(r"(?<=\S) +", " ", seconds)).strip())


@pytest.mark.proof
def test_the_block_and_the_hybrid_of_the_page_on_layers_are_proven(tmp_path: Path) -> None:
    write_files("docs/layers.md", tmp_path)
    done = pytest_in(tmp_path, "-q", "test_block.py", "test_hybrid.py")
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout


@pytest.mark.proof
def test_every_figure_on_why_norms_lie(tmp_path: Path) -> None:
    text = (ROOT / "docs/why_norms_lie.md").read_text()
    mark = "-- end of a block --"
    code = f"\nprint({mark!r})\n".join(PYTHON.findall(text))
    done = python_in(tmp_path, code)
    assert done.stdout.split(f"{mark}\n") == OUTPUT.findall(text)


def test_the_forms_and_the_bounds_of_the_page_on_ops_hold(tmp_path: Path) -> None:
    python_in(tmp_path, "\n".join(PYTHON.findall((ROOT / "docs/ops.md").read_text())))


def test_the_suite_for_a_gpu_runner_skips_where_there_is_none(tmp_path: Path) -> None:
    [source] = [code for code in PYTHON.findall((ROOT / CI).read_text()) if "mark.gpu" in code]
    (tmp_path / "test_kernels.py").write_text(source)
    done = pytest_in(tmp_path, "-q", "-rs", "--packproof-device", "cpu")
    assert f"SKIPPED [{len(PROPERTIES.keys() - ON_REQUEST)}] test_kernels.py" in done.stdout, done.stdout
    assert "gpu: checked on cuda only, and this run uses cpu" in done.stdout
    assert "slow: checked with --packproof-slow" in done.stdout


def test_the_page_of_properties_is_what_its_script_writes() -> None:
    done = python_in(ROOT / "docs", "import properties; print(properties.page(), end='')")
    assert done.stdout == (ROOT / "docs/properties.md").read_text(), "run `python docs/properties.py`"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's folder: every page is read, with its references resolved, and a few are written as HTML.

    `make docs` writes them all; each has the same template, and that one takes most of the time.
    """
    for module in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(module, reason="needs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    build = ["-q", "-n", "-c", ".", "-d", str(folder / "doctrees"), "..", str(folder)]
    for arguments in (["-b", "dummy", "-W", *build], [*build, *(str(ROOT / page) for page in WRITTEN)]):
        done = python_in(ROOT / "docs", f"from sphinx.cmd.build import main\nprint('ended with', main({arguments}))")
        assert done.stdout == "ended with 0\n", done.stdout + done.stderr
    return folder


WRITTEN = ("README.md", "docs/index.md", "docs/api.md")
quietly = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of myst_parser, which uses Sphinx's `app`


@pytest.mark.proof
@quietly
def test_the_site_has_every_page_and_every_public_name(site: Path) -> None:
    described = set(re.findall(r'id="(?:module-)?(packproof[\w.]*)"', (site / "docs/api.html").read_text()))
    assert {f"packproof.{name}" for name in packproof.__all__} <= described
    assert "README.html" in (site / "index.html").read_text()
    read = {path.relative_to(site / "doctrees").with_suffix(".md").as_posix() for path in site.rglob("*.doctree")}
    assert read >= set(PAGES)


@quietly
@pytest.mark.proof
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    """Neither does its template, nor a page by an image or a tag of its own."""
    written = list(site.rglob("*.html"))
    assert {page.stem for page in written} >= {Path(page).stem for page in WRITTEN}
    for file in (*written, *(ROOT / name for name in PAGES)):
        text = file.read_text()
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=.https?:[^>]*>", text), file
        assert not re.findall(r"!\[[^]]*\]\(https?:", text), file


STEP = re.compile(r"(?:`([\w.-]+\.(?:py|toml|txt|json))`[^`]*:\n\n)?```(python|toml|json|text|console)\n(.*?)```", re.S)


def stepped(page: str, folder: Path, wanted: str) -> int:
    """Write the files of a page and run its commands whose line starts with `wanted`, in order; each prints what the
    page shows, where `...` stands for what it omits. Returns how many ran."""
    ran = 0
    for name, kind, text in STEP.findall((ROOT / page).read_text()):
        if name:
            (folder / name).write_text(text)
        if kind != "console":
            continue
        shown: list[str] = text.splitlines()
        lines = [line.removeprefix("$ ") for line in shown if line.startswith("$ ") and line[2:].startswith(wanted)]
        printed = ""
        for line in lines:
            tool, *arguments = shlex.split(line)
            if tool == "packproof":
                printed, ran = packproof_in(folder, *arguments).stdout, ran + 1
            elif tool == "pytest":
                printed, ran = pytest_in(folder, *arguments).stdout, ran + 1
            else:
                subprocess.run(shlex.split(line), cwd=folder, check=True)
        if lines:
            output = "\n".join(line for line in shown if not line.startswith("$ "))
            pattern = re.escape(plain(output)).replace(r"\.\.\.", "[^§]*")
            assert re.fullmatch(pattern, plain(printed)), f"{lines} printed\n{printed}"
    return ran


def test_the_kernel_of_the_page_on_contracts(tmp_path: Path) -> None:
    """Its own terms stand in the verdict, and fail under the contract."""
    assert stepped("docs/contract.md", tmp_path, "packproof check") == 2


def test_the_decode_kernel_of_the_page_on_serving(tmp_path: Path) -> None:
    """It fails as shown; with what the page says of its slots, it holds."""
    page = "docs/serving.md"
    assert stepped(page, tmp_path, "packproof check") == 1
    source = (tmp_path / "decode.py").read_text()
    (tmp_path / "decode.py").write_text(source.replace("state[slots] = h", "state[slots[slots >= 0]] = h[slots >= 0]"))
    done = check(tmp_path, "decode.py:update", "--dtype", "fp32", "--property", "pool")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("kernel", "incorrect", "correct"),
    [
        pytest.param(
            "verify.py:verify",
            "state[slots[-1]].clone()",
            "state[slots[int(num_accepted_tokens[j]) - 1]].clone()",
            marks=pytest.mark.proof,
        ),
        (
            "write.py:write",
            "cache[slots // size, slots % size] = rows",
            "cache[slots[slots >= 0] // size, slots[slots >= 0] % size] = rows[slots >= 0]",
        ),
    ],
)
def test_steps_of_the_page_on_serving_fail_and_hold(kernel: str, incorrect: str, correct: str, tmp_path: Path) -> None:
    file, options = kernel.partition(":")[0], ("--dtype", "fp32", "--property", "reference,pool")
    source = write_files("docs/serving.md", tmp_path)[file]
    failed = check(tmp_path, kernel, *options)
    assert failed.returncode == 1, failed.stdout
    assert incorrect in source
    (tmp_path / file).write_text(source.replace(incorrect, correct))
    held = check(tmp_path, kernel, *options)
    assert held.returncode == 0, held.stdout


@pytest.mark.proof
def test_the_table_of_attention_in_8_bits(tmp_path: Path) -> None:
    assert stepped("docs/ops.md", tmp_path, "packproof bench") == 1


@pytest.mark.proof
def test_the_page_on_ci_word_for_word(tmp_path: Path) -> None:
    assert stepped(CI, tmp_path, "") == 4
