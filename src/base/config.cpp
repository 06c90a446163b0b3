// kVariables is the single table of environment variables: name, default, meaning and the function that reads the
// value into a Config. parse_config() looks up every variable with our prefix in it. An unknown variable is rejected,
// because it is either a typing error or meant for another version, and both would otherwise go unnoticed.
// kBuildVariables lists the variables that only the build scripts read.
#include "base/config.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "base/device_limits.hpp"
#include "base/text.hpp"
#include "base/timeout_limits.hpp"

namespace accord {
namespace {

constexpr std::string_view kPrefix = "ACCORD_";

Status one_of(std::string_view what, std::string_view text, std::span<const std::string_view> names) {
  if (std::find(names.begin(), names.end(), text) != names.end()) return Status();
  return unknown_name(what, text, names);
}

Status read_log_level(std::string_view text, Config& config) {
  constexpr std::array<std::string_view, 6> kLevels = {"trace", "debug", "info", "warn", "error", "off"};
  ACCORD_RETURN_IF_ERROR(one_of("level", text, kLevels));
  config.log_level = text;
  return Status();
}

Status read_debug(std::string_view text, Config& config) {
  constexpr std::array<std::string_view, 2> kLevels = {"info", "off"};
  ACCORD_RETURN_IF_ERROR(one_of("level", text, kLevels));
  config.debug = text;
  return Status();
}

Status read_timeout(std::string_view text, Config& config) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds, std::chars_format::fixed);
  const bool number = error == std::errc() && end == text.data() + text.size();
  if (!number || !(seconds >= kShortestTimeout && seconds <= kLongestTimeout)) {
    return Status(StatusCode::kInvalidArgument, fmt::format("\"{}\" is not a number of seconds from {} to {:.0f}", text,
                                                            kShortestTimeout, kLongestTimeout));
  }
  config.timeout = std::chrono::nanoseconds(std::llround(seconds * 1e9));
  return Status();
}

Status read_transport(std::string_view text, Config& config) {
  constexpr std::array<std::string_view, 4> kTransports = {"auto", "inproc", "shm", "ucx"};
  ACCORD_RETURN_IF_ERROR(one_of("transport", text, kTransports));
  config.transport = text;
  return Status();
}

Status read_host_id(std::string_view text, Config& config) {
  constexpr std::size_t kLongest = 64;
  if (text.size() > kLongest)
    return Status(StatusCode::kInvalidArgument, fmt::format("{} is longer than {} bytes", quoted_text(text), kLongest));
  config.host_id = text;
  return Status();
}

Status read_select(std::string_view text, Config& config) {
  config.select = text;  // the selector owns the grammar and rejects what it does not understand
  return Status();
}

Status read_wait(std::string_view text, Config& config) {
  constexpr std::array<std::string_view, 3> kPolicies = {"auto", "spin", "yield"};
  ACCORD_RETURN_IF_ERROR(one_of("wait policy", text, kPolicies));
  config.hints.wait.reset();
  if (text != "auto") config.hints.wait = text == "spin" ? WaitPolicy::kSpin : WaitPolicy::kYield;
  return Status();
}

Status read_slot_bytes(std::string_view text, Config& config) {
  ACCORD_ASSIGN_OR_RETURN(const std::size_t bytes, parse_bytes(text));
  if (bytes < 4096 || bytes > std::size_t{1} << 30 || bytes % 4096 != 0) {
    return Status(StatusCode::kInvalidArgument, fmt::format("\"{}\" is not a multiple of 4k from 4k to 1g", text));
  }
  config.hints.slot_bytes = bytes;
  return Status();
}

Status read_threads(std::string_view text, Config& config) {
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t threads, parse_integer(text, "threads"));
  if (threads < 1 || threads > 1024) {
    return Status(StatusCode::kInvalidArgument, fmt::format("\"{}\" is not a number from 1 to 1024", text));
  }
  config.threads = static_cast<int>(threads);
  return Status();
}

