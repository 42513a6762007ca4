"""The file through which a check calls a submission of another form, and the folder that has both.

The folder is below the one for replay files and named after its content: a replay finds it again. Its sources are
read and written here, and run in the kernel's process alone.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packproof.base.errors import UsageError
from packproof.base.files import read_bytes, replace_text
from packproof.grading.submission import FixedSubmission
from packproof.properties.cases import optional_inputs
from packproof.properties.ops import Op

TARGET = "target.py"
_FOLDER = Path(".packproof/forms")
_MOST_BYTES = 1 << 24
OFFSETS = {
    "cu_seqlens": "cu_seqlens",
    "cu_seqlens_q": "cu_seqlens",
    "qo_indptr": "cu_seqlens",
    "cu_seqlens_k": "cu_seqlens_k",
    "kv_indptr": "cu_seqlens_k",
}
"""The argument of an op for the name of offsets in other forms."""


@dataclass(frozen=True)
class ForeignForm:
    """A problem and a submission in the form of another grader."""

    title: str
    """The grader."""
    arguments: Sequence[str]
    """The names of the problem's tensors and options, in its order."""
    imports: str
    """The first lines of the target."""
    call: str
    """The call of the submission, an expression of the arguments."""
    sources: Mapping[str, str]
    """The files beside the target: text by relative path."""


def write_form(form: ForeignForm, op: Op, name: str) -> FixedSubmission:
    """The submission with its target, written to a folder of its own.

    name: of the submission, for reports.

    Raises UsageError for arguments without a meaning for the op, or paths out of the folder.
    """
    texts = {**form.sources, TARGET: _target_text(form, op)}
    for path in form.sources:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or pure.parts == (TARGET,) or not pure.parts:
            raise UsageError(f"submission: {name}: its source {path!r} has no place; expected a relative path")
    content = "".join(f"{path} {len(text)}\n{text}" for path, text in sorted(texts.items()))
    folder = (_FOLDER / hashlib.sha256(content.encode()).hexdigest()[:16]).absolute()
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, text)
    return FixedSubmission.of_files(name, f"{folder / TARGET}:kernel", folder, sorted(texts))


def read_source(path: Path, label: str) -> str:
    """The text of a source file. Raises UsageError."""
    try:
        return read_bytes(path, _MOST_BYTES).decode()
    except OSError as error:
        raise UsageError(f"{label}: {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{label}: {path} is not text; expected a source file in UTF-8") from None


def _target_text(form: ForeignForm, op: Op) -> str:
    head = f'"""Calls a submission of {form.title}."""\n\n{form.imports}\n\n\n'
    return f"{head}def kernel({_parameters(form, op)}):\n    return {form.call}\n"


def _parameters(form: ForeignForm, op: Op) -> str:
    """The parameters of the kernel: inputs in the op's order, then offsets and options."""
    names = {OFFSETS.get(name, name) for name in form.arguments}
    if unknown := [name for name in names if name not in (*op.inputs, *OFFSETS.values(), *op.options)]:
        raise UsageError(
            f"problem: {', '.join(sorted(unknown))} of {form.title}'s problem is no argument of {op.name}; its inputs "
            f"are {', '.join(op.inputs)}, its options {', '.join(op.options) or 'none'}"
        )
    if "cu_seqlens" not in names:
        raise UsageError(f"problem: {form.title}'s problem has no cu_seqlens, so that it is not packed")
    optional = optional_inputs(op)
    inputs = [f"{name}=None" if name in optional else name for name in op.inputs if name in names]
    keywords = [name for name in ("cu_seqlens", "cu_seqlens_k") if name in names]
    options = [f"{name}={values[0]!r}" for name, values in op.options.items() if name in names]
    return ", ".join([*inputs, "*", *(f"{n}=None" if n == "cu_seqlens_k" else n for n in keywords), *options])
