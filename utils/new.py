"""The skeleton of a notebook: `python -m utils.new "Sort with torch.sort"` (make new TITLE="…").

It has all sections in their order and runs; `make lint` then tells what is still to be filled, and nothing else.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from utils.catalog import all_notebooks
from utils.kernels import skip_iri_grammar
from utils.paths import NOTEBOOKS
from utils.refresh import refresh

FILL = "FILL"  # the word that stands wherever the author has to write; a lint rule looks for it

#: (kind, text, tags): in the order in which a reader finds them.
SKELETON = (
    (
        "text",
        "# {title}\n\nFILL: one sentence that promises what the reader can do afterwards.\n\n"
        "| since | needs | runs in | memory |\n|---|---|---|---|\n"
        "| PyTorch FILL | a CPU; FILL are optional | about FILL s on two cores | about FILL GB |",
    ),
    (
        "text",
        "## What you will learn\n\n- **FILL** three to five lines, each begins with a verb.\n\nYou need to know: FILL.",
    ),
    (
        "text",
        "## Setup\n\nThe first cell prepares the kernel and prints a line about your machine. The second holds the "
        "numbers you may change.",
    ),
    (
        "code",
        "import matplotlib.pyplot as plt\nimport torch\n\n"
        "from utils import check, expect_error, setup, verdict\nfrom utils.figures import BLUE\n\n"
        'setup(requires="symbol:torch.ones")  # FILL: the newest name that this notebook needs',
        "nbval-ignore-output",
    ),
    ("code", "SIZE = 4  # FILL: what it is, with its unit", "parameters"),
    ("text", "## The problem\n\nFILL: what hurts without the feature. Run the old way for real."),
    ("code", 'print("sum:", torch.ones(SIZE).sum().item())'),
    ("text", "## The smallest example\n\nFILL: at most eight lines."),
    ("code", "x = torch.arange(SIZE)\nprint(tuple(x.shape), x.dtype)"),
    ("text", "## How it works\n\nFILL: semantics, shapes, gradients, the graph; each step shown and checked."),
    ("code", "x = torch.ones(3, requires_grad=True)\n(x**2).sum().backward()\nprint(x.grad.tolist())"),
    ("text", "FILL: the sentence that the next output proves."),
    ("code", 'y = torch.eye(2)\nprint("its own inverse:", torch.equal(y @ y, y))'),
    ("text", "## A real use\n\nFILL: something that a practitioner would do with it, with a picture."),
    (
        "code",
        "t = torch.linspace(0, 1, 50)\nfig, ax = plt.subplots()\n_ = ax.plot(t, t**2, color=BLUE)\n"
        '_ = ax.set(xlabel="FILL", ylabel="FILL", title="FILL: what a person should see")\nplt.show()',
    ),
    ("text", "The figure is not compared; the fact that it shows is."),
    ("code", 't = torch.linspace(0, 1, 50)\nprint("it grows:", bool((t**2).diff().gt(0).all()))'),
    ("text", "## What goes wrong\n\nFILL: the errors that a user will meet, and what to do."),
    ("code", "with expect_error(RuntimeError, words=6):\n    torch.ones(2) + torch.ones(3)"),
    ("text", "## On your hardware\n\nFILL: the same on other devices."),
    ("code", '#| requires: cuda\nprint("on the GPU:", torch.ones(2, device="cuda").sum().item())'),
    ("text", "## Exercises\n\nFILL: two or three. The first one is …"),
    ("code", "def double(x):\n    raise NotImplementedError", "exercise"),
    ("code", 'check(double, {"twice two is four": lambda f: f(2) == 4})'),
    (
        "text",
        "<details><summary>Solution</summary>\n\n```python\ndef double(x):\n    return 2 * x\n```\n\n</details>",
        "solution",
    ),
    ("text", "FILL: the second one is …"),
    ("code", "def halve(x):\n    raise NotImplementedError", "exercise"),
    ("code", 'check(halve, {"half of four is two": lambda f: f(4) == 2})'),
    (
        "text",
        "<details><summary>Solution</summary>\n\n```python\ndef halve(x):\n    return x / 2\n```\n\n</details>",
        "solution",
    ),
    (
        "text",
        "## Announced and shipped\n\nFILL: what was announced, against what the wheel does: a cell for each row of "
        "`announced.toml` that names this notebook.",
    ),
    ("code", '# FILL: verdict("2.14-…", holds=<computed here>, note="what the wheel does")'),
    (
        "text",
        "## Summary\n\nUse it when FILL. Do not use it when FILL.\n\n"
        "FILL: links to the API's page and its pull requests.",
    ),
)


def slug(title: str) -> str:
    """A file name of a title: `Sort with torch.sort` -> `sort_with_torch_sort`. Raises ValueError for no letters."""
    words = re.findall(r"[a-z0-9]+", title.lower())
    if not re.search("[a-z]", " ".join(words)):
        raise ValueError('a notebook needs a title: make new TITLE="Sort with torch.sort"')
    return "_".join(words[:6])


def skeleton(title: str) -> Any:
    """The notebook, not yet run."""
    skip_iri_grammar()
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    cells = []
    for number, (kind, source, *tags) in enumerate(SKELETON):
        make = new_markdown_cell if kind == "text" else new_code_cell
        cells.append(
            make(source.replace("{title}", title), id=f"c{number:02}", metadata={"tags": tags} if tags else {})
        )
    told = {"since": "FILL", "summary": "FILL: one sentence for the index.", "topics": ["FILL"]}
    return new_notebook(cells=cells, metadata={"tutorial": told | {"variations": {"SIZE": 5}}})


def place(title: str, number: int | None, folder: Path = NOTEBOOKS) -> Path:
    """Where the notebook goes: behind the last one, or at a number. Raises ValueError if that number is taken."""
    taken = {int(p.stem[:2]): p.name for p in all_notebooks(folder) if p.stem[:2].isdigit()}
    number = max(taken, default=-1) + 1 if number is None else number
    if not 0 <= number <= 99:
        raise ValueError(f"number {number} has not two digits: names are sorted")
    if number in taken:
        raise ValueError(f"number {number:02} is taken by {taken[number]}")
    return folder / f"{number:02}_{slug(title)}.ipynb"


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m utils.new", description=__doc__.splitlines()[0])
    parser.add_argument("title", help="begins with a verb: the file is named after it")
    parser.add_argument("--number", type=int, help="of the notebook (default: the next one)")
    options = parser.parse_args(argv)
    try:
        path = place(options.title.strip(), options.number)
    except ValueError as error:
        print(f"new: {error}", file=sys.stderr)
        return 2
    import nbformat

    nbformat.write(skeleton(options.title.strip()), path)
    refresh(path)
    print(f"{path}: {FILL} marks what is yours to write; make lint NB={path.stem[:2]} tells what is left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
