"""Has files that strangers sent read in worker processes: the texts of documents, and images made anew.

`pool` is the server's end (`ports.TextExtractor`, `ports.ImageDecoder`): a few worker processes, and results that are
remembered. `worker` is the process: it forks for each file, and the child reads it with nothing but memory and
processor time, both bounded (`sandbox`): no network, no file but Python's own, no other process. How a format is read
is the business of `inference.documents` and `inference.images`. Never decides who may see a file, or what becomes of
it.
"""
