"""docs/context_parallel.md and docs/notes/scaling.md run, and print what they show."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import packproof
from packproof.bench.ranks import model
from tests.test_docs import FILE, OUTPUT, PYTHON, ROOT, blotted, check, failure_block, run, write_files

PAGE = "docs/context_parallel.md"


@pytest.mark.proof
def test_the_implementation_of_the_page_fails_as_it_shows(working_folder: Path) -> None:
    write_files(PAGE, working_folder)
    done = check(working_folder, "halo.py:conv", "--property", "partition", "--dtype", "fp32")
    [shown] = [text for text in OUTPUT.findall((ROOT / PAGE).read_text()) if "FAILED" in text]
    assert failure_block(done.stdout) == blotted(shown.rstrip())
    [replay] = re.findall(r"packproof replay (\S+)", done.stdout)
    assert "on rank 2: got" in packproof.replay(replay).text


def test_the_other_examples_run() -> None:
    text = (ROOT / PAGE).read_text()
    blocks = [block for block in PYTHON.findall(text) if not block.startswith('"""')]
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert blocks


def test_the_cost_model_prints_what_the_page_shows(tmp_path: Path) -> None:
    write_files("docs/notes/scaling.md", tmp_path)
    [shown] = OUTPUT.findall((ROOT / "docs/notes/scaling.md").read_text())
    assert run(tmp_path, "scaling.py").stdout == shown


def test_it_is_the_model_of_the_command() -> None:
    names: dict[str, Any] = {}
    exec(dict(FILE.findall((ROOT / "docs/notes/scaling.md").read_text()))["scaling.py"], names)
    constants = ("LATENCY", "NVLINK", "NETWORK", "NODE")
    assert [names[name] for name in constants] == [getattr(model, name) for name in constants]
    for name in ("SSD", "SCAN"):
        page, command = names[name], getattr(model, name)
        assert (page.messages, page.whole, page.host) == (command.messages, command.full_ms, command.host_ms)
    for ranks in (2, 64):
        assert names["gather"](ranks, 1_000_000) == model.gather_ms(ranks, 1_000_000)


def test_its_terms_of_one_gpu_are_those_that_were_measured() -> None:
    names: dict[str, Any] = {}
    exec(dict(FILE.findall((ROOT / "docs/notes/scaling.md").read_text()))["scaling.py"], names)
    measured = json.loads((ROOT / "data/bench-h200.json").read_text())["rows"]
    ours = [r for r in measured if (r["implementation"], r["pass"]) == ("packproof", "both")]
    rows = {(r["op"], r["layout"]): r for r in ours}
    for op, terms in (("ssd", names["SSD"]), ("selective_scan", names["SCAN"])):
        row = rows[op, "L4"]
        assert (terms.whole, terms.host) == tuple(round(row[name]["median"], 3) for name in ("ms", "host_ms"))
