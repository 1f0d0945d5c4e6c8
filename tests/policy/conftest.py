"""A fixture that writes a policy file and loads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cachecraft.policy.contract import Policy, load_policy


@pytest.fixture
def write_policy(tmp_path: Path) -> Callable[..., Policy]:
    """Write a policy file's text and load it."""

    def write(text: str, name: str = "mine", parameters: str = "") -> Policy:
        path = tmp_path / f"{name}.py"
        path.write_text("import torch\n" + text)
        return load_policy(str(path) + parameters)

    return write
