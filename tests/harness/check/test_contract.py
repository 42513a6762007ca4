"""Two sides of a check: a kernel's own terms stand in every report, and under a contract they fail."""

import io
import json
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import packproof
from packproof.base.errors import UsageError
from packproof.cli.ending import Report, exit_code, follow
from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest, checked
from packproof.harness.process import zygote_client
from packproof.harness.report.formats import HtmlReport, JsonReport, JunitReport, TerminalReport
from packproof.harness.report.formats.github import summary
from tests.in_process import packproof_in

KERNELS = "tests.harness.check.contract_kernels"
CONTRACT = {
    "op": "causal_conv1d",
    "gradients": True,
    "dtypes": ["fp32", "bf16"],
    "promises": {"compute": "fp32"},
    "profile": "quick",
}
OWN_TERMS = {  # by kernel: its own terms, and what its contract has instead
    "narrow": ("d == 1, w == 1", "calls outside of it, as with d = 3"),
    "without_gradients": ("no gradients", "gradients"),
    "without_slack": ("no slack", "rows past the last sequence"),
    "in_fp32": ("no bf16", "bf16"),
    "in_tf32": ('compute="tf32"', 'compute="fp32"'),
    "with_cumsum": ("cumsum=True", "cumsum=False"),
    "with_saved_outputs": ("saved_outputs=True", "saved_outputs=False"),
    "with_huge_chunks": ("chunk=4096", "chunks of at most 1024 tokens"),
    "silu_alone": ("activation='silu' alone", "every activation"),
    "own_op": ("an Op of its own, with its reference and budget", "causal_conv1d"),
}
NAMES = [
    name if name in ("without_gradients", "without_slack", "in_tf32") else pytest.param(name, marks=pytest.mark.proof)
    for name in OWN_TERMS
]
OP = """
import packproof


def tripled(x, *, cu_seqlens):
    inside = packproof.refs.seq_idx_from_cu_seqlens(cu_seqlens, len(x))[:, None] >= 0
    return (3 * x).where(inside, 0)


OP = packproof.Op(
    name="tripled", reference=tripled, inputs={"x": "t d"}, outputs={"y": "t d"}, sizes=({"d": 3},), matmul=False
)
"""
pytestmark = pytest.mark.usefixtures("working_folder")


def contract(folder: Path, **fields: Any) -> str:
    file = folder / "contract.json"
    file.write_text(json.dumps({**CONTRACT, **fields}))
    return str(file)


def reports(kernel: str, **options: Any) -> tuple[int, Mapping[str, str]]:
    """The exit code of a small check, and the text of each report."""
    values = {"dtypes": ["fp32"], "properties": ["determinism"], "profile": "quick", **options}
    screen = io.StringIO()
    console = Console(file=screen, width=1000, markup=False, emoji=False, highlight=False)
    files: list[Report] = [JsonReport("r.json"), JunitReport("r.xml"), HtmlReport("r.html")]
    request = checked({"target": f"{KERNELS}:{kernel}", "device": "cpu", **values})
    code = exit_code(follow(run_check(request), [TerminalReport(console), *files]))
    document = json.loads(Path("r.json").read_text())
    return code, {
        "terminal": screen.getvalue(),
        "json": json.dumps(document, ensure_ascii=False).replace('\\"', '"'),
        "junit": unescape(Path("r.xml").read_text()),
        "html": unescape(Path("r.html").read_text()),
        "markdown": unescape("\n".join(summary(document["results"], code, document["terms_text"]))),
    }


@pytest.mark.parametrize("kernel", [name for name in NAMES if "with_huge_chunks" not in str(name)])  # they take minutes
def test_what_a_kernel_declares_stands_in_the_verdict_of_every_report(kernel: str) -> None:
    text, _ = OWN_TERMS[kernel]
    narrows_dtypes = {"dtypes": None} if kernel == "in_fp32" else {}
    code, texts = reports(kernel, **narrows_dtypes)
    assert code == 0, texts["terminal"]
    shown = text.replace("no bf16", "no bf16, fp16")
    for name, report in texts.items():
        assert f"on the kernel's own terms ({shown})" in report, name
    assert texts["terminal"].rstrip().splitlines()[-1].startswith("every property held, on the kernel's own terms (")


