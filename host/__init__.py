"""What a laptop runs: bundles, sessions, token trees, drafters, verifiers, the decode loop and the command
line."""

import hexgraft.models.quiet_runtime  # noqa: F401 - before anything loads ONNX Runtime
