#include "device/cuda/kernel.cuh"
#include "device/norm_rows.hpp"

ACCORD_CUDA_KERNEL(accord::device::NormRows);
