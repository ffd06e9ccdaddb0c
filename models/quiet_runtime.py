"""Imported for what it does: ONNX Runtime from 1.32 on tells its makers of every process that loads it, with
a number that stands for the machine, unless this is set before. hexgraft's processes tell nobody."""

import os

VARIABLE = "ORT_DISABLE_TELEMETRY"

os.environ.setdefault(VARIABLE, "1")  # a user who has set it means it
