"""What each form of packproof's own kernels takes of a GPU, as a file that travels with their source.

A form whose key is that of the record (its source, the target, the options, and Triton, all to the byte) need not be
compiled again. A sample of them is, whenever the record is used, and has to agree.
"""

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from packproof.harness.compile.resources import Resources, keep_resources, key_of, known_resources
from packproof.kernels.variant import Variant
from packproof.refs.errors import UsageError

_SAMPLED = 40  # of so many forms, one is compiled all the same


def read_record(file: str) -> Mapping[str, Resources]:
    """What each form of a record took, by its key. Raises UsageError for a file that holds none."""
    try:
        forms = json.loads(Path(file).read_text(encoding="utf-8"))
        return {
            str(form["key"]): Resources(
                registers=int(form["registers"]),
                spills=int(form["spills"]),
                shared=int(form["shared"]),
                dot=bool(form["dot"]),
                atomics=[str(kind) for kind in form["atomics"]],
                refilled=int(form["refilled"]),
            )
            for form in forms
        }
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        made = "expected a file that `python -m packproof.harness.validation.compiled FILE` wrote"
        raise UsageError(f"record: {file} has no compiled forms ({type(error).__name__}: {error}); {made}") from error


def adopt(record: Mapping[str, Resources], forms: Iterable[tuple[Variant, str]]) -> dict[str, Resources]:
    """Enter the forms of the record, pairs of a variant and a target, into Triton's cache. Returns a sample that was
    left out, with what has to be found, by key: to be compiled and compared.

    Forms that have changed since, and those that this machine has compiled itself, are left as they are.
    """
    same = {}
    for variant, target in forms:
        key = key_of(variant, target)
        if key in record and not known_resources(variant, target):
            same[key] = (variant, target)
    sample = random.SystemRandom().sample(list(same), -(-len(same) // _SAMPLED))
    for key in same.keys() - set(sample):
        keep_resources(*same[key], record[key])
    return {key: record[key] for key in sample}


def disagreement(found: Mapping[str, object], expected: Resources) -> str:
    """What a form takes and the record does not say, in one line; "" where they agree."""
    differing = [f"{name} {found[name]}, not {value}" for name, value in expected.items() if found[name] != value]
    return f"does not take what the record says: {'; '.join(differing)}" if differing else ""
