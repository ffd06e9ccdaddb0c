"""RMSNorm as drafts use it when they are trained."""

from __future__ import annotations

from torch import Tensor, nn


class Norm(nn.RMSNorm):
    """An RMSNorm in float32, whatever it is given: squares of bfloat16 numbers have three digits, and under
    autocast a matrix hands on such numbers while the norm's weights stay float32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())
