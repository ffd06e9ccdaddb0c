"""What a network is: its configuration, its checkpoint on disk, and the decoder as a static ONNX graph."""
