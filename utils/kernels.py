"""Starting kernels cheaply: what the refresh tool, the batch runner and the tests share."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def skip_iri_grammar() -> None:
    """Make `import nbformat` cheap; to be called before it.

    nbformat imports jsonschema, which imports rfc3987_syntax where JupyterLab is installed, which compiles a grammar
    for internationalised addresses: seconds of CPU in every process (python-jsonschema/jsonschema#1428). Notebooks
    are validated without it: None in sys.modules makes that optional import fail at once.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


@contextmanager
def private_transport() -> Iterator[Any]:
    """A traitlets Config for kernels that talk over Unix sockets in a folder of their own.

    Kernels on TCP choose ports and race for them when several start at once. Windows has no such sockets: TCP there.
    """
    from traitlets.config import Config

    if sys.platform == "win32":
        yield Config()
        return
    # a short absolute path: the system's limit is about 100 characters, and the kernel runs in another folder
    home = tempfile.gettempdir() if len(os.fsencode(tempfile.gettempdir())) < 70 else "/tmp"
    with tempfile.TemporaryDirectory(prefix="wn-", dir=home, ignore_cleanup_errors=True) as folder:
        yield Config({"KernelManager": {"transport": "ipc", "ip": str(Path(folder) / "k")}})
