"""Numbers on a command line."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A number in a range. "nan" and "inf" are none: a comparison with the former is never true."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return float(super().convert(number, param, ctx))
