"""Binder's build as far as this machine can make it: what repo2docker prints, an environment from the pins, a copy."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from launch.page import user_environment
from utils.paths import BUILD, ROOT

VENV = BUILD / "binder-venv"
PINS = ROOT / "binder" / "requirements.txt"
STAND_IN = "torch==2.13.0+cpu"  # a CPU build for machines that cannot reach the index of the pins


@dataclass
class Environment:
    """An environment with Binder's pins."""

    prefix: Path
    torch: str
    python: str
    unproved: str  # what another torch or Python than Binder's leaves open; empty if there is nothing

    @property
    def told(self) -> str:
        return f"torch {self.torch}, Python {self.python}" + (f"; unproved: {self.unproved}" if self.unproved else "")


def dockerfile(repo: Path) -> str:
    """What repo2docker would build of a repository, with the options that BinderHub gives it. Raises on a bad one."""
    command = [
        sys.executable,
        "-m",
        "repo2docker",
        "--no-build",
        "--debug",
        "--user-id",
        "1000",
        "--user-name",
        "jovyan",
    ]
    done = subprocess.run(
        [*command, str(repo)], capture_output=True, text=True, timeout=120, env=user_environment(), cwd=repo
    )
    if done.returncode:
        raise RuntimeError(f"repo2docker refuses: {done.stderr.strip()[-500:]}")
    return done.stdout + done.stderr


def problems(text: str) -> list[str]:
    """What is wrong with the build that repo2docker printed."""
    found = []
    if (version := re.search(r"conda environment for python=(\S+)", text)) is None or version[1] != pinned_python():
        found.append(f"its Python is {version[1] if version else 'unknown'}, not {pinned_python()}")
    steps = [line.strip() for line in text.splitlines()]

    def at(pattern: str) -> int:
        return next((i for i, line in enumerate(steps) if re.search(pattern, line)), -1)

    install, copy = at(r'^(RUN )?.*pip install .*-r "?binder/requirements\.txt'), at(r"^COPY .* src/ \$\{REPO_DIR\}")
    if install < 0:
        found.append("binder/requirements.txt is not installed")
    elif copy < install:
        found.append("the pins are installed after the repository is copied: again for every commit")
    if at(r'-r "?requirements\.txt') >= 0 or at(r"pip install .* \.$") >= 0:
        found.append("something of the repository's top level is installed")
    if not re.search(r"apt-get install [^&]*\bg\+\+", text):
        found.append("no C++ compiler is installed, which torch.compile needs")
    if at(r"^RUN \./binder/postBuild") < copy:
        found.append("postBuild is not run")
    if at(r'^ENV R2D_ENTRYPOINT="\$\{REPO_DIR\}/binder/start"') < 0:
        found.append("start is not used")
    return found


def pip(python: Path | str, *arguments: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True, text=True, timeout=timeout, env=user_environment(),
    )  # fmt: skip


def pinned_python() -> str:
    return (ROOT / "binder" / "runtime.txt").read_text().strip().removeprefix("python-")


def find_python(version: str) -> str | None:
    """A Python of this version (`3.12`) that starts, or None. Under pyenv, also one that is not switched on."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python"))
    for candidate in [sys.executable if here == version else None, *beside, shutil.which(f"python{version}")]:
        if candidate and not subprocess.run([str(candidate), "-c", "import venv, ssl"], capture_output=True).returncode:
            return str(candidate)
    return None


def choose() -> tuple[str, list[str], str]:
    """(Python, what to install, what that leaves unproved): Binder's own pins if they can be had, else a stand-in.

    Raises LookupError if no CPU build of torch can be had.
    """
    lines = PINS.read_text().splitlines()
    python, wanted = find_python(pinned_python()), pinned_python()
    index = next(line.split()[1] for line in lines if line.startswith("--extra-index-url"))
    pin = next(line for line in lines if line.startswith("torch==")).split()[0]
    other = python or sys.executable
    # one question with a short patience: pip would ask an index that is out of reach once for every package
    if (
        f"{pin.removeprefix('torch==')}+cpu"
        in pip(other, "index", "versions", "torch", "--index-url", index, "--retries", "0", "--timeout", "10").stdout
    ):
        return other, lines, "" if python else f"Python {wanted}, which is not here"
    for candidate in filter(None, [python, sys.executable]):
        if pip(candidate, "install", "--dry-run", "--no-deps", "--ignore-installed", STAND_IN).returncode == 0:
            kept = [line for line in lines if not line.startswith(("--extra-index-url", "torch=="))]
            open_ = f"{pin}+cpu (its index is out of reach), so the cells that need what came after 2.13 do not run"
            if candidate != python:
                open_ += f", and Python {wanted}"
            return candidate, [STAND_IN, *kept], open_
    raise LookupError(f"no CPU build of torch can be had: neither {pin} from {index} nor {STAND_IN}")


def environment() -> Environment:
    """An environment of its own with Binder's pins; kept in build/ until they change. Raises on a failed install."""
    python, lines, unproved = choose()
    stamp = VENV / "stamp.json"
    content = json.dumps([hashlib.sha256("\n".join([python, *lines]).encode()).hexdigest()])
    if not stamp.exists() or stamp.read_text() != content:
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(VENV)], check=True)
        wanted = VENV / "requirements.txt"
        wanted.write_text("\n".join(lines) + "\n")
        done = pip(VENV / "bin" / "python", "install", "-r", str(wanted), timeout=1500)
        if done.returncode:
            raise RuntimeError(f"the pins cannot be installed: {done.stderr[-2000:]}")
        stamp.write_text(content)
    ask = "import platform, torch; print(torch.__version__, platform.python_version(), torch.version.cuda)"
    told = subprocess.run(
        [str(VENV / "bin" / "python"), "-c", ask], capture_output=True, text=True, env=user_environment()
    )
    torch, version, cuda = told.stdout.split()
    if cuda != "None":
        raise RuntimeError(f"the pins bring a CUDA build: {torch}")
    return Environment(VENV, torch, version, unproved)


def broken_pins(environment: Environment) -> list[str]:
    """Pins that the environment does not keep; torch only if it is the pinned one."""
    ask = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    told = subprocess.run(
        [environment.prefix / "bin" / "python", "-c", ask], capture_output=True, text=True, check=True
    )
    there = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in json.loads(told.stdout).items()}
    found = []
    for line in PINS.read_text().splitlines():
        if not line or line.startswith(("#", "-")):
            continue
        pin = Requirement(line.partition(" #")[0])
        if pin.name == "torch" and environment.unproved:
            continue
        if not pin.specifier.contains(there.get(pin.name, "0"), prereleases=True):
            found.append(f"{pin}: {there.get(pin.name, 'missing')}")
    return found


def copy_of_checkout(folder: Path) -> Path:
    """What a clone of the working tree would hold. Its build folder is kept: what was compiled there is still good."""
    for old in folder.glob("*"):
        if old.name != "build":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-coz", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def base_of(prefix: Path) -> Path:
    """The Python installation that a virtual environment stands on."""
    return Path(os.path.realpath(prefix / "bin" / "python")).parents[1]
