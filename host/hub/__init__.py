"""Qualcomm AI Hub through its own client: compiling, linking and running on hosted devices."""
