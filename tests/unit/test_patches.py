"""Every change to a class of Celery, kombu or billiard: it can be applied, once, is documented, and has a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_limits.patches import Patch, UnknownCelery, apply, patches_of
from celery_limits.patches import celery_app as app_patches
from celery_limits.patches.table import MODULES, all_patches, table

ROOT = Path(__file__).parents[2]

PROVED_BY = {
    "Celery.__init__": "tests/worker/test_hooks.py::test_an_app_that_was_made_before_the_import_is_limited_too",
    "Celery.finalize": "tests/worker/test_publish.py::",
    "Celery._connection": "tests/unit/test_secrets.py::",
    "filter_hidden_settings": "tests/worker/test_secrets.py::",
    "AMQP._create_task_sender": "tests/worker/test_publish.py::",
    "chunks.group": "tests/worker/test_call_limits.py::",
    "Producer.maybe_declare": "tests/transport/test_declaring.py::test_nothing_is_copied_for_what_is_declared_already",
    "Control.revoke": "tests/worker/test_exits_ended.py::",
    "Control.revoke_by_stamped_headers": "tests/worker/test_revoke_command.py::",
    "Control.purge": "tests/worker/test_purge.py::",
    "worker.callback": "tests/worker/test_flags.py::",
    "purge.callback": "tests/worker/test_purge.py::",
    "Panel.data[hello]": "tests/worker/test_neighbours.py::",
    "Mingle.on_node_reply": "tests/worker/test_neighbours.py::",
    "Panel.data[revoke]": "tests/worker/test_revoke_command.py::",
    "Panel.data[terminate]": "tests/worker/test_revoke_command.py::",
    "Panel.data[revoke_by_stamped_headers]": "tests/worker/test_revoke_command.py::",
    "AsynPool.flush": "tests/worker/test_prefork.py::"
    "test_a_job_that_was_sent_to_a_dead_process_when_the_connection_is_lost",
    "AsynPool._event_process_exit": "tests/worker/test_prefork.py::"
    "test_processes_that_die_with_their_jobs_while_the_connection_is_lost",
    "AsynPool._track_child_process": "tests/worker/test_prefork.py::"
    "test_a_process_that_is_ending_when_the_pool_gets_a_new_event_loop",
    "AsynPool.destroy_queues": "tests/worker/test_prefork.py::"
    "test_the_file_by_which_a_process_was_watched_is_closed_with_its_pipes",
    "ResultHandler._recv_message": "tests/worker/test_prefork.py::"
    "test_a_result_that_is_half_read_when_the_connection_is_lost",
    "Request.terminate": "tests/worker/test_in_process.py::test_one_that_is_terminated_while_it_waits_for_a_thread",
}
"""The test that fails without the patch, or its file where several do."""


def name_of(patch: Patch) -> str:
    return patch.target.partition(":")[2]


@pytest.mark.parametrize("patch", all_patches(), ids=name_of)
def test_what_it_replaces_takes_what_it_took(patch: Patch) -> None:
    patch.check()
    assert patch.why.endswith(".")


@pytest.mark.parametrize("patch", all_patches(), ids=name_of)
def test_it_has_a_test_of_its_own(patch: Patch) -> None:
    file, _, test = PROVED_BY[name_of(patch)].partition("::")
    assert f"def {test or 'test_'}" in (ROOT / file).read_text("utf-8")


def test_a_function_that_takes_something_else_is_refused() -> None:
    """As after an upgrade of Celery that this version does not know: an error that says what to do."""
    changed = all_patches()[0]._replace(takes=("self", "no_such_parameter"))
    with pytest.raises(UnknownCelery, match="install a version of celery_limits that supports this Celery"):
        changed.check()


def test_patches_are_applied_once() -> None:
    before = [patch.current() for patch in patches_of(app_patches)]
    apply(app_patches)
    assert [patch.current() for patch in patches_of(app_patches)] == before
    assert all(patch.is_applied for patch in patches_of(app_patches))


def test_no_other_module_changes_a_class() -> None:
    """Outside of `patches` nothing assigns to an attribute of a class of Celery, kombu or billiard."""
    assigned = re.compile(r"^\s*([A-Z]\w+)\.\w+ = ", re.MULTILINE)
    imported = re.compile(r"^from (?:celery|kombu|billiard)[\w.]* import (.*)$", re.MULTILINE)
    for file in (ROOT / "celery_limits").rglob("*.py"):
        if file.parent.name == "patches":
            continue
        text = file.read_text("utf-8")
        foreign = {name.strip() for line in imported.findall(text) for name in line.split(",")}
        assert not foreign & {*assigned.findall(text)}, file


def test_the_documentation_has_them_all() -> None:
    """`python -m celery_limits.patches` prints the table."""
    assert table() in (ROOT / "docs/design.md").read_text("utf-8")
    assert len({module.__name__ for module in MODULES}) == len(MODULES)
