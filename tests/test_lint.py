"""Each rule for notebooks rejects a notebook that breaks it, and passes one that does not."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import notebook, stdout, text
from nbformat.v4 import new_code_cell, new_output

from utils import lint
from utils.catalog import source_sha256
from utils.claims import VERDICT_MIME, ledger, verdict_text
from utils.lint import RULES
from utils.refresh import normalise

PNG = new_output("display_data", data={"image/png": base64.b64encode(b"picture").decode(), "text/plain": "<Figure>"})
SETUP = "import torch\n\nfrom utils import check, setup, verdict\n\nsetup()"
SOLUTION = "<details><summary>Solution</summary>\n\n```python\ndef {0}(x):\n    return x\n```\n\n</details>"


def exercise(name: str) -> list[Any]:
    stub = new_code_cell(f"def {name}(x):\n    raise NotImplementedError", metadata={"tags": ["exercise"]})
    solution = text(SOLUTION.format(name))
    solution.metadata["tags"] = ["solution"]
    return [stub, (f"check({name}, {{'is one': lambda f: f(1) == 1}})", "Open: write it.\n"), solution]


def told(word: str = "holds", **change: str) -> Any:
    """The output of a verdict on 2.14-polar."""
    data = {"row": "2.14-polar", "verdict": word, "note": ""} | change
    return new_output(
        "display_data", {"text/plain": verdict_text(ledger()["2.14-polar"], word, ""), VERDICT_MIME: data}
    )


def good() -> Any:
    """A notebook that keeps to every rule. Its code cells: 1 setup, 2 parameters, 3 the problem, … 8 gated, …"""
    return notebook(
        text("# Try a thing\n\nIt works."),
        text("## What you will learn\n\n- Try it."),
        text("## Setup"),
        new_code_cell(SETUP, outputs=[stdout("torch\n")], metadata={"tags": ["nbval-ignore-output"]}),
        new_code_cell("SIZE = 3  # rows", metadata={"tags": ["parameters"]}),
        text("## The problem"),
        ("print(torch.ones(SIZE).sum().item())", "3.0\n"),
        text("## The smallest example"),
        ("x = torch.ones(SIZE)\nprint(tuple(x.shape))", "(3,)\n"),
        text("## How it works"),
        new_code_cell("x = 1\nx", outputs=[copy.deepcopy(PNG)]),
        ("y = 2\nprint(y)", "2\n"),
        text("## What goes wrong"),
        ("z = [n for n in range(3)]\nprint(len(z))", "3\n"),
        text("## On your hardware"),
        (
            "#| requires: cuda\nw = torch.ones(2, device='cuda')\nprint(torch.cuda.device_count())",
            "Needs cuda: not recorded yet.\n",
        ),
        text("## Exercises"),
        *exercise("first"),
        *exercise("second"),
        text("## Announced and shipped"),
        new_code_cell("held = torch.ones(1).item() == 1\nverdict('2.14-polar', holds=held)", outputs=[told()]),
        ("print(1)", "1\n"),
        ("print(2)", "2\n"),
        text("## Summary"),
        summary="It tries a thing.",
        since="2.14",
        variations={"SIZE": 4},
    )


def code(nb: Any, number: int) -> Any:
    return [c for c in nb.cells if c.cell_type == "code"][number - 1]


def source(number: int, new: str) -> Callable[[Any], None]:
    return lambda nb: setattr(code(nb, number), "source", new)


def output(number: int, *outputs: Any) -> Callable[[Any], None]:
    return lambda nb: setattr(code(nb, number), "outputs", list(outputs))


def tag(number: int, *tags: str) -> Callable[[Any], None]:
    return lambda nb: code(nb, number).metadata.update(tags=list(tags))


def heading(old: str, new: str) -> Callable[[Any], None]:
    def change(nb: Any) -> None:
        for cell in nb.cells:
            if cell.cell_type == "markdown":
                cell.source = cell.source.replace(old, new)

    return change


def record(**changes: Any) -> Callable[[Any], None]:
    def change(nb: Any) -> None:
        cell = code(nb, 8)
        fields = dict(device="cuda 9.0", torch="2.15.0", platform="linux", date="2026-12-01")
        cell.metadata["recorded"] = fields | {"source_sha256": source_sha256(cell)} | changes
        cell.outputs = [stdout("1\n")]

    return change


def both(*changes: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda nb: [change(nb) for change in changes] and None


BROKEN: list[tuple[str, Callable[[Any], None], str]] = [
    ("normal_form", lambda nb: setattr(code(nb, 3), "execution_count", None), "cell 3 has count None"),
    ("normal_form", lambda nb: setattr(code(nb, 3), "execution_count", 7), "cell 3 has count 7"),
    ("normal_form", lambda nb: nb.metadata.update(widgets={}), "metadata is not in normal form"),
    ("normal_form", lambda nb: code(nb, 3).metadata.update(scrolled=True), "cell 3 is not in normal form"),
    ("normal_form", output(3, stdout("a\n"), stdout("b\n")), "cell 3 is not in normal form"),
    ("normal_form", lambda nb: setattr(nb.cells[1], "id", nb.cells[0].id), "ids, each its own"),
    ("tutorial_metadata", lambda nb: nb.metadata.pop("tutorial"), "needs tutorial.summary"),
    ("tutorial_metadata", lambda nb: nb.metadata.tutorial.update(budget=3), "unknown tutorial metadata: budget"),
    ("leaks", output(3, stdout("<object at 0x7f3a12bc9d00>\n")), "cell 3 stores an address"),
    ("leaks", output(3, stdout("saved in /home/me/file\n")), "cell 3 stores a path"),
    ("leaks", output(3, stdout("UserWarning: beware\n")), "cell 3 stores a warning"),
    ("leaks", output(3, stdout("Skipped: needs cuda; this machine has cpu.\n")), "cell 3 stores a skip notice"),
    ("leaks", output(3, new_output("stream", name="stderr", text="oh\n")), "cell 3 stores stderr"),
    ("leaks", output(3, new_output("error", ename="E", evalue="v", traceback=[])), "cell 3 stores a traceback"),
    ("banned", source(3, "%pip install torch"), "cell 3 matches .*requirements.txt"),
    ("banned", source(3, "!ls"), "cell 3 matches .*shell"),
    ("banned", source(3, "%timeit 1 + 1"), "cell 3 matches .*ratio"),
    ("banned", source(3, "import time\ntime.sleep(1)"), "cell 3 matches .*slow"),
    ("banned", source(3, "import sys\nsys.path.append('..')"), "cell 3 matches .*installed"),
    ("banned", source(3, "ax.plot([1]);"), r"cell 3 matches .*plt\.show"),
    ("banned", source(3, "# NBVAL_SKIP\n1"), "cell 3 matches .*gate"),
    ("known_tags", tag(3, "nbval-skip"), "'print.* is tagged nbval-skip; there are exercise, "),
    ("known_tags", tag(3, "raises-exception"), "is tagged raises-exception"),
    ("known_tags", tag(3, "skip-execution", "timing"), "is tagged skip-execution"),
    ("syntax", source(3, "x = 1\nx ="), "cell 3, line 2: invalid syntax"),
    ("requirements", source(8, "#| requires: cdua\n1"), "cell 8: .*did you mean 'cuda'"),
    ("requirements", source(3, "x = 1\n#| requires: cuda"), "cell 3: .*first line"),
    ("requirements", source(3, "# requires: cuda\nx = 1"), "cell 3: .*first line"),
    ("sizes", source(3, "x = 1\n" * 31), "cell 3 has 31 lines"),
    ("sizes", output(5, new_output("display_data", data={"image/png": "A" * 140_000})), "picture above 100 KB"),
    ("sizes", heading("It works.", "word " * 200), "text of more than 130 words"),
    ("anatomy", heading("# Try a thing", "Try a thing"), "one `# heading`"),
    ("anatomy", heading("It works.", "# Again"), "one `# heading`"),
    ("anatomy", heading("## Summary", "## The end"), "sections missing: Summary"),
    (
        "anatomy",
        both(heading("## Summary", "## X"), heading("## Setup", "## Summary"), heading("## X", "## Setup")),
        "another order",
    ),
    ("anatomy", heading("It works.", "## Summary"), "two sections are called 'Summary'"),
    ("anatomy", output(5, stdout("1\n")), "no picture"),
    ("anatomy", lambda nb: nb.cells.pop(-2), "14 code cells"),
    ("anatomy", lambda nb: [source(n, "x = 1\n" * 12)(nb) for n in range(1, 16)], "median code cell .* 12 lines"),
    ("gated_names", source(9, "print(w)"), "cell 9 uses w, which is defined only where cuda is met"),
    ("sections_stand_alone", source(7, "print(y)"), "cell 7 uses y, which section 'What goes wrong' does not define"),
    ("sections_stand_alone", source(7, "x = x + 1"), "cell 7 uses x, which section"),
    ("ignored_outputs", tag(3, "nbval-ignore-output"), "cell 3 is tagged nbval-ignore-output but not timing"),
    ("ignored_outputs", both(*[tag(n, "nbval-ignore-output", "timing") for n in (3, 4)]), "of the cells that print"),
    ("recordings", output(8, stdout("Skipped\n")), "cell 8 has no recording"),
    ("recordings", output(8), "cell 8 has no recording"),
    ("recordings", output(3, stdout("Needs cuda: not recorded yet.\n")), "cell 3 .* was its gate lost"),
    ("recordings", record(source_sha256="0"), "cell 8 was changed after it was recorded on cuda 9.0"),
    ("recordings", both(record(), lambda nb: code(nb, 8).metadata.recorded.pop("date")), "recorded needs"),
    ("recordings", lambda nb: code(nb, 3).metadata.update(recorded={"date": "x"}), "asks for no hardware"),
    ("parameters_cell", tag(2), "0 cells are tagged parameters"),
    ("parameters_cell", source(2, "SIZE = 3"), "is not `NAME = literal"),
    ("parameters_cell", source(2, "SIZE: int = 3  # rows"), "is not `NAME = literal"),
    ("parameters_cell", source(2, "SIZE = f(3)  # rows"), "plain literal"),
    ("parameters_cell", source(2, "SIZE = 3  # rows\nUNUSED = 1  # what"), "parameter UNUSED is used nowhere"),
    ("parameters_cell", lambda nb: nb.metadata.tutorial.update(variations={}), "needs another value for SIZE"),
    ("parameters_cell", lambda nb: nb.metadata.tutorial.update(variations={"SIZE": 3}), "another value for SIZE"),
    ("parameters_cell", lambda nb: nb.metadata.tutorial.variations.update(SIZES=1), "SIZES, which is no parameter"),
    ("exercises", source(9, "def first(x):\n    return x"), "must raise NotImplementedError"),
    ("exercises", source(10, "first(1)"), "comes a cell with check"),
    ("exercises", heading("```python", "```"), "a solution is a ```python block"),
    ("exercises", tag(11), "1 exercises and 2 solutions"),
    ("filled", source(3, "1  # FILL: what it is"), "still to be filled: '1  # FILL: what it is'"),
    ("filled", lambda nb: nb.metadata.tutorial.update(since="FILL"), "tutorial.since is still to be filled"),
    ("verdicts", source(13, "verdict('2.14-pole', holds=1 > 0)"), "'2.14-pole', which is no row"),
    ("verdicts", source(13, "verdict('2.14-polar', holds=True)"), "is typed in"),
    (
        "verdicts",
        source(13, "held, rows = 2 > 1, []\nrows.append(held)\nverdict('2.14-polar', holds=all(rows))"),
        "typed in",
    ),
    ("verdicts", output(13), "cell 13 stores no verdict on 2.14-polar"),
    ("verdicts", output(13, told("is fine")), "that `verdict` does not give"),
    (
        "verdicts",
        output(13, told("differs", verdict="holds")),
        "the text and the data of the verdict on 2.14-polar differ",
    ),
    ("gated_api", source(8, "#| requires: cuda\ntorch.cuda.no_such_thing()"), "line 2: there is no torch.cuda.no_such"),
    ("gated_api", source(8, "#| requires: cuda\ntorch.cuda.synchronize(gpu=1)"), "line 2: torch.cuda.synchronize: "),
    ("gated_api", source(8, "#| requires: cuda\ntorch.linalg.polar(x, side='left')"), "no such argument: side"),
    (
        "gated_api",
        source(8, "%%script {sys.executable}\n#| requires: xpu\nimport torch\ntorch.xpu.no_such_thing()"),
        "line 4: there is no torch.xpu.no_such",
    ),
    ("gated_api", source(8, "#| requires: xpu\nfrom torch.xpu import warp"), "cannot import warp"),
]


def problems(nb: Any, rule: str) -> list[str]:
    return list(RULES[rule](nb))


def test_the_good_notebook_keeps_to_every_rule() -> None:
    nb = good()
    assert {name: found for name in RULES if (found := problems(nb, name))} == {}


@pytest.mark.parametrize(("rule", "change", "words"), BROKEN, ids=[f"{r}-{i}" for i, (r, _, _) in enumerate(BROKEN)])
def test_a_broken_notebook_is_rejected(rule: str, change: Callable[[Any], None], words: str) -> None:
    import re

    nb = good()
    change(nb)
    if rule != "normal_form":
        normalise(nb)  # so that only what the rule is about is wrong
    found = problems(nb, rule)
    assert any(re.search(words, problem) for problem in found), found


def test_each_rule_has_a_broken_notebook() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


def test_a_recording_that_fits_is_accepted() -> None:
    nb = good()
    record()(nb)
    assert problems(nb, "recordings") == []


def test_a_gated_cell_may_import_a_module_from_its_package() -> None:
    nb = good()
    source(8, "#| requires: cuda\nfrom torch._higher_order_ops import cudagraph_conditional_nodes as c\nc.__name__")(nb)
    assert problems(nb, "gated_api") == []


def test_the_start_page_need_not_be_a_tutorial() -> None:
    page = notebook(text("# Start"), new_code_cell("1", outputs=[copy.deepcopy(PNG)]), summary="All of it.", since="")
    assert [p for name in RULES for p in problems(page, name)] == []


def test_local_names_of_a_cell_are_its_own() -> None:
    for cell in (
        "total = 0\nfor i in range(3):\n    total += i\nprint(total)",
        "def f(a, *b, **c):\n    d = a\n    return d, b, c",
        "values = [q for q in range(3)]\nwith open('x') as handle:\n    handle.read()",
        "try:\n    1\nexcept ValueError as error:\n    print(error)",
        "class A:\n    def g(self):\n        return self\na = A()\nb, c = a.g(), a\nb.x = 1",
    ):
        assert lint._first_use(cell) == set(), cell
    assert lint._first_use("x += 1") == {"x"}
    assert lint._first_use("y = [x for _ in range(2)]") == {"x"}
    assert lint._first_use("def f():\n    return later") == {"later"}


def test_the_ledger_is_held_against_the_notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {r.id: r for r in lint.ledger().values() if r.notebook == "06_linalg_polar"}
    monkeypatch.setattr(lint, "ledger", lambda: rows)
    assert [p.split(" names ")[0] for p in lint.lint_ledger(tmp_path)] == [f"ledger: row {row}" for row in rows]
    nb = good()
    nbformat.write(nb, tmp_path / "06_linalg_polar.ipynb")
    assert lint.lint_ledger(tmp_path) == ["ledger: 06_linalg_polar gives no verdict on 2.14-sqrth"]
    del rows["2.14-sqrth"]
    assert lint.lint_ledger(tmp_path) == []
    (tmp_path / "02_corrupt.ipynb").write_text("{")
    assert lint.lint_ledger(tmp_path) == [], "that is told with the notebook"
    nbformat.write(nb, tmp_path / "01_try.ipynb")
    [problem] = lint.lint_ledger(tmp_path)
    assert problem == "ledger: 01_try gives a verdict on 2.14-polar, whose row names 06_linalg_polar"


def test_the_command_says_what_to_mend(python, tmp_path: Path) -> None:
    nb = good()
    nb.metadata["tutorial"]["budget"] = 3
    nbformat.write(nb, tmp_path / "01_try.ipynb")
    done = python("utils.lint", tmp_path / "01_try.ipynb")
    assert done.returncode == 1
    assert "01_try.ipynb: tutorial_metadata: unknown tutorial metadata: budget" in done.stdout
    (tmp_path / "02_corrupt.ipynb").write_text('{"cells": [')
    done = python("utils.lint", tmp_path / "02_corrupt.ipynb")
    assert done.returncode == 1 and "02_corrupt.ipynb: it is not a notebook that can be read" in done.stdout
    done = python("utils.lint", "no_such")
    assert done.returncode == 2 and "fits no notebook" in done.stderr
