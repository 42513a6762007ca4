"""Damaged replay files and frames: each is understood or refused in one line, at once, and in little memory.

PACKPROOF_FUZZ says how many of each; `make proof` sets 10,000.
"""

import json
import os
import random
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from packproof.base.errors import KernelFault, UsageError
from packproof.base.records import RecordError, from_json, to_json
from packproof.harness.check.replay import check_fits
from packproof.harness.process.wire import Decoder, Frame, InternalWorkerError, WireError, decode_answer, encode
from packproof.harness.report.events import Cell, Event, Progress
from packproof.harness.report.replay_files.replay_file import read_replay
from packproof.properties.calling.call import Refusal
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS

MANY = int(os.environ.get("PACKPROOF_FUZZ", "400"))
SECONDS, MEGABYTES = 1.0, 200
JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf")),
    *("", "\0", "x", "rope", "float32", "int64", "longest", "../../etc/passwd", "\ud800", "\x1b[2J", "a" * 5000),
    *([], {}, [[]], [[[]]], [1, 2], ["x", 1], [["d", 3]], [["d", -1]], [["d", 10**9]], [["d", [3, [4]]]], {"a": {}}),
)


def documents() -> list[Any]:
    found = []
    for name, op in OPS.items():
        space = Space(op, "float32", Promises())
        for case in [*list(golden_cases(space))[::7], *random_cases(space, 3, 0)]:
            found.append(
                {
                    "version": 1,
                    "target": "kernels.py:kernel",
                    "op": name,
                    "property": "packing",
                    "dtype": "float32",
                    "device": "cpu",
                    "gradients": True,
                    "promises": {"chunk": 64},
                    "domain": ["tokens % 16 == 0"],
                    "case": json.loads(json.dumps(case.to_json())),
                }
            )
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def damaged(document: Any, rng: random.Random) -> bytes:
    """The document with values replaced, taken away or added, or with bytes of its text changed."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.randint(1, 3)):
        *outer, last = rng.choice([place for place in places(document) if place] or [("case",)])
        holder = document
        for key in outer:
            holder = holder[key]
        if rng.random() < 0.15 and isinstance(holder, dict):
            del holder[last]
        elif rng.random() < 0.15 and isinstance(holder, dict):
            holder[rng.choice(["x", "t", "d", ""])] = json.loads(json.dumps(rng.choice(JUNK)))
        else:
            holder[last] = json.loads(json.dumps(rng.choice(JUNK)))
    return scrambled(json.dumps(document).encode(), rng) if rng.random() < 0.2 else json.dumps(document).encode()


def scrambled(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(found) + 1)
        what = rng.random()
        if what < 0.4 and at < len(found):
            found[at] = rng.randrange(256)
        elif what < 0.6:
            del found[at : at + rng.randint(1, 40)]
        elif what < 0.8:
            found[at:at] = rng.choice([b"[" * 5000, b"9" * 5000, b"\0", b"\xff\xfe", b"{}", bytes(found[:50])])
        else:
            found = found[:at]
    return bytes(found)


def peak() -> float:
    """The most megabytes that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def quick(work: Callable[[], object], before: float) -> None:
    """Runs it: in little time, and with few more megabytes than there were before the first."""
    started = time.process_time()
    work()
    assert time.process_time() - started < SECONDS
    assert peak() - before < MEGABYTES


def test_damaged_replay_files_are_understood_or_refused(tmp_path: Path) -> None:
    rng, every, refusals = random.Random(0), documents(), list[str]()
    file = tmp_path / "case.json"

    def understand() -> None:
        try:
            data = read_replay(file)
            if data["op"] in OPS:
                check_fits(data["case"], OPS[data["op"]], file)
                if data["case"].n_tokens < 2000:
                    draw(OPS[data["op"]], data["case"])
        except UsageError as error:
            refusals.append(str(error))

    before = peak()
    for _ in range(MANY):
        file.write_bytes(damaged(rng.choice(every), rng))
        quick(understand, before)
    assert len(refusals) > MANY // 2
    assert all(len(text) < 600 and text.isprintable() for text in refusals)


@pytest.mark.parametrize("what", ["/dev/zero", "/dev/null", "folder", "pipe"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, what: str) -> None:
    link = tmp_path / "case.json"
    if what == "folder":
        link.mkdir()
    elif what == "pipe":
        os.mkfifo(link)
    else:
        link.symlink_to(what)
    with pytest.raises(UsageError, match="is not a regular file"):
        read_replay(link)


def frames() -> list[Frame]:
    tensors = {"output/y": torch.randn(5, 3), "gradient/x": torch.randn(5, 3), "cu_seqlens": torch.tensor([0, 5])}
    return [
        Frame("ready", body={"op": "rope", "parameters": ["x", "cos"], "promises": {"chunk": 64}}),
        Frame("result", 3, {"interpreted": False}, tensors),
        Frame("fault", 3, {"fault": "raised", "text": "ValueError: odd"}),
        Frame("refused", 3, {"text": "no fp16", "limit": "", "backward": True}),
        Frame("event", 0, {"event": to_json(Progress(Cell("rope", "m:f", "packing", "float32", "cpu"), 3))}),
    ]


def test_damaged_frames_are_understood_or_refused() -> None:
    rng, every, refusals = random.Random(0), [encode(frame) for frame in frames()], list[str]()

    def understand() -> None:
        decoder = Decoder()
        decoder.max_tensors = 1 << 20
        data = scrambled(rng.choice(every), rng)
        with suppress(KernelFault, Refusal, InternalWorkerError):
            try:
                for start in range(0, len(data), 512):
                    decoder.feed(data[start : start + 512])
                    while frame := decoder.take():
                        from_json(Event, frame.body["event"]) if "event" in frame.body else decode_answer(frame, ("y",))
            except (WireError, RecordError) as error:
                refusals.append(str(error))

    before = peak()
    for _ in range(MANY):
        quick(understand, before)
    assert len(refusals) > MANY // 3
    assert all(len(text) < 600 for text in refusals)
