"""What this machine has, found without starting a device. `python -m utils.hardware` prints it for bug reports.

`WHATSNEW_MACHINE="cuda=9.0; cuda_runtime=13.2; accelerators=1"` plays another machine: a bare CPU box with this
Python and this torch, on which the named fields are changed. Tests use it; recordings refuse it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

PRETEND = "WHATSNEW_MACHINE"
#: (torch, first Python that its torch.compile refuses), newest first; read from torch._dynamo.eval_frame of each wheel.
COMPILE_REFUSES = (("2.15", (3, 16)), ("2.10", (3, 15)), ("2.0", (3, 14)))


@dataclass(frozen=True)
class Machine:
    """What a machine has. Versions are strings; None means that it is not there."""

    python: str
    torch: str | None
    system: str  # "linux", "macOS 15.5", "windows"
    cpu: str  # "cpu (AVX512)"
    cores: int
    memory_gb: float  # GiB that this process may use
    cuda: str | None = None  # compute capability of the least capable visible GPU
    cuda_runtime: str | None = None  # CUDA that torch was built with, also where there is no GPU
    rocm: str | None = None  # ROCm that torch was built with, where there is an AMD GPU
    xpu: bool = False
    mps: bool = False
    macos: str | None = None
    accelerators: int = 0
    accelerator_name: str | None = None
    amx: bool = False
    compiler: str | None = None  # path of the C++ compiler that torch.compile would call
    without: tuple[str, ...] = field(default=())  # names that a pretended machine's torch lacks
    pretended: bool = False

    @property
    def devices(self) -> str:
        """The accelerators in words, or the CPU where there is none."""
        if not self.accelerators:
            return self.cpu
        kind = f"cuda {self.cuda}" if self.cuda else f"rocm {self.rocm}" if self.rocm else "xpu" if self.xpu else "mps"
        many = f"{self.accelerators} x " if self.accelerators > 1 else ""
        return f"{many}{kind}" + (f" ({self.accelerator_name})" if self.accelerator_name else "")

    @property
    def cuda_in_words(self) -> str:
        """CUDA as the gate tells it: what torch was built with does not matter where there is no GPU."""
        return f"{self.devices} and a torch built with CUDA {self.cuda_runtime}" if self.cuda else self.devices

    @property
    def no_compile(self) -> str | None:
        """Why torch.compile cannot generate code here, or None if it can."""
        if self.torch is None:
            return "no torch"
        refused = next(
            (py for torch, py in COMPILE_REFUSES if Version(self.torch).release >= Version(torch).release), (0,)
        )
        if Version(self.python).release >= refused:
            return f"Python {self.python}, which torch.compile of {self.torch} does not support"
        if self.compiler is None:
            return "no C++ compiler (install g++ or clang++, or set CXX)"
        return None

    @property
    def line(self) -> str:
        """One line for the top of a notebook."""
        play = " · pretended" if self.pretended else ""
        found = f"torch {self.torch}" if self.torch else "no torch"
        return f"{found} · Python {self.python} · {self.system} · {self.devices} · {self.cores} cores{play}"


def _ask(question: Callable[[], Any], otherwise: Any = None) -> Any:
    """The answer, or `otherwise` where this build or machine raises: the kind of error differs from build to build."""
    try:
        return question()
    except Exception:
        return otherwise


def _nvidia_smi(fields: str) -> list[list[str]]:
    """Rows of `nvidia-smi` for the visible GPUs: asking it starts no CUDA context in this process."""
    command = ["nvidia-smi", f"--query-gpu=index,uuid,{fields}", "--format=csv,noheader"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    rows = [[value.strip() for value in line.split(",")] for line in out.splitlines() if line.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        wanted = [v.strip() for v in visible.split(",")]
        rows = [row for row in rows if row[0] in wanted or any(w and row[1].startswith(w) for w in wanted)]
    return [row[2:] for row in rows]


def release(version: str) -> str:
    """The release in a version that may be none by Python's rules: ROCm's `7.2.53211-e1a6bc5663` is `7.2.53211`."""
    found = re.match(r"\d+(\.\d+)*", version)
    return found[0] if found else "0"


def _cuda_devices(torch: Any) -> tuple[str | None, str | None]:
    """(compute capability of the least capable visible GPU, name of the first)."""
    rows = _ask(lambda: _nvidia_smi("compute_cap,name"), [])
    if not rows:  # no nvidia-smi (Jetson, some containers): then torch must open the device
        count = torch.cuda.device_count()
        rows = [
            [".".join(map(str, torch.cuda.get_device_capability(i))), torch.cuda.get_device_name(i)]
            for i in range(count)
        ]
    least = min(rows, key=lambda row: tuple(map(int, row[0].split("."))))
    return least[0], rows[0][1]


def cpp_compiler() -> str | None:
    """The C++ compiler that torch.compile would call on this system: $CXX, or the platform's usual one."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX", usual))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_gib() -> float:
    """Memory in GiB that this process may use: the machine's, or less where a container caps it."""
    import psutil

    limits = [psutil.virtual_memory().total]
    if (told := os.environ.get("MEM_LIMIT", "")).isdigit():  # what Binder and JupyterHub tell their users
        limits.append(int(told))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        if (text := _ask(lambda path=path: open(path).read().strip(), "")).isdigit():
            limits.append(int(text))
    return min(limits) / 2**30