Status read_recorder_size(std::string_view text, Config& config) {
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t size, parse_integer(text, "operations"));
  if (size < 16 || size > 1 << 20 || !std::has_single_bit(static_cast<std::uint64_t>(size))) {
    return Status(StatusCode::kInvalidArgument, fmt::format("\"{}\" is not a power of two from 16 to 1048576", text));
  }
  config.hints.recorder_size = static_cast<std::size_t>(size);
  return Status();
}

Status read_mode(std::string_view text, bool& is_on) {
  constexpr std::array<std::string_view, 2> kModes = {"auto", "off"};
  ACCORD_RETURN_IF_ERROR(one_of("mode", text, kModes));
  is_on = text == "auto";
  return Status();
}

Status read_single_copy(std::string_view text, Config& config) { return read_mode(text, config.single_copy); }

Status read_kernel_overlap(std::string_view text, Config& config) { return read_mode(text, config.kernel_overlap); }

Status read_dump_directory(std::string_view text, Config& config) {
  config.dump_directory = text;  // checked when there is something to write
  return Status();
}

Status read_nccl(std::string_view text, Config& config) {
  config.nccl = text;  // checked at the first call on a GPU
  return Status();
}

Status read_cublaslt(std::string_view text, Config& config) {
  config.cublaslt = text;  // checked when an engine is loaded on a GPU
  return Status();
}

/// Returns nullopt for "auto".
Result<std::optional<int>> number_or_auto(std::string_view text, int min, int max) {
  if (text == "auto") return std::optional<int>();
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t number, parse_integer(text, "a number"));
  if (number >= min && number <= max) return std::optional(static_cast<int>(number));
  return Status(StatusCode::kInvalidArgument, fmt::format("\"{}\" is not a number from {} to {}", text, min, max));
}

Status read_high_priority(std::string_view text, Config& config) {
  constexpr std::array<std::string_view, 2> kAnswers = {"yes", "no"};
  ACCORD_RETURN_IF_ERROR(one_of("answer", text, kAnswers));
  config.hints.is_high_priority_stream = text == "yes";
  return Status();
}
Status read_cga_cluster_size(std::string_view text, Config& config) {
  ACCORD_ASSIGN_OR_RETURN(config.hints.cga_cluster_size, number_or_auto(text, 0, kLargestCluster));
  return Status();
}
Status read_min_ctas(std::string_view text, Config& config) {
  ACCORD_ASSIGN_OR_RETURN(config.hints.min_ctas, number_or_auto(text, 1, kMaxCtas));
  return Status();
}
Status read_max_ctas(std::string_view text, Config& config) {
  ACCORD_ASSIGN_OR_RETURN(config.hints.max_ctas, number_or_auto(text, 1, kMaxCtas));
  return Status();
}
Status read_net_name(std::string_view text, Config& config) {
  config.hints.net_name =
      text == "auto" ? std::optional<std::string>() : std::string(text);  // NCCL reports which ones exist
  return Status();
}

Status read_route(std::string_view text, Config&) {
  constexpr std::array<std::string_view, 5> kModes = {"0", "1", "off", "on", "report"};
  return one_of("mode", text, kModes);  // python/accord/torch/route.py acts on it
}

// comm/environment.cpp reads the value and compares it with the job's name.
Status read_job_store(std::string_view, Config&) { return Status(); }

Status read_elastic(std::string_view text, Config& config) {
  if (text.empty()) return Status();
  ACCORD_ASSIGN_OR_RETURN(config.elastic, parse_rank_range(text));
  return Status();
}

// A shell that has built accord may also start programs that use it; the variable has no effect on them.
constexpr std::array<std::string_view, 1> kBuildVariables = {"ACCORD_CUDA"};

struct Variable {
  ConfigEntry entry;
  Status (*read)(std::string_view text, Config& config);
  std::string_view hint = {};  ///< name as a hint for one group; empty: set by the environment only
};

