"""Limits inside a Celery worker: between delivery and execution, and on every way out.

`steps` puts the parts into the worker. `passage` and `admission` are the state machine of one delivery, `gate` feeds it
and carries out what it decides, `request_hooks` reports what Celery and its pool do, `exchange` tells the store several
things at once, `lease` keeps alive, `outbox` finishes what the store hands out. This package knows no Redis command.
"""
