"""What can be set on a simulated engine. Rates and costs are the model of a GPU; nothing here breaks it."""

from __future__ import annotations

from typing import Final

import msgspec

from inference.options import bad_option, check_least

_ENGINE: Final = "simulated"


class SimulatedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the engine lasts

        step_base_s + step_per_stream_s · (streams that decode in it) + (tokens prefilled in it) / prefill_tokens_per_s

    and gives every decoding stream one token. At most `prefill_chunk_tokens` are prefilled in one step, so that
    long prompts slow the others down but never stop them.
    """

    model: str = "simulated"
    model_aliases: tuple[str, ...] = ()  # more public names of it
    weights: int = 0  # which model it is: another number says other things in the same tokens
    slots: int = 32
    context_window: int = 8192
    kv_tokens_max: int = 262_144
    waiting_max: int = 64
    step_base_s: float = 0.02
    step_per_stream_s: float = 0.0
    prefill_tokens_per_s: float = 20_000.0
    prefill_chunk_tokens: int = 64
    block_access: bool = False  # KV of an answer that is being written can be copied
    answer_tokens_mean: int = 64  # 0: only max_output_tokens and the window end an answer
    tools: bool = True  # taken, though what it writes calls none
    images: bool = False  # it sees them, in that what it writes depends on them
    temperature: float = 0.0  # where a request names none; at 0 the seed changes nothing
    unread_chunks_max: int = 256  # a stream whose reader lags by so many is not stepped

    def __post_init__(self) -> None:
        check_least(self, _ENGINE, 1, "slots", "context_window", "kv_tokens_max")
        check_least(self, _ENGINE, 1, "prefill_chunk_tokens", "unread_chunks_max")
        check_least(self, _ENGINE, 0, "waiting_max", "step_base_s", "step_per_stream_s")
        check_least(self, _ENGINE, 0, "answer_tokens_mean", "temperature")
        if self.prefill_tokens_per_s <= 0:
            raise bad_option(_ENGINE, "prefill_tokens_per_s", "above 0")
        if self.step_base_s + self.step_per_stream_s <= 0:
            raise bad_option(
                _ENGINE, "step_base_s", "above 0 unless step_per_stream_s is: a step that takes no time never ends"
            )
        if self.kv_tokens_max < self.context_window:
            raise bad_option(_ENGINE, "kv_tokens_max", "at least context_window, or a full prompt would wait for ever")

    def smaller(self, model: str, speed: float, slots: int) -> SimulatedOptions:
        """Returns the options of a smaller model beside this one: `speed` times as fast, with fewer slots."""
        return msgspec.structs.replace(
            self,
            model=model,
            model_aliases=(),
            weights=self.weights + 1,
            slots=slots,
            step_base_s=self.step_base_s / speed,
            step_per_stream_s=self.step_per_stream_s / speed,
            prefill_tokens_per_s=self.prefill_tokens_per_s * speed,
        )
