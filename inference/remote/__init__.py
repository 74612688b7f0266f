"""An engine that runs already: servers of one model at addresses of their own, vLLM's, SGLang's or llama.cpp's.

Token ids go both ways, so a conversation's ledger is what it is on an engine of ours, and an answer that one server
began goes on at another. What servers keep of KV is theirs: it is found again by their own prefix caches, nothing of it
is moved, saved or erased by us. Start with `engine`; `pool` says which server a session goes to, `dialects` what each
kind of server is told and says.
"""