constexpr std::array<Variable, 23> kVariables = {{
    {{"ACCORD_LOG", "warn", "what is logged to standard error: trace, debug, info, warn, error or off"},
     read_log_level},
    {{"ACCORD_DEBUG", "off",
      "info: log where the ranks of each communicator run and which plans serve its calls; or off"},
     read_debug},
    {{"ACCORD_TIMEOUT", "300", "seconds (fractions allowed) that a call waits for other ranks before it fails"},
     read_timeout},
    {{"ACCORD_TRANSPORT", "auto", "how bytes travel between ranks: auto, inproc, shm or ucx"}, read_transport},
    {{"ACCORD_HOST_ID", "",
      "a name: ranks of one machine share memory only with those of the same name; to try out several hosts on one"},
     read_host_id},
    {{"ACCORD_SELECT", "",
      "overrides which plan runs which collective: a table (docs/architecture.md), or @FILE of accord tune"},
     read_select},
    {{"ACCORD_WAIT", "auto",
      "how ranks wait for each other: spin for a while, yield their core at once, or auto: yield if there are more "
      "ranks than cores"},
     read_wait,
     "wait"},
    {{"ACCORD_SLOT_BYTES", "1m", "scratch of one round of a collective in each rank: 4k to 1g, in multiples of 4k"},
     read_slot_bytes,
     "slot_bytes"},
    {{"ACCORD_THREADS", "1", "threads that an engine computes with in each rank, 1 to 1024"}, read_threads},
    {{"ACCORD_RECORDER_SIZE", "1024",
      "operations that the flight recorder of a communicator keeps, a power of two from 16 to 1048576"},
     read_recorder_size,
     "recorder_size"},
    {{"ACCORD_SINGLE_COPY", "auto",
      "auto: ranks of one host copy large buffers from each other's memory where the kernel lets them; or off"},
     read_single_copy},
    {{"ACCORD_KERNEL_OVERLAP", "auto",
      "auto: kernels of engines on GPUs start while the kernel before them ends, where the GPU can do that; or off"},
     read_kernel_overlap},
    {{"ACCORD_DUMP_DIR", "", "directory where each rank writes its flight record when a communicator fails"},
     read_dump_directory},
    {{"ACCORD_NCCL", "", "path of the NCCL library for GPUs; else the one in the process, of PyPI or of the system"},
     read_nccl},
    {{"ACCORD_CUBLASLT", "",
      "path of the cuBLASLt library for engines on GPUs; else the one in the process, of PyPI or of the system"},
     read_cublaslt},
    {{"ACCORD_IS_HIGH_PRIORITY_STREAM", "no",
      "whether calls that are started on GPUs have priority over other kernels: yes or no"},
     read_high_priority,
     "is_high_priority_stream"},
    {{"ACCORD_CGA_CLUSTER_SIZE", "auto", "thread blocks in a cluster of NCCL's kernels: auto, or 0 to 8"},
     read_cga_cluster_size,
     "cga_cluster_size"},
    {{"ACCORD_MIN_CTAS", "auto", "smallest number of thread blocks of NCCL's kernels: auto, or 1 to 64"},
     read_min_ctas,
     "min_ctas"},
    {{"ACCORD_MAX_CTAS", "auto", "largest number of thread blocks of NCCL's kernels: auto, or 1 to 64"},
     read_max_ctas,
     "max_ctas"},
    {{"ACCORD_NET_NAME", "auto", "the network that NCCL uses between hosts: auto, IB, Socket, or that of a plugin"},
     read_net_name,
     "net_name"},
    {{"ACCORD_ROUTE", "0",
      "1: every process group of torch.distributed is accord's, whatever backend the program asks for; report: also "
      "say "
      "so at the end"},
     read_route},
    {{"ACCORD_JOB_STORE", "", "set by accord run: the job whose store the launcher hosts, so that rank 0 does not"},
     read_job_store},
    {{"ACCORD_ELASTIC", "", "MIN:MAX, with how many ranks an elastic group goes on; accord run --elastic sets it"},
     read_elastic},
}};

