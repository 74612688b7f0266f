"""The authorisation matrix: every route, command and method, asked by everybody who must not be let in.

`world` has a server, whose things are wanted, and those who want them. `entries` says of every route, command and
method what it needs and whose things it touches. `attempts` makes an attempt on a door, `matrix` says who makes which
and judges what came of it, `generated` makes up thousands more.
"""
