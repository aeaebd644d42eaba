"""The transport: its URLs, its channels beside kombu's own, and what is left of a message after a kill."""
