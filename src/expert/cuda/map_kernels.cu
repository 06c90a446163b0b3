#include "device/cuda/kernel.cuh"
#include "expert/device/packed_rows.hpp"
#include "expert/device/prepare_map.hpp"

ACCORD_CUDA_KERNEL(accord::expert::PrepareMap);
ACCORD_CUDA_KERNEL(accord::expert::CountLate);
ACCORD_CUDA_KERNEL(accord::expert::WriteRouting);
ACCORD_CUDA_KERNEL(accord::expert::BuildMap);
