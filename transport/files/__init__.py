"""Files at the edge: `/v1/files` as OpenAI has it, and files in messages.

`multipart.py` takes a form apart as it comes; `door.py` decides who may do what, and makes files of uploads;
`attachments.py` has the text of each file that a message names stand in the message, before anybody looks at it
further: filters, limits and the log take it for words of whoever sent it. Never decides what a document says:
`inference.documents` does. Start with `door.py`.
"""
