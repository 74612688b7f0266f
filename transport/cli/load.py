"""The options of `./sessile load`, with their bounds; what it does is in `load_command`."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from transport.cli.settings import BadSetting
from transport.cli.shared_flags import Json, ServerUrl, text
from transport.load.workload import DEFAULT_MIX, BadWorkload, parse_mix

WATCH_RATE: Final = 0.2


class GenerateLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Puts a load on an OpenAI-compatible server and measures TTFT, TPOT and goodput.

    Closed loop: --users at once, each with its next dialogue when the last one ended. Open loop: --rate dialogues a
    second, as they come (Poisson), whatever the server does. Ends with status 1 where fewer than --goodput of the
    requests kept both targets. A key goes into SESSILE_API_KEY or --api-key-file.
    """

    url: ServerUrl = "http://127.0.0.1:8080"
    model: Annotated[str, text("NAME", "of the server's models; else its first")] = ""
    users: Annotated[int, text("N", "users at once, closed loop [default: 8]")] = 8
    rate: Annotated[float, text("RATE", "dialogues a second, open loop, in place of --users")] = 0.0
    seconds: Annotated[float, text("S", "how long [default: 30]")] = 30.0
    requests: Annotated[int, text("N", "end after so many requests")] = 0
    mix: Annotated[str, text("KIND=WEIGHT,...", f"of short, long, tools, turns [default: {DEFAULT_MIX}]")] = DEFAULT_MIX
    long_tokens: Annotated[int, text("N", "about so many in a long prompt [default: 1500]")] = 1500
    trace: Annotated[str, text("FILE", "JSON Lines of conversations with think times, for the kind `turns`")] = ""
    ttft_ms: Annotated[float, text("MS", "target for the first token [default: 2000]")] = 2000.0
    tpot_ms: Annotated[float, text("MS", "target for each later token [default: 200]")] = 200.0
    goodput: Annotated[float, text("SHARE", "of the requests that must be good [default: 0.99]")] = 0.99
    timeout_s: Annotated[float, text("S", "silence after which a request has failed [default: 60]")] = 60.0
    seed: Annotated[int, text("N", "of prompts and arrivals [default: 0]")] = 0
    report: Annotated[str, text("FILE", "writes an HTML page with plots")] = ""
    watch: Annotated[bool, text("", f"until Ctrl-C, at {WATCH_RATE}/s unless --rate says otherwise")] = False
    as_json: Json = False

    def __post_init__(self) -> None:
        """Raises BadSetting."""
        for name, least in (("users", 1), ("requests", 0), ("long_tokens", 1), ("rate", 0), ("seconds", 0.1)):
            if not least <= getattr(self, name) < 1e6:
                raise BadSetting(f"{name.replace('_', '-')}: at least {least:g}, below a million")
        if min(self.ttft_ms, self.tpot_ms, self.timeout_s) <= 0:
            raise BadSetting("ttft-ms, tpot-ms, timeout-s: above 0")
        if not 0 <= self.goodput <= 1:
            raise BadSetting("goodput: a share from 0 to 1, for example 0.99")
        try:
            parse_mix(self.mix)
        except BadWorkload as error:
            raise BadSetting(f"mix: {error}") from error
