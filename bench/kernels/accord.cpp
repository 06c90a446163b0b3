// Products with packed weights, and their bounds. A command's "collective" is OPERATION-FORMAT, its "bytes" are rows:
//   product-int4   one product with weights [8192, 2048]; the weights of successive matrices are read from memory
//   read-int4      the same bytes read and added up, 64 at a time
//   matmul-bf16    oneDNN's matmul on its own layout (f32, bf16)
// The answer is in microseconds for one matrix. THREADS threads, each on its own core, share each matrix and
// synchronize after it.
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "bench/threads.hpp"
#include "bench/worker.hpp"
#include "kernels/linear/pack.hpp"
#include "kernels/linear/product.hpp"
#include "kernels/one_thread.hpp"

namespace {

using namespace accord;
using namespace accord::kernels;

constexpr std::int64_t kOut = 8192, kIn = 2048;
constexpr std::size_t kMemory = 288U << 20;  // larger than any cache

struct FreeAligned {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedBytes = std::unique_ptr<std::byte, FreeAligned>;
AlignedBytes allocate_aligned(std::size_t bytes) {
  return AlignedBytes(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
}

struct Weights {
  PackedFormat format;
  Arithmetic arithmetic = Arithmetic::kBFloat16;
  std::size_t bytes = 0;
  AlignedBytes memory;
  std::vector<PackedMatrix> matrices;
};

struct Kind {
  PackedFormat format;
  Arithmetic arithmetic;
};

constexpr PackedFormat kSuperInt4{WeightType::kInt4, 32, Minimum::kPerGroup, DType::kInt8};  // GGUF's Q4_K
constexpr PackedFormat kSuperInt5{WeightType::kInt5, 32, Minimum::kPerGroup, DType::kInt8};  // GGUF's Q5_K
constexpr PackedFormat kSuperInt6{WeightType::kInt6, 16, Minimum::kNone, DType::kInt8};      // GGUF's Q6_K
// bitsandbytes' nf4, with numbers near its own, and MXFP4.
constexpr PackedFormat kQuantiles{WeightType::kTable4,
                                  64,
                                  Minimum::kNone,
                                  DType::kFloat32,
                                  {-1.0F, -0.7F, -0.53F, -0.39F, -0.28F, -0.18F, -0.09F, 0.0F, 0.08F, 0.16F, 0.25F,
                                   0.34F, 0.44F, 0.56F, 0.72F, 1.0F}};
constexpr PackedFormat kSteps{WeightType::kTable4,
                              32,
                              Minimum::kNone,
                              DType::kFloat16,
                              {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};

const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> kinds = {
      {"f32", {{WeightType::kFloat32}, Arithmetic::kFloat32}},
      {"bf16", {{WeightType::kBFloat16}, Arithmetic::kBFloat16}},
      {"bf16xf32", {{WeightType::kBFloat16}, Arithmetic::kFloat32}},
      {"f16", {{WeightType::kFloat16}, Arithmetic::kFloat32}},
      {"int8", {{WeightType::kInt8, 32}, Arithmetic::kBFloat16}},
      {"int8g128", {{WeightType::kInt8, 128}, Arithmetic::kBFloat16}},
      {"int8xf32", {{WeightType::kInt8, 32}, Arithmetic::kFloat32}},
      {"int8xint8", {{WeightType::kInt8, 32}, Arithmetic::kInt8}},
      {"int4", {{WeightType::kInt4, 32}, Arithmetic::kBFloat16}},
      {"int4g128", {{WeightType::kInt4, 128}, Arithmetic::kBFloat16}},
      {"int4min", {{WeightType::kInt4, 32, Minimum::kPerGroup}, Arithmetic::kBFloat16}},
      {"int4xf32", {{WeightType::kInt4, 32}, Arithmetic::kFloat32}},
      {"int4xint8", {{WeightType::kInt4, 32}, Arithmetic::kInt8}},
      {"int5", {{WeightType::kInt5, 32}, Arithmetic::kBFloat16}},
      {"int5xf32", {{WeightType::kInt5, 32}, Arithmetic::kFloat32}},
      {"nf4", {kQuantiles, Arithmetic::kBFloat16}},
      {"nf4xf32", {kQuantiles, Arithmetic::kFloat32}},
      {"mxfp4", {kSteps, Arithmetic::kBFloat16}},
      {"mxfp4xf32", {kSteps, Arithmetic::kFloat32}},
      {"mxfp4xint8", {kSteps, Arithmetic::kInt8}},
      {"int4super", {kSuperInt4, Arithmetic::kBFloat16}},
      {"int4superxf32", {kSuperInt4, Arithmetic::kFloat32}},
      {"int4superxint8", {kSuperInt4, Arithmetic::kInt8}},
      {"int5super", {kSuperInt5, Arithmetic::kBFloat16}},
      {"int5superxf32", {kSuperInt5, Arithmetic::kFloat32}},
      {"int5superxint8", {kSuperInt5, Arithmetic::kInt8}},
      {"int6super", {kSuperInt6, Arithmetic::kBFloat16}},
      {"int6superxf32", {kSuperInt6, Arithmetic::kFloat32}},
      {"int6superxint8", {kSuperInt6, Arithmetic::kInt8}},
  };
  return kinds;
}

Weights& weights_of(const std::string& name) {
  static std::map<std::string, Weights> all;
  Weights& weights = all[name];
  if (weights.memory != nullptr) return weights;
  for (auto& [other, held] : all) {
    if (other != name) held = Weights();  // only one at a time
  }
  weights.format = kinds().at(name).format;
  weights.arithmetic = kinds().at(name).arithmetic;
  weights.bytes = packed_bytes(weights.format, kOut, kIn);
  const std::size_t count = kMemory / weights.bytes + 1;
  weights.memory = allocate_aligned(count * weights.bytes);
  std::vector<float> values(kOut * kIn);
  unsigned state = 1;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(state >> 8) / static_cast<float>(1 << 24) - 0.5F;
  }
  WeightSource source;
  source.data = values.data();
  source.out = kOut;
  source.in = source.out_stride = kIn;
  if (!pack(source, weights.format, {weights.memory.get(), weights.bytes}).ok()) std::abort();
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* const to = weights.memory.get() + i * weights.bytes;
    if (i > 0) std::copy_n(weights.memory.get(), weights.bytes, to);
    weights.matrices.push_back(packed_matrix(weights.format, kOut, kIn, to));
  }
  return weights;
}

double read(Weights& weights, int threads, int iterations) {
  return bench::time_of_work(threads, iterations, [&](int thread, std::size_t index) {
    bench::read_share(weights.matrices[index % weights.matrices.size()].data, weights.bytes, thread, threads);
  });
}

double multiply(Weights& weights, int threads, std::int64_t rows, int iterations) {
  const Result<RowsLayout> layout = rows_layout(weights.matrices[0], weights.arithmetic, rows);
  if (!layout.ok()) std::abort();
  const std::vector<std::uint16_t> x(static_cast<std::size_t>(rows * kIn), 0x3F80);
  const std::vector<float> x_floats(static_cast<std::size_t>(rows * kIn), 1.0F);
  std::vector<float> y(static_cast<std::size_t>(rows * kOut));
  const AlignedBytes prepared = allocate_aligned(layout->bytes());
  std::vector<AlignedBytes> scratch;
  for (int thread = 0; thread < threads; ++thread) scratch.push_back(allocate_aligned(kProductScratch));
  bench::Meeting meeting(threads);
  return bench::time_of_work(threads, iterations, [&](int thread, std::size_t index) {
    const ConstRows given = weights.arithmetic == Arithmetic::kBFloat16
                                ? ConstRows{x.data(), DType::kBFloat16, kIn}
                                : ConstRows{x_floats.data(), DType::kFloat32, kIn};
    prepare_rows(*layout, given, rows * thread / threads, rows * (thread + 1) / threads, prepared.get());
    meeting.arrive();
    ProductCall call;
    call.weights = &weights.matrices[index % weights.matrices.size()];
    call.layout = &*layout;
    call.x = prepared.get();
    call.y = {y.data(), DType::kFloat32, kOut};
    ProductShare share = full_share(call);
    const std::int64_t panels = share.last_panel;
    share.first_panel = panels * thread / threads;
    share.last_panel = panels * (thread + 1) / threads;
    if (!product(call, share, {scratch[static_cast<std::size_t>(thread)].get(), kProductScratch}).ok()) std::abort();
  });
}

// oneDNN's matmul; each thread multiplies its share of the rows.
double matmul(bool bfloat16, int threads, std::int64_t rows, int iterations) {
  using dnnl::memory;
  const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  const auto type = bfloat16 ? memory::data_type::bf16 : memory::data_type::f32;
  const std::int64_t share = rows / threads;
  const memory::desc x({share, kIn}, type, memory::format_tag::ab),
      y({share, kOut}, memory::data_type::f32, memory::format_tag::ab);
  struct Thread {
    dnnl::matmul matmul;
    memory x, weights, y;
  };
  std::vector<Thread> all;
  const OneThread one_thread;
  const dnnl::matmul::primitive_desc prepared({x, memory::desc({kIn, kOut}, type, memory::format_tag::any), y}, cpu);
  for (int thread = 0; thread < threads; ++thread) {
    all.push_back({dnnl::matmul(prepared), memory(x, cpu), memory(prepared.weights_desc(), cpu), memory(y, cpu)});
  }
  return bench::time_of_work(threads, iterations, [&](int thread, std::size_t) {
    const OneThread alone;
    Thread& mine = all[static_cast<std::size_t>(thread)];
    dnnl::stream stream(cpu);
    mine.matmul.execute(stream, {{DNNL_ARG_SRC, mine.x}, {DNNL_ARG_WEIGHTS, all[0].weights}, {DNNL_ARG_DST, mine.y}});
  });
}

std::string measure(const bench::Command& command, int threads) {
  const std::size_t dash = command.collective.find('-');
  const std::string operation = command.collective.substr(0, dash), format = command.collective.substr(dash + 1);
  const std::int64_t rows = static_cast<std::int64_t>(command.bytes);
  if (operation == "matmul") return std::to_string(matmul(format == "bf16", threads, rows, command.iterations));
  if (operation == "read") return std::to_string(read(weights_of(format), threads, command.iterations));
  return std::to_string(multiply(weights_of(format), threads, rows, command.iterations));
}

}  // namespace

int main(int, char** argv) {
  const int threads = bench::number_of("THREADS");
  return accord::bench::serve(std::string(argv[1]) + ".0",
                              [&](const accord::bench::Command& command) { return measure(command, threads); });
}
