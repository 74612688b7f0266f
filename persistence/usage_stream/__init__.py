"""Passes usage rows on to a stream of Valkey or a topic of Kafka, at least once each.

`relay.py` decides when and which; a sink (`valkey.py`, `kafka.py`) knows how; `relay_lock.py` lets one replica
of a cluster relay at a time; `open_sink.py` picks by URL. Never loses a row, and never reads what it wrote.
"""
