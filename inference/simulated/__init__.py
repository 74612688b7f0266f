"""A simulated engine for tests and load: the port's whole contract without a model.

Its text is a pure function of the tokens before it, its timing a function of the batch, and its only clock the
running loop's, so that a cluster of them runs under virtual time.
"""

from inference.simulated.engine import SimulatedEngine, SimulatedOptions
from inference.simulated.tokenizer import SimulatedTokenizer
from inference.simulated.vocabulary import decode

__all__ = ["SimulatedEngine", "SimulatedOptions", "SimulatedTokenizer", "decode"]
