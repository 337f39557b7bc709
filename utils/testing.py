"""pytest plugin for the notebooks: nbval, with hardware cells skipped, its faults repaired and the network blocked.

Loaded by `-p utils.testing` in pyproject.toml, before nbval, so that nbval's import of nbformat is cheap. With it:

- a cell whose `#| requires:` is not met here is SKIPPED, and the reason says what it needs;
- a cell that asks for hardware, is run on it and has no recording is run, not compared;
- a dead kernel fails the cell that killed it at once, and a hanging cell fails after --nbval-cell-timeout; the
  cells behind it are reported as not run instead of failing one by one (nbval waits, and goes on);
- output of subprocesses and of C++ is captured (ipykernel stops doing that where it sees pytest);
- a trailing `;` silences a value, as in JupyterLab (nbval runs cells without history);
- cells are counted from 1, as in JupyterLab;
- kernels talk over Unix sockets of their own, and Python's sockets reach nothing but this machine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from utils import gate
from utils.hardware import cores
from utils.kernels import private_transport, skip_iri_grammar
from utils.offline import block_network
from utils.paths import ROOT

skip_iri_grammar()

OFFLINE = ROOT / "tests" / "offline"


def pytest_configure(config: pytest.Config) -> None:
    """Block the network, share the cores among the workers, repair nbval."""
    block_network()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(OFFLINE), os.environ.get("PYTHONPATH")]))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // workers)))
    if getattr(config.option, "nbval", False):
        transport = private_transport()
        _repair_nbval(transport.__enter__())
        config.add_cleanup(lambda: transport.__exit__(None, None, None))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Mark cells that cannot run here as skipped, and those that have nothing to compare with as not compared."""
    from utils.catalog import away, cell_requires

    needs: dict[Path, dict[str, Any]] = {}
    for item in items:
        if (cell := getattr(item, "cell", None)) is None:
            continue
        if item.path not in needs:
            needs[item.path] = {c.id: specs for c, specs in cell_requires(item.parent.nb)}
        specs = needs[item.path][cell.id]
        if reason := away(specs):
            item.add_marker(pytest.mark.skip(reason=reason))
        elif gate.asks_for_hardware(specs[1]) and "recorded" not in cell.metadata:
            item.options["check"] = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    """Do not run the cells behind one that took the kernel with it."""
    if ended := getattr(item.parent, "ended", None):
        pytest.xfail(f"not run: {ended}")


def _repair_nbval(transport: Any) -> None:
    from jupyter_client.manager import KernelManager
    from nbval import kernel, plugin

    started = 0

    def kernel_manager(**kwargs: Any) -> KernelManager:
        nonlocal started
        started += 1
        config = transport.copy()
        if "ip" in config.KernelManager:
            config.KernelManager.ip = f"{transport.KernelManager.ip}{started}"
        return KernelManager(config=config, **kwargs)

    kernel.KernelManager = kernel_manager

    class Kernel(kernel.RunningKernel):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            hidden = os.environ.pop("PYTEST_CURRENT_TEST", None)
            try:
                super().__init__(*args, **kwargs)
            finally:
                if hidden is not None:
                    os.environ["PYTEST_CURRENT_TEST"] = hidden

        def execute_cell_input(self, cell_input: str, allow_stdin: bool | None = None) -> str:
            return self.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)

        def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
            until = None if timeout is None else time.monotonic() + timeout
            while True:
                try:
                    message = self.get_message(stream="shell", timeout=0.5)
                except Empty:
                    if not self.is_alive():
                        raise RuntimeError("the kernel died while it ran this cell") from None
                    if until is not None and time.monotonic() > until:
                        raise
                    continue
                if message["parent_header"].get("msg_id") == msg_id:
                    if message["content"]["status"] == "aborted":
                        raise RuntimeError("the kernel refused to run this cell")
                    return

    # nbval's classes name each other, so these two methods are replaced where they are
    run_cell = plugin.IPyNbCell.runtest

    def from_parent(cls: Any, parent: Any, *, name: str, cell_num: int, **kwargs: Any) -> Any:
        number = cell_num + 1
        return pytest.Item.from_parent.__func__(cls, parent, name=f"Cell {number}", cell_num=number, **kwargs)

    def runtest(self: Any) -> None:
        try:
            run_cell(self)
        except Exception as error:
            if self.parent.timed_out or not self.parent.kernel.is_alive():
                self.parent.ended = f"{self.name} ended the kernel"
                if self.parent.kernel.is_alive():
                    self.parent.kernel.stop()
            if isinstance(error, RuntimeError):  # nbval shows the cell's source only with its own error
                self.raise_cell_error(str(error))
            raise

    plugin.RunningKernel = Kernel
    plugin.IPyNbCell.from_parent = classmethod(from_parent)
    plugin.IPyNbCell.runtest = runtest
