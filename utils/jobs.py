"""One notebook in a process of its own: what it is asked, and how it is watched, measured and ended.

What a batch on this machine and a worker of a fleet share. Light to import: papermill is imported in the process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

PASSED, FAILED, TIMED_OUT, DIED, NOT_RUN = "passed", "failed", "timed out", "kernel died", "not run"
KILLED = "killed its workers"  # two workers of a fleet died while they ran it

SAMPLE_EVERY = 0.2  # seconds between two looks at the memory of a process tree
LAST_WORDS = 15.0  # seconds that a process has, after its kernel was ended, to tell what the cells before had found


class BadInput(Exception):
    """What was asked for makes no sense; the message says what to do."""


@dataclass(frozen=True)
class Job:
    """What a process is to do. Paths are absolute."""

    notebook: Path
    executed: Path  # where the executed copy goes; its HTML and pictures stand beside it
    parameters: dict[str, Any] = field(default_factory=dict)
    scratch: str = ""  # a folder for temporary files; whoever started the process removes it

    @property
    def log(self) -> Path:
        """What the process and the kernel wrote that is in no cell."""
        return self.executed.with_suffix(".log")


def clear_executed(folder: Path, name: str) -> Path:
    """The folder of the executed copies, without what an earlier run left there of this one."""
    executed = folder / "executed"
    for ending in (".ipynb", ".html", ".log", "_[0-9]*.png"):
        for old in executed.glob(glob.escape(name) + ending):
            old.unlink()
    return executed


@functools.cache
def processes() -> Any:
    """How processes are started: from a fork server that has imported papermill, once for all, where there is one."""
    # the fork server listens on a socket in the temporary folder, whose path the system limits to about 100 characters
    short = len(os.fsencode(tempfile.gettempdir())) < 70
    method = "forkserver" if sys.platform != "win32" and short else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["utils.worker"])
    return context


def end_with_parent(scratch: str) -> None:
    """End this process and all that it started when the process that asked for it is gone, even by SIGKILL.

    Otherwise a notebook would go on, with nobody to take what it finds, and hold its memory and its accelerator.
    `scratch` is then removed here.
    """

    def wait() -> None:
        multiprocessing.parent_process().join()
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def work(job: Job, events: Any) -> None:
    """What the process does. Where there is a fork server, the import was done there."""
    from utils.worker import run

    end_with_parent(job.scratch)
    # what torch.compile makes must outlive this process, also where the checkout has no place for it (keep_compiled)
    user = os.getuid() if hasattr(os, "getuid") else "user"  # a container's user may have no name
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"torchinductor_{user}"))
    # what is ended by SIGKILL removes nothing behind it: the file with the kernel's key, its sockets
    os.environ["TMPDIR"] = tempfile.tempdir = job.scratch
    run(job, events)


class Running:
    """A notebook on its way. `facts` are the fields of its Result, as far as they are known."""

    def __init__(self, job: Job, limit: float) -> None:
        """Start it. `limit` is in seconds of wall time."""
        self.limit, self.cell, self.closed = limit, 0, False
        self.late: float | None = None  # when its kernel was ended for taking too long
        self.scratch = tempfile.mkdtemp(prefix="wn-")
        job = dataclasses.replace(job, scratch=self.scratch)
        self.facts: dict[str, Any] = {"seconds": 0.0, "peak_mb": 0.0}
        self.done: dict[str, Any] | None = None
        self.family: dict[int, psutil.Process] = {}
        self.last_sample = 0.0
        self.events, theirs = processes().Pipe(duplex=False)
        self.process = processes().Process(target=work, args=(job, theirs), name=job.notebook.stem)
        self.process.start()
        theirs.close()
        self.began = time.monotonic()

    def look(self) -> bool:
        """Take what it sent, and measure it. True when it ended, by itself or by the limit: then nothing is left."""
        now = time.monotonic()
        self.facts["seconds"] = now - self.began
        try:
            while not self.closed and self.events.poll():
                kind, content = self.events.recv()
                if kind == "cell":
                    self.cell = content
                else:
                    self.done = content
        except EOFError:  # the other end is gone: poll would say from now on that there is something
            self.closed = True
        if now - self.last_sample > SAMPLE_EVERY:
            self.facts["peak_mb"] = max(self.facts["peak_mb"], self.tree_mb())
            self.last_sample = now
        if self.done is not None:
            self.process.join(timeout=10)
            self.facts |= self.done
        elif not self.process.is_alive() and (self.closed or not self.events.poll()):
            self._ended(DIED, f"its process ended with status {self.process.exitcode}")
        elif self.late is None and self.facts["seconds"] > self.limit:
            self.late = now
            self._kill(but=self.process.pid)  # then the process sees a dead kernel, and tells of the cells before
            return False
        elif self.late is None or now - self.late < LAST_WORDS:
            return False
        if self.late is not None:
            self._ended(TIMED_OUT, f"still running after {self.limit:.0f} s, and was ended")
        self.end()
        return True

    def _ended(self, status: str, what: str) -> None:
        self.facts |= {"status": status, "error": {"cell": self.cell, "what": what}}

    def tree_mb(self) -> float:
        """Memory of the process, its kernel and all that they started, in MB (10^6 bytes).

        Proportional set size where the system has it, so that pages which processes share count once; elsewhere what
        is unique to each process.
        """
        self._find_family()
        total = 0
        for process in self.family.values():
            with contextlib.suppress(psutil.Error, OSError):
                full = process.memory_full_info()
                total += getattr(full, "pss", full.uss)
        return total / 1e6

    def end(self) -> None:
        """End the process with its kernel and all that they started."""
        self._kill()
        self.process.kill()
        self.process.join()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _kill(self, but: int | None = None) -> None:
        self._find_family()
        for pid, process in self.family.items():
            if pid != but:
                with contextlib.suppress(psutil.Error):  # psutil knows if the number now belongs to another process
                    process.kill()

    def _find_family(self) -> None:
        with contextlib.suppress(psutil.Error):
            parent = self.family.setdefault(self.process.pid, psutil.Process(self.process.pid))
            for child in parent.children(recursive=True):
                self.family.setdefault(child.pid, child)
