"""`packproof model`: exit codes, the leak that it prints, and wrong calls."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from packproof.cli.main import run
from packproof.cli.model_table import TableReport, print_conclusion
from packproof.cli.tried_conventions import TriedConventions
from packproof.harness.report.events import Cell, CellFinished, Event, Failure, RunFinished, Verdict
from packproof.models import module_request, run_module_check
from packproof.models.subjects.conventions import CONVENTIONS
from packproof.models.target import load_module
from tests.sweeps import sweep

LAYERS = """
import torch
from packproof import refs

class Leaky(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(8, 8, 4, padding=3, groups=8)
        self.out = torch.nn.Linear(8, 8)

    def forward(self, x, cu_seqlens):
        return self.out(self.conv(x.mT)[..., : x.shape[1]].mT)

class Right(Leaky):
    def forward(self, x, cu_seqlens):
        y = refs.causal_conv1d(x[0], self.conv.weight[:, 0], self.conv.bias, cu_seqlens=cu_seqlens)
        return self.out(y)[None]

class Shifted(Right):
    def forward(self, x, cu_seqlens):
        return super().forward(x, cu_seqlens) + len(cu_seqlens)

class Deaf(Leaky):
    def forward(self, x):
        return super().forward(x, None)

class Named(Right):
    def forward(self, x, cu_seqlens):
        return {"hidden": super().forward(x, cu_seqlens), "loss": x.sum()}

class Crashes(Right):
    def forward(self, x, cu_seqlens):
        import ctypes
        ctypes.string_at(0)

class Exits(Right):
    def forward(self, x, cu_seqlens):
        raise SystemExit("no GPU")

class Hangs(Right):
    def forward(self, x, cu_seqlens):
        import time
        while True:
            time.sleep(1)

class Nan(Right):
    def forward(self, x, cu_seqlens):
        return super().forward(x, cu_seqlens) * float("nan")

def nothing():
    return 3

def broken():
    raise ValueError("no such size")
"""


@pytest.fixture
def layers(working_folder: Path) -> None:
    (working_folder / "layers.py").write_text(LAYERS)


WIDE = ["--inputs", "8", "--profile", "quick"]
FILES = ["--json", "r.json", "--junit", "r.xml", "--html", "r.html"]


@pytest.mark.usefixtures("layers")
def test_a_leak_is_named_with_its_module(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "layers.py:Leaky", *WIDE, "--convention", "cu_seqlens"]) == 1
    out = capfd.readouterr().out
    assert "cu_seqlens · layers.py:Leaky · FAILED  isolation" in out
    assert "first module that leaks: conv (Conv1d)" in out


@pytest.mark.usefixtures("layers")
def test_a_correct_module_passes_and_is_found_among_all_conventions(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "layers.py:Right", *WIDE, *FILES]) == 0
    out = capfd.readouterr().out
    assert "\nhf_position_ids                  refused     forward takes no position_ids\n" in out
    assert out.splitlines()[-1] == "1 of 19 conventions hold: cu_seqlens"
    assert '"cu_seqlens"' in Path("r.json").read_text()
    assert_files_say("passed")


def assert_files_say(verdict: str) -> None:
    """The files of a run end with this verdict."""
    document, page = json.loads(Path("r.json").read_text()), Path("r.html").read_text()
    assert (document["verdict"], document["finished"]) == (verdict, True)
    failures, errors = junit_counts("r.xml")
    assert (bool(failures), bool(errors)) == (verdict == "failed", verdict != "passed")
    assert f'<h1 class="{verdict}">' in page
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(re.findall(r'id="([^"]+)"', page))


def junit_counts(path: str) -> tuple[int, int]:
    """The failures and errors of a file."""
    suites = ElementTree.parse(path).getroot()
    return sum(int(suite.get("failures", "")) for suite in suites), sum(
        int(suite.get("errors", "")) for suite in suites
    )


LLAMA = """
hf_position_ids                  holds
hf_mrope                         refused     RuntimeError: The size of tensor
hf_mrope_text                    refused     RuntimeError: The size of tensor
hf_flash_kwargs                  holds
hf_flash_kwargs_no_position_ids  ignored     its arguments change no bit
hf_flash_kwargs_no_seq_idx       holds
hf_cache                         leaks       at layers.0.self_attn
hf_ones_mask                     leaks       at layers.0.self_attn
mask4d                           holds
mask4d_additive                  holds
flex                             refused     AttributeError: 'BlockMask' object
segment_ids                      ignored     its arguments change no bit
document_ids                     ignored     its arguments change no bit
seq_idx                          ignored     its arguments change no bit
seq_lens                         ignored     its arguments change no bit
cu_seqlens                       ignored     its arguments change no bit
cu_seqlens_flat                  refused     IndexError: tuple index out of ran
packed_seq_params                ignored     its arguments change no bit
engine                           ignored     its arguments change no bit
"""


@pytest.fixture(scope="module")
def llama_events() -> list[Event]:
    target = "tests.tools.models.llama:Llama"
    request = module_request(load_module(target), convention=None, profile="quick", name=target, target=target)
    return list(run_module_check(request, in_own_processes=True))


def printed(events: list[Event], capfd: pytest.CaptureFixture[str], *, details: bool) -> str:
    """The table of a check in which a convention holds."""
    report = TableReport(details=details)
    for event in events:
        report(event)
    assert isinstance(end := events[-1], RunFinished)
    assert print_conclusion(end, len(CONVENTIONS), details=details) == 0
    return capfd.readouterr().out


@pytest.mark.proof
def test_all_conventions_of_a_llama_are_one_table(llama_events: list[Event], capfd: pytest.CaptureFixture[str]) -> None:
    lines = printed(llama_events, capfd, details=False).splitlines()
    assert len(lines) <= 30
    assert all(len(row) <= 80 for row in lines)
    rows = [row for row in lines if row.partition(" ")[0] in CONVENTIONS]
    assert [row.partition(" a…")[0].removesuffix("…") for row in rows] == LLAMA.splitlines()[1:]
    assert lines[-1] == "5 of 19 conventions hold: hf_position_ids, hf_flash_kwargs and 3 more"
    details = printed(llama_events, capfd, details=True)
    assert details.endswith(f"\n{lines[-1]}\n")
    assert "    accepted without effect: attention_mask: for one document the output has the same bits\n" in details
    assert details.count("FAILED  isolation") == 10
    assert re.search(r"\nhf_mrope +refused +RuntimeError: .* must match the size of .*\n", details)


@pytest.mark.usefixtures("layers")
@sweep(
    "name, code, words",
    sample=[
        ("Shifted", 1, "no convention holds; differs: 1, refused: 18"),
    ],
    rest=[
        ("Deaf", 4, "no convention holds; refused: 19"),
        ("Crashes", 1, "no convention holds; crashes: 2, refused: 17"),
        ("Leaky", 1, "no convention holds; ignored: 1, refused: 17, not judged: 1"),
    ],
)
def test_the_last_line_the_files_and_the_exit_code_agree_if_none_holds(
    capfd: pytest.CaptureFixture[str], name: str, code: int, words: str
) -> None:
    details = name == "Shifted"
    assert run(["model", f"layers.py:{name}", *WIDE, *FILES, *["--details"] * details]) == code
    assert_files_say("failed" if code == 1 else "inconclusive")
    out = capfd.readouterr().out
    assert out.splitlines()[-1] == words
    assert (" · FAILED  " in out, "--details for all" in out) == (details, not details)
    if name == "Shifted":
        assert "\ncu_seqlens                       differs     at the model itself\n" in out
    if name == "Crashes":
        assert "\ncu_seqlens                       crashes     the module did not return: its pro" in out


@pytest.mark.proof
@pytest.mark.usefixtures("working_folder")
def test_the_files_have_each_convention_that_does_not_hold() -> None:
    assert run(["model", "tests.tools.models.llama:Llama", "--profile", "quick", *FILES]) == 0
    assert_files_say("passed")
    document = json.loads(Path("r.json").read_text())
    results = {(result["op"], result["property"]): result for result in document["results"]}
    leak = results["hf_ones_mask", "isolation"]
    assert (leak["status"], "first module that leaks" in leak["message"]) == ("skipped", True)
    assert leak["reason"].startswith("isolation")
    assert "first module that leaks" in Path("r.html").read_text()


@pytest.mark.parametrize(
    ("settings", "counted"),
    [({}, True), ({"interrupted": True}, False), ({"error": "ValueError: no"}, False)],
)
def test_an_unfinished_run_does_not_say_that_no_convention_holds(settings: dict[str, Any], counted: bool) -> None:
    cell = Cell("cu_seqlens", "mine.py:Model", "isolation", "float32", "cpu")
    failure = Failure((1, 1), "y", ("first module that leaks: conv",), 1, 0)
    failed = Verdict(cell, "eager", "failed", 1, 1.0, judged=1, failure=failure)
    events: list[Event] = []
    report = TriedConventions(events.append)
    report(CellFinished(failed))
    report(RunFinished((failed,), 1.0, **settings))
    [cell_finished, run_finished] = events
    assert isinstance(cell_finished, CellFinished)
    assert isinstance(run_finished, RunFinished)
    assert cell_finished.verdict.status == "skipped"
    assert run_finished.verdicts[0].status == ("failed" if counted else "skipped")


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        (RunFinished((), 1.0, interrupted=True), 130, "interrupted: not every convention was judged"),
        (RunFinished((), 1.0, error="ValueError: no"), 3, "packproof itself failed: ValueError: no"),
        (RunFinished((), 1.0, write_failed=True), 2, "a report could not be written; nothing was judged"),
    ],
)
def test_the_last_line_and_the_exit_code_agree_if_the_run_was_cut_short(
    capfd: pytest.CaptureFixture[str], end: RunFinished, code: int, words: str
) -> None:
    assert print_conclusion(end, 19, details=True) == code
    assert capfd.readouterr().out == f"\n{words}\n"


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "Named",
            "output: forward returned dict of hidden, loss, without logits or last_hidden_state; name the tensor",
        ),
        ("Named --output lgits", "output: forward returned dict of hidden, loss, without lgits; name the tensor"),
        ("Named --output loss", "output: it has shape (), expected (21, ...) or (1, 21, ...): one row for each token"),
        ("Exits", "the module refused: SystemExit: no GPU"),
    ],
)
def test_what_cannot_be_judged_is_no_fault_of_packproof(
    capfd: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    line = f"model layers.py:{name} --convention cu_seqlens"
    assert run([*line.split(), *WIDE]) == 4
    out, err = capfd.readouterr()
    assert words in out
    assert (err, "packproof itself failed" in out) == ("", False)


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Crashes", "the module did not return: its process was killed by SIGSEGV (Segmentation fault)"),
        ("Hangs --timeout 1", "the module did not return: its process gave no answer within 1 s"),
    ],
)
def test_a_call_that_does_not_return_fails_and_its_line_is_named(
    capfd: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    line = f"model layers.py:{name} --convention cu_seqlens"
    assert run([*line.split(), *WIDE]) == 1
    out, err = capfd.readouterr()
    assert words in out
    assert re.search(r"layers\.py\", line \d+ in forward", out)
    assert "packing, padding: the module crashed in the property before" in out
    assert err == ""


@pytest.mark.usefixtures("layers")
def test_nan_everywhere_is_not_equal_to_the_documents_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "layers.py:Nan", *WIDE, "--convention", "cu_seqlens"]) == 1  # there is NaN in padding too
    assert "packing: document 0 is not finite, of the document alone either; so are" in capfd.readouterr().out


@pytest.mark.usefixtures("layers")
def test_an_output_may_be_named_in_a_dict() -> None:
    assert run(["model", "layers.py:Named", *WIDE, "--convention", "cu_seqlens", "--output", "hidden"]) == 0


def test_conventions_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "--conventions"]) == 0
    assert "hf_cache" in capfd.readouterr().out


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("model", "target: none came"),
        ("model layers.py:Right --convention hf_flash", "no convention is called 'hf_flash'"),
        ("model layers.py:Right --device gpu", "no device is called 'gpu'"),
        ("model layers.py:Right --dtype fp23", "no dtype is called 'fp23'"),
        ("model layers.py:Right", "inputs: Right has no nn.Embedding"),
        ("model layers.py:nothing", "layers.py:nothing: int, expected an nn.Module"),
        ("model layers.py:broken", "no module can be made: ValueError: no such size"),
        ("model layers.py:absent", "has no absent"),
        ("model absent.py:Right", "there is no file absent.py"),
        ("model absent/config.json", "there is no absent/config.json"),
        ("model .", "there is no config.json"),
        (
            "model absent",
            "target 'absent': no such folder, and no config.json; expected one, as transformers writes it",
        ),
        ("model layers.py:Right --convention layers.py:ENDS", "layers.py has no ENDS"),
        ("model layers.py:Right --mode training", "no mode is called 'training'"),
        ("model layers.py:Right --attention flash", "no attention is called 'flash'"),
        ("model layers.py:Right --matrix --mode train", "--matrix: it has every mode and attention"),
    ],
)
def test_a_wrong_call_is_one_line(line: str, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    err = capfd.readouterr().err
    assert words in err
    assert len(err.splitlines()) == 1
