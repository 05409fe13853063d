"""Names at once what a machine lacks to build aner: Python 3.10+, venv, a C++17 compiler."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

PROGRAM = "#include <optional>\n#include <string_view>\nint main() { return std::optional<int>(0).value(); }\n"


def missing():
    if sys.version_info < (3, 10):
        yield "Python 3.10 or newer (this is {}.{})".format(*sys.version_info[:2])
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        yield "Python's venv module (Debian and Ubuntu: the package python3-venv)"
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        yield "a C++17 compiler (Debian and Ubuntu: g++; macOS: xcode-select --install)"
        return
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "check.cpp")
        with open(source, "w") as file:
            file.write(PROGRAM)
        command = [*compiler.split(), "-std=c++17", source, "-o", os.path.join(folder, "check")]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            yield "a C++17 compiler: {} cannot compile C++17 ({})".format(compiler, done.stdout.decode()[-300:].strip())


lacking = list(missing())
if lacking:
    sys.exit("aner cannot be built here, it needs:\n" + "\n".join("  - " + one for one in lacking))
