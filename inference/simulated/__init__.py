"""A simulated engine for tests and load: the port's whole contract without a model.

It never reads a clock but the running loop's: its text is a pure function of the tokens before it, its timing a
function of the batch, so that a cluster of them runs under virtual time. Start with `engine`; `vocabulary` says which
token follows, `kv` what the device remembers.
"""

from inference.simulated.engine import SimulatedEngine, SimulatedOptions
from inference.simulated.tokenizer import SimulatedTokenizer
from inference.simulated.vocabulary import decode

__all__ = ["SimulatedEngine", "SimulatedOptions", "SimulatedTokenizer", "decode"]
