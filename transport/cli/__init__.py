"""The command line: an edge like the others. Settings, commands and flags, and what operators are shown."""
