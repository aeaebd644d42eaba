"""Flow control for Celery: limits on tasks, kept between delivery and execution."""

__version__ = "0.1.0"
