"""Files of prompts, as lab, tune and train-draft take them."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import error_of, hexgraft

from hexgraft.host.given_text import read_prompts
from hexgraft.models.errors import UsageError


def test_prompts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\n two \n")
    assert read_prompts(file) == ["one", "two"]
    file.write_text("\n")
    with pytest.raises(UsageError, match="holds no prompts"):
        read_prompts(file)
    file.write_bytes(b"one\xff")
    with pytest.raises(UsageError, match="is not UTF-8 text: invalid start byte at byte 3"):
        read_prompts(file)


@pytest.mark.parametrize("command", ["lab", "tune"])
def test_prompts_that_are_not_there(bundle: Path, command: str) -> None:
    done = hexgraft(command, bundle, "--prompts", "nosuch")
    assert error_of(done) == (
        "cannot read nosuch: No such file or directory",
        "name a text file with the list of prompts, one a line",
    )
    assert done.exit_code == 2
