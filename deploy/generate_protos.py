"""Makes the Python modules of the gRPC API from its .proto file, beside it: `python deploy/generate_protos.py`.

`--check` changes nothing and fails when what is there is not what would be made; a test runs it. The compiler is the
one of the locks (grpcio-tools), so that everybody makes the same bytes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PROTO: Final = "transport/grpc_api/sessile.proto"
MADE: Final = ("sessile_pb2.py", "sessile_pb2.pyi", "sessile_pb2_grpc.py")


def make(into: Path) -> dict[str, bytes]:
    """Compiles below `into`; the made files by their names."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}"]
    command += [f"--{kind}={into}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    subprocess.run([*command, PROTO], check=True, cwd=ROOT)
    return {name: (into / PROTO).with_name(name).read_bytes() for name in MADE}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="change nothing; fail when something would")
    given = options.parse_args()
    stale = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, content in make(Path(scratch)).items():
            path = (ROOT / PROTO).with_name(name)
            if not path.exists() or path.read_bytes() != content:
                stale.append(name)
                if not given.check:
                    path.write_bytes(content)
    if given.check and stale:
        print(f"not what {PROTO} makes: {', '.join(stale)}; run python deploy/generate_protos.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
