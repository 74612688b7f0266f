"""The first and only trusted lines inside a sandbox: bounds that cannot be lifted again, then the code.

Run by the supervisor as `python -I -S -B bootstrap.py BOUNDS`. Says that it is ready with one byte, waits for the code
on its input, and runs it like a cell of a notebook: what the last expression is worth is printed. Small, for it is
compiled at each start, and it loads few modules: `ast` and `typing` were half of a start's time. It knows nothing of
ours, for whatever stands here the code can read.
"""

import _ast
import ctypes
import os
import resource
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


class SyscallFilter(ctypes.Structure):
    """A filter of system calls in the kernel's format."""

    _fields_ = (("length", ctypes.c_ushort), ("rules", ctypes.c_char_p))


def confine(given: str) -> None:
    """Sets bounds that nothing in this process or below it can lift: `NAME=VALUE,...:PROGRAM`; PROGRAM is a filter of
    system calls in hexadecimal. Raises OSError where one cannot be set."""
    bounds, _, program = given.partition(":")
    for bound in bounds.split(","):
        name, _, value = bound.partition("=")
        resource.setrlimit(getattr(resource, name), (int(value), int(value)))
    rules = bytes.fromhex(program)
    libc = ctypes.CDLL(None, use_errno=True)
    filter = ctypes.byref(SyscallFilter(len(rules) // 8, rules))
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {arguments[0]}")


def run(code: str) -> int:
    """Runs code; returns the status with which its process ends."""
    module: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    try:
        tree = compile(code, "<code>", "exec", _ast.PyCF_ONLY_AST)
        assert isinstance(tree, _ast.Module)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), module)
        if isinstance(last, _ast.Expr):
            worth = eval(compile(_ast.Expression(last.value), "<code>", "eval"), module)
            if worth is not None:
                print(repr(worth))
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return int(end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001  the code's own, whatever it raises
        import traceback

        behind = error.__traceback__.tb_next if error.__traceback__ is not None else None  # this frame is not theirs
        traceback.print_exception(type(error), error, behind)
        return 1


def main() -> None:
    confine(sys.argv[1])
    sys.argv[:] = ["<code>"]
    os.write(1, b"\0")
    size = int.from_bytes(sys.stdin.buffer.read(4), "big")
    code = sys.stdin.buffer.read(size).decode(errors="replace")
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    status = run(code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
