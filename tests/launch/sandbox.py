"""A command as Binder would run it: another user, the repository as its home, one CPU, little memory, no network.

Needs root, for the memory cgroup (version 1 or 2) and for namespaces of its own. Nothing outside them is changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HOME = "/home/jovyan"  # as in Binder's images, where it is the repository too
UID = 1000
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@dataclass
class Ran:
    """How a command in the sandbox ended, and what it took. MB are 10^6 bytes."""

    status: int
    output: str
    seconds: float
    memory_mb: float  # most that it held and could not give back at once: what Binder's limit counts
    own_mb: float  # of that, memory of its own (not pages of files)
    killed: int  # times that the kernel killed for memory


def cannot() -> str | None:
    """Why there can be no sandbox on this machine, in words that say what is missing, or None."""
    if not hasattr(os, "getuid") or os.getuid() != 0:
        return "the memory limit needs root (run it with sudo)"
    if missing := [tool for tool in ("unshare", "setpriv", "taskset", "ip", "mount") if shutil.which(tool) is None]:
        return f"missing {', '.join(missing)} (apt-get install util-linux iproute2)"
    try:
        with memory_limit(64) as folder:
            (folder / "cgroup.procs").read_text()
    except OSError as error:
        return f"the memory cgroup cannot be written ({error})"
    probe = subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, text=True)
    return f"no namespaces of its own ({probe.stderr.strip()})" if probe.returncode else None


@contextlib.contextmanager
def memory_limit(mb: float) -> Iterator[Path]:
    """A new memory cgroup with this limit in MiB, and no swap. What is left in it is ended."""
    first = V1.is_dir()
    folder = (V1 if first else V2) / f"launch-{os.getpid()}-{time.monotonic_ns()}"
    if not first:
        with contextlib.suppress(OSError):  # it may be on already, or not ours to give
            (V2 / "cgroup.subtree_control").write_text("+memory")
    folder.mkdir()
    try:
        limit = str(int(mb * 2**20))
        (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(limit)
        swap = folder / ("memory.memsw.limit_in_bytes" if first else "memory.swap.max")
        if swap.exists():
            swap.write_text(limit if first else "0")
        yield folder
    finally:
        for _ in range(50):
            pids = (folder / "cgroup.procs").read_text().split()
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


def _numbers(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", path.read_text(), re.MULTILINE)}


def memory_now(folder: Path) -> tuple[float, float]:
    """(held, own) of a cgroup in MB: what it holds less the file pages it can drop, and what is its own."""
    stat = _numbers(folder / "memory.stat")
    if (usage := folder / "memory.usage_in_bytes").exists():
        own, idle = stat["total_rss"], stat["total_inactive_file"]
    else:
        usage, own, idle = folder / "memory.current", stat["anon"], stat["inactive_file"]
    return (int(usage.read_text()) - idle) / 1e6, own / 1e6


def kills(folder: Path) -> int:
    events = folder / "memory.oom_control"
    return _numbers(events if events.exists() else folder / "memory.events").get("oom_kill", 0)


def show_paths(paths: Sequence[Path]) -> str:
    """Shell lines for a private mount namespace: the paths, where a folder above them is closed to other users."""
    closed: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(paths):
        for above in reversed(path.parents):
            if not above.stat().st_mode & 0o001:
                closed.setdefault(above, []).append(path)
                break
    lines = ["mount -t tmpfs -o mode=755 tmpfs /mnt"]
    for i, (above, inside) in enumerate(closed.items()):
        for j, path in enumerate(inside):
            lines.append(f"mkdir /mnt/{i}-{j} && mount --bind {shlex.quote(str(path))} /mnt/{i}-{j}")
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(above))}")
        for j, path in enumerate(inside):
            quoted = shlex.quote(str(path))
            lines.append(f"mkdir -p {quoted} && mount --bind /mnt/{i}-{j} {quoted}")
    return "\n".join(lines)


def run(
    command: Sequence[str],
    *,
    repo: Path,
    prefix: Path,
    see: Sequence[Path] = (),
    memory_mb: float = 2048,
    network: bool = False,
    timeout: float = 900,
    **environment: str,
) -> Ran:
    """Run a command as user 1000 in a home that is the repository, on one CPU, under a memory limit.

    Args:
        command: run in the home folder.
        repo: becomes the home folder; it is given to the user.
        prefix: environment whose bin is first on PATH; what lies under a folder closed to others is shown.
        see: other folders that the command reads and that may be closed to others.
        memory_mb: limit in MiB.
        network: with the machine's network; otherwise only loopback.
        timeout: seconds, then it is ended with status 124.
        **environment: more variables, or others.
    """
    subprocess.run(["chown", "-R", f"{UID}:{UID}", str(repo)], check=True)
    env = {
        "HOME": HOME, "USER": "jovyan", "NB_USER": "jovyan", "REPO_DIR": HOME, "SHELL": "/bin/bash",
        "LANG": "en_US.UTF-8", "PATH": f"{prefix}/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED": "1",
        "MEM_LIMIT": str(int(memory_mb * 2**20)), "CPU_LIMIT": "1.0",
    } | environment  # fmt: skip
    as_user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "env", "-i"]
    as_user += [f"{name}={value}" for name, value in env.items()]
    script = "\n".join(
        [
            "set -e",
            "" if network else "ip link set lo up",
            show_paths([repo, prefix, *see]),
            f"mkdir /mnt/repo && mount --bind {shlex.quote(str(repo))} /mnt/repo",
            f"mount -t tmpfs -o mode=755 tmpfs /home && mkdir {HOME} && mount --bind /mnt/repo {HOME}",
            f"cd {HOME}",
            f"exec taskset -c {min(os.sched_getaffinity(0))} {shlex.join([*as_user, *command])}",
        ]
    )
    with memory_limit(memory_mb) as folder, tempfile.TemporaryFile("w+") as out:
        peak, own, began = 0.0, 0.0, time.monotonic()

        def join() -> None:  # in the child, before it runs anything
            (folder / "cgroup.procs").write_text(str(os.getpid()))

        process = subprocess.Popen(
            ["unshare", "--mount", *([] if network else ["--net"]), "bash", "-c", script],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, preexec_fn=join, start_new_session=True,
        )  # fmt: skip
        try:
            while process.poll() is None and time.monotonic() - began < timeout:
                held, mine = memory_now(folder)
                peak, own = max(peak, held), max(own, mine)
                time.sleep(0.1)
            seconds = time.monotonic() - began
            timed_out = process.poll() is None
            killed = kills(folder)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        text = out.read() + (f"\nended after {timeout:.0f} s" if timed_out else "")
        return Ran(124 if timed_out else process.returncode, text, seconds, peak, own, killed)
