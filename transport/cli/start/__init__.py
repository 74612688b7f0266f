"""What a role reads and checks before it runs: files of limits, prices and retention, keys and certificates, ports and
folders, and how it is stopped. Builds nothing that serves: that is app.py's. Start with `preflight`.
"""
