"""Tells devices of answers that nobody reads: Web Push, APNs and FCM, from the outbox of the journal.

    outbox ─► relay.py ─► senders.py ─► web_push.py, apns.py, fcm.py ─► outbound.py ─► push service ─► device

`relay.py` decides what is sent now, later or not at all; the three sign and say it in their service's words;
`outbound.py` sends to no address inside the network; `door.py` takes subscriptions; `opening.py` makes it all of the
settings, with `credentials.py`. Never sends a word of a conversation. Start with `relay.py`; what a row is stands in
`sessions.model.push`.
"""
