"""What scripts leave to do: release slots, publish what the outbox holds, and report tasks that end in the store."""