@pytest.mark.parametrize("kernel", NAMES)
def test_under_a_contract_it_is_a_failure_in_every_report(kernel: str, tmp_path: Path) -> None:
    text, against = OWN_TERMS[kernel]
    code, texts = reports(kernel, contract=contract(tmp_path))
    assert code == 1, texts["terminal"]
    for name, report in texts.items():
        for part in text.split(", w == 1"):
            assert part in report, name
        assert f"the contract has {against}" in report, name
        assert "under contract.json (sha256 " in report, name
        assert "own terms" not in report, name


@pytest.mark.parametrize(("kernel", "fixed"), [("plain", {}), ("strict", {}), ("without_bias", {})])
def test_a_correct_kernel_holds_under_a_contract(kernel: str, fixed: dict[str, Any], tmp_path: Path) -> None:
    code, texts = reports(kernel, contract=contract(tmp_path))
    assert code == 0, texts["terminal"]
    own = ", on the kernel's own terms (no bias, initial_states, return_final_states)"
    last = texts["terminal"].rstrip().splitlines()[-1]
    assert last.startswith("every property held, under contract.json (sha256 ")
    assert (own in last) == (kernel == "without_bias")


def test_an_input_that_the_contract_asks_for_has_to_be_taken(tmp_path: Path) -> None:
    code, texts = reports("without_bias", contract=contract(tmp_path, takes=["bias"]))
    assert code == 1
    assert "inputs: the kernel takes no bias, the contract has bias" in texts["terminal"]
    assert "on the kernel's own terms (no initial_states, return_final_states)" in texts["terminal"]


@pytest.mark.parametrize("kernel", ["refusing", "without_backward"])
def test_a_refusal_is_a_failure_under_a_contract(kernel: str, tmp_path: Path) -> None:
    """Also in the case that its replay file runs again."""
    code, texts = reports(kernel, contract=contract(tmp_path), properties=["reference"])
    assert code == 1
    assert "the kernel refuses this call, and its contract has it" in texts["terminal"]
    [file] = Path(".packproof").iterdir()
    again = packproof.replay(file)
    assert again.status == "failing", again.text


@pytest.mark.parametrize("under_contract", [True, False])
def test_a_kernel_that_excuses_itself_like_an_adapter_fails(under_contract: bool, tmp_path: Path) -> None:
    fixed = {"contract": contract(tmp_path)} if under_contract else {"op": "causal_conv1d"}
    code, texts = reports("excusing", properties=["reference"], **fixed)
    assert code == 1
    assert "only packproof's adapters may raise this" in texts["terminal"]


def test_calls_without_memory_are_no_pass_under_a_contract(tmp_path: Path) -> None:
    code, texts = reports("short_of_memory", properties=["reference"], op="causal_conv1d")
    assert code == 0
    assert "1 passed in part" in texts["terminal"]
    code, texts = reports("short_of_memory", properties=["reference"], contract=contract(tmp_path, dtypes=["fp32"]))
    assert code == 4
    assert "examples are too large to be judged here: RuntimeError" in texts["terminal"]
    assert "inconclusive: no property failed, but not everything could be judged, under" in texts["terminal"]


def test_a_refusal_stands_in_the_verdict_without_one() -> None:
    code, texts = reports("refusing", op="causal_conv1d")
    assert code == 0, texts["terminal"]
    for name, report in texts.items():
        assert "on the kernel's own terms (" in report, name
        assert "refuses calls outside of d == 1" in report, name


def test_the_contracts_op_is_not_replaced(tmp_path: Path) -> None:
    """The kernel's own Op makes zeros correct; by the contract's they are not, and its module is not imported here."""
    code, texts = reports("own_op", contract=contract(tmp_path), properties=["reference"])
    assert code == 1
    assert "reference (y)" in texts["terminal"]


