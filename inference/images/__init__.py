"""Makes images anew that strangers sent: upright, in sRGB, small enough for a model, without metadata.

`decoding` is all of it, by Pillow. It runs in the sandbox of `inference.file_workers`, which has the port. Never looks
at what an image shows, and fetches nothing.
"""
