// Linear layers run prepared oneDNN matmuls from a cache that the whole process shares: all layers of one shape use the
// same entries, whatever their weights. A call takes an entry of its shape out of the cache, or makes one, runs it without
// any lock held, and puts it back; threads that run one shape at once make one entry each. Entries are list nodes that are
// spliced in and out, so that a shape met before costs no allocation here. When too many lie idle, the shape that has not
// been used for the longest time gives one up. Attention's small products go through oneDNN's sgemm directly.

#include "kernels/gemm.hpp"

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "kernels/linear_executor.hpp"
#include "kernels/one_thread.hpp"
#include "kernels/row_kernels.hpp"

namespace accord::kernels {

namespace {

struct HashOfShape {
  std::size_t operator()(const LinearShape& shape) const {
    std::size_t hash = 0;
    for (const std::int64_t part : {shape.m, shape.out, shape.in, shape.x_row_stride, shape.y_row_stride,
                                    shape.column_block, std::int64_t{shape.has_bias}, std::int64_t{shape.relu}}) {
      hash = (hash ^ static_cast<std::size_t>(part)) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

class ExecutorCache {
 public:
  using Entry = std::list<LinearExecutor>;  // of one node

  static ExecutorCache& of_process() {
    static ExecutorCache& cache = *new ExecutorCache;  // outlives every thread that may still compute
    return cache;
  }

  /// An idle executor of that shape, or an empty list.
  Entry take(const LinearShape& shape) {
    Entry entry;
    const std::lock_guard lock(mutex_);
    const auto idle = idle_.find(shape);
    if (idle == idle_.end() || idle->second.executors.empty()) return entry;
    entry.splice(entry.begin(), idle->second.executors, idle->second.executors.begin());
    --count_;
    return entry;
  }

  void put_back(const LinearShape& shape, Entry entry) {
    Entry dropped;  // destroyed after the lock is released
    const std::lock_guard lock(mutex_);
    Idle& idle = idle_[shape];
    idle.executors.splice(idle.executors.begin(), entry);
    idle.last_use = ++clock_;
    if (++count_ <= kMaxIdle) return;
    const auto oldest = std::min_element(
        idle_.begin(), idle_.end(), [](const auto& a, const auto& b) { return a.second.rank() < b.second.rank(); });
    dropped.splice(dropped.begin(), oldest->second.executors, oldest->second.executors.begin());
    --count_;
    if (oldest->second.executors.empty()) idle_.erase(oldest);
  }

 private:
  static constexpr std::size_t kMaxIdle = 512;
  struct Idle {
    Entry executors;
    std::uint64_t last_use = 0;
    /// Order of eviction; a shape whose executors are all in use has none to give.
    std::uint64_t rank() const { return executors.empty() ? UINT64_MAX : last_use; }
  };
  std::mutex mutex_;
  std::unordered_map<LinearShape, Idle, HashOfShape> idle_;
  std::size_t count_ = 0;
  std::uint64_t clock_ = 0;
};

// The stride between `rows` rows of `width`; between fewer than two rows any will do.
std::int64_t stride_of_rows(std::int64_t rows, std::int64_t width, std::int64_t stride) {
  return rows > 1 ? stride : std::max(stride, width);
}

Status check(const LinearWeights& weights, const LinearCall& call) {
  if (weights.packed() == nullptr) return {StatusCode::kInvalidArgument, "linear: the weights hold nothing"};
  if (call.m < 0 || stride_of_rows(call.m, weights.in(), call.x_row_stride) < weights.in() ||
      stride_of_rows(call.m, weights.out(), call.y_row_stride) < weights.out()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("linear: {} rows with strides {} (x) and {} (y) do not fit weights [{}, {}]", call.m,
                        call.x_row_stride, call.y_row_stride, weights.out(), weights.in())};
  }
  return {};
}

Status refused(const LinearWeights::Packed& weights, const LinearCall& call, std::string_view why) {
  return {StatusCode::kInternal, fmt::format("linear: oneDNN refused [{} x {}] times weights [{}, {}]: {}", call.m,
                                             weights.in, weights.out, weights.in, why)};
}

Result<ExecutorCache::Entry> take_or_make(const LinearWeights::Packed& weights, const LinearCall& call,
                                          const LinearShape& shape) {
  ExecutorCache::Entry entry = ExecutorCache::of_process().take(shape);
  if (!entry.empty()) return entry;
  try {
    entry.emplace_back(weights, shape);
  } catch (const std::exception& error) {
    return refused(weights, call, error.what());
  }
  return entry;
}

// What a product over nothing leaves.
void scale_outputs(const GemmCall& call) {
  for (std::int64_t i = 0; i < call.batch; ++i) {
    for (std::int64_t row = 0; row < call.m; ++row) {
      float* const c = call.c + i * call.c_batch_stride + row * call.c_row_stride;
      for (std::int64_t column = 0; column < call.n; ++column)
        c[column] = call.beta == 0.0F ? 0.0F : c[column] * call.beta;
    }
  }
}

// The activations that the matmul does not apply itself (see linear_executor.cpp).
void activate(const LinearCall& call, std::int64_t out) {
  const auto op = [&]() -> std::optional<UnaryOp> {
    switch (call.activation) {
      case Activation::kGeluErf: return UnaryOp::kGeluErf;
      case Activation::kGeluTanh: return UnaryOp::kGeluTanh;
      case Activation::kSilu: return UnaryOp::kSilu;
      case Activation::kTanh: return UnaryOp::kTanh;
      case Activation::kNone:
      case Activation::kRelu: break;
    }
    return std::nullopt;
  }();
  if (!op.has_value()) return;
  const RowKernel kernel = unary_row_kernel(*op, DType::kFloat32, DType::kFloat32);
  for (std::int64_t row = 0; row < call.m; ++row) {
    float* const y = call.y + row * call.y_row_stride;
    const void* const input = y;
    kernel(&input, y, out, {});
  }
}

}  // namespace

LinearWeights::LinearWeights() = default;
LinearWeights::LinearWeights(LinearWeights&&) noexcept = default;
LinearWeights& LinearWeights::operator=(LinearWeights&&) noexcept = default;
LinearWeights::~LinearWeights() = default;

std::int64_t LinearWeights::out() const { return packed_ == nullptr ? 0 : packed_->out; }
std::int64_t LinearWeights::in() const { return packed_ == nullptr ? 0 : packed_->in; }
std::size_t LinearWeights::bytes() const { return packed_ == nullptr ? 0 : packed_->layout.get_size(); }

Result<LinearWeights> LinearWeights::pack(const float* weights, std::int64_t out, std::int64_t in,
                                          std::int64_t row_stride) {
  if (out <= 0 || in <= 0 || row_stride < in) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("linear weights [{}, {}] with rows {} apart: sizes must be positive, rows not overlap",
                              out, in, row_stride));
  }
  const OneThread one_thread;
  try {
    auto packed = std::make_unique<Packed>();
    packed->out = out;
    packed->in = in;
    packed->layout = packed_layout(out, in);
    packed->bytes = allocate_aligned(packed->layout.get_size());
    if (packed->bytes == nullptr) {
      return Status(StatusCode::kResourceExhausted, fmt::format("no memory for linear weights [{}, {}]", out, in));
    }
    packed->memory = dnnl::memory(packed->layout, cpu_engine(), packed->bytes.get());
    const dnnl::memory::desc given({in, out}, dnnl::memory::data_type::f32, dnnl::memory::dims{1, row_stride});
    dnnl::memory source(given, cpu_engine(), const_cast<float*>(weights));  // a reorder only reads its source
    dnnl::stream stream(cpu_engine());
    dnnl::reorder(source, packed->memory).execute(stream, source, packed->memory);
    LinearWeights result;
    result.packed_ = std::move(packed);
    return result;
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, fmt::format("oneDNN cannot pack weights [{}, {}]: {}", out, in, error.what()));
  }
}

