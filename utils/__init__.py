"""Support package of the notebooks: `from utils import check, expect_error, setup, verdict`. Light to import."""

from typing import Any

__all__ = ["check", "expect_error", "setup", "verdict"]


def __getattr__(name: str) -> Any:
    """Fetch what notebooks use when they ask for it, so that tools which need one module load one module."""
    if name not in __all__:
        raise AttributeError(f"module 'utils' has no attribute {name!r}")
    from utils import claims, notebook

    return claims.verdict if name == "verdict" else getattr(notebook, name)
