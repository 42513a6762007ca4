"""Grades rogues in a throwaway root, as `python -m tests.tools.grading.graded_rogues R1 R2`; prints JSON by id."""

import json
import sys

from packproof.base.records import parse_record
from packproof.grading.grade import GradeRequest, run_grade
from packproof.grading.submission import FixedSubmission
from packproof.harness.report import RunFinished
from packproof.museum.rogues import entries, require_throwaway_root
from packproof.properties.contracts import Contract, ContractFile

_OPS = {"running_sum": "packproof.proof.museum.rogues:RUNNING_SUM"}


def main(*ids: str) -> None:
    require_throwaway_root()
    grades = {}
    for name in ids:
        rogue = entries()[name]
        terms = {"dtypes": ["fp32"], "profile": "quick", **(rogue.contract or {}), "op": _OPS.get(rogue.op, rogue.op)}
        contract = ContractFile("rogue.json", "", parse_record(Contract, terms, name, "packproof"))
        request = GradeRequest(FixedSubmission.read(rogue.kernel), contract, "s", timed=False)
        result = run_grade(request, lambda events: [e for e in events if isinstance(e, RunFinished)][-1])
        grades[name] = (result.verdict, result.reward, result.reason)
        print(name, grades[name], file=sys.stderr, flush=True)
    print(json.dumps(grades))


if __name__ == "__main__":
    main(*sys.argv[1:])