Status linear(const LinearWeights& weights, const LinearCall& call) {
  ACCORD_RETURN_IF_ERROR(check(weights, call));
  if (call.m == 0) return {};
  const LinearWeights::Packed& packed = *weights.packed();
  const LinearShape shape = shape_of(packed, call);
  const OneThread one_thread;
  ACCORD_ASSIGN_OR_RETURN(ExecutorCache::Entry entry, take_or_make(packed, call, shape));
  const dnnl_status_t status = entry.front().run(packed, call);
  ExecutorCache::of_process().put_back(shape, std::move(entry));
  if (status != dnnl_success) return refused(packed, call, dnnl_status2str(status));
  activate(call, packed.out);
  return {};
}

Status prepare_linear(const LinearWeights& weights, const LinearCall& call) {
  ACCORD_RETURN_IF_ERROR(check(weights, call));
  if (call.m == 0) return {};
  const LinearShape shape = shape_of(*weights.packed(), call);
  const OneThread one_thread;
  ACCORD_ASSIGN_OR_RETURN(ExecutorCache::Entry entry, take_or_make(*weights.packed(), call, shape));
  ExecutorCache::of_process().put_back(shape, std::move(entry));
  return {};
}

Status gemm(const GemmCall& call) {
  const bool transposed = call.transpose_b == Transpose::kYes;
  const std::int64_t a_stride = stride_of_rows(call.m, call.k, call.a_row_stride);
  const std::int64_t b_stride = transposed ? stride_of_rows(call.n, call.k, call.b_row_stride)
                                           : stride_of_rows(call.k, call.n, call.b_row_stride);
  const std::int64_t c_stride = stride_of_rows(call.m, call.n, call.c_row_stride);
  if (call.m < 0 || call.n < 0 || call.k < 0 || call.batch < 0 || a_stride < call.k ||
      b_stride < (transposed ? call.k : call.n) || c_stride < call.n) {
    return {StatusCode::kInvalidArgument,
            fmt::format(
                "gemm [{} x {}] times [{} x {}], {} of them: row strides {}, {} and {} are too small or a size is "
                "negative",
                call.m, call.k, call.k, call.n, call.batch, call.a_row_stride, call.b_row_stride, call.c_row_stride)};
  }
  if (call.m == 0 || call.n == 0) return {};
  if (call.k == 0) {
    scale_outputs(call);
    return {};
  }
  const OneThread one_thread;
  for (std::int64_t i = 0; i < call.batch; ++i) {
    const dnnl_status_t status = dnnl_sgemm(
        'N', transposed ? 'T' : 'N', call.m, call.n, call.k, call.alpha, call.a + i * call.a_batch_stride, a_stride,
        call.b + i * call.b_batch_stride, b_stride, call.beta, call.c + i * call.c_batch_stride, c_stride);
    if (status != dnnl_success) {
      return {StatusCode::kInternal, fmt::format("gemm [{} x {}] times [{} x {}]: oneDNN says {}", call.m, call.k,
                                                 call.k, call.n, dnnl_status2str(status))};
    }
  }
  return {};
}

}  // namespace accord::kernels
