"""The life of one process in the store: its lease, the thread that renews it, its housekeeping, and its ledger."""
