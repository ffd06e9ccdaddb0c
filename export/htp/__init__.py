"""How a bundle gets its NPU graphs: quantised, compiled into context binaries, compared with the CPU's."""
