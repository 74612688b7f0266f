"""Hosts the actors of one replica: activation, ownership, commands, subscribers, passivation.

Never decides where a session should be (`actors.cluster.placement`) and never dials another process. Start with
`runtime`, then `ownership` (claim, grant, confirmation); `services` lists what a runtime is given.
"""
