"""The sources of what models may look up: files that people upload, and the texts extracted from them.

Vocabulary and ports alone: who may see a file, what of it is stored, what a document's text is. Never reads a document
and stores nothing: `inference.documents` and `persistence` do. Start with `files.py`.
"""
