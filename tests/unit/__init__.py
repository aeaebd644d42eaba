"""Tests that need no Redis, or only the one that they are about."""
