"""The rules of a conversation: its vocabulary, the machine that decides, the actor that runs it.

`model` has the messages and rows, `machine` decides what they do (pure), `turn` has the model write an answer, `actor`
is the shell around one session, `billing` and `governance` are about usage and about keeping or erasing data.
`ports.py` has the interfaces to engines, journals, directories and filters.

Never imports another package of ours, opens a file or a socket, or reads a clock. Start with `machine/machine.py`, then
`actor/actor.py`.
"""
