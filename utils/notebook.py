"""What a notebook's cells call: `setup`, `expect_error`, `check`."""

from __future__ import annotations

import logging
import os
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from utils import gate
from utils.hardware import probe
from utils.paths import keep_compiled, nothing_compiled

EXERCISE_MIME = "application/vnd.whatsnew.exercise+json"
MACHINE_MIME = "application/vnd.whatsnew.machine+json"
NOTICE_MIME = "application/vnd.whatsnew.notice+json"  # for the person at the screen: never stored in a notebook
COLD = (
    "Nothing compiled is kept here yet: a cell that calls torch.compile takes up to a minute the first time, several "
    "on one CPU. While it shows [*], it works."
)

#: Warnings that torch prints on machines where nothing is wrong: (start of the message, why it is silenced).
KNOWN_WARNINGS = (
    ("CUDA initialization: ", "a CUDA build on a machine without an NVIDIA driver says so on first use"),
    ("Can't initialize NVML", "the same, from the GPU counter"),
    ("`torch.jit.script` is deprecated", "torch's own first use of forward-mode AD"),
)


def setup(requires: str | None = None) -> None:
    """Prepare the kernel, and print one line about the machine.

    Puts the gate in place (cells that start with `#| requires: …` are skipped where the need is not met), sets the
    figure style, seeds torch, keeps what torch.compile generates in `build/inductor`.

    Args:
        requires: what every other cell of this notebook needs, in the gate's grammar, for example
            `symbol:torch.linalg.polar`. Where it is not met, those cells say so and do not run.
    """
    gate.install(requires)
    keep_compiled()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch.profiler writes dated lines to stderr
    machine = probe()
    _display(machine.line, MACHINE_MIME, {"line": machine.line, "torch": machine.torch})
    if machine.torch is None:
        raise ModuleNotFoundError("these notebooks need torch: run `pip install -r requirements.txt` in the checkout")
    if nothing_compiled() and machine.no_compile is None:
        _display(COLD, NOTICE_MIME, {})
    for start, _reason in KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message=re.escape(start))
    # a CUDA build on a machine with CUDA's tools and no GPU says so on stderr, with the time of day
    logging.getLogger("torch.utils.cpp_extension").addFilter(lambda r: "No CUDA runtime is found" not in r.getMessage())
    import torch

    from utils.figures import use_style

    if told := use_style():
        print(told)
    torch.manual_seed(0)
    torch.set_printoptions(precision=4, sci_mode=False, linewidth=100)


@contextmanager
def expect_error(kind: type[BaseException] = Exception, *, words: int | None = None) -> Iterator[None]:
    """Run a block that is meant to fail; print the error's type and the first line of its message.

    Args:
        kind: the expected type. Another type passes through as an ordinary error.
        words: print only so many words of the message, where upstream's text changes from release to release.

    Raises:
        AssertionError: if the block does not raise. A lesson about an error is wrong when the error is gone.
    """
    try:
        yield
    except kind as error:
        text = (str(error).strip().splitlines() or [""])[0]
        if words is not None and len(text.split()) > words:
            text = " ".join(text.split()[:words]) + " …"
        print(f"{type(error).__name__.lstrip('_')}: {textwrap.shorten(text, 160, placeholder=' …')}")
    else:
        raise AssertionError(f"this block was meant to raise {kind.__name__}, and it ran without an error")


def check(attempt: Callable, claims: Mapping[str, Callable[[Callable], object]]) -> None:
    """Check the answer to an exercise, one line a claim.

    A stub that still raises NotImplementedError is reported as open, so that Run All on an untouched notebook ends
    well. Each claim is a sentence and a test of the attempt, which is true if the claim holds.

    Args:
        attempt: the reader's function.
        claims: sentence -> function of the attempt.
    """
    lines, passed, still_open = [], True, False
    for sentence, test in claims.items():
        try:
            holds, why = bool(test(attempt)), ""
        except NotImplementedError:
            still_open = True
            break
        except Exception as error:
            holds, why = False, f"  ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
        passed &= holds
        lines.append(f"{'✓' if holds else '✗'} {sentence}{why}")
    name = getattr(attempt, "__name__", "exercise")
    if still_open:
        passed, lines = False, [f"Open: write {name}, then run this cell again."]
    _display("\n".join(lines), EXERCISE_MIME, {"exercise": name, "passed": passed, "open": still_open})


def _display(text: str, mime: str, data: dict) -> None:
    """Show text to the reader, with a MIME twin for tools; plain print where there is no kernel."""
    from IPython import get_ipython

    if get_ipython() is None:
        print(text)
        return
    from IPython.display import display

    display({"text/plain": text, mime: data}, raw=True)
