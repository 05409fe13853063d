"""``load(device=)``: what can be named, what was resolved, and why a device cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import aner_native
import pytest

import aner
from aner import ConfigurationError, DeviceUnavailableError, UnsupportedCombinationError, llm

Synthetic = Callable[[str], Path]
BACKENDS: list[str] = aner.build_info()["backends"]  # type: ignore[assignment]
#: Every spelling of an accelerator, with the backend it needs.
ACCELERATORS = {
    "metal": "metal", "mps": "metal", "metal:0": "metal", "cuda": "cuda", "cuda:0": "cuda", "cuda:1": "cuda",
    "cuda:999": "cuda", "vulkan": "vulkan", "vulkan:0": "vulkan", "vulkan:7": "vulkan",
}  # fmt: skip
FOUND = {one["name"] for one in aner_native.devices()}


def resolved(device: str) -> str:
    """The name that ``model.device()`` has for a request."""
    backend = ACCELERATORS[device]
    return "metal" if backend == "metal" else f"{backend}:{device.partition(':')[2] or 0}"


@pytest.mark.contract("L2")
def test_the_cpu_is_always_there_and_listed_first() -> None:
    devices = aner_native.devices()
    assert BACKENDS[0] == "cpu"
    assert devices[0]["name"] == "cpu"
    assert len(FOUND) == len(devices)
    assert all(one["description"] for one in devices)


@pytest.mark.contract("L2")
@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "lfm2"])
def test_the_cpu_can_be_asked_for_and_is_named(synthetic: Synthetic, name: str) -> None:
    with llm.load(synthetic(name), context=64, device="cpu") as model:
        assert (model.device(), model.memory_summary()["device"]) == ("cpu", "cpu")
        assert model.with_context_pool(0).device() == "cpu"
        assert len(model.generate([1, 2, 3], max_tokens=2, ignore_eos=True).token_ids()) == 2


@pytest.mark.contract("L2")
def test_auto_resolves_to_a_device_that_is_there_and_says_which(synthetic: Synthetic) -> None:
    with llm.load(synthetic("llama"), context=64) as model:
        assert model.device() in FOUND
        assert BACKENDS != ["cpu"] or model.device() == "cpu"
        assert (model.metadata()["requested_device"], model.metadata()["device"]) == ("auto", model.device())


@pytest.mark.contract("L2", "L3", "E3")
@pytest.mark.parametrize("device", ACCELERATORS)
def test_an_accelerator_that_was_asked_for_is_used_or_refused_with_the_reason_and_never_replaced(
    synthetic: Synthetic, device: str
) -> None:
    backend = ACCELERATORS[device]
    if resolved(device) in FOUND:
        with llm.load(synthetic("llama"), context=64, device=device) as model:
            assert model.device() == resolved(device)
        return
    with pytest.raises(DeviceUnavailableError) as refused:
        llm.load(synthetic("llama"), context=64, device=device)
    message = str(refused.value)
    assert f"'{resolved(device)}' was asked for" in message
    if backend in BACKENDS:
        assert f"the {backend} backend found" in message  # compiled in, and no driver or no such device
    else:
        assert f"this build of aner has no {backend} backend" in message
        assert f"ANER_{backend.upper()}=ON" in message  # what to do
    assert "ask for 'cpu'" in message


@pytest.mark.contract("L2")
def test_a_device_that_is_not_there_is_told_before_the_file_is_digested(synthetic: Synthetic) -> None:
    absent = next(device for device in ("cuda:999", "vulkan:999") if resolved_or_same(device) not in FOUND)
    phases: list[str] = []
    with pytest.raises(DeviceUnavailableError):
        llm.load(synthetic("llama"), device=absent, progress=lambda phase, _: phases.append(phase))
    assert set(phases) <= {"header"}


def resolved_or_same(device: str) -> str:
    return resolved(device) if device in ACCELERATORS else device


@pytest.mark.contract("L2", "L3", "E3")
@pytest.mark.parametrize(
    "device",
    ["", "CPU", "gpu", "cpu:0", "cpu ", "cuda0", "cuda:", "cuda:-1", "cuda:x", "cuda:1.0", "cuda:0x0", "cuda: 0", "cuda:0,1",
     "cuda:0;cuda:1", "cuda,vulkan", "cuda:1000", "cuda:99999999999999999999", "mps:", "vulkan:0:0", "auto:0", "auto\0", "npu",
     "\u0663", "cuda:\u0663"],
)  # fmt: skip
def test_what_names_no_single_device_is_a_configuration_error_with_the_list(synthetic: Synthetic, device: str) -> None:
    with pytest.raises(ConfigurationError, match=r"device is .* must be auto, cpu, metal \(or mps\), cuda, cuda:N, vulkan"):
        llm.load(synthetic("llama"), context=64, device=device)


@pytest.mark.contract("L12", "L2", "E3")
@pytest.mark.parametrize("device", ["cuda", "metal", "vulkan:0"])
def test_the_reproducible_configuration_refuses_every_accelerator(synthetic: Synthetic, device: str) -> None:
    with pytest.raises(UnsupportedCombinationError, match=f"reproducible=True needs the CPU.*'{device}'"):
        llm.load(synthetic("llama"), context=64, device=device, reproducible=True)
    with llm.load(synthetic("llama"), context=64, reproducible=True) as model:
        assert model.device() == "cpu"
