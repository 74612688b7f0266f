"""A `FilterSet` of one input filter, which is whoever derives from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from sessions.model.types import Principal
from sessions.model.verdicts import PASS, Verdict
from sessions.ports import InputFilter, OutputFilter


class InputFilterSet(ABC):
    @abstractmethod
    async def check(self, principal: Principal, text: str) -> Verdict: ...

    def check_seam(self, principal: Principal, text: str, last: int, first: int) -> Verdict:
        return PASS

    def input_filters(self, principal: Principal) -> Sequence[InputFilter]:
        return (self,)

    def output_filters(self, principal: Principal, *, shown: str = "", calls: bool = False) -> Sequence[OutputFilter]:
        return ()

    def holds_whole(self, principal: Principal) -> bool:
        return False

    def version(self, principal: Principal) -> str:
        return "test"
