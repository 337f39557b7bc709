"""The probe, against the torch that is installed and against tools that lie."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from utils import hardware
from utils.hardware import Machine, memory_gib, probe
from utils.paths import ROOT

AGREES = """
import torch
from utils.hardware import probe

machine = probe()
assert not torch.cuda.is_initialized() and not torch.xpu.is_initialized(), "the probe started a device"
assert machine.torch == torch.__version__
assert machine.accelerators == (torch.accelerator.device_count() if torch.accelerator.is_available() else 0)
assert (machine.cuda is not None) == (torch.cuda.is_available() and torch.version.hip is None)
assert machine.mps == torch.backends.mps.is_available()
assert 0.2 < machine.memory_gb < 10_000
"""


def test_the_probe_agrees_with_torch_and_starts_no_device() -> None:
    """In a process of its own: other tests load a simulated device, which is then torch's accelerator."""
    done = subprocess.run([sys.executable, "-c", AGREES], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_machine_does_not_change() -> None:
    with pytest.raises(AttributeError):
        probe().cuda = "9.0"  # type: ignore[misc]


def test_nvidia_smi_is_asked_for_the_visible_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho '0, GPU-aa, 12.0, Big'\necho '1, GPU-bb, 7.5, Small'\n")
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert hardware._cuda_devices(None) == ("7.5", "Big")  # the least capable, and the first's name
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert hardware._cuda_devices(None) == ("12.0", "Big")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb")
    assert hardware._cuda_devices(None) == ("7.5", "Small")


@pytest.mark.parametrize(
    ("version", "release"), [("7.2.53211-e1a6bc5663", "7.2.53211"), ("7.0", "7.0"), ("unknown", "0")]
)
def test_rocm_tells_its_version_in_its_own_way(version: str, release: str) -> None:
    assert hardware.release(version) == release


def test_a_probe_that_raises_is_an_answer() -> None:
    assert hardware._ask(lambda: 1 / 0, otherwise="nothing") == "nothing"


def test_a_container_says_how_much_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEM_LIMIT", str(2**30))
    assert memory_gib() == 1.0


def test_cxx_chooses_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert hardware.cpp_compiler() is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "cpu (AVX2)"),
        ({"mps": True, "accelerators": 1}, "mps"),
        ({"rocm": "7.2", "accelerators": 8}, "8 x rocm 7.2"),
        ({"cuda": "9.0", "accelerators": 1, "accelerator_name": "NVIDIA H200"}, "cuda 9.0 (NVIDIA H200)"),
    ],
)
def test_devices_in_words(fields: dict, words: str) -> None:
    machine = Machine(python="3.12", torch="2.15", system="linux", cpu="cpu (AVX2)", cores=1, memory_gb=1.0, **fields)
    assert machine.devices == words


def test_the_command_prints_every_field_and_word(python) -> None:
    done = python("utils.hardware", WHATSNEW_MACHINE="mps=1; macos=15.5; accelerators=1; compiler=")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "mps  yes" in done.stdout
    assert "cuda  no: this machine has mps" in done.stdout
    assert "compile  no: this machine has no C++ compiler" in done.stdout


def test_utils_is_light_to_import(python) -> None:
    heavy = ("torch", "matplotlib", "IPython", "nbformat", "numpy", "psutil")
    done = python("timeit", "-n1", "-r1", f"import utils, sys; print([m for m in {heavy!r} if m in sys.modules])")
    assert "[]" in done.stdout, done.stdout + done.stderr
