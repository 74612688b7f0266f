"""The sources of what models may look up: files and images that people send, and the texts extracted from files.

Vocabulary and ports alone: who may see a file, what of it is stored, what a document's text is. Never reads a document
and stores nothing: `inference` and `persistence` do. Start with `files.py`.
"""
