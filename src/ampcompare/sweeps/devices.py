"""Which GPUs the workers of a sweep get, found without loading torch."""

import os


def visible_gpus() -> list[str]:
    """One CUDA_VISIBLE_DEVICES value per GPU that this process may use; empty where there is none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        names = [name.strip() for name in given.split(",")]
        # CUDA takes the list up to the first name that is none, such as -1.
        valid = next((i for i, name in enumerate(names) if not name or name.startswith("-")), len(names))
        return names[:valid] if _count() else []
    return [str(index) for index in range(_count())]


def _count() -> int:
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:  # no driver, no GPU
        return 0
