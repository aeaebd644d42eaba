"""Makes every process of a suite import celery_limits, as a deployment that has moved to it would."""

import os

if os.environ.get("LIMITS_UPSTREAM_IMPORT"):
    import celery_limits  # noqa: F401
