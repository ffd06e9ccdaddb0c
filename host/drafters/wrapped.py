"""A drafter around another one."""

from __future__ import annotations

from hexgraft.host.drafters.base import Drafter
from hexgraft.host.drafters.features import FeatureReader
from hexgraft.host.tree import Draws


class WrappedDrafter:
    """What shows of the inner drafter: its name, how it draws, who reads features, its passes and rows."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name: str = drafter.name
        self.draws: Draws | None = drafter.draws

    @property
    def reader(self) -> FeatureReader | None:
        return self._drafter.reader

    @property
    def passes(self) -> int:
        return self._drafter.passes

    @property
    def rows(self) -> int:
        return self._drafter.rows

    def close(self) -> None:
        self._drafter.close()
