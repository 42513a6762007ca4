"""The JSON results of a check for GitHub Actions: a summary of the job, and annotations where the kernel is defined.

`python -m packproof.harness.report.formats.github check.json EXIT_CODE` prints the annotations, and appends the summary
to the file $GITHUB_STEP_SUMMARY.
"""

import ast
import json
import os
import sys
from collections.abc import Iterator, Mapping
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packproof.base.wording import plural, printable
from packproof.harness.report.formats.table import markdown_table, numbers, texts

_ENDINGS = {
    0: "every property held",
    1: "a property failed",
    2: "the call was wrong",
    3: "packproof itself failed",
    4: "no property failed, but not everything could be judged",
    130: "the run was interrupted",
}
_STALE = "an expected failure is stale (exit code 1)"
_MOST_LINES = 6  # of a failure, in an annotation
_COLUMNS = (*texts("kernel", "property", "dtype", "result"), *numbers("examples"))

Results = list[Mapping[str, Any]]


def annotations(results: Results, code: int) -> Iterator[str]:
    """A workflow command for each failed or undecided result; one for the run if it failed without any."""
    bad = [r for r in results if r["status"] in ("failed", "stale", "error", "inconclusive")]
    for r in bad:
        kind = "warning" if r["status"] == "inconclusive" else "error"
        lines = printable(r.get("message") or r.get("reason") or r["status"]).splitlines()[:_MOST_LINES]
        text = "\n".join([*lines, *([f"packproof replay {r['replay']}"] if r.get("replay") else [])])
        location = "".join(
            f"{name}={_escape_property(str(value))}," for name, value in _definition(r["target"]).items()
        )
        title = _escape_property(f"packproof: {r['op']} {r['property']} {r['dtype']} {r['status']}")
        yield f"::{kind} {location}title={title}::{_escape_data(text)}"
    if code and not bad:
        yield f"::error title=packproof::{_escape_data(_ending_text(code))}; the log of this step has the reason"


def summary(results: Results, code: int, terms: str = "") -> Iterator[str]:
    """The lines of the summary, in Markdown: the outcome, a table of the results, and each fault in full.

    terms: on which the results were reached, "" for all of the op.
    """
    stale = code == 1 and not any(r["status"] == "failed" for r in results) and bool(results)
    yield f"### packproof: {_STALE if stale else _ending_text(code)}{f', {escape(printable(terms))}' if terms else ''}"
    if not results:
        yield from ("", "There are no results: the log of the step has the reason.")
        return
    yield ""
    yield from markdown_table(_COLUMNS, map(_cells, results))
    for r in results:
        if r.get("message") and "same_fault_as" not in r:
            yield from ("", f"<pre>{escape(printable(r['message']))}</pre>")
    judged_text = plural(sum(r["judged"] for r in results), "example")
    yield from ("", f"{judged_text} judged. The artefact of this job has the HTML report and the replay files.")


def _ending_text(code: int) -> str:
    return f"{_ENDINGS.get(code, 'it ended')} (exit code {code})"


def _cells(result: Mapping[str, Any]) -> list[str]:
    label = "passed in part" if result["status"] == "passed" and result.get("unasked") else result["status"]
    status = f"**{label}**" if label in ("failed", "stale") else label
    cells = result["target"], f"{result['op']} {result['property']}", result["dtype"], status, str(result["judged"])
    return [escape(printable(text)) for text in cells]


def _escape_data(text: str) -> str:
    """Escape a message of a workflow command: the command ends at the end of its line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(printable(text)).replace(":", "%3A").replace(",", "%2C")


def _definition(target: str) -> dict[str, object]:
    """File and line of a kernel's definition, relative to the working directory; {} for a file outside of it."""
    module_or_file, _, qualname = target.rpartition(":")
    try:
        file = Path(module_or_file if module_or_file.endswith(".py") else _source_file(module_or_file)).resolve()
        tree = ast.parse(file.read_bytes())
        location = {"file": file.relative_to(Path.cwd()).as_posix()}
    except Exception:  # find_spec imports the parent packages, which may raise anything
        return {}
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    lines = [node.lineno for node in functions if node.name == qualname.rpartition(".")[2]]
    return {**location, "line": lines[0]} if lines else dict(location)


def _source_file(module: str) -> str:
    spec = find_spec(module)
    return spec.origin or "" if spec else ""


def main(path: str, code: int) -> None:
    """Report a run by its results and exit code. A refused run has written no file."""
    file = Path(path)
    document = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"results": []}
    results = document["results"]
    print("\n".join(annotations(results, code)))
    if target := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(target, "a", encoding="utf-8") as out:
            print("\n".join(summary(results, code, document.get("terms_text", ""))), file=out)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
