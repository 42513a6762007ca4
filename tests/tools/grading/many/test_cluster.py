"""Grades by Ray: resources and retries as Ray has them, and a cluster of this machine whose worker is killed."""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from packproof.base.errors import PackproofError, UsageError
from packproof.grading.many.alone import LostGradeError
from packproof.grading.many.cluster import RayEngine
from packproof.grading.many.engines import MOST_LOSSES
from packproof.grading.many.grades import GradeRun
from packproof.grading.many.job import GradeJob, GradeOptions, GradeOutcome
from tests.tools.grading.many.killing import kill_one
from tests.tools.grading.many.samples import write_samples


class RayError(Exception):
    """As Ray's: what a task raised is its cause."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"a traceback of many lines\n{cause}")
        self.cause = cause


class StandIn:
    """The module `ray`, with a cluster that does nothing."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, **resources: float) -> None:
        self.resources, self.is_connected = resources, False
        self.hosts = [{"Alive": True, "Resources": resources}]
        self.options: dict[str, Any] = {}

    def is_initialized(self) -> bool:
        return self.is_connected

    def init(self, address: str, **options: Any) -> None:
        if address == "auto":
            raise ConnectionError("Could not find any running Ray instance.")
        self.is_connected = True

    def nodes(self) -> list[dict[str, Any]]:
        return self.hosts

    def shutdown(self) -> None:
        self.is_connected = False

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        self.options = options
        return lambda function: SimpleNamespace(remote=function)

    def get(self, ticket: Any) -> Any:
        if isinstance(ticket, Exception):
            raise ticket
        return ticket


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    ray = StandIn(CPU=7.0, GPU=2.0)
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def test_cores_and_gpus_are_resources_and_lost_grades_are_repeated(stand_in: StandIn) -> None:
    engine = RayEngine("local", "cpu", 2)
    assert engine.capacity == 6
    assert stand_in.options == {
        "num_cpus": 2,
        "num_gpus": 0,
        "max_retries": MOST_LOSSES,
        "retry_exceptions": [LostGradeError],
    }
    stand_in.resources["CPU"] = 16.0  # a host has joined
    assert engine.capacity == 16
    engine.close()
    assert not stand_in.is_connected


def test_each_grade_takes_a_gpu_if_the_cluster_has_some(stand_in: StandIn) -> None:
    engine = RayEngine("local", None, None)
    assert (engine.device, engine.cores, engine.capacity) == ("cuda", 4, 2)  # of seven cores
    assert stand_in.options["num_gpus"] == 1
    stand_in.resources["CPU"] = 64.0
    assert engine.capacity == 4


@pytest.mark.parametrize(
    ("device", "cores", "needs"), [("cpu", 5, "5 CPUs"), ("cuda", 1, "1 CPU and 1 GPU"), (None, 5, "5 CPUs and 1 GPU")]
)
def test_what_no_host_can_make_is_not_waited_for(stand_in: StandIn, device: Any, cores: int, needs: str) -> None:
    hosts = [{"CPU": 4.0}, {"GPU": 2.0}, {"CPU": 3.0, "GPU": 1.0}]
    stand_in.hosts = [{"Alive": host != hosts[2], "Resources": host} for host in hosts]
    with pytest.raises(UsageError, match=f"^--ray: no host of the cluster has the {needs} of a grade; see --cores"):
        RayEngine("local", device, cores)
    assert not stand_in.is_connected


def test_a_process_that_is_connected_stays_connected(stand_in: StandIn) -> None:
    stand_in.is_connected = True
    engine = RayEngine("auto", "cpu", 1)
    engine.close()
    assert stand_in.is_connected


def test_what_ray_could_not_make_is_an_error_in_a_line(stand_in: StandIn) -> None:
    engine = RayEngine("local", "cpu", 1)
    assert engine.outcome(GradeOutcome(1)) == GradeOutcome(1)
    with pytest.raises(PackproofError, match=r"^Ray could not make it: k.py:f: the process .* was killed$"):
        engine.outcome(RayError(LostGradeError("k.py:f: the process that graded it was killed")))


@pytest.mark.usefixtures("stand_in")
def test_a_cluster_that_is_not_there_is_a_wrong_call() -> None:
    with pytest.raises(UsageError, match=r"^--ray: there is no cluster at 'auto': Could not find any running Ray"):
        RayEngine("auto", "cpu", 1)


def test_ray_that_is_not_installed_is_a_wrong_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"^--ray: Ray is not installed; pip install 'packproof\[ray\]'$"):
        RayEngine("local", "cpu", 1)


def test_a_job_is_data_for_another_process() -> None:
    import pickle  # noqa: PLC0415  (as Ray does)

    job = GradeJob("k.py:f", ("--task", "t"), {"k.py": "eA=="}, 2)
    assert pickle.loads(pickle.dumps(job)) == job


def test_a_worker_that_is_killed_changes_no_grade(working_folder: Path) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("aiohttp", reason="the state API needs ray[default]")
    verdicts = write_samples(working_folder, 3)
    ray.init("local", num_cpus=2, object_store_memory=1 << 28, log_to_driver=False, include_dashboard=True)
    kills: list[bool] = []

    def kill_soon() -> None:
        while not kills:
            time.sleep(1.5)
            kills.extend([True] * kill_one(lambda pids: pids[0]))

    thread = threading.Thread(target=kill_soon)
    thread.start()
    try:
        with GradeRun(
            "list.jsonl", options=GradeOptions("cpu", "s", timed=False), ray="local", results="r.jsonl"
        ) as run:
            rows = list(run)
    finally:
        kills.append(False)
        thread.join()
        ray.shutdown()
    assert kills[0]
    assert sorted(row["name"] for row in rows) == sorted(verdicts)
    assert {row["name"]: row["grade"]["verdict"] for row in rows} == verdicts
