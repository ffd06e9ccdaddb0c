"""The NPU export's way through Qualcomm AI Hub instead of the local compiler."""
