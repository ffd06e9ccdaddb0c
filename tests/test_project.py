"""What the project says about itself is true: packages, versions, commands, file sizes, types, the wheel."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest

from hexgraft.models.user_folders import cache_folder

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("models", "export", "host")
LONGEST = 400
"""Lines of the longest file. A file is one noun; past this it is two."""


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / name), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


# ----------------------------------------------------------------- packaging


def test_packages_are_those_of_the_tree() -> None:
    folders = (init.parent for room in ROOMS for init in (ROOT / room).rglob("__init__.py"))
    found = {"hexgraft." + folder.relative_to(ROOT).as_posix().replace("/", ".") for folder in folders}
    listed = project()["tool"]["setuptools"]["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == found


def test_every_folder_with_python_in_it_is_a_package() -> None:
    folders = {file.parent for room in ROOMS for file in (ROOT / room).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_rooms_are_mapped_to_their_folders() -> None:
    assert project()["tool"]["setuptools"]["package-dir"] == {f"hexgraft.{room}": room for room in ROOMS}


def test_console_script_exists() -> None:
    entry = importlib.metadata.EntryPoint(
        "hexgraft", project()["project"]["scripts"]["hexgraft"], "console_scripts"
    )
    assert callable(entry.load())


def test_running_needs_neither_torch_nor_the_npu_provider() -> None:
    names = [re.split(r"[^\w.-]", requirement)[0] for requirement in project()["project"]["dependencies"]]
    assert names
    assert not {"torch", "transformers", "onnxruntime-qnn"} & set(names)


def test_make_installs_a_torch_the_project_admits() -> None:
    from packaging.requirements import Requirement

    pinned = re.search(r"^TORCH \?= torch==(\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert pinned
    for extra in ("dev", "train"):
        wanted = [Requirement(text) for text in project()["project"]["optional-dependencies"][extra]]
        torch = next(requirement for requirement in wanted if requirement.name == "torch")
        assert torch.specifier.contains(pinned[1])


IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        print(importlib.import_module(name).__file__)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print("no torch")
"""


@pytest.mark.slow
def test_wheel_imports_in_a_fresh_environment(tmp_path: Path) -> None:
    wheels, fresh = tmp_path / "wheels", tmp_path / "venv"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(wheels), str(ROOT)], check=True, cwd=tmp_path)
    (wheel,) = wheels.glob("*.whl")
    venv.create(fresh, with_pip=True)
    python = str(fresh / "bin" / "python")
    subprocess.run([python, "-m", "pip", "--quiet", "install", str(wheel)], check=True, cwd=tmp_path)
    modules = [
        "hexgraft." + file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
        if file.name != "__init__.py"
    ]
    done = subprocess.run(
        [python, "-c", IMPORT_ALL, *modules], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    places = dict(zip(modules, done.stdout.splitlines(), strict=True))
    # Training is the one room that needs an extra as a whole.
    trained = {name for name in modules if name.startswith("hexgraft.export.train.")}
    without = {name for name, place in places.items() if place == "no torch"}
    assert without <= trained, sorted(without - trained)
    assert all(place.startswith(str(fresh)) for name, place in places.items() if name not in without)
    program = str(fresh / "bin" / "hexgraft")
    done = subprocess.run([program, "--version"], check=True, cwd=tmp_path, capture_output=True, text=True)
    assert project()["project"]["version"] in done.stdout


# ------------------------------------------------------------------ versions


def test_installed_version_is_the_declared_one() -> None:
    assert importlib.metadata.version("hexgraft") == project()["project"]["version"]


def test_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^\]]+)\]", text, re.M)
    assert versions[0] == project()["project"]["version"]
    assert len(versions) == len(set(versions))


# ------------------------------------------------------------------ commands


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_commands_in_the_text_exist(page: Path) -> None:
    from hexgraft.host.cli.commands import COMMANDS

    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", page.read_text(encoding="utf-8"), re.S))
    said = set(re.findall(r"(?:^|[`$>&(]\s*|bin/)hexgraft ([a-z][a-z-]*)\b", code, re.M))
    assert said <= set(COMMANDS), f"{page.name} names commands that do not exist"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_make_targets_in_the_text_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    said = re.findall(r"(?:^|`)make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"), re.M)
    assert set(said) <= set(targets)


@pytest.mark.parametrize("target", ["demo-device", "device"])
@pytest.mark.parametrize("there", [False, True])
def test_make_gathers_headers_once(target: str, there: bool, tmp_path: Path) -> None:
    """It looks where `hexgraft device sdk` puts them."""
    from hexgraft.host.runner.sdk import sdk_folder

    folder = tmp_path / sdk_folder(f"linux-{platform.machine()}").relative_to(cache_folder())
    if there:
        folder.mkdir(parents=True)
        (folder / "sdk.json").write_text("{}")
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    python = bin_folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    words = ["make", "--no-print-directory", "-n", target, f"VENV={bin_folder.parent}"]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (step,) = [line for line in printed.splitlines() if "sdk.json" in line]
    look, _, gather = step.partition(" || ")
    assert gather == f"{bin_folder}/hexgraft device sdk"
    environment = os.environ | {"HEXGRAFT_CACHE": str(tmp_path)}
    assert (subprocess.run(["sh", "-c", look], env=environment).returncode == 0) == there


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_in_the_text_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_help_page_shows_the_commands_as_they_are() -> None:
    done = script("help.py", "--check")
    assert done.returncode == 0, done.stderr


# --------------------------------------------------------------------- files


def test_errors_of_checkpoints_say_what_to_do() -> None:
    """Of our own errors in `models`, all that do not bring a hint of their own are given one."""
    bare = []
    for file in sorted((ROOT / "models").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Raise):
                continue
            made = [
                call
                for call in ast.walk(node)
                if isinstance(call, ast.Call)
                and ast.unparse(call.func) in ("CheckpointError", "HexgraftError")
            ]
            bare += [f"{file.name}:{call.lineno}" for call in made if len(call.args) < 2]
    assert bare == []


def test_no_file_is_too_long() -> None:
    sources = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    sources += [file for end in ("cc", "h") for file in (ROOT / "device" / "src").rglob(f"*.{end}")]
    lengths = {str(file.relative_to(ROOT)): len(file.read_text("utf-8").splitlines()) for file in sources}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def test_type_checker_sees_the_mapped_packages(tmp_path: Path) -> None:
    """An error planted in a mapped package is found, and it is one that only the types of another reveal."""
    package = tmp_path / "hexgraft"
    (package / "models").mkdir(parents=True)
    for file in (ROOT / "models").iterdir():
        (package / "models" / file.name).symlink_to(file)
    for room in ("export", "host"):
        (package / room).symlink_to(ROOT / room)
    planted = package / "models" / "planted.py"
    planted.write_text("from hexgraft.host.tree import single\n\nnodes: str = len(single(1))\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--follow-imports=silent",
        str(planted),
    ]
    environment = os.environ | {"MYPYPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(errors) == 1, done.stdout
    assert "planted.py:3" in errors[0]
    assert '"int"' in errors[0]
    assert '"str"' in errors[0]


def test_python_without_venv_is_told_what_to_install(tmp_path: Path) -> None:
    """A Python whose ensurepip is missing, as on a Debian without python3-venv."""
    code = (
        "import runpy, sys, importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'ensurepip' else find(name, *a);"
        f"runpy.run_path({str(ROOT / 'scripts' / 'python.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "ensurepip" in done.stderr
    assert "apt-get install python3-venv" in done.stderr
    assert script("python.py").returncode == 0
