"""Each wall holds where the system puts it up, and is seen to be missing when what it is made of is taken away."""

import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from packproof.base.errors import MissingWallError
from packproof.harness.process.privilege import concealment
from packproof.harness.process.walls import enclosure as enclosure_module
from packproof.harness.process.walls import probes as probes_module
from packproof.harness.process.walls.catalogue import WALLS, probe_walls, require_walls
from packproof.harness.process.walls.enclosure import start_enclosed_fork
from packproof.harness.process.walls.isolation import Isolation
from packproof.harness.process.walls.landlock import covers_files
from packproof.harness.process.walls.namespaces import namespaces_work
from packproof.harness.process.walls.probes import judge_identity

NAMES = {wall.name for wall in WALLS}
AS_ROOT = os.geteuid() == 0
HAS_DISKS = any(path.is_block_device() for path in Path("/dev").iterdir())
BY_NAMESPACES = {"processes", "network", "shared memory"} | ({"devices"} if AS_ROOT and HAS_DISKS else set())
needs_namespaces = pytest.mark.skipif(not namespaces_work(), reason="this system allows no namespaces")


def nothing(*_: object) -> None: ...


def missing(isolation: Isolation = "usual") -> set[str]:
    """The walls that do not hold around a fork of this process."""
    judge = judge_identity()
    reader, writer = os.pipe()

    def report() -> None:
        os.write(writer, json.dumps(probe_walls(judge)).encode())

    fork = start_enclosed_fork(report, isolation)
    os.close(writer)
    with open(reader) as file:
        states = json.loads(file.read())
    assert fork.wait() == 0
    assert set(states) == NAMES
    return {name for name, holds in states.items() if not holds}


@needs_namespaces
def test_all_hold() -> None:
    assert missing() == set()


def test_the_caches_of_compilers_are_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that the user has named: FlashInfer could not open its log there, and each kernel of its failed."""
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", "/named/by/the/user")
    reader, writer = os.pipe()

    def report() -> None:
        cache = Path(os.environ["FLASHINFER_WORKSPACE_BASE"])
        cache.mkdir(exist_ok=True)
        os.write(writer, str(cache.relative_to(os.environ["HOME"])).encode())

    fork = start_enclosed_fork(report, "usual")
    os.close(writer)
    assert fork.wait() == 0
    with open(reader) as file:
        assert file.read() == "flashinfer_workspace_base"


TAKEN_AWAY: dict[str, tuple[Iterable[str], set[str], set[str]]] = {
    # what is taken away: its functions, the walls that fall, and those that fall too where no other user takes over
    "limits": (["limit_resources"], {"process limit", "memory limit"}, set()),
    "rights": (["give_up_rights"], {"privileges"}, set()),
    "namespaces": (["namespaces_work"], BY_NAMESPACES, {"modes"}),
    "namespaces and landlock": (["namespaces_work", "restrict_writing"], BY_NAMESPACES, {"modes", "files", "signals"}),
}


@needs_namespaces
@pytest.mark.skipif(not covers_files(), reason="this system has no landlock, or an early one")
@pytest.mark.usefixtures("working_folder")  # which belongs to this user
@pytest.mark.parametrize("name", TAKEN_AWAY)
def test_without_what_it_is_made_of_a_wall_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    functions, always, as_user = TAKEN_AWAY[name]
    for function in functions:
        monkeypatch.setattr(enclosure_module, function, nothing)
    expected = always | (set() if AS_ROOT else as_user)
    if name == "rights" and AS_ROOT:
        expected |= {"process limit"}
    with concealment():
        assert missing() == expected


@pytest.mark.skipif(not AS_ROOT, reason="root alone could do all of this")
def test_without_any_of_it_no_wall_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enclosure_module, "confine", nothing)
    assert missing("none") >= NAMES - {"devices", "network"}  # a machine may have no disk, and no network


@pytest.mark.parametrize(
    ("probe", "name", "value"),
    [
        (probes_module.cannot_reach_devices, "_can_open", True),
        (probes_module.has_no_network, "_works", True),
    ],
)
def test_probes_that_depend_on_the_machine(
    probe: Callable[[Any], bool], name: str, value: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes_module, name, lambda *_: value)
    monkeypatch.setattr(probes_module.stat, "S_ISBLK", lambda _: True)
    assert not probe(judge_identity())


def test_what_is_missing_is_named() -> None:
    states = dict.fromkeys(NAMES, True) | {"network": False, "files": False}
    with pytest.raises(MissingWallError) as error:
        require_walls(states)
    assert str(error.value) == (
        "--isolate: this system does not put up: files (read-only mounts, landlock, another user in place of root); "
        "network (a namespace of networks); check without, or in a virtual machine"
    )
    with pytest.raises(MissingWallError, match=f"^--isolate: this system does not put up: {WALLS[0].name} "):
        require_walls({})
    require_walls(dict.fromkeys(NAMES, True))


@needs_namespaces
def test_a_fork_within_walls_hands_on_its_exit_code() -> None:
    assert start_enclosed_fork(lambda: 7, "usual").wait() == 7
    assert start_enclosed_fork(lambda: os.kill(os.getpid(), signal.SIGTERM), "usual").wait() == 128 + 15


def test_the_documentation_has_each_wall() -> None:
    page = (Path(__file__).parents[4] / "docs" / "security.md").read_text()
    for wall in WALLS:
        assert f"\n| `{wall.name}` | {wall.prevents} | {wall.means} |\n" in page
