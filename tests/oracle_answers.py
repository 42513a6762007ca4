"""The oracle's answers for built-in ops, computed once in a run of the tests.

Hundreds of tests judge their kernels on the golden cases of the same few ops. The float64 reference and its bounds take
most of that time, and their answers depend on nothing but the sample and the promises. They are files: the processes in
which a check runs are forks, and what these compute would be lost with them.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from packproof.base.lazy import Deferred
from packproof.properties.bounds.oracle import OracleAnswer, oracle_answer, with_promises
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.sample import Sample
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS

_SECTIONS = ("values", "magnitudes")


def saved_answers(folder: Path) -> Callable[..., OracleAnswer]:
    """`oracle_answer` with its answers in a folder, which belongs to one run of the tests: no code changes there."""

    def answer(sample: Sample, promises: Promises, *, gradients: bool, copies: int | None = None) -> OracleAnswer:
        if OPS.get(sample.op.name) is not sample.op:
            return oracle_answer(sample, promises, gradients=gradients, copies=copies)
        key = hashlib.sha256(repr((sample.op.name, sample.digest, promises, gradients, copies)).encode()).hexdigest()
        file = folder / f"{key}.safetensors"
        if not file.exists():
            computed = oracle_answer(sample, promises, gradients=gradients, copies=copies)
            _save(computed, file)
            return computed
        return with_promises(_load(file), sample, promises)

    return answer


def _save(answer: OracleAnswer, file: Path) -> None:
    sections = {"values": answer.values, "magnitudes": answer.magnitudes}
    sections |= {repr(roundoff): bounds() for roundoff, bounds in answer.operand_bounds_by_roundoff.items()}
    keys = list(answer.values)
    tensors = {f"{s}/{keys.index(k)}": x.contiguous().clone() for s, xs in sections.items() for k, x in xs.items()}
    about = {"keys": [(key.name, key.kind) for key in keys], "drawn_from_few": answer.drawn_from_few}
    part = file.with_suffix(f".{os.getpid()}")
    save_file(tensors, part, {"about": json.dumps(about)})
    part.replace(file)  # another process may have the same answer at the same time


def _load(file: Path) -> OracleAnswer:
    sections: dict[str, dict[TensorKey, Tensor]] = {}
    with safe_open(file, "pt") as saved:
        about = json.loads(saved.metadata()["about"])
        keys = [TensorKey(name, kind) for name, kind in about["keys"]]
        for name in sorted(saved.keys(), key=lambda name: int(name.rpartition("/")[2])):
            section, _, number = name.rpartition("/")
            sections.setdefault(section, {})[keys[int(number)]] = saved.get_tensor(name)
    values, magnitudes = (sections.pop(name, {}) for name in _SECTIONS)
    bounds = {float(roundoff): Deferred(partial(_mapping, xs)) for roundoff, xs in sections.items()}
    return OracleAnswer(values, {}, magnitudes, bounds, about["drawn_from_few"])


def _mapping(xs: Mapping[TensorKey, Tensor]) -> Mapping[TensorKey, Tensor]:
    return xs
