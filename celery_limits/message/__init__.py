"""How a chain travels on a message: its header, the limits of one call, and the envelope that the store keeps.

This package knows kombu's JSON, and no Redis.
"""
