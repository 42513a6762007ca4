"""The device files that kernels use."""

import glob
import os
import stat

_PLAIN = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")  # they keep nothing
_GPUS = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dri/*", "/dev/kfd")


def device_files() -> list[str]:
    """Devices that keep nothing, and GPUs, as far as there are any."""
    return [*filter(os.path.exists, _PLAIN), *_gpu_devices(_GPUS)]


def gpus_are_for_all() -> bool:
    """Whether every user may compute on the GPUs."""
    return all(os.stat(device).st_mode & 0o006 == 0o006 for device in _gpu_devices(("/dev/nvidia*", "/dev/kfd")))


def _gpu_devices(patterns: tuple[str, ...]) -> list[str]:
    paths = [path for pattern in patterns for path in glob.glob(pattern)]
    return [path for path in paths if stat.S_ISCHR(os.stat(path).st_mode)]
