#pragma once
// Configuration from the environment: every ACCORD_* variable that accord reads, typed and documented in one table
// (config.cpp).

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

/// Settings that a group may override. The environment sets them for all groups.
struct GroupHints {
  std::optional<WaitPolicy> wait = {};            ///< absent: chosen from the numbers of cores and ranks
  std::size_t slot_bytes = std::size_t{1} << 20;  ///< scratch bytes of one round
  std::size_t recorder_size = 1024;               ///< recorded operations of each order, a power of two
  // Device calls; absent means NCCL's own choice.
  bool is_high_priority_stream = false;      ///< for started calls
  std::optional<int> cga_cluster_size = {};  ///< thread blocks per cluster, 0 to 8
  std::optional<int> min_ctas = {};          ///< thread blocks used by NCCL, 1 to 64
  std::optional<int> max_ctas = {};
  std::optional<std::string> net_name = {};  ///< "IB", "Socket", or a plugin's name
  bool operator==(const GroupHints&) const = default;
};

/// With how many ranks a job whose ranks change goes on (accord/elastic.hpp).
struct RankRange {
  int least = 1;  ///< fewer form no group
  int most = 1;   ///< further ranks are spares
};
/// Reads "2:4". kInvalidArgument if it is something else, or least > most, or a number is not from 1 to 65536.
Result<RankRange> parse_rank_range(std::string_view text);

struct Config {
  std::string log_level = "warn";              ///< ACCORD_LOG
  std::string debug = "off";                   ///< ACCORD_DEBUG, "info" or "off"
  Duration timeout = std::chrono::minutes(5);  ///< ACCORD_TIMEOUT, seconds
  std::string transport = "auto";              ///< ACCORD_TRANSPORT
  std::string host_id;                         ///< ACCORD_HOST_ID, part of a host's identity
  std::string select;                          ///< ACCORD_SELECT, see docs/architecture.md
  GroupHints hints;                            ///< the variables that are also hints
  bool single_copy = true;                     ///< ACCORD_SINGLE_COPY, "auto" or "off"
  bool kernel_overlap = true;                  ///< ACCORD_KERNEL_OVERLAP, "auto" or "off"
  int threads = 1;                             ///< ACCORD_THREADS, compute threads of an engine in each rank
  std::optional<RankRange> elastic;            ///< ACCORD_ELASTIC, of the job
  std::string dump_directory;                  ///< ACCORD_DUMP_DIR, where failures are dumped; empty: nowhere
  std::string nccl;                            ///< ACCORD_NCCL, the library's path; empty: searched for
  std::string cublaslt;                        ///< ACCORD_CUBLASLT, the same
};

/// One variable, for `accord info` and the docs.
struct ConfigEntry {
  std::string_view variable;
  std::string_view default_value;
  std::string_view meaning;
};
std::span<const ConfigEntry> config_entries();

/// The environment variables of this process.
std::map<std::string, std::string> process_environment();

/// Reads `environment` (name -> value). Fails with kInvalidArgument if a value is out of range or a variable with our
/// prefix is not in the table; the error then gives the nearest name.
Result<Config> parse_config(const std::map<std::string, std::string>& environment);

/// Returns `hints` with the settings in `text` applied: "wait=yield,slot_bytes=64k". A hint is named like the
/// variable above, without the prefix and in lower case, and accepts the same values. Fails with kInvalidArgument on
/// an unknown hint and gives the nearest name.
Result<GroupHints> parse_hints(std::string_view text, GroupHints hints);

/// parse_config() of this process's environment, read once.
const Result<Config>& config();

}  // namespace accord
