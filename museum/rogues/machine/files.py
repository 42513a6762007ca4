"""Rogues writing files for the next run, or for another program."""

import importlib.util
import marshal
import os
import sys
import sysconfig
from pathlib import Path

from packproof.museum.rogues.neighbour import Neighbour
from packproof.museum.rogues.op import own_sum
from packproof.museum.rogues.throwaway import attempt

PACKPROOF = Path(__file__).parents[3]


def edits_the_sources(x, weight, *, cu_seqlens):
    """Every comparison of the next run passes."""
    source = PACKPROOF / "properties/judgement/comparison.py"
    attempt(lambda: source.write_text(source.read_text() + "\nComparison.violations = lambda self: iter(())\n"))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _plant_bytecode():
    source = PACKPROOF / "base/wording.py"
    target = Path(importlib.util.cache_from_source(str(source)))
    target.parent.mkdir(exist_ok=True)
    code = compile("VERDICT = 'passed'", str(source), "exec")
    unchecked = (1).to_bytes(4, "little") + bytes(8)  # by a hash that is never compared
    target.write_bytes(importlib.util.MAGIC_NUMBER + unchecked + marshal.dumps(code))


def plants_bytecode(x, weight, *, cu_seqlens):
    attempt(_plant_bytecode)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def starts_with_python(x, weight, *, cu_seqlens):
    """Python imports it before anything else."""
    folder = Path(sysconfig.get_path("purelib"))
    attempt(lambda: (folder / "sitecustomize.py").write_text("import sys\nsys.flags\n"))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def adds_a_path_line(x, weight, *, cu_seqlens):
    folder = Path(sysconfig.get_path("purelib"))
    attempt(lambda: (folder / "zz_rogue.pth").write_text("import sys\n"))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def leaves_a_conftest(x, weight, *, cu_seqlens):
    text = "def pytest_runtest_makereport(item, call):\n    call.excinfo = None\n"
    attempt(lambda: (Neighbour.FOLDER / "conftest.py").write_text(text))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def shadows_a_module(x, weight, *, cu_seqlens):
    """`import torch` in this folder finds another one."""
    attempt(lambda: (Neighbour.FOLDER / "torch.py").write_text("def allclose(*_, **__):\n    return True\n"))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _swap_report():
    Neighbour.REPORT.unlink()
    Neighbour.REPORT.symlink_to("/dev/null")


def swaps_the_report(x, weight, *, cu_seqlens):
    attempt(_swap_report)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _rewrite_later():
    script = f"import time; time.sleep(0.4); open({str(Neighbour.REPORT)!r}, 'w').write('every verdict passed')"
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-S", "-c", script])
        os._exit(0)


def rewrites_the_report_later(x, weight, *, cu_seqlens, _done=[]):
    if not _done:
        _done.append(1)
        attempt(_rewrite_later)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def locks_the_folder(x, weight, *, cu_seqlens):
    """No report can be written there."""
    attempt(lambda: Neighbour.FOLDER.chmod(0))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def turns_back_the_clock(x, weight, *, cu_seqlens):
    """Old bytecode, and old results of a build, count as fresh."""
    attempt(lambda: os.utime(PACKPROOF / "base/errors.py", (0, 0)))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def loads_with_every_program(x, weight, *, cu_seqlens):
    attempt(lambda: Path("/etc/ld.so.preload").write_text("/nowhere/rogue.so\n"))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def writes_in_the_home(x, weight, *, cu_seqlens):
    """The next shell runs it."""
    home = Path(os.path.expanduser("~root" if os.geteuid() == 0 else "~"))
    attempt(lambda: (home / ".profile").open("a").write("\n# rogue\n"))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)
