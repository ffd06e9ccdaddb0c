"""The C++ runner from the host's side: its build, its process, the frames, and the session it makes."""
