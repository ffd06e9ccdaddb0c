"""Hub ids, downloaded by huggingface_hub itself from a local endpoint into a cache of the test's own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from heads import write_head
from tiny import write_tiny_gguf, write_tiny_hf

from hexgraft.models.errors import CheckpointError
from hexgraft.models.hub import is_hub_id

pytest.importorskip("huggingface_hub")
SHA = "0123456789abcdef0123456789abcdef01234567"
CODE = """
import sys
from pathlib import Path
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import CheckpointError
try:
    checkpoint = open_checkpoint(Path(sys.argv[1]))
    print(checkpoint.name, checkpoint.origin, checkpoint.config.vocab)
except CheckpointError as error:
    print(f"error: {error.message} | {error.hint} | exit code {error.exit_code}")
"""


class Hub:
    """A hub of local folders by "owner/name"; `asked` collects the files it gave."""

    def __init__(self, repos: dict[str, Path]) -> None:
        self.repos, self.asked = repos, list[str]()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                status, headers, body = hub.answer(self.path.partition("?")[0], self.command)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str, command: str) -> tuple[int, dict[str, str], bytes]:
        missing = 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b"{}"
        for repo, folder in self.repos.items():
            if path.startswith(f"/api/models/{repo}"):
                if repo.startswith("gated/"):
                    return (
                        403,
                        {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"},
                        b"{}",
                    )
                files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.*"))
                if "/tree/" in path:
                    sizes = {name: (folder / name).stat().st_size for name in files}
                    tree = [
                        {"type": "file", "path": name, "oid": "0" * 40, "size": size}
                        for name, size in sizes.items()
                    ]
                    return 200, {}, json.dumps(tree).encode()
                siblings = [{"rfilename": name} for name in files]
                return 200, {}, json.dumps({"id": repo, "sha": SHA, "siblings": siblings}).encode()
            if path.startswith(f"/{repo}/resolve/{SHA}/"):
                name = path.removeprefix(f"/{repo}/resolve/{SHA}/")
                data = (folder / name).read_bytes()
                if command == "GET":
                    self.asked.append(name)
                etag = hashlib.sha256(data).hexdigest()
                return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}, data
        return missing


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = write_tiny_hf(tmp_path / "served", layers=1)
    (folder / "original").mkdir()
    (folder / "original" / "consolidated.safetensors").write_bytes(b"another format")
    write_tiny_gguf(tmp_path / "files" / "tiny.gguf", layers=1)
    hub = Hub({"owner/tiny": folder, "owner/files": tmp_path / "files", "gated/tiny": folder})
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


HEAD_CODE = """
import sys
from pathlib import Path
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.head_checkpoint import open_draft
head = open_draft(Path(sys.argv[1]), open_checkpoint(Path("target")))
print(head.name, head.origin, head.config.kind)
"""


def opened(hub: Hub, tmp_path: Path, name: str, code: str = CODE, **environment: str) -> str:
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server.server_port}",
        "HF_HOME": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", code, name],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if not key.startswith("HF_")} | settings,
    )
    return done.stdout.strip()


def test_an_id_is_downloaded_once_then_found_offline(hub: Hub, tmp_path: Path) -> None:
    expected = f"tiny owner/tiny@{SHA} 320"
    assert opened(hub, tmp_path, "owner/tiny") == expected
    assert "model.safetensors" in hub.asked
    assert "original/consolidated.safetensors" not in hub.asked
    hub.asked.clear()
    assert opened(hub, tmp_path, "owner/tiny", HF_HUB_OFFLINE="1") == expected
    assert hub.asked == []


def test_files_that_stand_for_a_tokenizer_json_are_downloaded(hub: Hub, tmp_path: Path) -> None:
    folder = hub.repos["owner/tiny"]
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]))
    (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in tokenizer["model"]["merges"]))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Qwen2Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert opened(hub, tmp_path, "owner/tiny") == f"tiny owner/tiny@{SHA} 320"
    assert {"vocab.json", "merges.txt"} <= {*hub.asked}


def test_the_same_weights_in_another_layout_are_left_there(hub: Hub, tmp_path: Path) -> None:
    """Mistral's repositories hold theirs a second time, of the same size."""
    (hub.repos["owner/tiny"] / "consolidated.safetensors").write_bytes(b"another layout")
    (hub.repos["owner/tiny"] / "tokenizer.model").write_bytes(b"pieces")
    assert opened(hub, tmp_path, "owner/tiny") == f"tiny owner/tiny@{SHA} 320"
    assert "consolidated.safetensors" not in hub.asked
    assert "tokenizer.model" in hub.asked


def test_a_head_is_downloaded_with_its_archive_of_pytorch(hub: Hub, tmp_path: Path) -> None:
    target = write_tiny_hf(tmp_path / "target", layers=3)
    hub.repos["owner/head"] = write_head(tmp_path / "head", target, binary=True)
    assert opened(hub, tmp_path, "owner/head", HEAD_CODE) == f"head owner/head@{SHA} eagle3"
    assert "pytorch_model.bin" in hub.asked


def test_a_gguf_file_of_a_repository(hub: Hub, tmp_path: Path) -> None:
    assert opened(hub, tmp_path, "owner/files/tiny.gguf") == f"tiny owner/files@{SHA}/tiny.gguf 320"
    assert "name one: owner/files/FILE.gguf" in opened(hub, tmp_path, "owner/files")


def test_an_adapter_is_told_from_a_model(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text("{}")
    hub.repos["owner/lora"] = tmp_path / "lora"
    said = opened(hub, tmp_path, "owner/lora")
    assert said.startswith("error: owner/lora on the Hugging Face hub is an adapter (LoRA)")
    assert "merge_and_unload" in said


@pytest.mark.parametrize(
    ("name", "environment", "words", "code"),
    [
        ("owner/other", {}, "check the name", 2),
        ("gated/tiny", {}, "accept its licence", 1),
        ("owner/tiny", {"HF_HUB_OFFLINE": "1"}, "check the network", 1),
    ],
)
def test_refusals_say_what_to_do(
    hub: Hub, tmp_path: Path, name: str, environment: dict[str, str], words: str, code: int
) -> None:
    said = opened(hub, tmp_path, name, **environment)
    assert said.startswith(f"error: no checkpoint at {name}, and the Hugging Face hub gives none")
    assert words in said
    assert said.endswith(f"exit code {code}")


def test_mistyped_paths_do_not_go_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for text, expected in (
        ("Qwen/Qwen2.5-0.5B", True),
        ("Qwen/Qwen2.5-0.5B@main", True),
        ("owner/name/file-00001-of-00002.gguf", True),
        ("models/nothing", False),
        ("nothing", False),
        ("nothing.gguf", False),
        ("/tmp/nothing", False),
        ("../nothing/here", False),
        ("a/b/c", False),
    ):
        assert is_hub_id(Path(text)) is expected, text


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    from hexgraft.models.hub import download

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="is not installed") as caught:
        download(Path("owner/name"))
    assert caught.value.hint == 'pip install "hexgraft[hf]"'
