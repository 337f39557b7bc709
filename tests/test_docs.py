"""The pages in docs/ say what the tools do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from utils import batch
from utils.paths import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_and_modules_are_there(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / target).exists(), target
    for module in set(re.findall(r"python -m utils\.(\w+)", text)):
        assert (ROOT / "utils" / f"{module}.py").exists(), module


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_options_of_the_batch_are_there(page: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        batch.main(["--help"])
    known = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    told = {
        o
        for line in re.findall(r"utils\.batch ([^`\n]*)", page.read_text("utf-8"))
        for o in re.findall(r"--[a-z-]+", line)
    }
    told |= set(re.findall(r"^- `(--[a-z-]+)", page.read_text("utf-8"), re.MULTILINE))
    assert told <= known, told - known


RECIPE = re.search(r"```bash\n(.*?)```", (ROOT / "docs" / "ci.md").read_text("utf-8"), re.DOTALL)[1].strip()


def test_the_recipe_has_ten_lines() -> None:
    assert len(RECIPE.splitlines()) <= 10
    assert "--all --junit out.xml" in RECIPE
    torch = [line for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines() if line.startswith("torch")]
    assert len(torch) == 1, "the recipe leaves out every line that begins with torch"


#: What the recipe calls, played: each tells that it was called, and ends as the environment says.
PLAYED = {
    "git": "mkdir whatsnew; printf 'numpy\\ntorch>=2.15\\n' > whatsnew/requirements.txt",
    "python3": 'mkdir -p .venv/bin; cp "$PLAYED/pip" .venv/bin/pip; cp "$PLAYED/python" .venv/bin/python',
    "pip": 'echo "pip $*" >> "$PLAYED/told"; [ "$2" != -r ] || cat others.txt >> "$PLAYED/told"; exit "$PIP"',
    "python": 'echo "$2" >> "$PLAYED/told"; [ "$2" != utils.batch ] || exit "$BATCH"; echo told; exit "$CHANGES"',
}


@pytest.mark.skipif(sys.platform == "win32" or shutil.which("bash") is None, reason="the recipe is for bash on Unix")
@pytest.mark.parametrize("shell", [["bash"], ["bash", "-e"], ["bash", "-eo", "pipefail"]], ids=" ".join)
@pytest.mark.parametrize(
    ("pip", "batch", "changes", "status"),
    [(0, 0, 0, 0), (0, 0, 1, 0), (0, 1, 0, 1), (0, 1, 1, 1), (0, 2, 2, 2), (0, 130, 0, 130), (3, 0, 0, 3)],
)
def test_the_recipe_keeps_the_status_of_the_batch(
    shell: list[str], pip: int, batch: int, changes: int, status: int, tmp_path: Path
) -> None:
    """Also in a shell that stops at the first error, as GitHub's does: the comparison is made in any case."""
    played = tmp_path / "played"
    played.mkdir()
    for name, does in PLAYED.items():
        (played / name).write_text(f"#!/bin/sh\n{does}\n")
        (played / name).chmod(0o755)
    script = tmp_path / "recipe.sh"
    script.write_text(RECIPE)
    env = {"PLAYED": str(played), "PIP": str(pip), "BATCH": str(batch), "CHANGES": str(changes)}
    env |= {"PATH": f"{played}{os.pathsep}{os.environ['PATH']}", "REPOSITORY": "x", "YOUR_TORCH_WHEEL": "y.whl"}
    done = subprocess.run([*shell, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    told = (played / "told").read_text().splitlines()
    if pip:
        assert told == ["pip install y.whl"], "what cannot be installed is not run"
    else:
        assert told == ["pip install y.whl", "pip install -r others.txt", "numpy", "utils.batch", "utils.changes"]
        assert (tmp_path / "whatsnew" / "changes.md").read_text() == "told\n"
