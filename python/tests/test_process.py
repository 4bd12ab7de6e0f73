"""Processes that fork, are interrupted, or end in the middle of an answer: each a program of its own."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

from conftest import MODEL

START = f"""
import gc, os, signal, sys, threading
import mneme
llm = mneme.LLM({str(MODEL)!r}, max_model_len=4096, kv_memory_bytes=256 << 20, threads=2, pin_threads=False,
                max_num_batched_tokens=64)
LONG = mneme.SamplingParams(max_tokens=4000, ignore_eos=True)
"""


def run(program: str, *, expect: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", START + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=1500,  # of a machine that computes much else
    )
    assert done.returncode == expect, done.stderr
    assert "nanobind: leaked" not in done.stderr, done.stderr
    assert "Fatal" not in done.stderr and "terminate called" not in done.stderr, done.stderr
    return done.stdout


def test_ends_in_the_middle_of_a_stream() -> None:
    run(
        """
        stream = llm.stream("Once upon a time", LONG)
        next(stream)
        sys.exit(0)
        """
    )


@pytest.mark.parametrize("daemon", [True, False])
def test_ends_while_threads_wait(daemon: bool) -> None:
    run(
        f"""
        started = threading.Event()
        def read():
            try:
                for _ in llm.stream("Once upon a time", LONG):
                    started.set()
            except mneme.Error:
                pass
        threads = [threading.Thread(target=read, daemon={daemon}) for _ in range(4)]
        for t in threads:
            t.start()
        started.wait()
        if not {daemon}:
            llm.close()
        """
    )


def test_a_child_may_not_use_the_engine_and_ends_cleanly() -> None:
    out = run(
        """
        stream = llm.stream("Once upon a time", LONG)
        next(stream)
        session = llm.session()
        session.read("Once upon a time")
        child = os.fork()
        if child == 0:
            for call in (lambda: llm.generate("One"), lambda: session.ask("Two?"), lambda: llm.session()):
                try:
                    call()
                    os._exit(3)
                except mneme.Error as e:
                    if "forked" not in str(e):
                        os._exit(4)
            del stream, session
            llm.close()
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
        stream.close()
        print(len(llm.generate("One", mneme.SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids))
        """
    )
    assert out.split() == ["7", "2"]


@pytest.mark.parametrize("call", ["llm.generate('Once', LONG)", "llm.session().ask('Once', LONG)"])
def test_ctrl_c_ends_an_answer(call: str) -> None:
    out = run(
        f"""
        import time
        noticed = []
        def handler(*_):
            if not noticed:
                noticed.append(True)
                raise KeyboardInterrupt
        signal.signal(signal.SIGINT, handler)
        # Until it is noticed: a signal may arrive before the call starts.
        def interrupt():
            while not noticed:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
        thread = threading.Thread(target=interrupt)
        try:
            thread.start()
            {call}
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted")
        thread.join()
        print(len(llm.generate("One", mneme.SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids))
        """
    )
    assert out.split() == ["interrupted", "2"]


def test_nothing_is_left_of_requests_and_sessions() -> None:
    out = run(
        """
        import tracemalloc
        few = mneme.SamplingParams(max_tokens=2, ignore_eos=True, logprobs=1)
        def work():
            for i in range(10):
                llm.generate(["One", "Two"], few)
                list(llm.stream("Three", few))
                next(llm.stream("Four", LONG))
                llm.logits("Five six")
                session = llm.session()
                session.ask("Seven", few)
                session.fork().ask("Eight", few)
        work()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.take_snapshot()
        work()
        gc.collect()
        grown = sum(s.size_diff for s in tracemalloc.take_snapshot().compare_to(before, "filename"))
        print(grown < 100_000, grown)
        from mneme import _core
        kinds = (_core.Request, _core.Session, _core.SessionStream, _core.Piece)
        print(sum(isinstance(o, kinds) for o in gc.get_objects()))
        """
    )
    assert out.split()[0] == "True", out
    assert out.split()[-1] == "0"


def test_a_leak_would_be_seen() -> None:
    # nanobind lists what is alive when the interpreter ends; run() refuses that.
    with pytest.raises(AssertionError, match="nanobind: leaked"):
        run(
            """
            import ctypes
            from mneme import _core
            kept = _core.Mailbox()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            """
        )


def test_the_program_runs_by_its_module() -> None:
    done = subprocess.run([sys.executable, "-m", "mneme", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("mneme ")
    done = subprocess.run([sys.executable, "-m", "mneme", "no-such"], capture_output=True, text=True)
    assert done.returncode == 2 and "no-such" in done.stderr
    server = [sys.executable, "-m", "mneme", "serve", "-m", str(MODEL), "--port", "0", "-c", "512", "--no-pin"]
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on ")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_both_wheels_at_once_are_refused(tmp_path: pathlib.Path) -> None:
    for name in ("mneme_engine", "mneme_engine_cu13"):
        info = tmp_path / f"{name}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1.0\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", "import mneme"], capture_output=True, text=True, env=dict(os.environ, PYTHONPATH=path)
    )
    assert done.returncode != 0 and "uninstall both" in done.stderr
