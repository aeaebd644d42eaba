"""What users write: limits, the templates of their keys, and the chain that a call of a task resolves to.

This package knows neither Celery nor Redis.
"""
