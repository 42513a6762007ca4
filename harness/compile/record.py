"""The record of packproof's own kernels: GPU resources of each form (a variant on one target), kept with the source.

The key of a form is a digest of its source, target, options and Triton version, exact to the byte. A form with a
recorded key is not compiled again. Each use of the record compiles a random sample of the forms, which has to agree.
"""

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from packproof.harness.compile.resources import Resources, keep_resources, key_of, known_resources
from packproof.kernels.variant import Variant
from packproof.refs.errors import UsageError

_SAMPLED = 40  # one form in 40 is compiled all the same


def read_record(file: str) -> Mapping[str, Resources]:
    """The resources of each form in a record, by key. Raises UsageError for a file without forms."""
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
    """Enter recorded forms into Triton's cache, except for a random sample. Returns the sample's resources by key.

    forms: (variant, target) pairs. The caller compiles the sample and compares. Forms that changed since the record was
    written, and forms compiled on this machine before, are left as they are.
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
    """The differences between a compiled form and its record, in one line; "" where they agree."""
    differing = [f"{name} {found[name]}, not {value}" for name, value in expected.items() if found[name] != value]
    return f"does not take what the record says: {'; '.join(differing)}" if differing else ""
