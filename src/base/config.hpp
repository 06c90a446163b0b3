#pragma once
// What the environment says: every ACCORD_* variable that accord reads, typed and documented in one table (config.cpp).

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "accord/store.hpp"
#include "base/wait.hpp"

namespace accord {

/// What a group may be told for itself; the environment says it for all of them.
struct GroupHints {
  std::optional<WaitPolicy> wait = {};            ///< absent: by cores and ranks
  std::size_t slot_bytes = std::size_t{1} << 20;  ///< of the scratch of a round
  std::size_t recorder_size = 1024;               ///< operations of each order, a power of two
  // Of calls on GPUs; absent is NCCL's own choice.
  bool is_high_priority_stream = false;      ///< of started calls
  std::optional<int> cga_cluster_size = {};  ///< thread blocks in a cluster, 0 to 8
  std::optional<int> min_ctas = {};          ///< thread blocks that NCCL takes, 1 to 64
  std::optional<int> max_ctas = {};
  std::optional<std::string> net_name = {};  ///< "IB", "Socket", or that of a plugin
  bool operator==(const GroupHints&) const = default;
};

struct Config {
  std::string log_level = "warn";              ///< ACCORD_LOG
  std::string debug = "off";                   ///< ACCORD_DEBUG, "info" or "off"
  Duration timeout = std::chrono::minutes(5);  ///< ACCORD_TIMEOUT, seconds
  std::string transport = "auto";              ///< ACCORD_TRANSPORT
  std::string host_id;                         ///< ACCORD_HOST_ID, part of what tells hosts apart
  std::string select;                          ///< ACCORD_SELECT, see docs/architecture.md
  GroupHints hints;                            ///< variables that are hints, too
  bool single_copy = true;                     ///< ACCORD_SINGLE_COPY, "auto" or "off"
  int threads = 1;                             ///< ACCORD_THREADS, that an engine computes with in each rank
  std::string dump_directory;                  ///< ACCORD_DUMP_DIR, where failures are dumped; empty: nowhere
  std::string nccl;                            ///< ACCORD_NCCL, the library's path; empty: it is looked for
  std::string cublaslt;                        ///< ACCORD_CUBLASLT, the same
};

/// One variable, for `accord info` and the docs.
struct ConfigEntry {
  std::string_view variable;
  std::string_view default_value;
  std::string_view meaning;
};
std::span<const ConfigEntry> config_entries();

/// The variables of this process.
std::map<std::string, std::string> process_environment();

/// Reads `environment` (name -> value). A variable with our prefix that is not in the table is kInvalidArgument and names
/// the nearest one; so is a value out of range.
Result<Config> parse_config(const std::map<std::string, std::string>& environment);

/// `hints` with what `text` says: "wait=yield,slot_bytes=64k". A hint is a variable above without its prefix, in small letters, and
/// takes the same values. kInvalidArgument names what is unknown, and the nearest name.
Result<GroupHints> parse_hints(std::string_view text, GroupHints hints);

/// parse_config of this process's environment, read once.
const Result<Config>& config();

}  // namespace accord
