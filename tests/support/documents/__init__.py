"""Documents read in the process of a test."""
