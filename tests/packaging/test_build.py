"""What the installed extension is, and what an installation from our own sdist becomes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import aner_native
import pytest

import aner
from aner import _cpu_baseline

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "vendor" / "llama.cpp"


def run(*command: object, **options: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return str(done.stdout)


def tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found is not None, f"{name} is missing: `make build` installs it"
    return found


def exported_symbols(extension: Path) -> list[str]:
    lines = run("nm", "--dynamic", "--defined-only", "--extern-only", extension).splitlines()
    return [line.split()[-1] for line in lines if line.strip()]


def test_the_extension_exports_its_init_symbol_and_nothing_else() -> None:
    assert exported_symbols(Path(aner_native.__file__)) == ["PyInit_aner_native"]


def test_the_build_info_names_the_pin_and_every_patch_of_the_repository() -> None:
    info = aner.build_info()
    assert (info["version"], info["engine_version"], info["engine_commit"]) == ("0.0.7", "0.5.0", "0c1e57098")
    assert info["engine_origin"] == "pinned"
    assert info["patches"] == sorted(patch.name for patch in (VENDOR / "patches").glob("*.patch"))
    assert len(info["patches"]) == 6  # type: ignore[arg-type]


def test_the_pristine_tree_has_the_recorded_digest_and_the_built_one_differs_only_by_the_patches(tmp_path: Path) -> None:
    unpack = VENDOR / "unpack.py"
    source = VENDOR / "source"
    assert run(sys.executable, unpack, "digest", source).strip() == (VENDOR / "tree.sha256").read_text().split()[0]
    run(sys.executable, unpack, "patched", source, tmp_path / "tree")
    differing = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and path.read_bytes() != (tmp_path / "tree" / path.relative_to(source)).read_bytes()
    ]
    assert sorted(differing) == [
        "ggml/src/ggml-cpu/ggml-cpu.c",
        "ggml/src/ggml-cpu/llamafile/sgemm.cpp",
        "src/llama-context.cpp",
        "src/llama-cparams.h",
        "src/llama-graph.cpp",
        "src/llama-vocab.cpp",
        "src/unicode.cpp",
    ]
    patched = (tmp_path / "tree" / "ggml/src/ggml-cpu/ggml-cpu.c").read_text()
    assert "sched_yield();" in patched.split("static void ggml_barrier", 1)[-1]
    assert patched.count("&& !params->use_ref) {") >= 2


def test_a_changed_tree_is_refused_and_a_patch_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    copy = tmp_path / "vendor"
    shutil.copytree(VENDOR, copy)
    with (copy / "source" / "include" / "llama.h").open("a") as header:
        header.write("// changed\n")
    done = subprocess.run([sys.executable, copy / "unpack.py", "source", copy / "source"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "is not the pinned llama.cpp tree" in done.stderr
    target = copy / "source" / "ggml" / "src" / "ggml-cpu" / "ggml-cpu.c"
    target.write_text(target.read_text().replace("// wait for other threads", "// wait"))
    command = [sys.executable, copy / "unpack.py", "patched", copy / "source", tmp_path / "tree"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "0001-barrier-yields.patch does not apply" in done.stderr


def test_a_tree_of_the_users_own_is_built_as_it_is_and_called_custom(tmp_path: Path) -> None:
    tree = tmp_path / "llama.cpp"
    shutil.copytree(VENDOR / "source", tree)
    before = run(sys.executable, VENDOR / "unpack.py", "digest", tree)
    run(tool("cmake"), "-S", ROOT, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-DPython_EXECUTABLE={sys.executable}", f"-DANER_LLAMA_CPP_DIR={tree}")  # fmt: skip
    info = (tmp_path / "build" / "aner_native" / "build_info.hpp").read_text()
    assert 'engine_origin = "custom"' in info
    assert 'patches = ""' in info
    assert run(sys.executable, VENDOR / "unpack.py", "digest", tree) == before


def test_touching_one_of_our_sources_rebuilds_nothing_of_the_engine() -> None:
    builds = sorted(ROOT.glob("build/cp*/build.ninja"), key=lambda path: path.stat().st_mtime)
    assert builds, "no persistent build folder: `make build` makes it"
    build = [tool("ninja"), "-C", builds[-1].parent, "aner_native"]
    run(*build)
    os.utime(ROOT / "aner_native" / "core" / "lease.cpp")
    built = run(*build)
    assert "core/lease.cpp" in built
    assert "engine/" not in built


def test_the_tile_check_finds_dropped_stores_and_the_flags_keep_them(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None or os.uname().machine != "x86_64":
        assert not aner.build_info()["tile_fix"]  # only GCC on x86-64 needs and gets the flags
        return
    check = ROOT / "cmake" / "tile_config_check.cpp"

    def exits(*flags: str) -> int:
        run(compiler, "-O3", "-mamx-tile", "-mno-red-zone", *flags, check, "-o", tmp_path / "check")
        return subprocess.run([tmp_path / "check"], check=False).returncode

    assert exits("-fno-tree-dse", "-fno-dse") == 0
    assert aner.build_info()["tile_fix"] == (exits() != 0)


def test_a_cpu_without_a_needed_feature_gets_an_import_error_that_names_it() -> None:
    with pytest.raises(ImportError, match=r"lacks avx2, fma, and this portable build"):
        _cpu_baseline.check(frozenset({"sse4_2", "avx"}), ["avx", "avx2", "fma"], "portable")
    _cpu_baseline.check(frozenset({"avx", "avx2"}), ["avx", "avx2"], "native")
    _cpu_baseline.check(None, ["avx"], "portable")  # flags unknown: another system


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT)
    return next(folder.glob("aner-*.tar.gz"))


def test_the_sdist_carries_the_engine_its_backends_and_its_licence(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    source = "vendor/llama.cpp/source/"
    for part in ("LICENSE", "include/llama.h", "ggml/src/ggml-cuda/ggml-cuda.cu", "ggml/src/ggml-metal/ggml-metal.cpp",
                 "ggml/src/ggml-vulkan/ggml-vulkan.cpp"):  # fmt: skip
        assert source + part in names
    assert (ROOT / "LICENSES" / "llama.cpp.txt").read_bytes() == (VENDOR / "source" / "LICENSE").read_bytes()
    assert {"LICENSE", "NOTICE", "LICENSES/llama.cpp.txt", "vendor/llama.cpp/patches/0001-barrier-yields.patch"} <= names
    assert not [name for name in names if name.startswith(("build/", "models/", ".venv/")) or "/tools/server" in name]
