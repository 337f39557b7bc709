"""The gate's grammar, its answers on played machines, and what it does to a cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from utils import gate
from utils.gate import Gate, Need, RequirementError, directive, parse, unmet
from utils.hardware import Machine, pretend

LAPTOP = Machine(
    python="3.12.1",
    torch="2.15.0+cpu",
    system="linux",
    cpu="cpu (AVX2)",
    cores=4,
    memory_gb=7.6,
    compiler="/usr/bin/g++",
)
CUDA = replace(LAPTOP, cuda="9.0", cuda_runtime="13.2", accelerators=2, accelerator_name="NVIDIA H200")
MAC = replace(LAPTOP, mps=True, macos="15.5", system="macOS 15.5", accelerators=1)
XPU = replace(LAPTOP, xpu=True, accelerators=1)
ROCM = replace(LAPTOP, rocm="7.2", accelerators=1)


@pytest.mark.parametrize(
    ("source", "spec"),
    [
        ("#| requires: cuda>=9.0\nx = 1", "cuda>=9.0"),
        ("#|requires:mps,macos>=15\n", "mps,macos>=15"),
        ("%%time\n#| requires: xpu\n", "xpu"),
        ("# a comment\n#| requires: amx\n", "amx"),
        ("x = 1\n#| requires: cuda", None),
        ("# requires: cuda", None),
        ("", None),
    ],
)
def test_directive_stands_in_the_leading_comments(source: str, spec: str | None) -> None:
    assert directive(source) == spec


def test_parse_reads_each_form() -> None:
    assert parse("cuda>=9.0, module:torchao, symbol:torch.linalg.polar, mps") == (
        Need("cuda", "9.0"),
        Need("module", name="torchao"),
        Need("symbol", name="torch.linalg.polar"),
        Need("mps"),
    )
    assert [str(n) for n in parse("cuda >= 9.0, module:a.b")] == ["cuda>=9.0", "module:a.b"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("cdua", "did you mean 'cuda'"),
        ("warp_drive", "known are cuda"),
        ("cuda==9.0", "cannot read"),
        ("cuda>9", "cannot read"),
        ("cuda,", "cannot read"),
        ("cuda>=x", "not a version"),
        ("torch", "says nothing alone"),
        ("cuda:polar", "only module: and symbol:"),
        ("module:", "cannot read"),
    ],
)
def test_what_the_grammar_does_not_have_is_an_error(spec: str, words: str) -> None:
    with pytest.raises(RequirementError, match=words):
        unmet(spec, LAPTOP)


@pytest.mark.parametrize(
    ("machine", "met", "not_met"),
    [
        (LAPTOP, "compile, torch>=2.15, python>=3.12, memory_gb>=7.5", "cuda"),
        (CUDA, "cuda>=9.0, cuda_runtime>=12.4, accelerator, accelerators>=2", "cuda>=10.0"),
        (CUDA, "cuda>=8.9", "accelerators>=3"),
        (MAC, "mps, macos>=15, accelerator", "macos>=26.2"),
        (XPU, "xpu", "cuda_runtime>=12.4"),
        (ROCM, "rocm>=7.0", "cuda"),
        (CUDA, "cuda_runtime>=13.2.0, cuda>=9", "cuda_runtime>=13.2.1"),
        (replace(LAPTOP, amx=True), "amx", "memory_gb>=8"),
        (replace(LAPTOP, torch="2.16.0.dev20261130"), "torch>=2.16", "torch>=2.17"),
        (replace(LAPTOP, torch="2.15.0rc3"), "torch>=2.15", "python>=3.13"),
        (replace(LAPTOP, torch="2.10.1"), "torch>=2.8", "torch>=2.15"),
    ],
)
def test_needs_on_played_machines(machine: Machine, met: str, not_met: str) -> None:
    assert unmet(met, machine) is None
    assert unmet(not_met, machine) is not None


@pytest.mark.parametrize(
    ("spec", "machine", "reason"),
    [
        ("cuda>=9.0", LAPTOP, "needs cuda>=9.0; this machine has cpu (AVX2)"),
        ("cuda>=10.0", CUDA, "needs cuda>=10.0; this machine has 2 x cuda 9.0 (NVIDIA H200)"),
        ("mps, macos>=15", LAPTOP, "needs mps, macos>=15; this machine has cpu (AVX2), linux"),
        ("mps, macos>=26.2", MAC, "needs mps, macos>=26.2; this machine has macOS 15.5"),
        ("cuda_runtime>=14.0", CUDA, "2 x cuda 9.0 (NVIDIA H200) and a torch built with CUDA 13.2"),
        ("torch>=2.16", LAPTOP, "needs torch>=2.16; this machine has torch 2.15.0+cpu"),
        ("compile", replace(LAPTOP, compiler=None), "no C++ compiler (install g++ or clang++, or set CXX)"),
        ("compile", replace(LAPTOP, python="3.16.0"), "Python 3.16.0, which torch.compile of 2.15.0+cpu does not"),
        ("amx", LAPTOP, "cpu (AVX2) without AMX"),
        ("module:nvmath", LAPTOP, "no nvmath (pip install nvmath-python)"),
        ("module:no.such", LAPTOP, "no no.such"),
        ("symbol:torch.switchboard", LAPTOP, "torch 2.15.0+cpu without torch.switchboard"),
        ("memory_gb>=64", LAPTOP, "needs memory_gb>=64; this machine has 7.6 GiB"),
    ],
)
def test_the_reason_is_told_in_words(spec: str, machine: Machine, reason: str) -> None:
    assert reason in unmet(spec, machine)


def test_python_3_15_is_no_obstacle_for_compile_from_torch_2_15() -> None:
    assert unmet("compile", replace(LAPTOP, python="3.15.0")) is None
    assert "does not support" in unmet("compile", replace(LAPTOP, python="3.15.0", torch="2.14.1"))


def test_compile_table_agrees_with_the_torch_that_is_installed() -> None:
    import inspect
    import re

    from torch._dynamo import eval_frame

    from utils.hardware import COMPILE_REFUSES

    [major, minor] = re.search(r"version_info >= \((\d+), (\d+)\)", inspect.getsource(eval_frame)).groups()
    assert COMPILE_REFUSES[0][1] == (int(major), int(minor))


def test_symbols_and_modules_are_looked_up_for_real() -> None:
    assert unmet("symbol:torch.linalg.polar, symbol:torch.utils.checkpoint.checkpoint, module:json", LAPTOP) is None
    assert unmet("symbol:torch.linalg.polar", replace(LAPTOP, without=("torch.linalg.polar",))) is not None


def test_asks_for_hardware() -> None:
    assert gate.asks_for_hardware("torch>=2.15, mps")
    assert not gate.asks_for_hardware("compile, torch>=2.15, module:x, symbol:a.b, memory_gb>=8")
    assert not gate.asks_for_hardware(None)


def test_the_transformer_replaces_only_what_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "probe", lambda: LAPTOP)
    plain, gated = ["x = 1\n"], ["#| requires: cuda\n", "x = 1\n"]
    assert Gate()(plain) is plain
    [line] = Gate()(gated)
    assert "show_skipped('needs cuda; this machine has cpu (AVX2)')" in line
    [line] = Gate("symbol:torch.nothing")(plain)
    assert "needs symbol:torch.nothing" in line
    with pytest.raises(RequirementError, match="did you mean 'cuda'"):
        exec(Gate()(["#| requires: cdua\n"])[0])
    monkeypatch.setattr(gate, "probe", lambda: CUDA)
    assert Gate()(gated) is gated


def test_a_played_machine_is_bare_but_for_what_is_named() -> None:
    machine = pretend("cuda=9.0; accelerators=2; torch=2.13.0; compiler=; amx=yes; without=torch.a torch.b")
    assert (machine.cuda, machine.accelerators, machine.torch, machine.compiler) == ("9.0", 2, "2.13.0", None)
    assert machine.amx and machine.pretended and machine.without == ("torch.a", "torch.b")
    assert not machine.mps and "pretended" in machine.line


@pytest.mark.parametrize("text", ["cuda", "warp=9", "pretended=no"])
def test_a_machine_that_cannot_be_played_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="cannot play"):
        pretend(text)