def _bare() -> dict[str, Any]:
    """The fields that hold without asking torch."""
    macos = platform.mac_ver()[0] or None
    return {
        "python": platform.python_version(),
        "torch": _ask(lambda: importlib.metadata.version("torch")),
        "system": f"macOS {macos}" if macos else platform.system().lower(),
        "cpu": f"cpu ({platform.machine()})",
        "cores": cores(),
        "memory_gb": memory_gib(),
        "macos": macos,
        "compiler": cpp_compiler(),
    }


@functools.cache
def probe() -> Machine:
    """This machine, or the one that $WHATSNEW_MACHINE plays. Never raises on a machine that lacks something."""
    if (text := os.environ.get(PRETEND)) is not None:
        return pretend(text)
    found = _bare()
    try:
        import torch
    except ImportError:
        return Machine(**found | {"torch": None})
    found["torch"] = torch.__version__
    found["cuda_runtime"] = torch.version.cuda
    if capability := _ask(torch.backends.cpu.get_cpu_capability):
        found["cpu"] = "cpu" if capability in ("DEFAULT", "NO AVX") else f"cpu ({capability})"
    found["amx"] = bool(_ask(lambda: torch.cpu.get_capabilities().get("amx_tile"), False))
    counts = {  # counted, not asked for with is_available: a driver without a card is no card
        "cuda": _ask(lambda: torch.cuda.device_count(), 0),
        "xpu": _ask(lambda: torch.xpu.device_count(), 0),
        "mps": _ask(lambda: torch.mps.device_count() if torch.backends.mps.is_available() else 0, 0),
    }
    found["accelerators"] = sum(counts.values())
    found["xpu"], found["mps"] = counts["xpu"] > 0, counts["mps"] > 0
    if counts["cuda"] and torch.version.hip:
        found["rocm"] = release(torch.version.hip)
    elif counts["cuda"]:
        found["cuda"], found["accelerator_name"] = _ask(lambda: _cuda_devices(torch), ("0.0", None))
    return Machine(**found)


def pretend(text: str) -> Machine:
    """A machine that is not here: `cuda=9.0; accelerators=2; torch=2.13.0; compiler=`. An empty value means None."""
    types = {f.name: str(f.type) for f in dataclasses.fields(Machine)}
    changes: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in types or name == "pretended":
            raise ValueError(f"{PRETEND}: cannot play {part!r}; write field=value with a field of {', '.join(types)}")
        kind = types[name]
        if kind == "bool":
            changes[name] = value.lower() in ("1", "true", "yes")
        elif kind == "int":
            changes[name] = int(value)
        elif kind == "float":
            changes[name] = float(value)
        elif kind.startswith("tuple"):
            changes[name] = tuple(value.split())
        else:
            changes[name] = value or None
    base = _bare() | {"system": "linux", "macos": None, "cpu": "cpu (pretended)"}
    return Machine(**(base | changes | {"pretended": True}))


def main() -> None:
    """Print what the machine has, and what the gate makes of it."""
    from utils.gate import WORDS, Need, _missing

    machine = probe()
    for f in dataclasses.fields(machine):
        value = getattr(machine, f.name)
        print(f"{f.name:>17}  {value:.1f}" if isinstance(value, float) else f"{f.name:>17}  {value}")
    print()
    for name, word in WORDS.items():
        if not word.must_compare:
            fact = _missing(Need(name), machine)
            print(f"{name:>17}  {f'no: this machine has {fact}' if fact else 'yes'}")


if __name__ == "__main__":
    main()
