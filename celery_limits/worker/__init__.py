"""Limits inside a Celery worker: between delivery and execution, and on every way out.

`steps` puts the parts into the worker, `gate` asks the store, `exits` gives back, `lease` keeps alive, `outbox`
finishes what the store hands out. This package knows no Redis command.
"""
