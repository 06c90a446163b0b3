#include "device/cuda/kernel.cuh"
#include "expert/device/drop_kernels.hpp"
#include "expert/device/map_kernels.hpp"

ACCORD_CUDA_KERNEL(accord::expert::AwaitRead);
ACCORD_CUDA_KERNEL(accord::expert::MeetPeers);
ACCORD_CUDA_KERNEL(accord::expert::LeavePeers);
ACCORD_CUDA_KERNEL(accord::expert::CountLate);
ACCORD_CUDA_KERNEL(accord::expert::ShareRouting);
ACCORD_CUDA_KERNEL(accord::expert::PlaceChoices);
ACCORD_CUDA_KERNEL(accord::expert::CountChunks);
ACCORD_CUDA_KERNEL(accord::expert::ScanChunks);
ACCORD_CUDA_KERNEL(accord::expert::LayOut);
ACCORD_CUDA_KERNEL(accord::expert::NumberSlots);
ACCORD_CUDA_KERNEL(accord::expert::OrderChoices);
ACCORD_CUDA_KERNEL(accord::expert::DropLowest);
ACCORD_CUDA_KERNEL(accord::expert::RestoreFitting);
