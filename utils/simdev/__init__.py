"""A simulated accelerator, for machines that have none: PyTorch's PrivateUse1 backend, renamed `sim`, with graphs.

    >>> from utils import simdev
    >>> device = simdev.load()              # compiles simdev.cpp on the first call; later ones take no time
    >>> torch.ones(3, device=device) + 1

The device is the process's accelerator from then on, before any real one: `torch.accelerator.Graph` captures on it.
It is there to learn on and to test with: it borrows the CPU's kernels and memory, and its time is simulated, so that
`torch.Event` measures the same on every machine.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from utils.hardware import cpp_compiler
from utils.paths import BUILD

if TYPE_CHECKING:
    import torch

NAME = "sim"
SOURCE = Path(__file__).with_name("simdev.cpp")
FLAGS = () if sys.platform == "win32" else ("-O1", "-Wall", "-Wextra")


class BuildError(RuntimeError):
    """The device could not be compiled. The message says what is missing."""


@functools.cache
def load() -> torch.device:
    """Compile the device if that is still to do, load it, and make it this process's accelerator.

    Raises:
        BuildError: no compiler, no ninja, or the compiler refuses; its words follow.
    """
    import torch

    build()
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module())
    torch.ops.simdev.start()
    return torch.device(NAME)


def build(folder: Path = BUILD / "simdev") -> Path:
    """Compile simdev.cpp and load its library; returns the folder it lies in.

    Args:
        folder: where the library is kept, in a subfolder for each torch. If it cannot be written, a temporary folder
            serves instead, and the next process compiles again.
    """
    import torch

    if cpp_compiler() is None:
        raise BuildError("the simulated device needs a C++ compiler: install g++ or clang++, or set CXX")
    if (ninja := _ninja()) is None:
        raise BuildError("the simulated device needs ninja: pip install ninja")
    place = _writable(folder / f"torch-{torch.__version__}")
    cpp_extension = _cpp_extension()
    path = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([str(ninja.parent), path])
    try:
        cpp_extension.load(
            "simdev",
            [str(SOURCE)],
            extra_cflags=list(FLAGS),
            build_directory=str(place),
            is_python_module=False,
            verbose=False,
        )
    except (RuntimeError, OSError) as error:
        raise BuildError(f"simdev.cpp was not compiled in {place}\n{error}") from error
    finally:
        os.environ["PATH"] = path
    return place


def launches() -> int:
    """How often the host has called the device in this process: one for a kernel, one for a whole graph."""
    import torch

    return torch.ops.simdev.launches()


@contextmanager
def trace(launch_us: float = 10.0) -> Iterator[list[tuple[str, float, float]]]:
    """Note what host and device do within a `with` block, in the device's simulated time.

    Args:
        launch_us: what a call from host to device costs within the block, in microseconds.

    Yields:
        A list that fills when the block ends: (name, begin, end) in microseconds. The host's calls are named
        "launch", what the device does has its operator's name. A kernel takes one microsecond, and one more for each
        megabyte that it reads or writes; it starts when its launch is through and the kernel before it is done.
    """
    import torch

    spans: list[tuple[str, float, float]] = []
    torch.ops.simdev.set_launch_us(launch_us)
    torch.ops.simdev.trace(True)
    try:
        yield spans
    finally:
        names, begins, ends = torch.ops.simdev.trace(False)
        torch.ops.simdev.set_launch_us(10.0)
        zero = min(begins, default=0.0)
        spans.extend((n, b - zero, e - zero) for n, b, e in zip(names, begins, ends, strict=True))


def graph_backends() -> list[str]:
    """The backends of this process that have registered a graph implementation, in capitals, sorted."""
    import torch

    return sorted(torch.ops.simdev.graph_backends())


def _device_module() -> types.ModuleType:
    """What torch and portable code ask of `torch.sim`."""
    import torch

    module = types.ModuleType(f"torch.{NAME}", "The simulated device.")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.manual_seed_all = lambda seed: None  # it draws from the CPU's generator, which is seeded anyhow
    module.synchronize = torch.accelerator.synchronize
    module.current_stream = torch.accelerator.current_stream
    module._is_in_bad_fork = lambda: False
    return module


def _cpp_extension() -> types.ModuleType:
    """torch.utils.cpp_extension, without its warning that a CUDA build finds no GPU here."""
    log = logging.getLogger("torch.utils.cpp_extension")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        from torch.utils import cpp_extension
    finally:
        log.setLevel(level)
    return cpp_extension


def _ninja() -> Path | None:
    """The ninja on PATH, or the one that pip put beside this Python, which an environment not activated hides."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("ninja") or shutil.which("ninja", path=beside)
    return Path(found) if found else None


def _writable(folder: Path) -> Path:
    """The folder, made if need be, or a temporary one if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="simdev-"))
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="simdev-"))
