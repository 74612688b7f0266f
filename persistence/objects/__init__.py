"""Object stores: names with bytes, in a folder or behind the S3 API. For backups and archived sessions.

Knows no sessions and encrypts nothing: what is put here is sealed already. Start with `addresses.py`.
"""
