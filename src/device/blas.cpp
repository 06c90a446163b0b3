#include "device/blas.hpp"

#include <atomic>

#ifdef ACCORD_HAS_CUDA
#include "device/cuda/blas.hpp"
#endif

namespace accord::device {
namespace {

std::atomic<Blas*> blas_replacement = nullptr;

}  // namespace

Result<Blas*> blas_of(DeviceType type) {
  if (type == DeviceType::kCpu)
    return Status(StatusCode::kInvalidArgument, "the cpu has no device library for products");
  if (Blas* const replacement = blas_replacement.load(std::memory_order_acquire)) return replacement;
#ifdef ACCORD_HAS_CUDA
  return cuda::blas();
#else
  return Status(StatusCode::kUnsupported, "this build computes on cpu only");
#endif
}

void replace_blas(DeviceType type, Blas* blas) {
  if (type == DeviceType::kCuda) blas_replacement.store(blas, std::memory_order_release);
}

}  // namespace accord::device
