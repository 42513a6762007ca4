"""Launch code asks for the GPU of a CPU tensor."""

import pytest
import torch
import triton

from packproof.interpreter import repair

x = torch.zeros(1)


@pytest.fixture(autouse=True)
def repaired() -> None:
    repair.install()


def test_the_device_of_a_cpu_tensor_selects_nothing() -> None:
    with torch.cuda.device(x.device.index), torch.cpu.device(x.device.index):  # type: ignore[attr-defined]
        assert torch.ones(1).sum() == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers by itself")
def test_a_grid_is_sized_by_the_multiprocessors_of_an_h100() -> None:
    for device in (x.device, "cpu", None):
        assert torch.cuda.get_device_properties(device).multi_processor_count == 132
        assert torch.cuda.get_device_capability(device) == (9, 0)
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.cuda.get_device_properties("cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers by itself")
def test_the_driver_has_the_properties_of_a_gpu_but_no_target() -> None:
    driver = triton.runtime.driver.active
    assert driver.utils.get_device_properties(x.device.index)["multiprocessor_count"] == 132
    with pytest.raises(RuntimeError, match="0 active drivers"):
        driver.get_current_target()
