"""How a checkpoint becomes a bundle: graphs, one weights file, tokenizer and a manifest, written whole or
not at all."""

import hexgraft.models.quiet_runtime  # noqa: F401 - before anything loads ONNX Runtime
