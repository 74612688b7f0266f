"""Two users of one key who say the same: whatever the order of their turns, no session ever holds turns of both."""

from __future__ import annotations

from tests.support.rounds.openai_users import interleaved


async def test_interleaved_turns_of_two_users_stay_apart() -> None:
    done = await interleaved(rounds=20, seed=3)
    assert done["turns at the same moment"] > 10
    assert (done["shared"], done["moved"]) == (0, 0)
