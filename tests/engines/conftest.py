"""Where the CUDA engine's tests run."""

import devices
import pytest
import simt


@pytest.fixture(
    scope="module", params=["simulated", pytest.param("gpu", marks=pytest.mark.gpu)]
)
def place(request):
    """Return the kernels on the CPU, compiled for it, or a GPU."""
    if request.param == "gpu":
        return devices.on_gpu()
    if simt.COMPILER is None:
        pytest.skip("no C++ compiler (c++ or g++) on the path")
    return devices.simulated()
