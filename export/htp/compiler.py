"""The process that compiles graphs for the NPU: a crash of the vendor's library ends it and nothing else.

Started by `compile` as `python -m hexgraft.export.htp.compiler`; takes one job as JSON on standard input and
answers on the file descriptor it is given.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from hexgraft.host.htp.qnn import qnn_options


def compile_graph(graph: dict[str, Any], job: dict[str, Any], last: bool) -> None:
    """One graph to `graph["wrapper"]`. Graphs that share a binary must be compiled in one process, one after
    the other; the last one writes it."""
    import onnxruntime as ort

    entries = {
        "ep.context_enable": "1",
        "ep.context_embed_mode": "0",
        "ep.context_file_path": graph["wrapper"],
    }
    if job["shared"]:
        entries["ep.share_ep_contexts"] = "1"
        if last:
            entries["ep.stop_share_ep_contexts"] = "1"
    try:
        ort.InferenceSession(graph["model"], qnn_options(job["options"], entries))
    except Exception as error:
        if "fallback to CPU EP" in str(error):
            left = _refused(graph, job)
            if left is not None:
                raise _Refused(*left) from error
        raise


class _Refused(Exception):
    """The NPU does not take `count` nodes, the first of which is (operator, name)."""


def _refused(graph: dict[str, Any], job: dict[str, Any]) -> tuple[str, str, int] | None:
    """Compile again with the CPU allowed: what is left outside the NPU's nodes is what it refuses."""
    import onnx
    import onnxruntime as ort

    probe = Path(graph["wrapper"]).with_suffix(".probe.onnx")
    entries = {
        "ep.context_enable": "1",
        "ep.context_embed_mode": "0",
        "ep.context_file_path": str(probe),
        "session.disable_cpu_ep_fallback": "0",
    }
    try:
        ort.InferenceSession(graph["model"], qnn_options(job["options"], entries))
        source = probe if probe.exists() else Path(graph["model"])
        nodes = onnx.load(source, load_external_data=False).graph.node
    except Exception:
        return None
    finally:
        for leftover in probe.parent.glob(probe.stem + "*"):
            leftover.unlink()
    left = [node for node in nodes if node.op_type not in ("EPContext", "QuantizeLinear", "DequantizeLinear")]
    left = left or [node for node in nodes if node.op_type != "EPContext"]
    return (left[0].op_type, left[0].name or left[0].output[0], len(left)) if left else None


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w")
    job = json.load(sys.stdin)

    def say(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    for number, graph in enumerate(job["graphs"]):
        say(begin=graph["model"])
        start = time.perf_counter()
        try:
            compile_graph(graph, job, last=number == len(job["graphs"]) - 1)
        except _Refused as refused:
            operator, node, count = refused.args
            say(refused=operator, node=node, count=count)
            return
        except Exception as error:
            say(error=str(error).strip() or repr(error))
            return
        say(done=graph["model"], seconds=time.perf_counter() - start)
    say(peak=_peak())


def _peak() -> int:
    """Largest resident memory in bytes. Not getrusage's: that takes over what the parent had at the fork."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
