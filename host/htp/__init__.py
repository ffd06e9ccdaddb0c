"""Sessions on the Hexagon NPU's emulator, in a process of their own."""
