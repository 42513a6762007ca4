"""The signatures of packproof's ops: references and kernels have their arguments, and no other file repeats them."""

import ast
import inspect
from pathlib import Path

import pytest

from packproof import kernels, refs
from packproof.base.signatures import QUANTIZE_FP8, SIGNATURES, Signature

ROOT = Path(__file__).parents[2]
IMPLEMENTED = [
    *((refs, signature) for signature in SIGNATURES.values()),
    *((kernels, {**SIGNATURES, "quantize_fp8": QUANTIZE_FP8}[name]) for name in dir(kernels)),
]
SPECS = {s for one in SIGNATURES.values() for s in (*one.inputs.values(), *one.outputs.values()) if " " in s}


@pytest.mark.parametrize(("package", "signature"), IMPLEMENTED, ids=lambda value: getattr(value, "op", None))
def test_a_function_takes_the_inputs_and_options_of_its_signature(package: object, signature: Signature) -> None:
    parameters = list(inspect.signature(getattr(package, signature.op)).parameters)
    assert [name for name in parameters if name in signature.inputs] == list(signature.inputs)
    assert {*signature.options, "cu_seqlens"} <= set(parameters)


def repeated(source: str) -> list[str]:
    """The axes of a signature that a source repeats."""
    return [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and n.value in SPECS]


@pytest.mark.parametrize("folder", ["base", "refs", "kernels", "properties"])
def test_axes_are_declared_once(folder: str) -> None:
    files = [file for file in (ROOT / folder).glob("*.py") if file.name != "signatures.py"]
    assert files
    assert {file.name: found for file in files if (found := repeated(file.read_text(encoding="utf-8")))} == {}


def test_a_repeated_declaration_is_seen() -> None:
    assert repeated('bind({"x": (x, "t h p"), "D": (D, "h | h p?")})') == ["t h p", "h | h p?"]
