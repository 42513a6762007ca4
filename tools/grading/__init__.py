"""Grades of kernels that are handed in, to contests and training environments: a verdict, times and a reward."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.grading.grade import GradeRequest, fixed, grade, run_grade
    from packproof.grading.many.grades import GradeRun
    from packproof.grading.many.job import GradeOptions
    from packproof.grading.record import Grade, grade_text
    from packproof.grading.summary import summary_lines
    from packproof.grading.tasks.task import task_lines, terms_of_grade

__all__ = [
    "Grade",
    "GradeOptions",
    "GradeRequest",
    "GradeRun",
    "fixed",
    "grade",
    "grade_text",
    "run_grade",
    "summary_lines",
    "task_lines",
    "terms_of_grade",
]

export(
    sys.modules[__name__],
    {
        "packproof.grading.grade": ("GradeRequest", "fixed", "grade", "run_grade"),
        "packproof.grading.many.grades": ("GradeRun",),
        "packproof.grading.many.job": ("GradeOptions",),
        "packproof.grading.record": ("Grade", "grade_text"),
        "packproof.grading.summary": ("summary_lines",),
        "packproof.grading.tasks.task": ("task_lines", "terms_of_grade"),
    },
)
