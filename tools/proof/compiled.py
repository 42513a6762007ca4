"""Compile every form of packproof's own kernels and record the results.

    python -m packproof.proof.compiled FILE

`packproof check --compiled FILE` then compiles only the changed forms, and a sample of the others.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from packproof.base.errors import UsageError
from packproof.base.machine import available_cores
from packproof.harness.check.targets import BUILTIN_KERNELS
from packproof.harness.tiers.compile import compile_variants

_FIELDS = ("registers", "spills", "shared", "dot", "atomics", "refilled", "key")


def recorded_lines() -> Iterator[str]:
    """A JSON line for each form. Forms in Triton's cache are not compiled again. Raises UsageError if one fails."""
    for module in dict.fromkeys(builtin.kernel_module for builtin in BUILTIN_KERNELS.values()):
        for form in map(dict, compile_variants(module, jobs=available_cores())):
            name = f"{module.rpartition('.')[2]} {form['variant']} {form['target']}"
            if failure := form["failure"] or form["skipped"]:
                raise UsageError(f"{name}: {failure}")
            yield json.dumps({"form": name, **{field: form[field] for field in _FIELDS}})


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile every form of packproof's own kernels, and record it.")
    parser.add_argument("file", type=Path, help="such as data/compiled.json")
    arguments = parser.parse_args()
    lines = sorted(recorded_lines())
    arguments.file.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(f"{arguments.file}: {len(lines)} forms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
