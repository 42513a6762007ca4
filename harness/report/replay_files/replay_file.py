"""The replay file of a failure: written, read, checked, and described without running anything."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zlib import crc32

from packproof.base.errors import ArgumentError, UsageError
from packproof.base.files import damaged_error, read_json, replace_text
from packproof.base.law_names import LAWS
from packproof.base.names import DEVICES, SHORT_DTYPES, require_known
from packproof.base.records import RecordError, from_row
from packproof.base.wording import plural, printable
from packproof.properties.cases import REGIME_DESCRIPTIONS, Case, shorten
from packproof.properties.contracts import ContractFile
from packproof.properties.declarations import Promises

_FIELDS = {
    "target": str,
    "op": str,
    "property": str,
    "dtype": str,
    "device": str,
    "case": dict,
    "promises": dict,
    "gradients": bool,
}
_MAX_BYTES = 1 << 20


def read_content(path: Path) -> dict[str, Any]:
    """The unchecked content of a replay file, of a kernel or a module. Raises UsageError, one line with the path."""
    data = read_json(path, str(path), max_bytes=_MAX_BYTES)
    if not isinstance(data, dict) or type(version := data.get("version")) is not int or version < 1:
        raise UsageError(f"{path}: not a replay file of version 1")
    if version > 1:
        wrote = " ".join(filter(None, ["packproof", str(data.get("packproof", ""))[:20]]))
        raise UsageError(f"{path}: a replay file of version {version}, and this packproof reads 1; use {wrote}")
    return data


def read_replay(path: Path) -> dict[str, Any]:
    """The checked content of a kernel's replay file; `case` is a Case and `promises` are Promises.

    Raises UsageError, one line with the path, for a file that is unreadable or damaged.
    """
    data = read_content(path)
    for name, kind in _FIELDS.items():
        if not isinstance(data.get(name), kind) or "\0" in str(data[name]):
            raise damaged_error(path, f"{name} is {json.dumps(data.get(name))[:60]}, expected {kind.__name__}")
    try:
        case = Case.from_json(data["case"])
        if ":" not in data["property"]:  # one of the user's own is imported in the process of the kernel
            require_known("property", data["property"], LAWS)
        for field, name, names in (
            ("dtype", data["dtype"], SHORT_DTYPES),
            ("dtype", case.dtype, SHORT_DTYPES),
            ("device", data["device"], DEVICES),
        ):
            require_known(field, name, names)
        contract = from_row(ContractFile, data["contract"]) if "contract" in data else None
        change = str(data.get("change", ""))  # earlier files have none: all of the property is run
        return {**data, "case": case, "promises": _promises(data["promises"]), "contract": contract, "change": change}
    except (UsageError, RecordError) as error:
        raise damaged_error(path, f"{error}") from None


def describe_replay(data: Mapping[str, Any]) -> dict[str, str]:
    """The content returned by `read_replay`, as rows of a name and a text."""
    case: Case = data["case"]
    law = LAWS.get(data["property"], "")
    promises = {name: value for name, value in asdict(data["promises"]).items() if value not in (None, False)}
    rows = {
        "kernel": data["target"],
        "op": data["op"],
        "property": f"{data['property']}: {law}" if law else data["property"],
        "dtype": data["dtype"],
        "device": data["device"],
        "layout": f"lengths {shorten(case.lengths)}, {plural(case.n_tokens, 'token')}, slack {case.slack}",
        "sizes": _pairs_text(case.sizes),
        "inputs": ", ".join(case.present),
        "in fp32": ", ".join(case.float32),
        "in 16 bits": ", ".join(case.narrow),
        "options": _pairs_text(case.options),
        "offsets": case.index_dtype,
        "values": f"{case.regime}: {REGIME_DESCRIPTIONS[case.regime]}",
        "seed": str(case.seed),
        "change": data["change"],
        "configuration": str(case.configuration or ""),
        "gradients": "judged" if data["gradients"] else "not judged",
        "promises": _pairs_text(promises.items()),
        "domain": _joined_text(data.get("domain")),
        "contract": data["contract"].title if data.get("contract") else "",
        "found": _joined_text(data.get("message")),
        "versions": f"packproof {data.get('packproof', 'unknown')}, file {data['version']}",
    }
    return {name: printable(text) for name, text in rows.items() if text}


def write_replay(folder: str, name: str, data: Mapping[str, Any]) -> tuple[str, str]:
    """Write a replay file. Returns its path and "", or "" and the reason for the lack of a file."""
    text = json.dumps(data, indent=1)
    stem = re.sub(r"[^\w.-]", "-", name)
    file = Path(folder) / f"{stem}-{crc32(text.encode()):08x}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, text)
    except OSError as error:
        return "", f"no replay file could be written: {error.strerror or error}: {file.parent}"
    return str(file), ""


def _joined_text(data: Any) -> str:
    return "; ".join(map(str, data)) if isinstance(data, list) else str(data or "")


def _pairs_text(pairs: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in pairs)


def _promises(data: dict[str, Any]) -> Promises:
    try:
        return Promises(**data)
    except ArgumentError as error:
        raise UsageError(f"promises: {error}") from None
