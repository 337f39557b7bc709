"""What the launch tests share: a tool that is missing skips with what to install, and fails where CI runs them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

NOTES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NOTES] = []
    if threading.current_thread() is threading.main_thread():
        # ended from outside, as when CI cancels: servers, kernels and browsers are still taken down
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What was measured, and what it leaves unproved, where a person looks last."""
    if config.stash[NOTES]:
        terminalreporter.section("launch")
        for line in config.stash[NOTES]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Keep a line for the end of pytest's output."""
    return request.config.stash[NOTES].append


def lacking(reason: str) -> None:
    """Leave a test out for something that this machine lacks; CI has to have it."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; CI must prove this", pytrace=False)
    pytest.skip(reason)
