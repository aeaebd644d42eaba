"""`make demo`: three tenants, one of them flooding, two workers, one of them killed; and a verdict on what happened.

`shop` is the app that is shown. Its bodies write a `ledger`, and the `verdict` and the `plot` are computed from that
alone, not from what the limit store says about itself. `play` runs it all, and `screen` shows it.
"""
