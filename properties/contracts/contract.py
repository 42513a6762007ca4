"""The contract of a check: the terms of its caller, as data and as a file, such as a contest ships."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from packproof.base.declared import require_names
from packproof.base.errors import UsageError
from packproof.base.files import parse_json, read_bytes
from packproof.base.names import require_known
from packproof.base.records import parse_record, to_row
from packproof.base.signatures import SIGNATURES
from packproof.properties.cases.domain import KEY_OFFSETS, Domain, optional_inputs
from packproof.properties.contracts.terms import Subject, Term
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.op import Op

WRITER = "packproof contract"
_MOST_BYTES = 1 << 20

Dtype = Literal["fp64", "fp32", "bf16", "fp16"]
ProfileName = Literal["quick", "standard", "thorough"]


@dataclass(frozen=True)
class Contract:
    """The terms of a caller."""

    op: str
    """The name of an op of packproof, "module:NAME" or "file.py:NAME", of a file beside the contract."""
    domain: tuple[str, ...] = ()
    """Conditions on the calls to support. Without any, a kernel has to support every call of the op."""
    takes: tuple[str, ...] = ()
    """Optional inputs and options to take. A kernel may lack any other, and the verdict says so."""
    gradients: bool = True
    """Whether gradients are judged."""
    dtypes: tuple[Dtype, ...] = ("fp32", "bf16", "fp16")
    """The dtypes of tokens."""
    promises: Promises = field(default_factory=Promises)
    """Guarantees of every kernel, such as `deterministic`, and the limits of its error budget: `compute`, `cumsum` with
    `chunk`, and `saved_outputs`.
    """
    profile: ProfileName = "standard"
    """The least profile of a check."""
    own_kernels_only: bool = False
    """Whether library and reference calls are forbidden."""

    @classmethod
    def for_op(cls, op: Op) -> "Contract":
        """The default contract of an op: all of its calls, in the budget of its usual kernels.

        With matrix products and decays, a kernel may form each decay as a difference of cumulative sums.
        """
        promises = Promises(compute=op.usual_compute, cumsum=op.matmul and op.has_decays)
        return cls(op.name, gradients=op.differentiable, promises=promises)


@dataclass(frozen=True)
class ContractFile:
    """A contract, and its file."""

    path: str
    """Its path, in the caller's words."""
    digest: str
    """SHA-256 of its bytes, as `sha256sum` prints it."""
    contract: Contract
    op_digest: str = ""
    """The same of the file of its op, "" without one."""

    @classmethod
    def read(cls, path: str) -> "ContractFile":
        """Raises UsageError, with the path and the field, for a file that cannot be read or is no contract."""
        try:
            data = read_bytes(Path(path), _MOST_BYTES)  # once: its digest is that of what is read
            contract = parse_record(Contract, parse_json(data, path, WRITER), path, WRITER)
            _require_names(contract)
            contract, op_digest = _with_op_beside(contract, Path(path).parent)
        except OSError as error:
            raise UsageError(f"contract: {path}: {error.strerror or error}") from None
        except UsageError as error:
            raise UsageError(f"contract: {path}: {str(error).removeprefix(f'{path}: ')}") from None
        return cls(path, _digest(data), contract, op_digest)

    def require_fit(self, op: Op) -> None:
        """Raises UsageError if `takes` names anything but optional inputs and options of the op."""
        names = [*optional_inputs(op), *([KEY_OFFSETS] if op.packs_keys else []), *op.options]
        require_names(f"contract: {self.path}", "takes", self.contract.takes, names, "optional inputs and options")

    @property
    def title(self) -> str:
        """The file and the start of its digest, for one line."""
        return f"{Path(self.path).name} (sha256 {self.digest[:12]})"


def _require_names(contract: Contract) -> None:
    """Raises UsageError for an unknown op, a domain that cannot be read, or no dtype."""
    if ":" not in contract.op:
        require_known("op", contract.op, SIGNATURES, "packproof list")
    if not contract.dtypes:
        raise UsageError("dtypes is empty, so that nothing would be checked")
    Domain.of(contract.domain)


def _with_op_beside(contract: Contract, folder: Path) -> tuple[Contract, str]:
    """The contract with the path of its op's file, and the digest of that. Raises OSError."""
    source, _, name = contract.op.rpartition(":")
    if not source.endswith(".py"):
        return contract, ""
    return replace(contract, op=f"{folder / source}:{name}"), _digest(read_bytes(folder / source, _MOST_BYTES))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def contract_text(contract: Contract) -> str:
    """The contents of its file."""
    return json.dumps(to_row(contract), indent=1) + "\n"


def contract_terms(file: ContractFile) -> tuple[Term, ...]:
    """The terms of a contract."""
    contract = file.contract
    promises = [f"{name}={value!r}" for name, value in to_row(contract.promises).items() if value not in (None, False)]
    texts: list[tuple[Subject, Sequence[str]]] = [
        ("contract", [file.title]),
        ("op", [contract.op]),
        ("domain", contract.domain),
        ("inputs", contract.takes),
        ("gradients", [] if contract.gradients else ["no gradients"]),
        ("dtypes", contract.dtypes),
        ("promises", promises),
    ]
    return tuple(Term(subject, text, "contract") for subject, entries in texts for text in entries)
