"""Keeping and erasing data: retention periods, the audit chain's proof and trimming, end users' data.

Never deletes on its own: the sweeps in `actors.maintenance` call it, and stores in `persistence` erase.
Start with `retention.py` for periods, `audit_verify.py` for the audit log, `end_user_data.py` for exports and erasure.
"""
