"""The CUDA wheel finds cuBLAS in the package nvidia-cublas: loaded before the module, which asks for it by name."""

import ctypes
import importlib.metadata
import importlib.util
import pathlib


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def load() -> None:
    """Does nothing in the CPU wheel.

    Raises:
        ImportError: both wheels are installed, which have the same files.
    """
    if not _installed("mneme-engine-cu13"):
        return
    if _installed("mneme-engine"):
        raise ImportError("mneme-engine and mneme-engine-cu13 have the same files: uninstall both, then install one")
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or []) if found else []:
        # cublasLt first: cublas needs it.
        for name in ("libcublasLt.so.13", "libcublas.so.13"):
            for library in sorted(pathlib.Path(folder).glob(f"*/lib/{name}")):
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
