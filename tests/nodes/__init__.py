"""Tests in the ecosystem's own way: pytest-celery's fixtures and components, with broker, backend and workers as nodes.

Where a Docker engine answers (DOCKER_HOST, or the usual socket) the nodes are containers, and the workers' image is
built from the Dockerfile here. Elsewhere they are processes of this machine: `docker_client`, which every container of
pytest-celery comes from, is a client whose containers are processes (`processes.py`). The tests are the same.

    pytest tests/nodes                             whichever this machine has
    LIMITS_NODES=containers pytest tests/nodes     containers, and a failure where there is no engine
    LIMITS_NODES=processes pytest tests/nodes      processes, also where there is one

A worker node gets the tasks in `tasks.py` and an app from pytest-celery's template. What its bodies do is in a ledger
in the backend's Redis, which is another server than the one with the limits.
"""
