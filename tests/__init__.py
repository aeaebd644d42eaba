"""Tests of celery_limits; helpers that several of them share lie here, at the top."""
