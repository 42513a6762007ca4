"""The record of packproof's own kernels: GPU resources of each form (a variant on one target), kept with the source.

The key of a form is a digest of its source, target, options and Triton version, exact to the byte. A form with a
recorded key is not compiled again. Each use of the record compiles a random sample of the forms, which has to agree.
"""

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from packproof.base.errors import UsageError
from packproof.harness.tiers.compile.resources import Resources, cache_key, cached_resources, store_resources
from packproof.kernels.variant import Variant

_SAMPLE_EVERY = 40  # one form in 40 is compiled all the same


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
        expected_file = "expected a file that `python -m packproof.proof.compiled FILE` wrote"
        raise UsageError(
            f"record: {file} has no compiled forms ({type(error).__name__}: {error}); {expected_file}"
        ) from error


def cache_recorded_forms(record: Mapping[str, Resources], forms: Iterable[tuple[Variant, str]]) -> dict[str, Resources]:
    """Enter recorded forms into Triton's cache, except for a random sample. Returns the sample's resources by key.

    forms: (variant, target) pairs. The caller compiles the sample and compares. Forms that changed since the record was
    written, and forms compiled on this machine before, are left as they are.
    """
    matching_forms = {}
    for variant, target in forms:
        key = cache_key(variant, target)
        if key in record and not cached_resources(variant, target):
            matching_forms[key] = (variant, target)
    sample = random.SystemRandom().sample(list(matching_forms), -(-len(matching_forms) // _SAMPLE_EVERY))
    for key in matching_forms.keys() - set(sample):
        store_resources(*matching_forms[key], record[key])
    return {key: record[key] for key in sample}


def describe_differences(actual: Mapping[str, object], expected: Resources) -> str:
    """The differences between a compiled form and its record, in one line; "" where they agree."""
    differences = [f"{name} {actual[name]}, not {value}" for name, value in expected.items() if actual[name] != value]
    return f"does not take what the record says: {'; '.join(differences)}" if differences else ""
