"""Figures of vector stores: recall and time of searches, chunks put, whose passages are found."""
