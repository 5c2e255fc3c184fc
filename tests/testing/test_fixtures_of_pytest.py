"""pytest's own fixtures, on every rank."""

from __future__ import annotations

from tests.testing.inner_runs import InnerRuns


def test_capsys_and_capfd_see_the_output_of_their_rank(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_sys(capsys, rank):
            print("out", rank)
            print("err", rank, file=sys.stderr)
            assert capsys.readouterr() == (f"out {rank}\\n", f"err {rank}\\n")
            assert capsys.readouterr().out == ""
        """
        + (
            """
        @pytest.mark.ranks(2)
        def test_fd(capfd, rank):
            os.system(f"echo native {rank}")
            assert capfd.readouterr().out == f"native {rank}\\n"
        """
            if kind != "thread"
            else ""
        ),
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=2 if kind != "thread" else 1)


def test_what_capsys_has_not_read_is_in_the_report(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_unread(capsys, rank):
            print("unread of", rank)
            assert rank == 5
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Captured stdout*rank 0*", "unread of 0", "*rank 1*", "unread of 1"])


def test_caplog_has_the_records_of_its_rank(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        import logging

        @pytest.mark.ranks(2)
        def test_log(caplog, group, rank):
            with caplog.at_level(logging.INFO):
                logging.getLogger("train").info("step of rank %d", rank)
            group.barrier()
            assert [record.getMessage() for record in caplog.records] == [f"step of rank {rank}"]
            assert caplog.record_tuples == [("train", logging.INFO, f"step of rank {rank}")]
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1)


def test_tmp_path_is_shared_by_the_ranks_of_a_test(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks([1, 3])
        def test_shared(tmp_path, tmp_path_factory, group, rank):
            (tmp_path / f"from-{rank}").touch()
            group.barrier()
            assert len(list(tmp_path.iterdir())) == group.size
            assert tmp_path_factory.getbasetemp() in tmp_path.parents
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=2)


def test_monkeypatch_is_undone_after_the_test(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        import json

        @pytest.mark.ranks(2)
        def test_patch(monkeypatch, group, rank):
            monkeypatch.setenv("WHO", "ranks")
            monkeypatch.setattr(json, "dumps", lambda value: "patched")
            group.barrier()
            assert (os.environ["WHO"], json.dumps(1)) == ("ranks", "patched")
            group.barrier()

        @pytest.mark.ranks(2)
        def test_after(rank):
            assert "WHO" not in os.environ
            assert json.dumps(1) == "1"

        def test_here():
            assert "WHO" not in os.environ
            assert json.dumps(1) == "1"

        @pytest.fixture
        def patched(monkeypatch):
            monkeypatch.setenv("WHO", "fixture")

        @pytest.mark.ranks(2)
        def test_patched_before(patched, rank):
            assert os.environ["WHO"] == "fixture"
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=4)


def test_recwarn_has_the_warnings_of_its_rank(inner: InnerRuns) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2, kind=["process", "pool"])
        def test_warnings(recwarn, rank):
            warnings.warn(f"from {rank}")
            assert [str(found.message) for found in recwarn] == [f"from {rank}"]
        """
    )
    result.assert_outcomes(passed=2)


def test_record_property_of_every_rank_reaches_the_report(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(2)
        def test_property(record_property, rank):
            record_property(f"loss {rank}", 0.5)
            record_property("shared", "yes")
        """,
        f"--ranks-kind={kind}",
        "--junitxml=report.xml",
    )
    result.assert_outcomes(passed=1)
    report = (inner.pytester.path / "report.xml").read_text()
    for name, value in (("loss 0", "0.5"), ("loss 1", "0.5"), ("shared", "yes")):
        assert f'<property name="{name}" value="{value}"' in report
    assert report.count('name="shared"') == 1


def test_subtests_are_reported_once_with_their_ranks(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.mark.ranks(3)
        def test_parts(subtests, rank):
            for number in range(3):
                with subtests.test("part", number=number):
                    assert number != 1 or rank == 0
            with subtests.test("later"):
                pytest.skip("not now")
            note("reached the end", rank)

        @pytest.mark.ranks(2)
        def test_fine(subtests, rank):
            with subtests.test("fine"): pass
        """,
        f"--ranks-kind={kind}",
        "-rA",
    )
    result.stdout.fnmatch_lines_random(
        [
            "SUBFAILED?part? (number=1) *::test_parts - ranks 1-2: *",
            "FAILED*::test_parts - contains 1 failed subtest",
            "PASSED*::test_fine",
        ]
    )
    result.stdout.fnmatch_lines_random(["ranks 1-2: AssertionError: assert (1 != 1 or * == 0)"])
    assert len(inner.notes()) == 3


def test_usefixtures_and_autouse_fixtures_run_where_they_belong(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        @pytest.fixture
        def once(): note("once")

        @pytest.fixture
        def on_each(rank): note("on each", rank)

        @pytest.fixture(autouse=True)
        def always(): note("always")

        @pytest.mark.ranks(2)
        @pytest.mark.usefixtures("once", "on_each")
        def test_used(): note("test")
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(passed=1)
    assert inner.notes() == ["always", "on each 0", "on each 1", "once", "test", "test"]
