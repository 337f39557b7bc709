"""README is in step with the notebooks, and leads a newcomer to the right one."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from utils import index
from utils.claims import DIFFERS, HOLDS, NEEDS, PLANNED, Answer, answers, ledger
from utils.paths import ROOT
from utils.versions import Outcome, Under

README = (ROOT / "README.md").read_text("utf-8")


def test_readme_says_what_the_notebooks_say() -> None:
    assert index.updated(README, index.now(index.linked(README))) == README, "run make index"


def test_a_readme_without_its_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"README\.md needs the line"):
        index.updated("# nothing", "")


def test_readme_names_only_what_is_there() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"`make ([a-z-]+)", README) + re.findall(r"(?m)^make ([a-z-]+)", README)
    assert len(targets) > 8
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_counts_are_those_of_the_ledger() -> None:
    found = answers()
    n = index.tally(found)
    assert sum(n.values()) == len(ledger()) == 79
    told, _, planned = index.counts(found).partition(" (")
    assert [int(number) for number in re.findall(r"\d+", told)] == [79, n[HOLDS], n[DIFFERS], n[NEEDS], n[PLANNED]]
    by_release = {release: int(count) for count, release in re.findall(r"(\d+) of ([\d.]+\d)", planned)}
    assert by_release == Counter(a.row.release for a in found if a.standing == PLANNED)
    assert index.counts([Answer(a.row, HOLDS) for a in found]).endswith("and 0 are planned.")
    changed = [Answer(a.row, HOLDS) if a.standing == DIFFERS else a for a in found]
    assert index.counts(changed) != index.counts(found)


def columns() -> list[Under]:
    old = {"06_linalg_polar": Outcome("says what is missing", ["torch 2.13.0 without torch.linalg.polar"], 4, 500)}
    new = {"06_linalg_polar": Outcome("runs", [], 12, 715), "07_mx_export": Outcome("fails", ["cell 3: x"], 9, 900)}
    return [Under("2.13.0+cpu", "2026-01-01", "a machine", old), Under("2.15.0", "2026-01-02", "a machine", new)]


def test_releases_side_by_side() -> None:
    lines = index.truth(columns()).splitlines()
    assert lines[0] == "| | torch 2.13.0 | torch 2.15.0 |"
    assert lines[2:4] == ["| 06 | says what is missing | ✓ runs |", "| 07 | not run | ✗ fails |"]
    assert "2.13.0 on 2026-01-01, 2.15.0 on 2026-01-02" in lines[-1]


def test_the_table_shows_the_newest_measurement_and_the_link() -> None:
    [told] = [index.describe(p) for p in index.all_notebooks() if p.stem == "06_linalg_polar"]
    without = index.table([told], answers(), None, None)
    with_all = index.table([told], answers(), columns()[-1], "someone/torch-whatsnew")
    assert "12 s<br>0.7 GB" in with_all and "12 s" not in without
    link = (
        "https://mybinder.org/v2/gh/someone/torch-whatsnew/HEAD?urlpath=lab%2Ftree%2Fnotebooks%2F06_linalg_polar.ipynb"
    )
    assert link in with_all and "mybinder" not in without
    assert len({line.count("|") for line in with_all.splitlines()}) == 1
    assert index.linked(with_all) == "someone/torch-whatsnew" and index.linked(without) is None


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://github.com/someone/torch-whatsnew.git", "someone/torch-whatsnew"),
        ("https://token@github.com/someone/torch.whatsnew/", "someone/torch.whatsnew"),
        ("git@github.com:someone/torch-whatsnew.git", "someone/torch-whatsnew"),
        ("https://gitlab.com/someone/torch-whatsnew.git", None),
        ("/srv/git/torch-whatsnew", None),
        (None, None),
    ],
)
def test_binder_links_lead_to_gits_origin(url: str | None, name: str | None, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    if url:
        subprocess.run(["git", "remote", "add", "origin", url], cwd=tmp_path, check=True)
    assert index.repository(tmp_path) == name


@pytest.mark.parametrize(
    ("wish", "numbers"),
    [
        ("RL policy with data-dependent branches", "02"),
        ("quantised export", "07"),
        ("Intel GPU", "04 05"),
        ("Apple GPU FP8", "05"),
        ("mixture of experts routing", "01"),
        ("recompiles for every batch size", "03"),
        ("orthogonalisation Muon", "06"),
    ],
)
def test_a_newcomer_finds_it(wish: str, numbers: str) -> None:
    """The rows that have most of the words that a reader would search the page for."""
    rows = [line for line in README.splitlines() if re.match(r"\| 0[1-9] \| \*\*", line)]

    def hits(row: str) -> int:
        return sum(re.search(rf"\b{re.escape(word)}", row, re.IGNORECASE) is not None for word in wish.split())

    most = max(map(hits, rows))
    assert most >= 2
    assert [row[2:4] for row in rows if hits(row) == most] == numbers.split()
