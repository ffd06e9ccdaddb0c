"""A phone that is not one: an adbd stand-in on 127.0.0.1, for tests and for those without a phone."""
