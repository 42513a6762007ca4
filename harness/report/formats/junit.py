"""A run as JUnit XML for continuous integration: one suite per kernel, one case per property and dtype."""

from xml.etree import ElementTree

from packproof.base.files import replace_text, writable_path
from packproof.base.names import short_dtype
from packproof.base.wording import plural, printable
from packproof.harness.report import events
from packproof.harness.report.causes import Faults, cause
from packproof.harness.report.wording.conclusions import tuned_lines
from packproof.harness.report.wording.results import failure_text, headline
from packproof.harness.report.wording.terms import terms_clause


class JunitReport:
    """Rewrites the file after each finished cell. A cell without a verdict is an error: "not run"."""

    def __init__(self, path: str) -> None:
        self._file = writable_path(path, "--junit")
        self._planned: tuple[events.Cell, ...] = ()
        self._verdicts: dict[events.Cell, events.Verdict] = {}
        self._faults = Faults()

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunStarted(cells):
                self._planned = tuple(cell for cell in cells if cell.counts)
                self._write("the run has not reached it", final=False)
            case events.CellFinished(verdict):
                self._verdicts[verdict.cell] = verdict
                self._write("the run has not reached it", final=False)
            case events.RunFinished(verdicts):
                self._verdicts |= {verdict.cell: verdict for verdict in verdicts}
                self._write(event.error or "the run was interrupted", final=True)

    def _write(self, why_not_run: str, *, final: bool) -> None:
        root = ElementTree.Element("testsuites", name="packproof")
        suites: dict[str, list[events.Cell]] = {}
        findings = [cell for cell in self._verdicts if cell.counts and cell not in self._planned]  # slack
        for cell in (*findings, *self._planned):
            suites.setdefault(f"{cell.op} {cell.target} {cell.device}", []).append(cell)
        self._faults = Faults(v for v in self._verdicts.values() if v.failure)
        for name, cells in suites.items():
            suite = ElementTree.SubElement(root, "testsuite", name=printable(name))
            cases = [self._case(suite, cell, why_not_run) for cell in cells]
            suite.set("tests", str(len(cases)))
            for kind, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
                suite.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
            verdicts = [self._verdicts[cell] for cell in cells if cell in self._verdicts]
            if clause := terms_clause(verdicts).removeprefix(", "):
                properties = ElementTree.Element("properties")
                ElementTree.SubElement(properties, "property", name="terms", value=printable(clause))
                suite.insert(0, properties)
            suite.set("time", f"{sum(verdict.seconds for verdict in verdicts):.3f}")
        text = ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
        replace_text(self._file, text, final=final)

    def _case(self, suite: ElementTree.Element, cell: events.Cell, why_not_run: str) -> ElementTree.Element:
        name = {"classname": printable(f"{cell.op}.{cell.target}"), "name": case_name(cell)}
        case = ElementTree.SubElement(suite, "testcase", name)
        verdict = self._verdicts.get(cell)
        if verdict is None:
            ElementTree.SubElement(case, "error", message=printable(f"not run: {why_not_run}"))
            return case
        case.set("time", f"{verdict.seconds:.3f}")
        if verdict.failed:
            failure = ElementTree.SubElement(case, "failure", message=printable(headline(verdict)))
            failure.text = printable(self._failure_text(verdict))
            if verdict.failure and (text := cause(verdict.failure)):
                failure.set("type", printable(text))
        elif verdict.status in ("inconclusive", "error"):
            ElementTree.SubElement(case, "error", message=printable(f"{verdict.status}: {verdict.reason}"))
        elif verdict.status == "skipped":
            skipped = ElementTree.SubElement(case, "skipped", message=printable(verdict.reason))
            skipped.text = printable(self._failure_text(verdict)) if verdict.failure else None
        elif verdict.status == "expected":
            expected = ElementTree.SubElement(case, "skipped", type="expected", message=printable(verdict.reason))
            expected.text = printable(self._failure_text(verdict))
        examples = plural(verdict.examples, "example")
        counts = f"tier {verdict.tier}, {verdict.judged} of {examples} judged, {verdict.refused} refused"
        clause = terms_clause([verdict]).removeprefix(", ")
        lines = [counts, *filter(None, [clause]), *verdict.unasked, *tuned_lines([verdict])]
        ElementTree.SubElement(case, "system-out").text = printable("\n".join(lines))
        return case

    def _failure_text(self, verdict: events.Verdict) -> str:
        """The failure, and the case of its fault that tells more."""
        telling = self._faults.telling(verdict)
        return (
            f"{failure_text(verdict)}\n    the same fault as {case_name(telling.cell)}"
            if telling
            else failure_text(verdict)
        )


def case_name(cell: events.Cell) -> str:
    return f"{cell.law}-{short_dtype(cell.dtype)}"
