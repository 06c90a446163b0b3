#include "device/host_blas.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "device/numbers.hpp"
#include "device/product_timing.hpp"

namespace accord::testing {
namespace {

using device::Epilogue;
using device::Matrices;
using device::Product;
using device::SecondLayout;

constexpr std::size_t kWorkspaceBytes = 4096;

float element(const Matrices& matrices, std::int64_t batch, std::int64_t row, std::int64_t column) {
  return device::load_float(matrices.data, matrices.dtype,
                            batch * matrices.batch_stride + row * matrices.row_stride + column);
}

void multiply_now(const Product& p) {
  if (p.workspace != nullptr) std::memset(p.workspace, 0x5A, kWorkspaceBytes);
  for (std::int64_t i = 0; i < p.batch; ++i) {
    for (std::int64_t row = 0; row < p.m; ++row) {
      for (std::int64_t column = 0; column < p.n; ++column) {
        float sum = 0.0F;
        for (std::int64_t k = 0; k < p.k; ++k)
          sum += element(p.a, i, row, k) *
                 (p.second_layout == SecondLayout::kRows ? element(p.b, i, column, k) : element(p.b, i, k, column));
        if (p.a_scales != nullptr) sum *= p.a_scales[row] * p.b_scales[column];
        sum *= p.alpha;
        if (p.beta != 0.0F) sum += p.beta * element(p.c, i, row, column);
        if (p.bias != nullptr) sum += device::load_float(p.bias, p.c.dtype, column);
        if (p.epilogue == Epilogue::kRelu) sum = std::max(sum, 0.0F);
        if (p.epilogue == Epilogue::kGeluTanh)
          sum = 0.5F * sum * (1.0F + std::tanh(0.7978845608F * (sum + 0.044715F * sum * sum * sum)));
        device::store_float(const_cast<void*>(p.c.data), p.c.dtype,
                            i * p.c.batch_stride + row * p.c.row_stride + column, sum);
      }
    }
  }
}

Status check_sizes(const Product& p, bool takes_scales) {
  const auto unsupported = [&](std::string_view why) {
    return Status(StatusCode::kUnsupported, fmt::format("[{}, {}] x [{}, {}]: {}", p.m, p.k, p.k, p.n, why));
  };
  if (p.m < 1 || p.n < 1 || p.k < 1 || p.batch < 1) return unsupported("a size is below 1");
  const bool rows = p.second_layout == SecondLayout::kRows;
  if (p.a.row_stride < p.k || p.b.row_stride < (rows ? p.k : p.n) || p.c.row_stride < p.n)
    return unsupported("rows overlap");
  const bool is_float8 = p.a.dtype == DType::kFloat8E4M3FN;
  const bool real = p.a.dtype == DType::kFloat32 || p.a.dtype == DType::kBFloat16 || p.a.dtype == DType::kFloat16;
  if (p.a.dtype != p.b.dtype || (!is_float8 && !real)) return unsupported("the dtypes do not fit together");
  if (is_float8 && (!rows || (p.n | p.k) % 16 != 0)) return unsupported("float8 does not support these sizes");
  const bool has_scales = p.a_scales != nullptr;
  if (has_scales != (p.b_scales != nullptr)) return unsupported("only one matrix has scales");
  if (has_scales && (!is_float8 || !takes_scales || p.batch != 1 || p.epilogue != Epilogue::kNone))
    return unsupported("the product does not support scales");
  if (is_float8 && p.c.dtype == DType::kFloat32 && p.bias != nullptr)
    return unsupported("float8 does not support a float32 bias");
  const bool narrow = p.c.dtype == DType::kBFloat16 || p.c.dtype == DType::kFloat16;
  const bool as_wide = p.c.dtype == DType::kFloat32 || (is_float8 ? narrow : p.c.dtype == p.a.dtype);
  return as_wide ? Status() : unsupported("the dtype of the result is not supported");
}

}  // namespace

HostBlas& HostBlas::instance() {
  static HostBlas blas(HostRuntime::instance());
  return blas;
}

Status HostBlas::check(const Product& product) const {
  ACCORD_RETURN_IF_ERROR(check_sizes(product, takes_scales_));
  const Float8 takes = takes_float8_;
  const bool is_float8 = product.a.dtype == DType::kFloat8E4M3FN;
  if (is_float8 && (takes == Float8::kNone || (takes == Float8::kWithoutScales && product.a_scales != nullptr)))
    return Status(StatusCode::kUnsupported, "no kernel for this shape of float8");
  if (!is_float8 && !takes_epilogues_ && (product.bias != nullptr || product.epilogue != Epilogue::kNone))
    return Status(StatusCode::kUnsupported, "no kernel with a bias or an activation");
  return Status();
}

Result<bool> HostBlas::has(const Product& product, Device) {
  const Status status = check(product);
  if (status.code() == StatusCode::kUnsupported) return false;
  ACCORD_RETURN_IF_ERROR(status);
  return true;
}

std::size_t HostBlas::workspace_bytes() const { return kWorkspaceBytes; }

void HostBlas::set_candidates(std::vector<std::chrono::microseconds> times) {
  const std::lock_guard lock(mutex_);
  times_ = std::move(times);
  chosen_.clear();
  products_by_.clear();
}

int HostBlas::products_by(int candidate) const {
  const std::lock_guard lock(mutex_);
  const auto found = products_by_.find(candidate);
  return found == products_by_.end() ? 0 : found->second;
}

HostBlas::Sizes HostBlas::sizes_of(const Product& product) {
  return {device::rows_like(product.m), product.n, product.k, product.batch};
}

Result<int> HostBlas::candidates(const Product& product, Device device) {
  ACCORD_ASSIGN_OR_RETURN(const bool has_any, has(product, device));
  const std::lock_guard lock(mutex_);
  if (!has_any) return 0;
  return product.uses_choice && chosen_.contains(sizes_of(product)) ? 1 : static_cast<int>(times_.size());
}

Status HostBlas::choose(int candidate, const Product& product, Device) {
  const std::lock_guard lock(mutex_);
  chosen_.emplace(sizes_of(product), candidate);
  return Status();
}

Status HostBlas::multiply(const Product& product, Device device, Stream stream) {
  return multiply_by(0, product, device, stream);
}

Status HostBlas::multiply_by(int candidate, const Product& product, Device device, Stream stream) {
  ACCORD_RETURN_IF_ERROR(check(product));
  std::chrono::microseconds time;
  {
    const std::lock_guard lock(mutex_);
    const auto chosen = chosen_.find(sizes_of(product));
    const int kernel = !product.uses_choice || chosen == chosen_.end() ? candidate : chosen->second;
    time = times_.at(static_cast<std::size_t>(kernel));
    if (time.count() < 0) return Status(StatusCode::kUnsupported, "the kernel cannot run");
    ++products_by_[kernel];
  }
  ++products_;
  return runtime_.enqueue(device, stream, [this, product, time] {
    elapsed_ = elapsed_.load() + time;  // products that are timed run one after another
    multiply_now(product);
  });
}

}  // namespace accord::testing
