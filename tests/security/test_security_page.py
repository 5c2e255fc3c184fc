"""Every statement of SECURITY.md has a test, or a reason why not, and every test named here is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

_CAN_DO = "What another local user can do"
_PAGE = Path(__file__).parents[2] / "SECURITY.md"

# How a promise begins, and what proves it.
_PROOFS = {
    "They can't read, change or list the memory of a job.": [
        "test_diagnose.test_another_user_can_neither_list_nor_open_the_memory_of_a_job",
    ],
    "They can't connect to a job on one machine.": [
        "test_store.test_a_job_listens_nowhere_but_where_gloo_itself_does",
        "test_store.test_ranks_of_spawn_listen_nowhere",
    ],
    "They can't read or change torch's store.": [
        "test_store.test_another_user_can_neither_read_nor_write_torchs_store",
        "test_store.test_ranks_of_a_test_meet_in_the_same_way",
    ],
    "They can't join a group that your ranks are making.": [
        "test_meetings.test_a_meeting_lets_no_other_user_in_and_reads_nothing_of_theirs",
        "test_meetings.test_a_place_that_another_user_holds_is_told_and_gets_nothing",
        "test_meetings.test_where_all_users_have_one_number_a_meeting_still_lets_no_other_user_in",
    ],
    "They can't take the socket at which your ranks meet.": [
        "test_meetings.test_another_user_cannot_take_the_place_of_a_job_whose_variables_it_knows",
        "test_meetings.test_the_name_of_a_run_of_torchrun_is_one_for_its_ranks_and_another_in_the_next_run",
        "test_meetings.test_the_secret_is_the_users_alone_and_everybody_of_it_gets_the_same",
        "test_meetings.test_a_secret_that_others_may_know_is_not_used",
    ],
    "They can't make phalanx load their code.": [
        "test_folders.test_what_another_user_has_put_there_first_is_not_used",
        "test_folders.test_a_cache_that_others_can_write_to_is_not_used",
        "test_folders.test_a_cache_whose_place_others_can_take_is_not_used",
        "test_folders.test_a_cache_below_a_folder_of_another_user_is_not_used",
        "test_folders.test_where_all_users_have_one_number_no_folder_is_trusted",
    ],
    "They can't read flight records, or the tracebacks that `phalanx run` keeps": [
        "test_folders.test_flight_records_are_the_users_alone",
        "test_folders.test_tracebacks_that_are_kept_are_the_users_alone",
    ],
    "It never changes a file of another user.": [
        "test_diagnose.test_a_file_put_in_the_place_of_a_memory_file_is_neither_written_nor_emptied",
        "test_diagnose.test_root_reads_the_stacks_of_another_users_process_without_writing_into_its_memory",
    ],
    "It opens only memory files.": [
        "test_diagnose.test_neither_a_pipe_nor_a_device_in_that_place_is_opened",
        "test_diagnose.test_a_descriptor_that_stands_for_another_file_by_now_is_not_opened",
    ],
    "Nothing in another user's memory, flight record or trace can crash it.": [
        "test_diagnose.test_a_group_that_its_owner_can_cut_is_not_read",
        "test_readers.test_a_group_in_which_any_words_are_changed_is_refused_or_read",
        "test_readers.test_a_group_that_is_rewritten_while_it_is_read_is_read",
        "test_readers.test_a_flight_record_in_which_anything_is_changed_is_refused_or_shown",
        "test_readers.test_a_trace_in_which_anything_is_changed_is_refused_or_drawn",
        "test_readers.test_a_flight_record_with_a_number_that_no_clock_shows_is_refused_or_shown",
        "test_readers.test_a_file_of_endless_zeros_is_read_no_further_than_need_be",
    ],
    "Large groups of another user neither fill its memory nor keep it busy": [
        "tests.diagnosis.test_waits.test_numbering_the_ranks_of_many_groups_compares_each_number_a_few_times",
        "tests.diagnosis.test_waits.test_ranks_of_many_groups_that_wait_for_many_name_a_bounded_number_of_ranks",
        "tests.diagnosis.test_waits.test_following_a_long_chain_compares_each_rank_a_few_times",
        "tests.diagnosis.test_report.test_the_stack_of_a_process_is_read_once_however_many_rows_name_it",
        "test_diagnose.test_no_more_ranks_are_looked_at_than_a_job_can_have",
    ],
    "It does not wait for other users.": [
        "test_diagnose.test_a_lock_that_another_user_holds_delays_root_only_for_the_time_it_has",
        "test_readers.test_a_pipe_in_the_place_of_a_file_is_not_waited_for",
        "test_diagnose.test_a_program_that_another_user_has_started_is_not_taken_for_roots_own",
    ],
    "Its output can't steer your terminal.": [
        "test_diagnose.test_what_another_user_calls_things_does_not_steer_the_terminal",
        "test_readers.test_names_in_a_trace_do_not_steer_the_terminal",
    ],
    "It ignores what one user claims about the processes of another user.": [
        "test_diagnose.test_what_a_launcher_says_may_be_anything_and_counts_for_processes_of_its_own_user_only",
        "test_diagnose.test_another_users_job_does_not_answer_to_the_number_of_our_process",
    ],
    "The only signal that it sends is SIGRTMIN + 7.": [
        "test_diagnose.test_a_process_that_only_says_that_it_answers_is_not_signalled",
        "test_diagnose.test_a_signal_reaches_only_what_the_owner_of_the_process_may_signal",
        "test_diagnose.test_a_process_that_has_become_roots_after_the_check_gets_no_signal",
        "test_diagnose.test_a_child_that_the_other_user_stops_is_not_waited_for",
    ],
}

# The same for what phalanx does not promise.
_POSSIBLE = {
    "All ranks of a job, and all your other processes, can read and change the job's memory": [
        "test_what_is_possible.test_another_process_of_the_same_user_can_open_the_memory_of_a_job",
    ],
    "If somebody controls one rank, they control the job.": [
        "test_what_is_possible.test_a_rank_can_run_code_on_the_other_ranks",
    ],
    "They can see that a job runs, its command line, and the names of its sockets": [
        "test_what_is_possible.test_another_user_sees_the_command_line_and_the_names_of_sockets",
    ],
    "They can connect to ports that other software opens in your job.": [
        "test_store.test_a_job_listens_nowhere_but_where_gloo_itself_does",
        "test_store.test_a_program_that_names_its_own_port_meets_there",
        "test_store.test_ranks_of_a_test_meet_in_the_same_way",
    ],
    "They can take the meeting place of ranks in a few cases": [
        "test_meetings.test_where_there_is_no_home_names_stay_as_they_are",
        "test_meetings.test_ranks_whose_place_another_user_has_seen_and_taken_say_so_and_stop",
        "test_meetings.test_a_place_that_another_user_holds_is_told_and_gets_nothing",
        "test_meetings.test_a_place_whose_holder_lets_nobody_in_is_waited_for_no_longer_than_told",
    ],
    "They can take the name by which ranks decide whose turn it is": [
        "test_meetings.test_a_breakpoint_whose_name_another_user_holds_is_skipped_with_a_warning",
        "test_meetings.test_a_turn_that_another_user_holds_is_told",
    ],
    "They can read traces and logs if your umask lets them.": [
        "test_what_is_possible.test_the_umask_decides_whether_others_read_logs_and_traces",
    ],
    "Flight records and traces are data: reading one runs no code.": [
        "test_readers.test_a_flight_record_in_which_anything_is_changed_is_refused_or_shown",
        "test_readers.test_a_trace_in_which_anything_is_changed_is_refused_or_drawn",
    ],
}
# What a test can't show: it follows from what phalanx does not do.
_UNTESTED = (
    "phalanx trusts you and the superuser.",
    "phalanx does not isolate your containers from each other if they run as the same user.",
    "They can use up the machine's memory, processes and cores.",
)


def _promises() -> list[str]:
    parts = re.split(r"^## ", _PAGE.read_text(), flags=re.MULTILINE)
    chosen = [part for part in parts if part.startswith(("What another local user can't do", "What root's tools do"))]
    assert len(chosen) == 2
    return [line.removeprefix("- ") for part in chosen for line in part.splitlines() if line.startswith("- ")]


def test_every_promise_has_a_test() -> None:
    unproven = [promise for promise in _promises() if not promise.startswith(tuple(_PROOFS))]
    assert unproven == []
    assert len(_promises()) == len(_PROOFS)


def test_everything_that_another_user_can_do_has_a_test_or_a_reason_why_not() -> None:
    (part,) = [part for part in re.split(r"^## ", _PAGE.read_text(), flags=re.MULTILINE) if part.startswith(_CAN_DO)]
    items = [line.removeprefix("- ") for line in part.splitlines() if line.startswith("- ")]
    assert items
    assert [item for item in items if not item.startswith((*_POSSIBLE, *_UNTESTED))] == []


@pytest.mark.parametrize("statement", [*_POSSIBLE, *_UNTESTED])
def test_every_statement_that_is_tested_is_on_the_page(statement: str) -> None:
    assert " ".join(statement.split()) in " ".join(_PAGE.read_text().split())


@pytest.mark.parametrize("name", [name for names in (*_PROOFS.values(), *_POSSIBLE.values()) for name in names])
def test_every_test_that_is_named_is_there(name: str) -> None:
    module, _, function = name.rpartition(".")
    found = importlib.import_module(module if module.startswith("tests.") else f"tests.security.{module}")
    assert callable(getattr(found, function))
