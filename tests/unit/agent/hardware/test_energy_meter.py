"""The mean power of a device by counters of energy, in a folder and with a driver that the tests make up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from inferometer.agent.hardware.conditions import EnergyMeter
from inferometer.agent.hardware.environment import CPU, Device, DeviceKind

GPU = Device(DeviceKind.GPU, 1)
LIMIT_UJ = 262_143_328_850
ZONES = {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "package-1", "2": "psys"}


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass."""
    now = SimpleNamespace(ns=5_000_000_000)
    clock = SimpleNamespace(monotonic_ns=lambda: now.ns)
    monkeypatch.setattr("inferometer.agent.hardware.conditions.time", clock)

    def pass_(seconds: float) -> None:
        now.ns += round(seconds * 1e9)

    return pass_


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """A host with two packages."""
    for zone, name in ZONES.items():
        folder = tmp_path / f"class/powercap/intel-rapl:{zone}"
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n", "ascii")
        (folder / "max_energy_range_uj").write_text(f"{LIMIT_UJ}\n", "ascii")
    show(tmp_path, **dict.fromkeys(ZONES, 7))
    return tmp_path


def show(sys: Path, **energy_uj: int) -> None:
    """Sets the counters of zones."""
    for zone, shown in energy_uj.items():
        (sys / f"class/powercap/intel-rapl:{zone}/energy_uj").write_text(f"{shown}\n", "ascii")


def test_the_power_of_all_packages_is_summed_and_their_parts_are_not(
    sys: Path, wait: Callable[[float], None]
) -> None:
    meter = EnergyMeter(CPU, sys)
    wait(2.0)
    show(sys, **dict.fromkeys(ZONES, 7 + 100_000_000))

    assert meter.metered == "2 CPU packages, all processes"
    assert meter.read_watts() == pytest.approx(100.0)
    wait(4.0)
    show(sys, **{"1": 7 + 160_000_000})
    assert meter.read_watts() == pytest.approx(15.0)


def test_a_counter_of_a_package_wraps_around(sys: Path, wait: Callable[[float], None]) -> None:
    show(sys, **{"0": LIMIT_UJ - 60_000_000, "1": 1_000_000})
    meter = EnergyMeter(CPU, sys)
    wait(2.0)
    show(sys, **{"0": 40_000_000, "1": 21_000_000})

    assert meter.read_watts() == pytest.approx((100 + 20) / 2.0)


def test_a_counter_may_pass_most_of_its_range(sys: Path, wait: Callable[[float], None]) -> None:
    meter = EnergyMeter(CPU, sys)
    wait(1000.0)
    show(sys, **{"0": 7 + round(0.9 * LIMIT_UJ)})

    assert meter.read_watts() == pytest.approx(0.9 * LIMIT_UJ / 1e9)


@pytest.mark.parametrize("missing", ["energy_uj", "max_energy_range_uj"])
def test_without_a_counter_of_each_package_nothing_is_metered(sys: Path, missing: str) -> None:
    (sys / f"class/powercap/intel-rapl:1/{missing}").unlink()

    meter = EnergyMeter(CPU, sys)

    assert meter.metered == ""
    assert meter.read_watts() == 0.0
    assert EnergyMeter(CPU, sys / "nowhere").metered == ""


def test_a_counter_that_can_no_longer_be_read_gives_no_power(
    sys: Path, wait: Callable[[float], None]
) -> None:
    meter = EnergyMeter(CPU, sys)
    (sys / "class/powercap/intel-rapl:0/energy_uj").unlink()
    wait(1.0)

    assert meter.read_watts() == 0.0


def test_the_power_of_a_gpu_is_that_of_its_counter(
    sys: Path, wait: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    millijoules = {"card 1": 9_000_000_000}
    driver_with(monkeypatch, millijoules)

    with EnergyMeter(GPU, sys) as meter:
        wait(1.5)
        millijoules["card 1"] += 450_000

        assert meter.metered == "whole GPU, all processes"
        assert meter.read_watts() == pytest.approx(300.0)


def driver_with(monkeypatch: pytest.MonkeyPatch, millijoules: dict[str, int]) -> None:
    """Lets NVML have these counters."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: f"card {index}")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", millijoules.__getitem__)


def test_a_counter_that_was_reset_gives_no_power_until_it_is_read_again(
    sys: Path, wait: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    show(sys, **dict.fromkeys(ZONES, 900_000_000))
    millijoules = {"card 1": 9_000_000_000}
    driver_with(monkeypatch, millijoules)

    with EnergyMeter(GPU, sys) as gpu, EnergyMeter(CPU, sys) as cpu:
        wait(2.0)
        millijoules["card 1"] = 4_000
        show(sys, **{"1": 5_000_000})

        assert (gpu.read_watts(), cpu.read_watts()) == (0.0, 0.0)

        wait(2.0)
        millijoules["card 1"] = 204_000
        show(sys, **{"1": 65_000_000})
        assert (gpu.read_watts(), cpu.read_watts()) == (100.0, 30.0)


def test_a_gpu_without_a_counter_is_not_metered_by_the_packages(
    sys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", unknown)

    with EnergyMeter(GPU, sys) as meter:
        assert meter.metered == ""
