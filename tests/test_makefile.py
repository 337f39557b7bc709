"""What make would do, told by `make -n`: nothing is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from utils.paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that is installed, so far as make can see."""
    for name in ("installed", "tests", "launch"):
        (tmp_path / name).touch()
    return tmp_path


def would(target: str, venv: Path, **variables: str) -> str:
    given = [f"{name}={value}" for name, value in variables.items()]
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "TORCH")}
    command = ["make", "-n", target, f"VENV={venv}", *given]
    return subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("target", ["run", "test", "test-launch", "lab", "refresh"])
def test_what_is_installed_is_used_again(target: str, venv: Path) -> None:
    assert "pip install" not in would(target, venv)


def test_a_broken_installation_is_done_again(venv: Path) -> None:
    (venv / "installed").unlink()
    assert "pip install --disable-pip-version-check -r requirements.txt" in would("run", venv)


def test_another_torch_is_installed_once(venv: Path) -> None:
    nightly = "--pre torch --index-url https://example.org/nightly"
    told = would("run", venv, TORCH=nightly)
    assert f"pip install --disable-pip-version-check {nightly}\n" in told
    assert f"echo '{nightly}' > {venv}/torch.txt" in told
    (venv / "torch.txt").write_text(f"{nightly}\n")
    assert "pip install" not in would("run", venv, TORCH=nightly)
    assert "pip install" not in would("run", venv), "without TORCH, what is there is used"
    assert "pip install --disable-pip-version-check torch==2.14.1\n" in would("run", venv, TORCH="torch==2.14.1")
