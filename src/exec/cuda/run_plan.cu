#include "device/cuda/kernel.cuh"
#include "exec/device/run_plan.hpp"

ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kInt8>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kInt16>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kInt32>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kInt64>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kUInt8>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kUInt16>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kUInt32>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kUInt64>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kFloat16>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kBFloat16>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kFloat32>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kFloat64>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kFloat8E4M3FN>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kFloat8E5M2>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kComplex64>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kComplex128>);
ACCORD_CUDA_KERNEL(accord::exec::RunPlan<accord::DType::kBool>);
