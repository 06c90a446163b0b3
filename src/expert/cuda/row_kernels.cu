#include "device/cuda/kernel.cuh"
#include "expert/device/packed_rows.hpp"
#include "expert/device/return_rows.hpp"
#include "expert/device/send_rows.hpp"

ACCORD_CUDA_KERNEL(accord::expert::SendRows);
ACCORD_CUDA_KERNEL(accord::expert::ReturnRows);
ACCORD_CUDA_KERNEL(accord::expert::PackTokens);
ACCORD_CUDA_KERNEL(accord::expert::UnpackSlots);
ACCORD_CUDA_KERNEL(accord::expert::PackSlots);
ACCORD_CUDA_KERNEL(accord::expert::SumRecords);
