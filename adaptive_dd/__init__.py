"""adaptive_dd: a drop-in proxy that picks llama-server's draft settings, request by request.

Who talks to whom. A client's bytes enter the *relay* (`proxy`). For a generating request the *chooser* makes a
`Context` of it (prompt tokens, load, kind), asks the *engine* for a `Decision` and splices the chosen `Setting`
into the bytes. The engine holds one immutable `State` and hands every `Event` to the *store*, which keeps the
ordered journal. Everything that decides or learns is in `core`: pure functions of values, shared by the live
proxy, the simulator, replay and the bench. The vocabulary stands in `core.domain` and `core.events`.
"""

__version__ = "0.1.0"