constexpr auto kEntries = [] {
  std::array<ConfigEntry, kVariables.size()> entries;
  for (std::size_t i = 0; i < entries.size(); ++i) entries[i] = kVariables[i].entry;
  return entries;
}();

// Names are compared without their common prefix, which would make any two names look similar.
Status unknown_variable(std::string_view name) {
  std::array<std::string_view, kEntries.size()> suffixes;
  std::transform(kEntries.begin(), kEntries.end(), suffixes.begin(),
                 [](const ConfigEntry& entry) { return entry.variable.substr(kPrefix.size()); });
  std::string message = fmt::format("unknown environment variable {}", quoted_text(name));
  if (const auto nearest = nearest_name(name.substr(kPrefix.size()), suffixes)) {
    message += fmt::format("; did you mean \"{}{}\"?", kPrefix, *nearest);
  } else {
    message += fmt::format("; available: {}{}", kPrefix, fmt::join(suffixes, fmt::format(", {}", kPrefix)));
  }
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

}  // namespace

std::map<std::string, std::string> process_environment() {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::span<const ConfigEntry> config_entries() { return kEntries; }

Result<RankRange> parse_rank_range(std::string_view text) {
  constexpr std::int64_t kMost = 65536;
  const std::vector<std::string_view> numbers = split_text(text, ':');
  if (numbers.size() == 2) {
    const Result<std::int64_t> least = parse_integer(numbers[0], "ranks");
    const Result<std::int64_t> most = parse_integer(numbers[1], "ranks");
    if (least.ok() && most.ok() && *least >= 1 && *least <= *most && *most <= kMost)
      return RankRange{.least = static_cast<int>(*least), .most = static_cast<int>(*most)};
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("\"{}\" is not MIN:MAX, two numbers of ranks from 1 to {}", text, kMost));
}

Result<Config> parse_config(const std::map<std::string, std::string>& environment) {
  Config config;
  for (const auto& [name, value] : environment) {
    if (!name.starts_with(kPrefix)) continue;
    if (std::find(kBuildVariables.begin(), kBuildVariables.end(), name) != kBuildVariables.end()) continue;
    const auto variable = std::find_if(kVariables.begin(), kVariables.end(),
                                       [&name = name](const Variable& v) { return v.entry.variable == name; });
    if (variable == kVariables.end()) return unknown_variable(name);
    const Status status = variable->read(value, config);
    if (!status.ok()) return status.with_context("environment variable " + name);
  }
  return config;
}

Result<GroupHints> parse_hints(std::string_view text, GroupHints hints) {
  Config config;
  config.hints = std::move(hints);
  std::vector<std::string_view> names, given;
  for (const Variable& variable : kVariables)
    if (!variable.hint.empty()) names.push_back(variable.hint);
  for (const std::string_view item : text.empty() ? std::vector<std::string_view>() : split_text(text, ',')) {
    const std::size_t equals = std::min(item.find('='), item.size());
    const std::string_view name = item.substr(0, equals);
    const auto variable =
        std::find_if(kVariables.begin(), kVariables.end(), [&](const Variable& v) { return v.hint == name; });
    if (variable == kVariables.end() || name.empty()) return unknown_name("hint", name, names);
    if (equals == item.size())
      return Status(StatusCode::kInvalidArgument, fmt::format("hint {0} has no value; write {0}=VALUE", name));
    if (std::find(given.begin(), given.end(), name) != given.end())
      return Status(StatusCode::kInvalidArgument, fmt::format("hint {} is given twice", name));
    given.push_back(name);
    const Status status = variable->read(item.substr(equals + 1), config);
    if (!status.ok()) return status.with_context(fmt::format("hint {}", name));
  }
  return config.hints;
}

const Result<Config>& config() {
  static const Result<Config> read = parse_config(process_environment());
  return read;
}

}  // namespace accord
