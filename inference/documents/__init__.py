"""Takes text out of documents (PDF, Office, HTML, Markdown, plain text).

`formats` says what a document is; the modules beside it read one format each, by libraries. They run in the sandbox of
`inference.file_workers`, which has the port. Never decides who may see a text, or what becomes of it.
"""
