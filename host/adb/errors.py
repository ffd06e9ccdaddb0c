"""What goes wrong between a laptop and a phone, each with the exit code it ends in and what to do next."""

from __future__ import annotations

from hexgraft.models.errors import CONNECTION_LOST, NO_DEVICE, HexgraftError


class DeviceError(HexgraftError):
    """Something about a phone."""


class NoDevice(DeviceError):
    """No phone that could be used: none there, not authorised, offline, too old, or more than one."""

    exit_code = NO_DEVICE


class NoAdb(NoDevice):
    """adb itself, or adbutils, is missing or does not answer."""


class ConnectionLost(DeviceError):
    """The link to the phone broke, or the adb server went away."""

    exit_code = CONNECTION_LOST


class NoSpace(DeviceError):
    """The phone has not enough free space."""


class TransferFailed(DeviceError):
    """A file did not arrive as it was sent; `reason` is the phone's."""


class CommandFailed(DeviceError):
    """A command on the phone that ended badly."""


class Busy(DeviceError):
    """Another run of ours holds the phone."""


class Unfit(DeviceError):
    """A bundle or a runner that is not for this phone."""
