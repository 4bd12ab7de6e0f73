"""A test's clients, in a virtual environment of their own: made at the first run, and again when other versions are pinned."""
import fcntl
import os
import subprocess
import sys

SKIPPED = 77  # exit code of a test that tested nothing


def run_inside(venv, pinned):
    """Runs this program again inside the environment, with --inside. Exits with SKIPPED where it cannot be made."""
    python, mark = os.path.join(venv, "bin", "python"), os.path.join(venv, "installed")
    os.makedirs(venv, exist_ok=True)
    with open(venv + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(mark) or open(mark).read() != repr(pinned):
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1", *pinned]
            done = subprocess.run(install, capture_output=True, text=True)
            if done.returncode != 0:
                print("SKIPPED: %s cannot be installed (offline?)\n%s" % (", ".join(pinned), done.stderr[-400:]))
                sys.exit(SKIPPED)
            with open(mark, "w") as f:
                f.write(repr(pinned))
    os.execv(python, [python, os.path.abspath(sys.argv[0]), *sys.argv[1:], "--inside"])


def expect(condition, what):
    if not condition:
        raise AssertionError(what)
