"""The only room that knows adb: choosing a phone, putting files on it, running the runner there."""
