"""Celery's and kombu's own tests, on our transport and on theirs: `python -m tests.upstream`, or `make upstream`."""
