"""Grades by the hosts of a Ray cluster, an optional dependency: `packproof[ray]`.

Ray places each grade where its cores or its GPU are free, and repeats it elsewhere if its worker or its host is lost.
"""

import asyncio
import os
from collections.abc import Collection
from typing import Any

from packproof.base.errors import PackproofError, UsageError
from packproof.base.machine import available_cores
from packproof.base.wording import plural
from packproof.grading.many.alone import LostGradeError, run_alone
from packproof.grading.many.engines import CORES, MOST_LOSSES
from packproof.grading.many.job import GradeJob, GradeOutcome

_WAITING = 2  # in flight for each one that runs, so that a free host need not wait for the next
_MOST_ERROR = 300  # characters
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray ends grades where a host lacks memory. By default it repeats them without end, whatever `max_retries` is: a
    # kernel that takes all memory would be graded forever.
    "RAY_task_oom_retries": "5",
}
_STORE_BYTES = 1 << 28  # of a cluster of this machine: a grade has a few KB


class RayEngine:
    """Workers of Ray. A process that is connected to a cluster already uses that one, and stays connected.

    address: "local" for a cluster of this machine alone, which ends with this process; "auto" for the one that runs
    here; or host:port.
    device: of the grades; None for GPUs if the cluster has some.
    cores: of each grade; None for the usual number.

    Raises UsageError if Ray is not installed, there is no cluster, or none of its hosts can make a grade.
    """

    def __init__(self, address: str, device: str | None, cores: int | None) -> None:
        self._ray = _imported()
        self._is_own = not self._ray.is_initialized()
        if self._is_own:
            _connect(self._ray, address)
        self.device = device or ("cuda" if self._ray.cluster_resources().get("GPU") else "cpu")
        self.cores = cores or CORES[self.device]
        self._needs = {"CPU": self.cores, **({"GPU": 1} if self.device == "cuda" else {})}
        try:
            self._require_host()
        except UsageError:
            self.close()
            raise
        self._graded = self._ray.remote(
            num_cpus=self.cores,
            num_gpus=self._needs.get("GPU", 0),
            max_retries=MOST_LOSSES,
            retry_exceptions=[LostGradeError],
        )(_graded)

    @property
    def capacity(self) -> int:
        """See `Engine`. Hosts may come and go."""
        resources = self._ray.cluster_resources()
        running = min(int(resources.get(name, 0) // count) for name, count in self._needs.items())
        return max(running, 1) * _WAITING

    def _require_host(self) -> None:
        """Raise UsageError if no host has what a grade needs: Ray would wait for one without end."""
        hosts = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(host.get(name, 0) >= count for name, count in self._needs.items()) for host in hosts):
            needs = " and ".join(plural(count, name) for name, count in self._needs.items())
            raise UsageError(f"--ray: no host of the cluster has the {needs} of a grade; see --cores and --device")

    def start(self, job: GradeJob) -> Any:
        """See `Engine`."""
        return self._graded.remote(job)

    def wait(self, tickets: Collection[Any]) -> Any:
        """See `Engine`."""
        done, _ = self._ray.wait(list(tickets), num_returns=1)
        return done[0]

    def outcome(self, ticket: Any) -> GradeOutcome:
        """See `Engine`."""
        try:
            outcome: GradeOutcome = self._ray.get(ticket)
        except self._ray.exceptions.RayError as error:
            text = " ".join(str(getattr(error, "cause", error)).split())[:_MOST_ERROR]
            raise PackproofError(f"Ray could not make it: {text}") from None
        return outcome

    def close(self) -> None:
        """See `Engine`."""
        if self._is_own:
            self._ray.shutdown()


def _graded(job: GradeJob) -> GradeOutcome:
    """In a worker of Ray."""
    return asyncio.run(run_alone(job))


def _imported() -> Any:
    """The module `ray`, which reads its settings as it is imported."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: PLC0415  (optional)
    except ImportError:
        raise UsageError("--ray: Ray is not installed; pip install 'packproof[ray]'") from None
    return ray


def _connect(ray: Any, address: str) -> None:
    options: dict[str, Any] = {}
    if address == "local":
        options = {"num_cpus": available_cores(), "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    try:
        ray.init(address, logging_level="warning", log_to_driver=False, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"--ray: there is no cluster at {address!r}: {' '.join(str(error).split())[:_MOST_ERROR]}"
        ) from None
