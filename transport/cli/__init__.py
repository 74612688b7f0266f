"""The command line: settings, the commands with their options and help, and how results are printed.

Parses and prints; never opens a journal, an engine or a directory: `app.py` does, and passes them in. Start reading at
`commands` (what there is, and `parse`), then `settings`.
"""
