"""Grades of many submissions: list, engine and results, from one call."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packproof.base.errors import PackproofError, UsageError
from packproof.base.files import replace_text
from packproof.grading.many.engines import Engine, LocalEngine, outcomes
from packproof.grading.many.job import GradeJob, GradeOptions, GradeOutcome
from packproof.grading.many.listing import GradeEntry, ListedSubmission, fixed_entries, read_list
from packproof.grading.many.results import Results, Row
from packproof.grading.submission import drawn_secret
from packproof.harness.process import visible_gpus

_GRADED = (0, 1, 4)  # exit codes with a grade
_REPLAYS = Path(".packproof")


class GradeRun:
    """The grades of many submissions: iterate over it once, inside of `with`, for their rows as they are done.

    submissions: FILE.jsonl, FOLDER:function, or the lines of a list.
    contract: the path of the contract of each submission that has no terms of its own.
    task: or the name of a task.
    options: how each one is graded. Without a secret, one is drawn for all; without a device, it is the GPU if there is
    one.
    cores: of each grade; by default 1, and 4 beside a GPU.
    ray: the address of a Ray cluster, "local" for one of this machine alone; None for processes of this machine.
    results: the file to write the rows to.
    resume: whether to keep the grades that it has.

    Raises UsageError for a list, terms or results that cannot be used; as it is entered, for a cluster. Nothing has run
    then.

    >>> import packproof
    >>> packproof.GradeRun("submissions.jsonl", cores=0)
    Traceback (most recent call last):
    packproof.base.errors.UsageError: cores is 0, expected 1 or more
    """

    def __init__(
        self,
        submissions: str | Sequence[ListedSubmission],
        *,
        contract: str | None = None,
        task: str | None = None,
        options: GradeOptions | None = None,
        cores: int | None = None,
        ray: str | None = None,
        results: str | None = None,
        resume: bool = False,
    ) -> None:
        if cores is not None and cores < 1:
            raise UsageError(f"cores is {cores}, expected 1 or more")
        if resume and results is None:
            raise UsageError("--resume: there is nothing to continue without --results FILE")
        options = options or GradeOptions()
        lines = read_list(submissions) if isinstance(submissions, str) else submissions
        self.entries = {entry.name: entry for entry in fixed_entries(lines, contract, task)}
        self._results = Results(results, resume=resume)
        self.secret = options.secret or _drawn_before(self._results.rows) or drawn_secret()
        self._is_drawn = options.secret is None
        self.graded_before = self._results.keep_grades(self.entries, self.secret)
        """The names of those that the results have already."""
        self._options, self._ray, self._cores = replace(options, secret=self.secret), ray, cores

    def __enter__(self) -> "GradeRun":
        try:
            self._engine = _engine(self._options.device, self._ray, self._cores)
        except BaseException:
            self._results.close()
            raise
        self._options = replace(self._options, device=self._engine.device)
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()
        self._results.close()

    def __iter__(self) -> Iterator[Row]:
        for name, outcome in outcomes(self._engine, self._jobs()):
            row = self._row(self.entries[name], outcome)
            self._results.add(row)
            yield row

    def _jobs(self) -> Iterator[tuple[str, GradeJob]]:
        for name, entry in self.entries.items():
            if name not in self.graded_before:
                yield name, entry.job(self._options, self._engine.cores)

    def _row(self, entry: GradeEntry, outcome: GradeOutcome | PackproofError) -> Row:
        """The line of a submission. Only `measured` and `run` do not follow from submission, contract and secret."""
        row: Row = {"name": entry.name, "secret": self.secret if self._is_drawn else None}
        if isinstance(outcome, PackproofError):
            return {**row, "error": str(outcome)}
        run = {"host": outcome.host, "seconds": outcome.seconds}
        if outcome.code not in _GRADED:
            return {**row, "error": outcome.errors.strip() or f"exit code {outcome.code}", "run": run}
        document = json.loads(outcome.document)
        if document["grade"]["seed"] != entry.submission.seed(self.secret, entry.terms.digest):
            return {**row, "error": f"{outcome.host} graded other files than those of the list", "run": run}
        _write_replays(outcome)
        return {**row, **document, "run": run}


def _write_replays(outcome: GradeOutcome) -> None:
    """Write the replay file of a counterexample where `packproof grade` would."""
    for path, text in outcome.replays.items():
        _REPLAYS.mkdir(exist_ok=True)
        replace_text(_REPLAYS / Path(path).name, text)


def _drawn_before(rows: Sequence[Row]) -> str | None:
    """The secret that the run before drew; None without rows. Raises UsageError if its caller chose one."""
    if not rows:
        return None
    if rows[0]["secret"] is None:
        raise UsageError("--secret: the results have grades by a secret of their caller; --resume needs the same one")
    return str(rows[0]["secret"])


def _engine(device: str | None, ray: str | None, cores: int | None) -> Engine:
    """What makes the grades."""
    if ray is not None:
        from packproof.grading.many.cluster import RayEngine  # noqa: PLC0415  (asks for Ray)

        return RayEngine(ray, device, cores)
    gpus = _gpus() if device != "cpu" else []
    if device == "cuda" and not gpus:
        raise UsageError("device: no GPU is here, and the device is cuda")
    return LocalEngine(gpus, cores)


def _gpus() -> Sequence[str]:
    """The GPUs of this machine, as values of CUDA_VISIBLE_DEVICES."""

    import torch  # noqa: PLC0415  (takes long)

    count = torch.cuda.device_count()
    return visible_gpus()[:count] or [str(number) for number in range(count)]