def test_an_op_of_a_file_is_imported_before_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that writes another op into its file, when it is imported, changes nothing; also without walls."""
    monkeypatch.setattr(zygote_client, "_isolation", "none")
    (tmp_path / "contest.py").write_text(OP)
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n"
        "op = Path(__file__).with_name('contest.py')\n"
        "op.write_text(op.read_text().replace('3 * x', '0 * x'))\n"
        "def tripled(x, *, cu_seqlens):\n    return 0 * x\n"
    )
    file = contract(tmp_path, op="contest.py:OP", promises={})
    with pytest.raises(packproof.CheckFailed, match="reference"):
        packproof.check("mine.py:tripled", contract=file, device="cpu", dtypes=["fp32"], properties=["reference"])
    assert "0 * x" in (tmp_path / "contest.py").read_text()


def test_a_kernel_is_judged_outside_of_its_own_domain(tmp_path: Path) -> None:
    _, texts = reports("narrow", contract=contract(tmp_path), properties=["reference"])
    assert "reference (y)" in texts["terminal"]


def test_reports_have_the_contract_and_its_digest(tmp_path: Path) -> None:
    _, texts = reports("plain", contract=contract(tmp_path))
    document = json.loads(Path("r.json").read_text())
    digest = document["contract"]["digest"]
    assert document["contract"]["contract"]["promises"]["compute"] == "fp32"
    assert all(digest in texts[name] for name in ("terminal", "json", "html"))
    assert all(digest[:12] in text for text in texts.values())
    sources = {(term["source"], term["subject"], term["text"]) for term in document["terms"]}
    assert {("contract", "dtypes", "bf16"), ("caller", "properties", "determinism")} <= sources
    assert "in part (fp32; determinism)" in texts["terminal"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"op": "rope"}, "op: the contract .* fixes causal_conv1d; leave op out"),
        ({"dtypes": ["fp16"]}, "dtypes: the contract .* has float32, bfloat16, and not float16"),
        ({"promises": packproof.Promises()}, "promises: the contract .* fixes them"),
        ({"expected_failures": "known.toml"}, "expected_failures: the contract .* allows no failure"),
    ],
    ids=str,
)
def test_an_option_with_another_value_is_a_wrong_call(option: dict[str, Any], words: str, tmp_path: Path) -> None:
    Path("known.toml").write_text("")
    with pytest.raises(UsageError, match=words):
        checked({"target": f"{KERNELS}:plain", "contract": contract(tmp_path), **option})


def test_a_contract_may_forbid_what_others_compute(tmp_path: Path) -> None:
    assert checked({"contract": contract(tmp_path, own_kernels_only=True)}).only_own_kernels


def test_the_profile_is_the_larger_one(tmp_path: Path) -> None:
    def profile(asked: str, least: str) -> str:
        return checked({"contract": contract(tmp_path, profile=least), "profile": asked}).profile

    assert [profile("quick", "standard"), profile("thorough", "standard"), profile("quick", "quick")] == [
        "standard",
        "thorough",
        "quick",
    ]


def test_the_contract_is_read_once(tmp_path: Path) -> None:
    """A kernel that rewrites the file when it is imported changes nothing."""
    request = checked({"target": f"{KERNELS}:plain", "contract": contract(tmp_path)})
    contract(tmp_path, op="rope")
    assert isinstance(request, CheckRequest)
    assert request.contract is not None
    assert request.contract.contract.op == "causal_conv1d"


@pytest.mark.proof
def test_python_takes_a_contract(tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "dtypes": ["fp32"], "properties": ["determinism"]}
    file = contract(tmp_path)
    verdicts = packproof.check(f"{KERNELS}:plain", contract=file, **options)
    assert {term.source for term in verdicts[0].terms} == {"contract", "caller"}
    with pytest.raises(packproof.CheckFailed, match="slack: the kernel declares no slack"):
        packproof.check(f"{KERNELS}:without_slack", contract=file, **options)


def test_the_command_writes_the_default_contract(tmp_path: Path) -> None:
    done = packproof_in(tmp_path, "contract", "ssd")
    assert json.loads(done.stdout)["promises"]["cumsum"] is True
    assert packproof_in(tmp_path, "contract", "sdd").returncode == 2
