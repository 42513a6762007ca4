"""A bench on a CPU in processes of its own: where memory lies differs between processes, and so does the time of the
same code. `python -m packproof.harness.bench.again` reads a request as JSON and prints a document.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from packproof.harness.bench.bench import BenchRequest, run_bench
from packproof.harness.bench.file import PLACE, BenchFile
from packproof.harness.bench.layouts import BenchLayout
from packproof.refs.errors import PackproofError

PROCESSES = 3  # in all


def document_again(request: BenchRequest) -> dict[str, Any]:
    """The document of the same bench in a fresh process. Raises PackproofError where that fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-m", "packproof.harness.bench.again"],
        input=json.dumps(asdict(replace(request, earlier=None))),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PackproofError(f"the bench ended in another process: {done.stderr.strip()[-500:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def keep_the_shortest(document: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Each row of `document` becomes that of `other` where its shortest time, beside fixed work, is shorter there; a
    row that was too noisy here and was not there is taken over."""
    theirs = {_key(row): row for row in other["rows"]}
    mine = [_key(row) for row in document["rows"]]
    document["rows"] = [min((row, theirs.get(_key(row), row)), key=_beside_fixed_work) for row in document["rows"]] + [
        row for key, row in theirs.items() if key not in mine
    ]
    noisy = {_place(row) for row in other["noisy"]}
    document["noisy"] = [row for row in document["noisy"] if _place(row) in noisy]


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*_place(row), row["pass"])


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in PLACE)


def _beside_fixed_work(row: Mapping[str, Any]) -> float:
    """The shortest time in units of the fixed work of the same rounds."""
    least = row["least"]
    beside = least["beside"].values()
    return float(least["ms"]) / math.exp(sum(map(math.log, beside)) / max(len(beside), 1))


def main() -> int:
    given = json.load(sys.stdin)
    layouts = tuple(BenchLayout(layout["name"], tuple(layout["lengths"])) for layout in given.pop("layouts"))
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    file = BenchFile(None, "")
    for event in run_bench(BenchRequest(layouts=layouts, **{**given, **lists})):
        file(event)
    print(json.dumps(file.document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
