"""Takes text out of documents that strangers upload (PDF, Office, HTML, Markdown, plain text), in a sandbox.

`extractor` is the server's end (`ports.TextExtractor`): a few worker processes, and texts that are remembered.
`worker` is the process: it forks for each document, and the child reads it with nothing but memory and processor time,
both bounded (`sandbox`): no network, no file but Python's own, no other process. `formats` says what a document is; the
modules beside it read one format each, by libraries. Never decides who may see a text, or what becomes of it.
"""
