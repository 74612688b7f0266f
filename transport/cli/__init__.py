"""The command line: settings, the commands with their options and help, and how results are printed.

Parses and prints; never opens a journal, an engine or a directory: `app.py` does, and passes them in. Start reading at
`commands` (what there is, and `parse`), then `settings`: a new setting, with its flag, its bounds and its help, is a
field there. `config_files` reads the files that settings name.
"""
