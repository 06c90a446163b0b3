// Options are checked one by one, then against each other.
#include "engine/runtime/load_settings.hpp"

#include <fmt/format.h>

#include <bit>

#include "base/config.hpp"

namespace accord::engine {
namespace {

constexpr int kMaxThreads = 1024;

Result<int> thread_count(const LoadOptions& options) {
  int threads = options.threads;
  if (threads == 0) {
    if (!config().ok()) return config().status();
    threads = config()->threads;
  }
  if (threads >= 1 && threads <= kMaxThreads) return threads;
  return Status(StatusCode::kInvalidArgument, fmt::format("threads is {}; expected 1 to {}", threads, kMaxThreads));
}

Status check_canonical(int ranks) {
  if (ranks == 0 || (ranks > 0 && std::has_single_bit(static_cast<unsigned>(ranks)))) return Status();
  return Status(StatusCode::kInvalidArgument, fmt::format("canonical_ranks is {}, which is not a power of two", ranks));
}

Status check_sums(const LoadOptions& options) {
  const auto invalid = [](const std::string& why) { return Status(StatusCode::kInvalidArgument, why); };
  if (options.overlap_rows < 0)
    return invalid(fmt::format("overlap_rows is {}; expected 0 or more", options.overlap_rows));
  if (!options.all_reduce_dtype) return Status();
  if (*options.all_reduce_dtype != DType::kInt8) {
    return invalid(fmt::format("all_reduce_dtype is {}; expected none or int8", to_string(*options.all_reduce_dtype)));
  }
  if (options.canonical_ranks != 0)
    return invalid("all_reduce_dtype rounds sums, but canonical_ranks needs exact sums: leave out one of them");
  if (options.overlap_rows != 0)
    return invalid("overlap_rows cannot be combined with all_reduce_dtype: leave out one of them");
  return Status();
}

Status check_activations(const LoadOptions& options) {
  if (!options.activation_dtype) return Status();
  const DType dtype = *options.activation_dtype;
  const bool on_cpu = options.device.type == DeviceType::kCpu;
  if (dtype != DType::kInt8 && dtype != DType::kFloat8E4M3FN) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("activation_dtype is {}; expected none, int8 on the CPU, or float8_e4m3fn on GPUs",
                              to_string(dtype)));
  }
  if (on_cpu == (dtype == DType::kInt8)) return Status();
  return Status(StatusCode::kUnsupported,
                fmt::format("activation_dtype {} is for engines on {}, not on {}", to_string(dtype),
                            on_cpu ? "GPUs" : "the CPU", to_string(options.device)));
}

}  // namespace

Result<LoadSettings> check_options(const LoadOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const int threads, thread_count(options));
  ACCORD_RETURN_IF_ERROR(check_canonical(options.canonical_ranks));
  ACCORD_RETURN_IF_ERROR(check_sums(options));
  ACCORD_RETURN_IF_ERROR(check_activations(options));
  return LoadSettings{.threads = threads,
                      .copies_outputs = options.outputs == DeviceType::kCpu,
                      .canonical_ranks = options.canonical_ranks,
                      .overlap_rows = options.overlap_rows,
                      .all_reduce_dtype = options.all_reduce_dtype,
                      .activation_dtype = options.activation_dtype};
}

std::string arithmetic_text(const LoadSettings& settings, Device device) {
  const auto text = [](const std::optional<DType>& dtype) { return dtype ? to_string(*dtype) : "none"; };
  return fmt::format(" overlap_rows={} all_reduce_dtype={} activation_dtype={} device={}", settings.overlap_rows,
                     text(settings.all_reduce_dtype), text(settings.activation_dtype),
                     device.type == DeviceType::kCpu ? "cpu" : "cuda");
}

}  // namespace accord::engine
